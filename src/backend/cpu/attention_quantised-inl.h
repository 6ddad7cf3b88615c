// Blocks of quantised entries (kv/view.h) for the kernels of attention-inl.h, compiled once per SIMD target.
// Codes are read from the pool and converted to f32 in registers, by the same multiply-add on every path: directly into
// scores and weighted values where decode reads in place, into scratch where many rows share a block.
#if defined(INFINIGEN_CPU_ATTENTION_QUANTISED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INFINIGEN_CPU_ATTENTION_QUANTISED_INL_H_
#undef INFINIGEN_CPU_ATTENTION_QUANTISED_INL_H_
#else
#define INFINIGEN_CPU_ATTENTION_QUANTISED_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <concepts>
#include <cstring>

#include "backend/cpu/attention-inl.h"
#include "kv/view.h"

HWY_BEFORE_NAMESPACE();
namespace infinigen::HWY_NAMESPACE {

template <class T>
concept Codes = std::same_as<T, Int8> || std::same_as<T, Int4>;
template <Codes T>
inline constexpr int64_t kPerByte = std::same_as<T, Int8> ? 1 : 2;

// Scales and minima, as f32, of the keys or the values of a block.
struct BlockHeaders {
  static constexpr int64_t kMaxGroups = kMaxHeadDim / kStoreGroup;
  HWY_ALIGN float scales[kMaxGroups][kAttentionBlock];
  HWY_ALIGN float minima[kMaxGroups][kAttentionBlock];

  // Reads the headers `offset` bytes after the addresses in `at`; `count` is a whole number of vectors.
  template <class T>
  HWY_INLINE void Load(const T* const* at, int64_t offset, int64_t count, int64_t groups) {
    for (int64_t group = 0; group < groups; ++group) {
      HWY_ALIGN uint32_t packed[kAttentionBlock];
      for (int64_t j = 0; j < count; ++j)
        std::memcpy(&packed[j], at[j] + offset + group * static_cast<int64_t>(sizeof(GroupHeader)), sizeof(packed[j]));
      for (int64_t j = 0; j < count; j += kLanes) {
        VF pair[2];
        Widen(hn::Load(DU(), packed + j), F16{}, pair);
        hn::Store(pair[0], DF(), scales[group] + j);
        hn::Store(pair[1], DF(), minima[group] + j);
      }
    }
  }
};

// kLanes keys of a block. Those of int4 entries are int6: `codes` are their low bits.
template <Codes T>
struct QuantisedKeys {
  ListedRows<uint8_t> codes;
  ListedRows<uint8_t> high_bits;  // of int6 codes
  const float* scales;            // [groups] at stride kAttentionBlock, from the first of these keys
  const float* minima;
};

// A row of values, from some column on.
template <Codes T>
struct QuantisedRow {
  const uint8_t* codes;
  const float* scale;  // [groups] at stride kAttentionBlock
  const float* minimum;
  HWY_INLINE QuantisedRow operator+(int64_t column) const {
    const int64_t group = column / kStoreGroup * kAttentionBlock;
    return {codes + column / kPerByte<T>, scale + group, minimum + group};
  }
};
template <Codes T>
struct QuantisedValues {
  using Element = T;
  const T* const* at;
  int64_t offset;  // bytes from an address in `at` to the value's codes
  const BlockHeaders* headers;
  HWY_INLINE QuantisedRow<T> operator()(int64_t s) const {
    return {reinterpret_cast<const uint8_t*>(at[s] + offset), headers->scales[0] + s, headers->minima[0] + s};
  }
};

template <Codes E>
struct EntryBlock<E> {
  using T = E;
  const T* const* at;
  int64_t count;
  int64_t dim;
  BlockHeaders keys, values;

  HWY_INLINE EntryBlock(const T* const* entries, int64_t entry_count, int64_t head_dim)
      : at(entries), count(entry_count), dim(head_dim) {
    const int64_t whole = (count + kLanes - 1) / kLanes * kLanes;
    keys.Load(at, 0, whole, StoreGroups(dim));
    values.Load(at, KeyBytes(), whole, StoreGroups(dim));
  }
  HWY_INLINE QuantisedKeys<T> Keys(int64_t j) const {
    const auto* rows = reinterpret_cast<const uint8_t* const*>(at) + j;
    return {{rows, StoreHeaderBytes(dim)},
            {rows, StoreHeaderBytes(dim) + LowBytes(dim)},
            keys.scales[0] + j,
            keys.minima[0] + j};
  }
  HWY_INLINE QuantisedValues<T> Values() const { return {at, KeyBytes() + StoreHeaderBytes(dim), &values}; }

