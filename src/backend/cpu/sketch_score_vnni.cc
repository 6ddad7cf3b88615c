// ScoreBlockVnni (sketch_query.h), compiled for AVX512-VNNI only.
#include <hwy/targets.h>

#include <algorithm>

#include "backend/cpu/sketch_query.h"
#include "base/check.h"

#if HWY_ARCH_X86
#include <immintrin.h>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // g++ 12 warns of its own _mm512_undefined_*
#endif
#define INFINIGEN_VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))
#if defined(__clang__)
#define INFINIGEN_VNNI_UNROLL _Pragma("unroll")
#else
#define INFINIGEN_VNNI_UNROLL _Pragma("GCC unroll 16")
#endif

namespace infinigen {
namespace {

// Query heads [first, first + kHeads). A query value is 128 · high byte + low byte: two exact sums. Processes kVectors
// vectors of 16 rows at a time, so that small groups do not wait for the latency of their own chain.
template <int kHeads, int kVectors, bool kInt4>
INFINIGEN_VNNI void ScoreHeads(const SketchQuery& q, int64_t first, const std::byte* block, float* scores) {
  const int64_t units = q.layout.units(), step = 2 * q.group;
  const int64_t group_units = q.layout.group_dims() / q.layout.per_unit();
  const __m512i mask = _mm512_set1_epi32(0x0f0f0f0f);
  const auto* scales = reinterpret_cast<const __m256i*>(block + q.layout.scales_offset());
  for (int64_t row = 0; row < kSketchBlock; row += 16 * kVectors) {
    __m512 total[kHeads][kVectors];
    const int32_t* quads = q.quads + 2 * first;
    const std::byte* at = block + row * kSketchUnitBytes;
    for (int64_t group = 0, unit = 0; unit < units; ++group) {
      __m512i high[kHeads][kVectors], low[kHeads][kVectors];
      INFINIGEN_VNNI_UNROLL for (int h = 0; h < kHeads; ++h) {
        INFINIGEN_VNNI_UNROLL for (int v = 0; v < kVectors; ++v) {
          high[h][v] = _mm512_setzero_si512();
          low[h][v] = _mm512_set1_epi32(-q.bias[group * q.group + first + h]);
        }
      }
      for (const int64_t end = std::min(unit + group_units, units); unit < end;
           ++unit, at += kSketchBlock * kSketchUnitBytes) {
        INFINIGEN_VNNI_UNROLL for (int part = 0; part < (kInt4 ? 2 : 1); ++part, quads += step) {
          __m512i bytes[kVectors];
          INFINIGEN_VNNI_UNROLL for (int v = 0; v < kVectors; ++v) {
            bytes[v] = _mm512_loadu_si512(at + v * 64);
            if (kInt4) bytes[v] = _mm512_and_si512(part == 0 ? bytes[v] : _mm512_srli_epi32(bytes[v], 4), mask);
          }
          INFINIGEN_VNNI_UNROLL for (int h = 0; h < kHeads; ++h) {
            const __m512i a = _mm512_set1_epi32(quads[2 * h]), b = _mm512_set1_epi32(quads[2 * h + 1]);
            INFINIGEN_VNNI_UNROLL for (int v = 0; v < kVectors; ++v) {
              high[h][v] = _mm512_dpbusd_epi32(high[h][v], bytes[v], a);
              low[h][v] = _mm512_dpbusd_epi32(low[h][v], bytes[v], b);
            }
          }
        }
      }
      INFINIGEN_VNNI_UNROLL for (int v = 0; v < kVectors; ++v) {
        const __m512 scale = _mm512_castsi512_ps(_mm512_slli_epi32(
            _mm512_cvtepu16_epi32(_mm256_loadu_si256(scales + (group * kSketchBlock + row) / 16 + v)), 16));
        INFINIGEN_VNNI_UNROLL for (int h = 0; h < kHeads; ++h) {
          const __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(high[h][v], 7), low[h][v]);
          const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(q.scale[first + h]));
          const __m512 part = _mm512_mul_ps(scaled, scale);
          total[h][v] = group == 0 ? part : _mm512_add_ps(total[h][v], part);
        }
      }
    }
    INFINIGEN_VNNI_UNROLL for (int h = 0; h < kHeads; ++h) INFINIGEN_VNNI_UNROLL for (int v = 0; v < kVectors; ++v)
        _mm512_storeu_ps(scores + (first + h) * kSketchBlock + row + 16 * v, total[h][v]);
  }
}

template <bool kInt4>
INFINIGEN_VNNI void ScoreGroup(const SketchQuery& q, const std::byte* block, float* scores) {
  int64_t first = 0;
  for (; first + 4 <= q.group; first += 4) ScoreHeads<4, 2, kInt4>(q, first, block, scores);
  switch (q.group - first) {
    case 3:
      return ScoreHeads<3, 1, kInt4>(q, first, block, scores);
    case 2:
      return ScoreHeads<2, 2, kInt4>(q, first, block, scores);
    case 1:
      return ScoreHeads<1, 4, kInt4>(q, first, block, scores);
    default:
      return;
  }
}

}  // namespace

// Highway's AVX3_DL is a set of extensions that includes VNNI.
bool HasVnni() { return (hwy::SupportedTargets() & HWY_AVX3_DL) != 0; }

void ScoreBlockVnni(const SketchQuery& query, const std::byte* block, float* scores) {
  if (query.layout.type == SketchType::kInt4)
    ScoreGroup<true>(query, block, scores);
  else
    ScoreGroup<false>(query, block, scores);
}

}  // namespace infinigen
#else
namespace infinigen {

bool HasVnni() { return false; }
void ScoreBlockVnni(const SketchQuery&, const std::byte*, float*) { CHECK(false); }

}  // namespace infinigen
#endif
