// Chooses the kernels of block_product.h: block_product-inl.h compiled for three instruction sets, and plain loops for
// machines without AVX2.
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "backend/cpu/block_product.h"
#include "base/check.h"
#include "tensor/block_formats.h"

#if HWY_ARCH_X86
#include <cpuid.h>
#include <immintrin.h>
#endif

#define INFINIGEN_INLINE inline __attribute__((always_inline))
#if defined(INFINIGEN_BLOCK_ROLLED)
#define INFINIGEN_BLOCK_UNROLL
#elif defined(__clang__)
#define INFINIGEN_BLOCK_UNROLL _Pragma("unroll")
#else
#define INFINIGEN_BLOCK_UNROLL _Pragma("GCC unroll 16")
#endif

namespace infinigen {

void FinishOutputs(const Projection& p, int64_t row, int64_t n, int64_t count, const float* sums) {
  float* out = p.out.as<float>(row) + n;
  const float* bias = p.bias ? p.bias.as<float>() + n : nullptr;
  for (int64_t i = 0; i < count; ++i) {
    const float v = bias != nullptr ? sums[i] + bias[i] : sums[i];
    if (p.epilogue == Epilogue::kStore) out[i] = v;
    if (p.epilogue == Epilogue::kAdd) out[i] += v;
    if (p.epilogue == Epilogue::kRelu) out[i] = std::max(v, 0.0f) /* NaN stays NaN */;
  }
}

}  // namespace infinigen

// Instrumented builds compile one of Highway's targets (CMakeLists.txt), and here what belongs to it.
#if HWY_ARCH_X86 && (HWY_TARGETS & HWY_AVX2)

#define INFINIGEN_ISA_NAMESPACE block_avx2
#define INFINIGEN_HAS_VNNI 0
#define INFINIGEN_HAS_AVX512 0
HWY_PUSH_ATTRIBUTES("avx,avx2,fma,f16c,bmi,bmi2")
#include "backend/cpu/block_product-inl.h"
HWY_POP_ATTRIBUTES
#undef INFINIGEN_ISA_NAMESPACE
#undef INFINIGEN_HAS_VNNI

#define INFINIGEN_ISA_NAMESPACE block_avxvnni
#define INFINIGEN_HAS_VNNI 1
HWY_PUSH_ATTRIBUTES("avx,avx2,fma,f16c,bmi,bmi2,avxvnni")
#include "backend/cpu/block_product-inl.h"
HWY_POP_ATTRIBUTES
#undef INFINIGEN_ISA_NAMESPACE
#undef INFINIGEN_HAS_VNNI
#undef INFINIGEN_HAS_AVX512

#endif
#if HWY_ARCH_X86 && (HWY_TARGETS & HWY_AVX3)

#define INFINIGEN_ISA_NAMESPACE block_avx512vnni
#define INFINIGEN_HAS_VNNI 1
#define INFINIGEN_HAS_AVX512 1
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // g++ 12 warns of its own _mm512_undefined_*
#endif
HWY_PUSH_ATTRIBUTES("avx,avx2,fma,f16c,bmi,bmi2,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")
#include "backend/cpu/block_product-inl.h"
HWY_POP_ATTRIBUTES

#endif