 private:
  int64_t KeyBytes() const {
    return static_cast<int64_t>(StoredBytes(std::same_as<T, Int8> ? StoreType::kInt8 : StoreType::kInt6, dim));
  }
};

// ---- Conversion of codes to f32

HWY_INLINE VF CodesToF32(VU codes) { return hn::ConvertTo(DF(), hn::BitCast(hn::RebindToSigned<DF>(), codes)); }

// The codes of a unit of 4 bytes, ascending.
HWY_INLINE void Widen(VU units, Int8, VF (&out)[4]) {
  const VU mask = hn::Set(DU(), 0xffu);
  out[0] = CodesToF32(hn::And(units, mask));
  out[1] = CodesToF32(hn::And(hn::ShiftRight<8>(units), mask));
  out[2] = CodesToF32(hn::And(hn::ShiftRight<16>(units), mask));
  out[3] = CodesToF32(hn::ShiftRight<24>(units));
}

// Code kCode of the int6 codes whose low bits are in `low`; their high bits are in half kHalf of each 16 bits of `high`
// (HighByte in kv/view.h).
template <int kHalf, int kCode>
HWY_INLINE VF Int6Code(VU low, VU high) {
  constexpr int kAt = 16 * (kCode / 4) + 8 * kHalf + 2 * (kCode % 4);
  VU bits;
  if constexpr (kAt < 4)
    bits = hn::ShiftLeft<4 - kAt>(high);
  else
    bits = hn::ShiftRight<kAt - 4>(high);
  return CodesToF32(
      hn::Or(hn::And(hn::ShiftRight<4 * kCode>(low), hn::Set(DU(), 0xfu)), hn::And(bits, hn::Set(DU(), 0x30u))));
}
template <int kHalf>
HWY_INLINE void WidenInt6(VU low, VU high, VF (&out)[8]) {
  out[0] = Int6Code<kHalf, 0>(low, high);
  out[1] = Int6Code<kHalf, 1>(low, high);
  out[2] = Int6Code<kHalf, 2>(low, high);
  out[3] = Int6Code<kHalf, 3>(low, high);
  out[4] = Int6Code<kHalf, 4>(low, high);
  out[5] = Int6Code<kHalf, 5>(low, high);
  out[6] = Int6Code<kHalf, 6>(low, high);
  out[7] = Int6Code<kHalf, 7>(low, high);
}

HWY_INLINE uint32_t NibbleAt(const uint8_t* codes, int64_t i) { return codes[i / 2] >> (i % 2 * 4) & 15u; }
// Code i of key `lane`.
template <Codes T>
HWY_INLINE uint32_t KeyCode(const QuantisedKeys<T>& keys, int64_t lane, int64_t i) {
  if constexpr (std::same_as<T, Int8>)
    return keys.codes(lane)[i];
  else
    return NibbleAt(keys.codes(lane), i) | (keys.high_bits(lane)[HighByte(i)] >> (i % 4 * 2) & 3u) << 4;
}

// One step of values for the products: int8 in order, int4 in paired order (low halves are the even columns).
HWY_INLINE VU LoadBytes(const uint8_t* p) { return hn::PromoteTo(DU(), hn::LoadU(hn::Rebind<uint8_t, DF>(), p)); }
template <int kVectors>
HWY_INLINE void LoadStep(DF d, const QuantisedRow<Int8>& row, VF (&b)[kVectors]) {
  const VF scale = hn::Set(d, *row.scale), minimum = hn::Set(d, *row.minimum);
  for (int v = 0; v < kVectors; ++v) b[v] = hn::MulAdd(CodesToF32(LoadBytes(row.codes + v * kLanes)), scale, minimum);
}
template <int kVectors>
HWY_INLINE void LoadStep(DF d, const QuantisedRow<Int4>& row, VF (&b)[kVectors]) {
  static_assert(kVectors % 2 == 0);
  const VF scale = hn::Set(d, *row.scale), minimum = hn::Set(d, *row.minimum);
  for (int v = 0; v < kVectors; v += 2) {
    const VU bytes = LoadBytes(row.codes + v / 2 * kLanes);
    b[v] = hn::MulAdd(CodesToF32(hn::And(bytes, hn::Set(DU(), 0xfu))), scale, minimum);
    b[v + 1] = hn::MulAdd(CodesToF32(hn::ShiftRight<4>(bytes)), scale, minimum);
  }
}

// ---- Keys, element by element: calls f(i, elements i of kLanes keys), ascending, and prefetch(bytes) before these
// bytes of each key.

template <Codes T, class Prefetch, class F>
HWY_INLINE void ForKeyColumns(const QuantisedKeys<T>& keys, int64_t dim, Prefetch&& prefetch, F&& f) {
  constexpr int64_t kUnit = 4 * kPerByte<T>, kStep = 8 * kUnit;
  static_assert(kStoreGroup % kStep == 0);
  const auto header = [&](const float* numbers, int64_t i)
                          HWY_ATTR { return hn::LoadU(DF(), numbers + i / kStoreGroup * kAttentionBlock); };
  int64_t i = 0;
  for (; i + kStep <= dim; i += kStep) {
    const VF scale = header(keys.scales, i), minimum = header(keys.minima, i);
    const auto use = [&](int64_t c, const VF(&columns)[kUnit]) HWY_ATTR {
      INFINIGEN_UNROLL for (int64_t n = 0; n < kUnit; ++n) f(i + c * kUnit + n, hn::MulAdd(columns[n], scale, minimum));
    };
    VU units[8];
    VF columns[kUnit];
    if constexpr (std::same_as<T, Int8>) {
      prefetch(32);
      LoadKeysTransposed<uint8_t>(keys.codes, i, units);
      INFINIGEN_UNROLL for (int64_t c = 0; c < 8; ++c) {
        Widen(units[c], T{}, columns);
        use(c, columns);
      }
    } else {
      prefetch(48);
      VU high_bits[4];
      LoadKeysTransposed<uint8_t>(keys.codes, i / 2, units);
      LoadKeysTransposed(keys.high_bits, i / 4, high_bits);
      INFINIGEN_UNROLL for (int64_t c = 0; c < 8; c += 2) {
        WidenInt6<0>(units[c], high_bits[c / 2], columns);
        use(c, columns);
        WidenInt6<1>(units[c + 1], high_bits[c / 2], columns);
        use(c + 1, columns);
      }
    }
  }
  for (; i < dim; ++i) {
    HWY_ALIGN float lanes[kLanes];
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] = static_cast<float>(KeyCode(keys, lane, i));
    f(i, hn::MulAdd(hn::Load(DF(), lanes), header(keys.scales, i), header(keys.minima, i)));
  }
}

