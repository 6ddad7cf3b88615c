// Activations of products with block-quantised weights: 8-bit codes in groups of 32, and a unit's share of an output.
// Private to backend/cuda.
#pragma once

#include <cstdint>

#include "backend/cuda/block_formats.cuh"
#include "backend/cuda/numbers.cuh"

namespace infinigen {

// What a product needs to know of 32 activations.
struct alignas(8) ActivationGroup {
  float scale;
  uint32_t half_sums;  // sums of the codes of both halves, 16 bits each

  __device__ int HalfSum(int half) const { return static_cast<int16_t>(half_sums >> (16 * half)); }
  __device__ int Sum() const { return __dp2a_lo(static_cast<int>(half_sums), 0x0101, 0); }
};
struct alignas(16) TwoActivationGroups {
  ActivationGroup group[2];
};
// Quantised activations, in global or shared memory. Runs of 16 codes of a row go to four planes in turn, so that
// threads that read the same part of neighbouring units read neighbouring bytes.
struct QuantisedRows {
  int8_t* codes;            // [rows][4][PlaneBytes]
  ActivationGroup* groups;  // [rows][cols / 32]
  int cols;

  // Numbers are without a sign, so that divisions by powers of two are shifts.
  __device__ int8_t* CodesAt(int row, uint32_t number) const {
    return codes + (4 * static_cast<uint32_t>(row) + number / 16 % 4) * static_cast<uint32_t>(PlaneBytes(cols)) +
           number / 64 * 16 + number % 16;
  }
  __device__ ActivationGroup& GroupOf(int row, uint32_t number) const {
    return groups[static_cast<uint32_t>(row) * (static_cast<uint32_t>(cols) / 32) + number / 32];
  }

  // In shared memory the second half of a run of 32 has other banks than the first.
  __host__ __device__ static constexpr int PlaneBytes(int cols) { return (cols + 255) / 256 * 64 + 32; }
  __host__ __device__ static constexpr int64_t Bytes(int64_t rows, int cols) {
    return rows * (4 * PlaneBytes(cols) + cols / 32 * static_cast<int64_t>(sizeof(ActivationGroup)));
  }
  __host__ __device__ static QuantisedRows In(void* memory, int64_t rows, int cols) {
    auto* codes = static_cast<int8_t*>(memory);
    return {codes, reinterpret_cast<ActivationGroup*>(codes + rows * 4 * PlaneBytes(cols)), cols};
  }
  __device__ QuantisedRows From(int row) const {
    return {codes + row * 4 * PlaneBytes(cols), groups + row * (cols / 32), cols};
  }
};

// Eight numbers of a row, `part` counts the eights; zeros behind the end. `aligned`: x is a multiple of 16 bytes.
template <class In>
__device__ void LoadActivations(const In* x, int part, bool inside, bool aligned, float (&numbers)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) numbers[i] = 0;
  if (!inside) return;
  if (aligned) {
    alignas(16) In loaded[8];
#pragma unroll
    for (size_t word = 0; word < sizeof(loaded) / 16; ++word)
      reinterpret_cast<uint4*>(loaded)[word] = reinterpret_cast<const uint4*>(x + part * 8)[word];
#pragma unroll
    for (int i = 0; i < 8; ++i) numbers[i] = AsFloat(loaded[i]);
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) numbers[i] = AsFloat(x[part * 8 + i]);
}

// Four threads quantise a group, eight numbers each; `part` counts the eights of a row. The scale is the largest
// magnitude / 127: 8 bits, where the CPU has 12. A group with NaN or infinity has the scale NaN. All threads of a warp
// call it; those with `part` behind the end of the row store nothing.
__device__ inline void QuantiseEight(const float (&numbers)[8], int row, int part, const QuantisedRows& out) {
  float largest = 0;
  bool finite = true;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    largest = fmaxf(largest, fabsf(numbers[i]));
    finite = finite && isfinite(numbers[i]);
  }
  for (int step = 1; step <= 2; step *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    finite = __shfl_xor_sync(0xffffffffu, finite ? 1 : 0, step) != 0 && finite;
  }
  const bool zero = !(largest >= 0x1p-100f) || !finite;
  const float inverse = zero ? 0.0f : 127.0f / largest;
  int sum = 0;
  uint32_t codes[2] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int code = __float2int_rn(numbers[i] * inverse);  // 0 for NaN
    sum += code;
    codes[i / 4] |= (static_cast<uint32_t>(code) & 255u) << (i % 4 * 8);
  }
  sum += __shfl_xor_sync(0xffffffffu, sum, 1);
  const int second = __shfl_xor_sync(0xffffffffu, sum, 2);
  if (part >= out.cols / 8) return;
  const uint32_t first = static_cast<uint32_t>(part) * 8;
  *reinterpret_cast<uint2*>(out.CodesAt(row, first)) = {codes[0], codes[1]};
  if (part % 4 == 0)
    out.GroupOf(row, first) = {finite ? (zero ? 0.0f : largest / 127.0f) : __int_as_float(0x7fc00000),
                               (static_cast<uint32_t>(sum) & 0xffffu) | static_cast<uint32_t>(second) << 16};
}

