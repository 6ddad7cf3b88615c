// Parts shared by prefill and decode attention: which entries are read, access to queries and outputs of any type, and
// decoding of quantised entries to f16. Private to backend/cuda.
//
// Products run on tensor cores: bf16 and f16 entries in their own type, f32 and quantised entries in f16. Queries are
// rounded to the same type, which changes nothing if the model computes in it. Scores are f32; the scale, and the
// factor that turns base e into base 2, are applied to them. Weights are summed in f32 and rounded to nearest for the
// product with the values, so that the errors of many entries cancel.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "backend/backend.h"
#include "backend/cuda/check.h"
#include "backend/cuda/mma.cuh"
#include "backend/cuda/numbers.cuh"
#include "kv/view.h"
#include "tensor/view.h"

namespace infinigen {

// Heads are padded to 64, 128 or 256 columns. head_dim is a multiple of 8, so 16-bit entries begin at multiples of 16
// bytes, quantised entries at multiples of 8, and their single keys and values at multiples of 4.
inline constexpr int64_t kLargestAttentionDim = 256;
constexpr bool CudaAttentionSupports(const EntryLayout& layout) {
  return layout.head_dim > 0 && layout.head_dim % 8 == 0 && layout.head_dim <= kLargestAttentionDim;
}

// Scratch of AttendDecode and AttendSelected for `batch` tokens that attend to up to `tokens` rows.
constexpr int64_t kDecodeChunk = kExtentTokens;
constexpr int64_t DecodeChunks(int64_t tokens) { return (tokens + kDecodeChunk - 1) / kDecodeChunk; }
constexpr size_t AttentionScratchBytes(int64_t tokens, int64_t batch, int64_t heads, int64_t head_dim) {
  return static_cast<size_t>(batch * heads * DecodeChunks(tokens) * (head_dim + 2)) * sizeof(float);
}

inline constexpr float kLog2E = 1.44269504f;
inline constexpr float kNoScore = -INFINITY;

// Weights are 2^(score - largest + shift). Without the shift many small weights would fall below 2^-14, where f16 loses
// digits, or below 2^-24, where it has no numbers.
template <class T>
inline constexpr float kWeightShift = std::is_same_v<T, __half> ? 8.0f : 0.0f;

// Calls f with the padded dim as a constant.
template <class F>
void DispatchDim(int64_t head_dim, F&& f) {
  if (head_dim <= 64)
    f(std::integral_constant<int, 64>());
  else if (head_dim <= 128)
    f(std::integral_constant<int, 128>());
  else
    f(std::integral_constant<int, 256>());
}

// Requests the shared memory of one kernel if it needs more than the default 48 KiB. Once per kernel.
template <auto kKernel>
void AllowMostShared(int most_bytes) {
  static const bool asked = [&] {
    CUDA_CHECK(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most_bytes));
    CUDA_CHECK(
        cudaFuncSetAttribute(kKernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared));
    return true;
  }();
  static_cast<void>(asked);
}

// x in the range of the type that is multiplied: f16 ends at 65504.
template <class T>
__device__ inline float Within(float x) {
  if constexpr (std::is_same_v<T, __half>) return fminf(fmaxf(x, -kLargestStored), kLargestStored);
  return x;
}

__device__ inline void StoreNumber(const Tensor& x, int64_t at, float value) {
  if (x.type == DType::kF32)
    reinterpret_cast<float*>(x.data)[at] = value;
  else if (x.type == DType::kF16)
    reinterpret_cast<__half*>(x.data)[at] = __float2half_rn(value);
  else
    reinterpret_cast<__nv_bfloat16*>(x.data)[at] = __float2bfloat16_rn(value);
}
// Stores two adjacent numbers. `at` is even, and rows begin at even offsets (PairsAligned).
__device__ inline void StorePair(const Tensor& x, int64_t at, float first, float second) {
  if (x.type == DType::kF32)
    *reinterpret_cast<float2*>(x.data + at * 4) = make_float2(first, second);
  else
    *reinterpret_cast<uint32_t*>(x.data + at * 2) =
        x.type == DType::kF16 ? Pair<__half>(first, second) : Pair<__nv_bfloat16>(first, second);
}
inline bool PairsAligned(const ConstTensor& x) {
  return x.stride % 2 == 0 && reinterpret_cast<uintptr_t>(x.data) % (2 * SizeOf(x.type)) == 0;
}