template <int kRows, Codes T, class Next>
HWY_INLINE void ScoreKeys(const QuantisedKeys<T>& keys, int64_t dim, const float* queries, int64_t query_stride,
                          Next& next, float* scores) {
  VF sums[kRows];
  INFINIGEN_UNROLL for (int64_t r = 0; r < kRows; ++r) sums[r] = hn::Zero(DF());
  ForKeyColumns(
      keys, dim, [&](int64_t bytes) HWY_ATTR { next.Prefetch(kLanes * bytes / 64); },
      [&](int64_t i, VF column) HWY_ATTR {
        INFINIGEN_UNROLL for (int64_t r = 0; r < kRows; ++r) sums[r] =
            hn::MulAdd(hn::Set(DF(), queries[r * query_stride + i]), column, sums[r]);
      });
  INFINIGEN_UNROLL for (int64_t r = 0; r < kRows; ++r) hn::Store(sums[r], DF(), scores + r * kAttentionBlock);
}

template <Codes T>
HWY_INLINE void TransposeKeys(const EntryBlock<T>& block, float* out) {
  for (int64_t j = 0; j < block.count; j += kLanes)
    ForKeyColumns(
        block.Keys(j), block.dim, [](int64_t) HWY_ATTR {},
        [&](int64_t i, VF column) HWY_ATTR { hn::Store(column, DF(), out + i * kAttentionBlock + j); });
}

// ---- Values as f32 rows [count][padded_dim], zero-padded

// Unpacks to one byte per code.
HWY_INLINE const uint8_t* Unpack(const QuantisedRow<Int8>& row, int64_t, uint8_t*) { return row.codes; }
HWY_INLINE const uint8_t* Unpack(const QuantisedRow<Int4>& row, int64_t dim, uint8_t* out) {
  const hn::Full128<uint8_t> d;
  const hn::Full128<uint16_t> d16;
  const auto mask = hn::Set(d, uint8_t{15});
  int64_t i = 0;
  for (; i + 32 <= dim; i += 32) {
    const auto bytes = hn::LoadU(d, row.codes + i / 2);
    const auto even = hn::And(bytes, mask);
    const auto odd = hn::And(hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(d16, bytes))), mask);
    hn::StoreU(hn::InterleaveLower(d, even, odd), d, out + i);
    hn::StoreU(hn::InterleaveUpper(d, even, odd), d, out + i + 16);
  }
  for (; i < dim; ++i) out[i] = static_cast<uint8_t>(NibbleAt(row.codes, i));
  return out;
}

template <Codes T>
HWY_INLINE void WidenValues(const EntryBlock<T>& block, int64_t padded_dim, float* out) {
  const DF d;
  const QuantisedValues<T> values = block.Values();
  for (int64_t j = 0; j < block.count; ++j) {
    HWY_ALIGN uint8_t unpacked[kMaxHeadDim];
    const QuantisedRow<T> row = values(j);
    const uint8_t* codes = Unpack(row, block.dim, unpacked);
    float* to = out + j * padded_dim;
    int64_t i = 0;
    for (; i + kLanes <= block.dim; i += kLanes) {
      const int64_t group = i / kStoreGroup * kAttentionBlock;
      hn::Store(
          hn::MulAdd(CodesToF32(LoadBytes(codes + i)), hn::Set(d, row.scale[group]), hn::Set(d, row.minimum[group])), d,
          to + i);
    }
    // The product is exact, so this equals the multiply-add.
    for (; i < block.dim; ++i) {
      const int64_t group = i / kStoreGroup * kAttentionBlock;
      to[i] = static_cast<float>(codes[i]) * row.scale[group] + row.minimum[group];
    }
    std::fill(to + i, to + padded_dim, 0.0f);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace infinigen::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