// All kThreads threads of a block quantise one row. Loads of several parts are on their way at once.
template <int kThreads, class In>
__device__ void QuantiseRow(const In* x, const QuantisedRows& out) {
  constexpr int kTogether = 4;
  const int parts = out.cols / 8;
  const bool aligned = reinterpret_cast<uintptr_t>(x) % 16 == 0;
  for (int first = 0; first < parts; first += kTogether * kThreads) {
    float numbers[kTogether][8];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int part = first + i * kThreads + static_cast<int>(threadIdx.x);
      LoadActivations(x, part, part < parts, aligned, numbers[i]);
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i)
      if (first + i * kThreads < parts)
        QuantiseEight(numbers[i], 0, first + i * kThreads + static_cast<int>(threadIdx.x), out);
  }
}

// sum + four products of weights, signed or unsigned, with signed activations.
template <bool kUnsigned>
__device__ int Dot4(uint32_t weights, int codes, int sum) {
  if constexpr (!kUnsigned) return __dp4a(static_cast<int>(weights), codes, sum);
  int result;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(weights), "r"(codes), "r"(sum));
  return result;
}

// Adds a unit's share of the output of kRows rows. `at`: the first number of its block.
template <class Format, int kRows>
__device__ void AddUnit(const typename Format::Unit& unit, int at, const QuantisedRows& x, float (&sums)[kRows]) {
  constexpr uint32_t kRuns = Format::Unit::kWords / 4;  // of 16 codes
  const auto plane = static_cast<uint32_t>(QuantisedRows::PlaneBytes(x.cols));
  const uint32_t firsts[2] = {static_cast<uint32_t>(at + unit.at[0]), static_cast<uint32_t>(at + unit.at[1])};
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    ActivationGroup groups[2];
    if constexpr (kRuns == 2) {  // the halves are neighbouring groups
      const auto both = reinterpret_cast<const TwoActivationGroups&>(x.GroupOf(row, firsts[0]));
      groups[0] = both.group[0], groups[1] = both.group[1];
    } else {
      for (int half = 0; half < 2; ++half) groups[half] = x.GroupOf(row, firsts[half]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t first = firsts[half];
      const ActivationGroup group = groups[half];
      const int of_codes = kRuns == 2 ? group.Sum() : group.HalfSum(static_cast<int>(first / 16 % 2));
      int sum = 0;
#pragma unroll
      for (uint32_t run = 0; run < kRuns; ++run) {
        const int8_t* from = kRuns == 2 ? x.CodesAt(row, firsts[0]) + (2 * half + run) * plane  // of 64, one in each
                                        : x.CodesAt(row, first + 16 * run);
        const int4 codes = *reinterpret_cast<const int4*>(from);
        sum = Dot4<Format::kUnsigned>(unit.codes[half][4 * run], codes.x, sum);
        sum = Dot4<Format::kUnsigned>(unit.codes[half][4 * run + 1], codes.y, sum);
        sum = Dot4<Format::kUnsigned>(unit.codes[half][4 * run + 2], codes.z, sum);
        sum = Dot4<Format::kUnsigned>(unit.codes[half][4 * run + 3], codes.w, sum);
      }
      if constexpr (Format::kCentre != 0) sum -= Format::kCentre * of_codes;
      float term = unit.scale[half] * static_cast<float>(sum);
      if constexpr (Format::kOffsets) term = fmaf(unit.offset[half], static_cast<float>(of_codes), term);
      sums[row] = fmaf(group.scale, term, sums[row]);
    }
  }
}

}  // namespace infinigen