namespace infinigen {
namespace {

// ---- Plain loops

void QuantisePlainly(const ConstTensor& x, int64_t row, const BlockActivations& out) {
  const float* from = x.as<float>(row);
  const int64_t groups = x.cols / 32, all = out.chunks * kChunkGroups;
  for (int64_t g = 0; g < all; ++g) {
    const int64_t at = row * all + g;
    float most = 0;
    for (int64_t i = 0; i < 32 && g < groups; ++i) {
      const float magnitude = std::fabs(from[g * 32 + i]);
      if (!(magnitude <= most)) most = magnitude;
      if (std::isnan(most)) break;
    }
    const bool zero = most < kSmallestMagnitude, finite = most <= std::numeric_limits<float>::max();
    out.scales[at] = zero ? 0.0f : finite ? most / kLargestCode : std::numeric_limits<float>::quiet_NaN();
    const float inverse = zero || !finite ? 0.0f : kLargestCode / most;
    int sums[2] = {0, 0};
    for (int64_t i = 0; i < 32; ++i) {
      const int code = inverse == 0.0f ? 0 : static_cast<int>(std::nearbyint(from[g * 32 + i] * inverse));
      int8_t* to = out.codes + at / kChunkGroups * kChunkCodes + at % kChunkGroups * 32 + i;
      const int high = (code + 8) >> 4;
      to[0] = static_cast<int8_t>(high);
      to[kChunkNumbers] = static_cast<int8_t>(code - 16 * high);
      sums[i / 16] += code;
    }
    for (int64_t half = 0; half < 2; ++half) out.half_sums[at * 2 + half] = static_cast<int16_t>(sums[half]);
    out.weighted[at] = out.scales[at] * static_cast<float>(sums[0] + sums[1]);
  }
}

float PlainTerm(const UnpackedBlock& block, size_t group, bool offsets, const int8_t* codes, float scale,
                const int16_t* half_sums) {
  int sum = 0, all = 0;
  for (size_t half = 0; half < 2; ++half) {
    int dot = 0;
    for (size_t i = half * 16; i < half * 16 + 16; ++i)
      dot += block.codes[group * 32 + i] * (16 * codes[i] + codes[kChunkNumbers + i]);
    sum += block.multiplier[group * 2 + half] * dot;
    all += block.offset_multiplier[group * 2 + half] * half_sums[half];
  }
  const float scaled = scale * static_cast<float>(sum);
  if (!offsets) return block.scale[group] * scaled;
  return std::fma(block.scale[group], scaled, block.offset[group] * (scale * static_cast<float>(all)));
}

void DirectPlainly(const BlockActivations& x, const Projection& p, int64_t begin, int64_t end) {
  const WeightFormat& format = FormatOf(p.weight.type);
  const bool offsets = HasOffsets(p.weight.type);
  const int64_t per_block = format.block_numbers / kGroupNumbers, groups = p.weight.cols / kGroupNumbers;
  UnpackedBlock block;
  for (int64_t n = begin; n < end; ++n) {
    for (int64_t r = 0; r < x.rows; ++r) {
      float lanes[8] = {};
      for (int64_t g = 0; g < groups; ++g) {
        if (g % per_block == 0) UnpackBlock(p.weight.type, p.weight.row(n) + g / per_block * format.block_bytes, block);
        const int64_t at = r * x.chunks * kChunkGroups + g;
        lanes[g % 8] += PlainTerm(block, static_cast<size_t>(g % per_block), offsets,
                                  x.codes + at / kChunkGroups * kChunkCodes + at % kChunkGroups * 32, x.scales[at],
                                  x.half_sums + at * 2);
      }
      const float low = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
      const float high = (lanes[4] + lanes[5]) + (lanes[6] + lanes[7]);
      const float sum = low + high;
      FinishOutputs(p, r, n, 1, &sum);
    }
  }
}

// There is no panel kernel: the direct one takes any number of rows.
constexpr BlockKernels kPlainKernels = {"portable", 0, 1, QuantisePlainly, nullptr, DirectPlainly, nullptr};

#define INFINIGEN_KERNELS(isa) \
  { #isa, isa::kTileRows, isa::kWidth, isa::Quantise, isa::Pack, isa::DirectOfType, isa::PanelOfType }
#if HWY_ARCH_X86 && (HWY_TARGETS & HWY_AVX2)
constexpr BlockKernels kAvx2Kernels = INFINIGEN_KERNELS(block_avx2);
constexpr BlockKernels kAvxVnniKernels = INFINIGEN_KERNELS(block_avxvnni);

bool HasAvxVnni() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & (1u << 4)) != 0;
}
#endif
#if HWY_ARCH_X86 && (HWY_TARGETS & HWY_AVX3)
constexpr BlockKernels kAvx512VnniKernels = INFINIGEN_KERNELS(block_avx512vnni);
#endif
#undef INFINIGEN_KERNELS

}  // namespace

const BlockKernels& ChooseBlockKernels() {
#if HWY_ARCH_X86
  [[maybe_unused]] const int64_t targets = hwy::SupportedTargets();
#if HWY_TARGETS & HWY_AVX3
  // Highway's AVX3_DL is a set of extensions that includes VNNI.
  if ((targets & HWY_AVX3_DL) != 0) return kAvx512VnniKernels;
#endif
#if HWY_TARGETS & HWY_AVX2
  if ((targets & (HWY_AVX2 | HWY_AVX3)) != 0) return HasAvxVnni() ? kAvxVnniKernels : kAvx2Kernels;
#endif
#endif
  return kPlainKernels;
}

}  // namespace infinigen
