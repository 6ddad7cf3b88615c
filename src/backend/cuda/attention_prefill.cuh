// Operands of prefill attention and their copies to shared memory. Private to attention_prefill.cu.
#pragma once

#include "backend/cuda/attention.cuh"

namespace infinigen {

inline constexpr int kPrefillWarps = 4, kPrefillThreads = 32 * kPrefillWarps;

struct PrefillCall {
  ConstTensor queries;  // [count][heads · dim]
  Tensor out;           // the same shape
  LayerEntries entries;
  int64_t slot = 0, first_row = 0, count = 0;
  int group = 0;
  float scale = 0;     // scale of scores, to base 2
  float soft_cap = 0;  // of scores, to base 2; 0: none
  int window = 0;      // a query attends to the last rows only; 0: to all
  bool aligned_queries = false, aligned_pairs = false;
};

// T: the type that is multiplied. kConvert: entries have another type.
template <class T, bool kConvert, int kDim>
struct PrefillShape {
  using Number = T;
  static constexpr bool kConverts = kConvert;
  static constexpr int kPadded = kDim;
  static constexpr int kParts = kDim == 256 ? 1 : 2;   // 16 queries each, per warp
  static constexpr int kKeys = kDim == 256 ? 32 : 64;  // keys per tile
  static constexpr int kQueries = kPrefillWarps * 16 * kParts;
  static constexpr int kRowBytes = 2 * kDim;
  static constexpr int kPieces = kDim / 8;  // 16-byte pieces per row
  static constexpr int kQueryBytes = kQueries * kRowBytes;
  static constexpr int kTileBytes = 2 * kKeys * kRowBytes;  // keys, then values

  // Shared memory holds the queries, then two tiles; or one tile and the bytes of two quantised ones.
  static constexpr int RawBytes(const EntryLayout& layout) {
    return IsQuantised(layout.type) ? kKeys * static_cast<int>(layout.entry_bytes()) : 0;
  }
  static constexpr int SharedBytes(const EntryLayout& layout) {
    return kQueryBytes + (kConvert ? kTileBytes + 2 * RawBytes(layout) : 2 * kTileBytes);
  }
};

// Offset of a piece in a matrix of rows in shared memory.
template <class S>
__device__ inline int PieceAt(int row, int piece) {
  return row * S::kRowBytes + ((piece ^ (row & 7)) * 16);
}

template <class Number>
__device__ inline void LoadEight(const Number* from, bool aligned, float (&to)[8]) {
  alignas(16) Number numbers[8];
  if (aligned) {
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(numbers) / 16); ++i)
      reinterpret_cast<uint4*>(numbers)[i] = reinterpret_cast<const uint4*>(from)[i];
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) numbers[i] = from[i];
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) to[i] = AsFloat(numbers[i]);
}

// Copies queries [first, first + kQueries) of a head; those past the run are zero.
template <class S, class Number>
__device__ void LoadQueries(const PrefillCall& call, int64_t first, int64_t head, std::byte* to) {
  const int dim = static_cast<int>(call.entries.layout.head_dim);
  for (int at = threadIdx.x; at < S::kQueries * S::kPieces; at += kPrefillThreads) {
    const int row = at / S::kPieces, piece = at % S::kPieces;
    float x[8] = {};
    if (first + row < call.count && piece * 8 < dim)
      LoadEight(reinterpret_cast<const Number*>(call.queries.data) + (first + row) * call.queries.stride + head * dim +
                    piece * 8,
                call.aligned_queries, x);
    uint4 pairs;
    uint32_t* pair = &pairs.x;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      pair[i] =
          Pair<typename S::Number>(Within<typename S::Number>(x[2 * i]), Within<typename S::Number>(x[2 * i + 1]));
    *reinterpret_cast<uint4*>(to + PieceAt<S>(row, piece)) = pairs;
  }
}
template <class S>
__device__ void LoadQueries(const PrefillCall& call, int64_t first, int64_t head, std::byte* to) {
  if (call.queries.type == DType::kF32)
    LoadQueries<S, float>(call, first, head, to);
  else if (call.queries.type == DType::kF16)
    LoadQueries<S, __half>(call, first, head, to);
  else
    LoadQueries<S, __nv_bfloat16>(call, first, head, to);
}