// ---- Codes of quantised entries. A code of up to 8 bits below a byte 0x64 is the f16 number 1024 + code.

inline constexpr float kCodeBias = 1024.0f;
inline constexpr uint32_t kBiasBytes = 0x64646464u;

// The 4-bit codes at bits 4 · nibble of both halves of a register.
__device__ inline uint32_t BiasedNibbles(uint32_t halves, int nibble) {
  return ((halves >> (4 * nibble)) & 0x000f000fu) | 0x64006400u;
}

// The high bits of int6 codes `nibble` and `nibble` + 4 of a word, where they belong in both halves of a register.
// `high` holds the high bits of two words, `word` (0 or 1) says which one it is (HighByte in kv/view.h).
__device__ inline uint32_t HighBits(uint32_t high, int word, int nibble) {
  return ((high >> (8 * word + 2 * nibble)) & 0x00030003u) << 4;
}

// Eight numbers of a quantised row as f16. `codes` points to their first byte, at a multiple of 4 bytes. `high` holds
// the high bits of int6 codes, those of this word as HighBits has them.
__device__ inline uint4 DecodeEight(StoreType type, const std::byte* codes, uint32_t header, uint32_t high = 0,
                                    int word = 0) {
  const float2 scale_minimum = Halves(header);
  float scale = scale_minimum.x;
  // Scales are rounded up, so the largest number may exceed the range of f16 slightly.
  const auto largest = static_cast<float>(LargestCode(type));
  if (fmaf(largest, scale, scale_minimum.y) > kLargestStored) scale = (kLargestStored - scale_minimum.y) / largest;
  const __half2 scales = __half2half2(__float2half_rd(scale)), minima = __half2half2(__float2half_rn(scale_minimum.y));
  const __half2 bias = __half2half2(__float2half_rn(kCodeBias));
  const auto number = [&](uint32_t biased) {
    return Bits<uint32_t>(__hfma2(__hsub2(Bits<__half2>(biased), bias), scales, minima));
  };
  const uint32_t* words = reinterpret_cast<const uint32_t*>(codes);
  if (type == StoreType::kInt8)
    return {number(__byte_perm(words[0], kBiasBytes, 0x4140)), number(__byte_perm(words[0], kBiasBytes, 0x4342)),
            number(__byte_perm(words[1], kBiasBytes, 0x4140)), number(__byte_perm(words[1], kBiasBytes, 0x4342))};
  // Yields numbers i and i + 4 together.
  const auto pair = [&](int i) { return number(BiasedNibbles(words[0], i) | HighBits(high, word, i)); };
  const uint32_t a = pair(0), b = pair(1), c = pair(2), d = pair(3);
  return {__byte_perm(a, b, 0x5410), __byte_perm(c, d, 0x5410), __byte_perm(a, b, 0x7632), __byte_perm(c, d, 0x7632)};
}
// Eight f32 numbers as f16.
__device__ inline uint4 RoundEight(const float* numbers) {
  const float4 a = reinterpret_cast<const float4*>(numbers)[0], b = reinterpret_cast<const float4*>(numbers)[1];
  const auto pair = [](float x, float y) { return Pair<__half>(Within<__half>(x), Within<__half>(y)); };
  return {pair(a.x, a.y), pair(a.z, a.w), pair(b.x, b.y), pair(b.z, b.w)};
}

}  // namespace infinigen
