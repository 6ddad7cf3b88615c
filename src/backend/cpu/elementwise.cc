// Embed, AddPositions, SiluMul, Append: one pass over memory each.
#include <algorithm>

#include "backend/cpu/cpu_backend.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/elementwise.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

#include "backend/cpu/math-inl.h"
#include "backend/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace infinigen::HWY_NAMESPACE {

HWY_INLINE VF SiluMulVector(DF d, VF gate, VF up) {
  const VF denominator = hn::Add(hn::Set(d, 1.0f), Exp(d, hn::Neg(gate)));
  return hn::Mul(hn::Div(gate, denominator), up);
}

void SiluMulRow(float* gate, const float* up, int64_t n) {
  const DF d;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    hn::StoreU(SiluMulVector(d, hn::LoadU(d, gate + i), hn::LoadU(d, up + i)), d, gate + i);
  if (i < n) StoreTail(d, SiluMulVector(d, LoadTail(d, gate + i, n - i), LoadTail(d, up + i, n - i)), gate + i, n - i);
}

template <class T, bool kAdd>
void ConvertRow(const T* in, int64_t n, float* out) {
  const DF d;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VF v = LoadF32(d, in + i);
    hn::StoreU(kAdd ? hn::Add(hn::LoadU(d, out + i), v) : v, d, out + i);
  }
  for (; i < n; ++i) out[i] = (kAdd ? out[i] : 0.0f) + ToFloat(in[i]);
}

void StoreRow(const ConstTensor& table, int64_t row, float* out) {
  Dispatch(table.type,
           [&](auto tag) { ConvertRow<decltype(tag), false>(table.as<decltype(tag)>(row), table.cols, out); });
}
void AddRow(const ConstTensor& table, int64_t row, float* out) {
  Dispatch(table.type,
           [&](auto tag) { ConvertRow<decltype(tag), true>(table.as<decltype(tag)>(row), table.cols, out); });
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace infinigen::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace infinigen {
namespace {

HWY_EXPORT(SiluMulRow);
HWY_EXPORT(StoreRow);
HWY_EXPORT(AddRow);

// Scalar conversions: their rounding is the definition, and the new entries of a step are few.
void Round(const float* in, int64_t n, float* out) { std::copy_n(in, n, out); }
void Round(const float* in, int64_t n, BF16* out) { std::transform(in, in + n, out, ToBF16); }
void Round(const float* in, int64_t n, F16* out) { std::transform(in, in + n, out, ToF16); }

}  // namespace

void CpuBackend::Embed(Queue, const TokenBatch& batch, const ConstTensor& table, const Tensor& out) {
  CHECK(out.type == DType::kF32 && out.cols == table.cols && out.rows >= batch.count);
  ForRows(batch.count, table.cols, [&](int64_t first, int64_t count) {
    for (int64_t t = first; t < first + count; ++t) {
      DCHECK(batch.ids[t] >= 0 && batch.ids[t] < table.rows);
      HWY_DYNAMIC_DISPATCH(StoreRow)(table, batch.ids[t], out.as<float>(t));
    }
  });
}

void CpuBackend::AddPositions(Queue, const TokenBatch& batch, const ConstTensor& table, int64_t offset,
                              const Tensor& x) {
  CHECK(x.type == DType::kF32 && x.cols == table.cols && x.rows >= batch.count);
  ForRows(batch.count, table.cols, [&](int64_t first, int64_t count) {
    for (int64_t t = first; t < first + count; ++t) {
      DCHECK(batch.Position(t) + offset < table.rows);
      HWY_DYNAMIC_DISPATCH(AddRow)(table, batch.Position(t) + offset, x.as<float>(t));
    }
  });
}

void CpuBackend::SiluMul(Queue, const Tensor& gate, const Tensor& up) {
  CHECK(gate.type == DType::kF32 && up.type == DType::kF32 && gate.cols == up.cols && gate.rows == up.rows);
  ForRows(gate.rows, gate.cols * 4, [&](int64_t first, int64_t count) {
    for (int64_t r = first; r < first + count; ++r)
      HWY_DYNAMIC_DISPATCH(SiluMulRow)(gate.as<float>(r), up.as<float>(r), gate.cols);
  });
}

void CpuBackend::Append(Queue, const TokenBatch& batch, const ConstTensor& keys, const ConstTensor& values,
                        const LayerEntries& entries) {
  const EntryLayout& layout = entries.layout;
  const int64_t width = layout.kv_heads * layout.head_dim;
  CHECK(keys.cols == width && values.cols == width && keys.rows >= batch.count && values.rows >= batch.count);
  ForRows(batch.count, 2 * width, [&](int64_t first, int64_t count) {
    for (int64_t t = first; t < first + count; ++t) {
      for (int64_t head = 0; head < layout.kv_heads; ++head) {
        std::byte* entry = entries.Entry(batch.slots[t], head, batch.Place(t, head));
        Dispatch(layout.type, [&](auto tag) {
          auto* key = reinterpret_cast<decltype(tag)*>(entry);
          Round(keys.as<float>(t) + head * layout.head_dim, layout.head_dim, key);
          Round(values.as<float>(t) + head * layout.head_dim, layout.head_dim, key + layout.head_dim);
        });
      }
    }
  });
}

}  // namespace infinigen
#endif  // HWY_ONCE
