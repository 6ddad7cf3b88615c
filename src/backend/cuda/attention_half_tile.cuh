// The tile of 16-bit entries, and of f32 entries, which are rounded to f16 when they are copied (attention_tile.cuh
// explains tiles).
#pragma once

#include "backend/cuda/attention_tile.cuh"

namespace infinigen {

template <class T, int kDim>
class HalfTile {
 public:
  static constexpr int kPadded = kDim;
  static constexpr int kWarps = kDim == 256 ? 2 : 4;  // so that three blocks fit into a multiprocessor's shared memory
  static constexpr int kBlocks = 3;
  static constexpr int kStages = kDim == 64 ? 4 : 2;
  static constexpr float kShift = kWeightShift<T>;
  // A row is a multiple of 128 bytes plus 16: the eight rows of a matrix lie in different banks.
  static constexpr int kRowBytes = 4 * kDim + 16;
  static constexpr int StageBytes(const EntryLayout&) { return kTileRows * kRowBytes; }

  __device__ explicit HalfTile(const TileShape& shape) {
    const int t = threadIdx.x % 4;
    ForQueryPairs<kDim / 8>(
        shape, [&](int i, int x) { return 8 * i + 2 * t + x; },
        [&](int i, float a, float b) { query_[i / 2][i % 2] = Pair<T>(Within<T>(a), Within<T>(b)); });
    Clear();
  }
  __device__ void Clear() {
#pragma unroll
    for (auto& rows : sum_)
      for (float& x : rows) x = 0;
  }

  // Copies `count` entries and fills the rest of the tile, and the padding of keys, with zeros.
  __device__ static void Stage(const TileShape& shape, std::byte* to, const std::byte* const* entries, int count) {
    constexpr int kPieces = kDim / 8;  // pieces per key
    const int lane = threadIdx.x % 32, pieces = shape.dim / 8;
    if constexpr (std::is_same_v<T, __half>)
      if (shape.type == StoreType::kF32) return StageRounded(shape, to, entries, count);
#pragma unroll
    for (int i = 0; i < kTileRows * 2 * kPieces / 32; ++i) {
      const int at = i * 32 + lane, row = at / (2 * kPieces), part = at / kPieces % 2, piece = at % kPieces;
      const bool present = row < count && piece < pieces;
      const std::byte* from = entries[row] + (present ? part * shape.key_bytes + piece * 16 : 0);
      CopyAsync<16>(SharedAddress(to) + row * kRowBytes + (part * kPieces + piece) * 16, from, present);
    }
  }

  // c += K · Qᵀ.
  __device__ void Scores(const TileShape&, const std::byte* tile, float (&c)[4]) const {
    // Matrices: rows 0 and 8 of 8 dims, then of the next 8.
    const uint32_t at = SharedAddress(tile) + (threadIdx.x % 16) * kRowBytes + (threadIdx.x % 32 / 16) * 16;
    float odd[4] = {};
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) {
      uint32_t key[4];
      LoadMatrices(key, at + i * 32);
      Multiply<T>(i % 2 == 0 ? c : odd, key, query_[i][0], query_[i][1]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) c[i] += odd[i];
  }

  __device__ void Rescale(float first, float second) {
#pragma unroll
    for (auto& rows : sum_) rows[0] *= first, rows[1] *= second, rows[2] *= first, rows[3] *= second;
  }

  // weights: for entries g, g, g + 8, g + 8 and heads 2t, 2t + 1, 2t, 2t + 1.
  __device__ void AddValues(const TileShape&, const std::byte* tile, const float (&weights)[4]) {
    const uint32_t low = Transpose(Pair<T>(weights[0], weights[1])), high = Transpose(Pair<T>(weights[2], weights[3]));
    // Matrices: dims 0 and 8 of entries 0 to 7, then of 8 to 15.
    const int lane = threadIdx.x % 32, row = lane % 8 + lane / 16 * 8, piece = kDim / 8 + lane / 8 % 2;
    const uint32_t at = SharedAddress(tile) + row * kRowBytes + piece * 16;
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) {
      uint32_t value[4];
      LoadTransposed(value, at + i * 32);
      Multiply<T>(sum_[i], value, low, high);
    }
  }

  // Calls use(dim, sum of head 2t, sum of head 2t + 1) for the dims of this lane.
  template <class Use>
  __device__ void ForSums(Use use) {
    const int g = threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) {
      use(16 * i + g, sum_[i][0], sum_[i][1]);
      use(16 * i + g + 8, sum_[i][2], sum_[i][3]);
    }
  }

 private:
  __device__ static void StageRounded(const TileShape& shape, std::byte* to, const std::byte* const* entries,
                                      int count) {
    constexpr int kPieces = kDim / 8;
    for (int at = threadIdx.x % 32; at < kTileRows * 2 * kPieces; at += 32) {
      const int row = at / (2 * kPieces), part = at / kPieces % 2, piece = at % kPieces;
      uint4 numbers = {};
      if (row < count && piece < shape.dim / 8)
        numbers = RoundEight(reinterpret_cast<const float*>(entries[row] + part * shape.key_bytes) + piece * 8);
      *reinterpret_cast<uint4*>(to + row * kRowBytes + (part * kPieces + piece) * 16) = numbers;
    }
  }

  uint32_t query_[kDim / 16][2];
  float sum_[kDim / 16][4];
};

}  // namespace infinigen