// The entries of tile `tile`: first row and count. A tile does not cross extents.
template <class S>
struct TileEntries {
  __device__ TileEntries(const PrefillCall& call, int64_t kv_head, int tile) {
    const int64_t row = static_cast<int64_t>(tile) * S::kKeys;
    from = call.entries.Entry(call.slot, kv_head, row);
    count = static_cast<int>(min(static_cast<int64_t>(S::kKeys), call.first_row + call.count - row));
  }
  const std::byte* from;
  int count;
};

// Starts an asynchronous copy of a tile. Rows past the end of the sequence and dims past the head are zero.
template <class S>
__device__ void CopyTile(const PrefillCall& call, const TileEntries<S>& entries, std::byte* to) {
  const int pieces = static_cast<int>(call.entries.layout.head_dim) / 8, key_bytes = pieces * 16;
  const uint32_t base = SharedAddress(to);
#pragma unroll 4
  for (int i = 0; i < S::kKeys * 2 * S::kPieces / kPrefillThreads; ++i) {
    const int at = i * kPrefillThreads + static_cast<int>(threadIdx.x);
    const int row = at / (2 * S::kPieces), part = at / S::kPieces % 2, piece = at % S::kPieces;
    const bool present = row < entries.count && piece < pieces;
    const std::byte* from = entries.from + (present ? (2 * row + part) * key_bytes + piece * 16 : 0);
    CopyAsync<16>(base + part * (S::kTileBytes / 2) + PieceAt<S>(row, piece), from, present);
  }
}
// Starts an asynchronous copy of the bytes of a quantised tile.
template <class S>
__device__ void CopyRaw(const PrefillCall& call, const TileEntries<S>& entries, std::byte* to) {
  const int entry_bytes = static_cast<int>(call.entries.layout.entry_bytes()), bytes = entries.count * entry_bytes;
  if (entry_bytes % 16 == 0) {
    for (int at = threadIdx.x * 16; at < bytes; at += kPrefillThreads * 16)
      CopyAsync<16>(SharedAddress(to) + at, entries.from + at, true);
  } else {
    for (int at = threadIdx.x * 8; at < bytes; at += kPrefillThreads * 8)
      CopyAsync<8>(SharedAddress(to) + at, entries.from + at, true);
  }
}
// Converts the copy of a quantised tile, or an f32 tile in global memory, to f16.
template <class S>
__device__ void ConvertTile(const PrefillCall& call, const std::byte* entries, int count, std::byte* to) {
  const EntryLayout& layout = call.entries.layout;
  const int dim = static_cast<int>(layout.head_dim), key_bytes = static_cast<int>(layout.key_bytes());
  const int header_bytes = static_cast<int>(StoreHeaderBytes(dim)), low_bytes = static_cast<int>(LowBytes(dim));
  const int entry_bytes = static_cast<int>(layout.entry_bytes());
#pragma unroll 4
  for (int at = threadIdx.x; at < S::kKeys * 2 * S::kPieces; at += kPrefillThreads) {
    const int row = at / (2 * S::kPieces), part = at / S::kPieces % 2, piece = at % S::kPieces;
    uint4 numbers = {};
    if (row < count && piece * 8 < dim) {
      const std::byte* from = entries + row * entry_bytes + part * key_bytes;
      if (layout.type == StoreType::kF32) {
        numbers = RoundEight(reinterpret_cast<const float*>(from) + piece * 8);
      } else {
        const uint32_t header = reinterpret_cast<const uint32_t*>(from)[piece / 8];
        const StoreType type = part == 0 ? layout.key_type() : layout.value_type();
        const std::byte* codes = from + header_bytes;
        const uint32_t high =
            type == StoreType::kInt6 ? reinterpret_cast<const uint32_t*>(codes + low_bytes)[piece / 2] : 0;
        numbers = DecodeEight(type, codes + piece * (type == StoreType::kInt8 ? 8 : 4), header, high, piece % 2);
      }
    }
    *reinterpret_cast<uint4*>(to + part * (S::kTileBytes / 2) + PieceAt<S>(row, piece)) = numbers;
  }
}

}  // namespace infinigen
