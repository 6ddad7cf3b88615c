// Operations without sums: Embed, AddPositions, RopeTable, Rope, gates, additions, soft caps and Append. Each is one
// pass over memory.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "backend/cpu/cpu_backend.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/elementwise.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

#include "backend/cpu/vector-inl.h"
#include "kv/view.h"
#include "tensor/block_formats.h"

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

// 0.5 · g · (1 + tanh u) = g / (1 + e^(−2u)) with u = √(2/π) · (g + 0.044715 · g³).
HWY_INLINE VF GeluMulVector(DF d, VF gate, VF up) {
  constexpr float kTwice = -2.0f * 0.79788456f, kCubic = 0.044715f;
  const VF inner = hn::MulAdd(hn::Mul(hn::Mul(gate, gate), gate), hn::Set(d, kCubic), gate);
  const VF denominator = hn::Add(hn::Set(d, 1.0f), Exp(d, hn::Mul(inner, hn::Set(d, kTwice))));
  return hn::Mul(hn::Div(gate, denominator), up);
}

void GeluMulRow(float* gate, const float* up, int64_t n) {
  const DF d;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    hn::StoreU(GeluMulVector(d, hn::LoadU(d, gate + i), hn::LoadU(d, up + i)), d, gate + i);
  if (i < n) StoreTail(d, GeluMulVector(d, LoadTail(d, gate + i, n - i), LoadTail(d, up + i, n - i)), gate + i, n - i);
}

void SoftCapRow(float cap, float* x, int64_t n) {
  const DF d;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(SoftCapped(d, hn::LoadU(d, x + i), cap), d, x + i);
  if (i < n) StoreTail(d, SoftCapped(d, LoadTail(d, x + i, n - i), cap), x + i, n - i);
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

void StoreRow(const WeightView& table, int64_t row, float* out) {
  DispatchPlain(table.type,
                [&](auto tag) { ConvertRow<decltype(tag), false>(table.as<decltype(tag)>(row), table.cols, out); });
}
void AddRow(const WeightView& table, int64_t row, float* out) {
  DispatchPlain(table.type,
                [&](auto tag) { ConvertRow<decltype(tag), true>(table.as<decltype(tag)>(row), table.cols, out); });
}

// Quantises one group of in_count ≤ kStoreGroup numbers.
GroupHeader QuantiseGroup(const float* in, int64_t in_count, int32_t largest_code, uint32_t* codes) {
  const DF d;
  const hn::RebindToUnsigned<DF> du;
  HWY_ALIGN float numbers[kStoreGroup];
  std::copy_n(in, in_count, numbers);
  const int64_t count = (in_count + kLanes - 1) / kLanes * kLanes;
  std::fill(numbers + in_count, numbers + count, in[0]);  // does not change the range
  VF low = hn::Set(d, kLargestStored), high = hn::Neg(low);
  for (int64_t i = 0; i < count; i += kLanes) {
    VF x = hn::Load(d, numbers + i);
    x = hn::IfThenElseZero(hn::Eq(x, x), x);
    x = hn::Max(hn::Min(x, hn::Set(d, kLargestStored)), hn::Set(d, -kLargestStored));
    hn::Store(x, d, numbers + i);
    low = hn::Min(low, x);
    high = hn::Max(high, x);
  }
  const GroupHeader header =
      FitGroup(hn::GetLane(hn::MinOfLanes(d, low)), hn::GetLane(hn::MaxOfLanes(d, high)), largest_code);
  const float scale = ToFloat(header.scale);
  if (!(scale > 0)) {
    std::fill_n(codes, count, 0u);
    return header;
  }
  const VF minimum = hn::Set(d, ToFloat(header.minimum)), most = hn::Set(d, static_cast<float>(largest_code));
  for (int64_t i = 0; i < count; i += kLanes) {
    const VF steps = hn::Div(hn::Sub(hn::Load(d, numbers + i), minimum), hn::Set(d, scale));
    // Adding 2^23 rounds to an integer (halves to even), which is then in the low bits.
    const VF rounded = hn::Add(hn::Min(hn::Max(steps, hn::Zero(d)), most), hn::Set(d, 0x1p23f));
    hn::Store(hn::And(hn::BitCast(du, rounded), hn::Set(du, 0xffu)), du, codes + i);
  }
  return header;
}

void QuantiseRow(StoreType type, const float* in, int64_t dim, std::byte* out) {
  std::byte* to = out + StoreHeaderBytes(dim);
  std::byte* high_bits = to + LowBytes(dim);  // of int6 codes
  if (type == StoreType::kInt6) std::fill_n(high_bits, HighBytes(dim), std::byte{0});
  for (int64_t first = 0; first < dim; first += kStoreGroup, out += sizeof(GroupHeader)) {
    const int64_t count = std::min(kStoreGroup, dim - first);
    HWY_ALIGN uint32_t codes[kStoreGroup + 3];
    const GroupHeader header = QuantiseGroup(in + first, count, LargestCode(type), codes);
    std::memcpy(out, &header, sizeof(header));
    if (type == StoreType::kInt8) {
      for (int64_t i = 0; i < count; ++i) *to++ = static_cast<std::byte>(codes[i]);
    } else {
      std::fill_n(codes + count, 3, 0u);
      for (int64_t i = 0; i < count; i += 2) *to++ = static_cast<std::byte>((codes[i] & 15) | (codes[i + 1] & 15) << 4);
    }
    if (type == StoreType::kInt6)
      for (int64_t i = 0; i < count; i += 4)
        high_bits[HighByte(first + i)] = static_cast<std::byte>(codes[i] >> 4 | codes[i + 1] >> 4 << 2 |
                                                                codes[i + 2] >> 4 << 4 | codes[i + 3] >> 4 << 6);
  }
}

// The planes of one head: (a, b) → (a·cos − b·sin, b·cos + a·sin).
void RotateHalves(const float* cosines, const float* sines, int64_t half, float* head) {
  const DF d;
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const VF a = hn::LoadU(d, head + i), b = hn::LoadU(d, head + half + i);
    const VF c = hn::LoadU(d, cosines + i), s = hn::LoadU(d, sines + i);
    hn::StoreU(hn::MulSub(a, c, hn::Mul(b, s)), d, head + i);
    hn::StoreU(hn::MulAdd(b, c, hn::Mul(a, s)), d, head + half + i);
  }
  if (const int64_t rest = half - i; rest > 0) {
    const VF a = LoadTail(d, head + i, rest), b = LoadTail(d, head + half + i, rest);
    const VF c = LoadTail(d, cosines + i, rest), s = LoadTail(d, sines + i, rest);
    StoreTail(d, hn::MulSub(a, c, hn::Mul(b, s)), head + i, rest);
    StoreTail(d, hn::MulAdd(b, c, hn::Mul(a, s)), head + half + i, rest);
  }
}

