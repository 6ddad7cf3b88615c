// AppendBlockMeans: the mean of the 64 values of each block that becomes complete (kv/index_view.h). Values are read
// back from their entries, so the mean depends neither on how the rows were divided into calls nor on whether a
// sequence was cut back and continued. Each dimension is one chain of additions in the order of rows: the bits of the
// host form (kv/index.h) on every SIMD target.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/cpu_backend.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/block_means.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

#include "backend/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace infinigen::HWY_NAMESPACE {

// sum += row                                               both [dims]
template <class T>
HWY_INLINE void AddRow(const T* row, int64_t dims, float* sum) {
  const DF d;
  int64_t i = 0;
  for (; i + kLanes <= dims; i += kLanes) hn::StoreU(hn::Add(hn::LoadU(d, sum + i), LoadF32(d, row + i)), d, sum + i);
  if (i < dims)
    StoreTail(d, hn::Add(LoadTail(d, sum + i, dims - i), LoadTail(d, row + i, dims - i)), sum + i, dims - i);
}

// The numbers of a quantised row (kv/view.h).
inline void Decode(StoreType type, const std::byte* row, int64_t dims, float* out) {
  const std::byte* codes = row + StoreHeaderBytes(dims);
  GroupHeader header;
  for (int64_t i = 0; i < dims; ++i) {
    if (i % kStoreGroup == 0) std::memcpy(&header, row + i / kStoreGroup * sizeof(header), sizeof(header));
    const uint32_t code = type == StoreType::kInt8 ? std::to_integer<uint32_t>(codes[i])
                                                   : std::to_integer<uint32_t>(codes[i / 2]) >> (i % 2 * 4) & 15;
    out[i] = std::fma(static_cast<float>(code), ToFloat(header.scale), ToFloat(header.minimum));
  }
}

// sum [head_dim] = the sum of the 64 values that end with row `last`.
void SumValues(const LayerEntries& entries, int64_t slot, int64_t head, int64_t last, float* sum) {
  const int64_t dims = entries.layout.head_dim;
  std::fill_n(sum, dims, 0.0f);
  float numbers[kMaxHeadDim];
  for (int64_t row = last + 1 - kSketchBlock; row <= last; ++row) {
    const std::byte* value = entries.Entry(slot, head, row) + entries.layout.key_bytes();
    switch (entries.layout.type) {
      case StoreType::kF32:
        AddRow(reinterpret_cast<const float*>(value), dims, sum);
        break;
      case StoreType::kF16:
        AddRow(reinterpret_cast<const F16*>(value), dims, sum);
        break;
      case StoreType::kBF16:
        AddRow(reinterpret_cast<const BF16*>(value), dims, sum);
        break;
      case StoreType::kInt8:
      case StoreType::kInt4:
      case StoreType::kInt6:  // not a type of values
        Decode(entries.layout.type, value, dims, numbers);
        AddRow(numbers, dims, sum);
        break;
    }
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace infinigen::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace infinigen {
namespace {

HWY_EXPORT(SumValues);

// The smallest bf16 ≥ value, which is not negative.
BF16 RoundUpScale(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint32_t up = (bits + 0xffffu) >> 16;
  return {static_cast<uint16_t>(up >= 0x7f80u ? bits >> 16 : up)};
}

// Stores sums [mean_dims] as the mean of a block.
void StoreMean(const SketchLayout& layout, float* sums, const float* value_mean, std::byte* block) {
  float largest = 0;
  for (int64_t i = 0; i < layout.mean_dims; ++i) {
    const float mean = sums[i] * (1.0f / kSketchBlock) - value_mean[i];
    sums[i] = std::isfinite(mean) ? mean : 0.0f;
    largest = std::max(largest, std::fabs(sums[i]));
  }
  const float most = static_cast<float>(SketchLayout::kLargestMean);
  const BF16 scale = RoundUpScale(largest / most);
  std::memcpy(block + layout.mean_scale_offset(), &scale, sizeof(scale));
  const float wanted = 1.0f / ToFloat(scale), inverse = std::isfinite(wanted) ? wanted : 0.0f;
  for (int64_t i = 0; i < layout.mean_dims; ++i)
    block[layout.means_offset() + static_cast<size_t>(i)] =
        static_cast<std::byte>(static_cast<int8_t>(std::clamp(std::nearbyint(sums[i] * inverse), -most, most)));
}

}  // namespace

void CpuBackend::AppendBlockMeans(Queue, const TokenBatch& batch, const LayerEntries& entries, const TailBasis& basis,
                                  const LayerSketches& sketches) {
  const SketchLayout& layout = sketches.layout;
  const int64_t heads = layout.kv_heads;
  CHECK(layout.mean_dims == basis.head_dim && entries.layout.head_dim == basis.head_dim && batch.own_rows == nullptr);
  const auto store = [&](int64_t token, int64_t head) {
    const int64_t last = batch.rows[token];
    if (!CompletesBlock(last)) return;
    float sums[kMaxHeadDim];
    HWY_DYNAMIC_DISPATCH(SumValues)(entries, batch.slots[token], head, last, sums);
    StoreMean(layout, sums, basis.ValueMean(head), sketches.Block(batch.slots[token], head, last / kSketchBlock));
  };
  if (batch.count < kSketchBlock) {
    for (int64_t task = 0; task < batch.count * heads; ++task) store(task / heads, task % heads);
    return;
  }
  // A chunk of a prompt: stretches of tokens, most of which complete nothing.
  const int64_t stretches = (batch.count + kSketchBlock - 1) / kSketchBlock;
  pool_.Run(stretches * heads, [&](int64_t task, int) {
    const int64_t first = task / heads * kSketchBlock, end = std::min(first + kSketchBlock, batch.count);
    for (int64_t token = first; token < end; ++token) store(token, task % heads);
  });
}

}  // namespace infinigen
#endif  // HWY_ONCE