void RotateAdjacent(const float* cosines, const float* sines, int64_t planes, float* head) {
  const DF d;
  int64_t i = 0;
  for (; i + kLanes <= planes; i += kLanes) {
    VF a, b;
    hn::LoadInterleaved2(d, head + 2 * i, a, b);
    const VF c = hn::LoadU(d, cosines + i), s = hn::LoadU(d, sines + i);
    hn::StoreInterleaved2(hn::MulSub(a, c, hn::Mul(b, s)), hn::MulAdd(b, c, hn::Mul(a, s)), d, head + 2 * i);
  }
  if (const int64_t rest = planes - i; rest > 0) {
    HWY_ALIGN float pairs[2 * kMostLanes] = {};
    std::copy_n(head + 2 * i, 2 * rest, pairs);
    VF a, b;
    hn::LoadInterleaved2(d, pairs, a, b);
    const VF c = LoadTail(d, cosines + i, rest), s = LoadTail(d, sines + i, rest);
    hn::StoreInterleaved2(hn::MulSub(a, c, hn::Mul(b, s)), hn::MulAdd(b, c, hn::Mul(a, s)), d, pairs);
    std::copy_n(pairs, 2 * rest, head + 2 * i);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace infinigen::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace infinigen {
namespace {

// Adds a row of quantised numbers, block by block. A call has few rows, so the scalar definition is fast enough.
void AddBlocks(const WeightView& table, int64_t row, float* out) {
  const WeightFormat& format = FormatOf(table.type);
  float numbers[kMostBlockNumbers];
  for (int64_t first = 0; first < table.cols; first += format.block_numbers) {
    const std::byte* from = table.row(row) + first / format.block_numbers * format.block_bytes;
    DecodeRow({from, table.type, 1, format.block_numbers}, 0, {numbers, static_cast<size_t>(format.block_numbers)});
    for (int64_t i = 0; i < format.block_numbers; ++i) out[first + i] += numbers[i];
  }
}

HWY_EXPORT(SiluMulRow);
HWY_EXPORT(GeluMulRow);
HWY_EXPORT(SoftCapRow);
HWY_EXPORT(RotateHalves);
HWY_EXPORT(RotateAdjacent);
HWY_EXPORT(StoreRow);
HWY_EXPORT(AddRow);
HWY_EXPORT(QuantiseRow);

// Uses scalar conversions: they define the rounding, and a step has few new entries.
void Round(StoreType type, const float* in, int64_t n, std::byte* out) {
  switch (type) {
    case StoreType::kF32:
      std::copy_n(in, n, reinterpret_cast<float*>(out));
      return;
    case StoreType::kF16:
      std::transform(in, in + n, reinterpret_cast<F16*>(out), ToF16);
      return;
    case StoreType::kBF16:
      std::transform(in, in + n, reinterpret_cast<BF16*>(out), ToBF16);
      return;
    case StoreType::kInt8:
    case StoreType::kInt4:
    case StoreType::kInt6:
      HWY_DYNAMIC_DISPATCH(QuantiseRow)(type, in, n, out);
      return;
  }
}

}  // namespace

void CpuBackend::Embed(Queue, const TokenBatch& batch, const WeightView& table, const Tensor& out) {
  CHECK(out.type == DType::kF32 && out.cols == table.cols && out.rows >= batch.count);
  ForRows(batch.count, table.cols, [&](int64_t first, int64_t count) {
    for (int64_t t = first; t < first + count; ++t) {
      DCHECK(batch.ids[t] >= 0 && batch.ids[t] < table.rows);
      if (IsPlain(table.type))
        HWY_DYNAMIC_DISPATCH(StoreRow)(table, batch.ids[t], out.as<float>(t));
      else
        DecodeRow(table, batch.ids[t], {out.as<float>(t), static_cast<size_t>(table.cols)});
    }
  });
}

void CpuBackend::AddPositions(Queue, const TokenBatch& batch, const WeightView& table, int64_t offset,
                              const Tensor& x) {
  CHECK(x.type == DType::kF32 && x.cols == table.cols && x.rows >= batch.count);
  ForRows(batch.count, table.cols, [&](int64_t first, int64_t count) {
    for (int64_t t = first; t < first + count; ++t) {
      DCHECK(batch.Position(t) + offset < table.rows);
      if (IsPlain(table.type))
        HWY_DYNAMIC_DISPATCH(AddRow)(table, batch.Position(t) + offset, x.as<float>(t));
      else
        AddBlocks(table, batch.Position(t) + offset, x.as<float>(t));
    }
  });
}

// Once per step, for all layers, so the cosines come from the C library: exact range reduction matters at position
// 131,071, speed does not.
void CpuBackend::RopeTable(Queue, const TokenBatch& batch, const ConstTensor& frequencies, float factor,
                           const Tensor& table) {
  const int64_t half = frequencies.cols;
  CHECK(frequencies.type == DType::kF32 && table.cols == 2 * half && table.rows >= batch.count);
  ForRows(batch.count, 32 * half, [&](int64_t first, int64_t count) {
    for (int64_t t = first; t < first + count; ++t) {
      for (int64_t i = 0; i < half; ++i) {
        const float angle = static_cast<float>(batch.Position(t)) * frequencies.as<float>()[i];
        table.as<float>(t)[i] = std::cos(angle) * factor;
        table.as<float>(t)[half + i] = std::sin(angle) * factor;
      }
    }
  });
}

void CpuBackend::Rope(Queue, const ConstTensor& table, const RopeShape& shape, const Tensor& x) {
  const int64_t planes = table.cols / 2;
  CHECK(table.cols <= shape.head_dim && x.cols % shape.head_dim == 0 && table.rows >= x.rows);
  ForRows(x.rows, x.cols, [&](int64_t first, int64_t count) {
    for (int64_t t = first; t < first + count; ++t) {
      const float* cosines = table.as<float>(t);
      for (int64_t head = 0; head < x.cols; head += shape.head_dim)
        shape.adjacent ? HWY_DYNAMIC_DISPATCH(RotateAdjacent)(cosines, cosines + planes, planes, x.as<float>(t) + head)
                       : HWY_DYNAMIC_DISPATCH(RotateHalves)(cosines, cosines + planes, planes, x.as<float>(t) + head);
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

void CpuBackend::GeluMul(Queue, const Tensor& gate, const Tensor& up) {
  CHECK(gate.type == DType::kF32 && up.type == DType::kF32 && gate.cols == up.cols && gate.rows == up.rows);
  ForRows(gate.rows, gate.cols * 4, [&](int64_t first, int64_t count) {
    for (int64_t r = first; r < first + count; ++r)
      HWY_DYNAMIC_DISPATCH(GeluMulRow)(gate.as<float>(r), up.as<float>(r), gate.cols);
  });
}

void CpuBackend::Add(Queue, const ConstTensor& y, const Tensor& x) {
  CHECK(x.type == DType::kF32 && y.type == DType::kF32 && x.cols == y.cols && x.rows == y.rows);
  ForRows(x.rows, x.cols, [&](int64_t first, int64_t count) {
    for (int64_t r = first; r < first + count; ++r)
      std::transform(x.as<float>(r), x.as<float>(r) + x.cols, y.as<float>(r), x.as<float>(r), std::plus<>());
  });
}

void CpuBackend::Scale(Queue, float factor, const Tensor& x) {
  CHECK(x.type == DType::kF32);
  ForRows(x.rows, x.cols, [&](int64_t first, int64_t count) {
    for (int64_t r = first; r < first + count; ++r)
      for (int64_t i = 0; i < x.cols; ++i) x.as<float>(r)[i] *= factor;
  });
}

void CpuBackend::SoftCap(Queue, float cap, const Tensor& x) {
  CHECK(x.type == DType::kF32 && cap > 0);
  ForRows(x.rows, x.cols * 4, [&](int64_t first, int64_t count) {
    for (int64_t r = first; r < first + count; ++r) HWY_DYNAMIC_DISPATCH(SoftCapRow)(cap, x.as<float>(r), x.cols);
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
        std::byte* entry = entries.Entry(batch.slots[t], head, batch.OwnRow(t, head));
        const int64_t column = head * layout.head_dim;
        Round(layout.key_type(), keys.as<float>(t) + column, layout.head_dim, entry);
        Round(layout.value_type(), values.as<float>(t) + column, layout.head_dim, entry + layout.key_bytes());
      }
    }
  });
}

}  // namespace infinigen
#endif  // HWY_ONCE
