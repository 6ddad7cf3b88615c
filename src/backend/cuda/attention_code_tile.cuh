// The tile of int8 and int4 entries (attention_tile.cuh explains tiles). With g = lane / 4 and t = lane % 4:
//
//     score = sum over groups of  scale · (Σ q · code) + minimum · Σ q
//     value = sum over entries of (weight · scale) · code + weight · minimum
//
// Codes enter the tensor cores as 1024 + code, which only takes bit operations. The contribution of the 1024 is known
// (a multiple of the sum of a group's queries, or of its scaled weights) and is subtracted in f32. Lanes load whole
// words of codes, so a product takes dims in the order of words. The keys of int4 entries are int6 (kv/view.h): each
// word of low bits is joined by its half of a word of high bits.
#pragma once

#include "backend/cuda/attention_tile.cuh"

namespace infinigen {

template <int kBits, int kDim>
class CodeTile {
 public:
  static constexpr int kPadded = kDim;
  static constexpr int kWarps = 4;
  static constexpr int kBlocks = kDim == 256 ? 2 : 4;
  static constexpr int kStages = kDim == 256 ? 2 : 4;
  // Keeps weight · scale below 65504: the largest scales are 514 and 8734.
  static constexpr float kShift = kBits == 8 ? 6.0f : 2.0f;
  static constexpr int kGroups = kDim / kStoreGroup;
  static constexpr int kGroupBytes = kStoreGroup * kBits / 8;
  // Entries are laid out as in memory. If the last group is short, a product reads past it, and past the last row by up
  // to a group. These codes are multiplied by zeros or go to sums that are never read; any code is finite.
  static constexpr int StageBytes(const EntryLayout& layout) {
    return kTileRows * static_cast<int>(layout.entry_bytes()) + kGroupBytes;
  }

  __device__ explicit CodeTile(const TileShape& shape) {
    float partial[kGroups] = {};
    ForQueryPairs<kDim / 8>(
        shape, [](int i, int x) { return KeyDim(i / 2, i % 2, x); },
        [&](int i, float a, float b) {
          query_[i / 2][i % 2] = Pair<__half>(Within<__half>(a), Within<__half>(b));
          const float2 rounded = Halves(query_[i / 2][i % 2]);
          partial[i / 8] += rounded.x + rounded.y;
        });
    // Sums of head g over the four lanes that share it; then those of heads 2t and 2t + 1.
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      partial[j] += __shfl_xor_sync(~0u, partial[j], 1);
      partial[j] += __shfl_xor_sync(~0u, partial[j], 2);
      query_sum_[j][0] = __shfl_sync(~0u, partial[j], threadIdx.x % 4 * 8);
      query_sum_[j][1] = __shfl_sync(~0u, partial[j], threadIdx.x % 4 * 8 + 4);
    }
    Clear();
  }
  __device__ void Clear() {
#pragma unroll
    for (auto& rows : sum_)
      for (float& x : rows) x = 0;
#pragma unroll
    for (auto& heads : rest_) heads[0] = heads[1] = 0;
  }

  __device__ static void Stage(const TileShape& shape, std::byte* to, const std::byte* const* entries, int count) {
    if (shape.entry_bytes % 16 == 0)
      StagePieces<16>(shape, shape.entry_bytes / 16, to, entries, count);
    else
      StagePieces<8>(shape, shape.entry_bytes / 8, to, entries, count);
  }
  static constexpr uint32_t PieceInverse(int entry_bytes) {
    const int pieces = entry_bytes / (entry_bytes % 16 == 0 ? 16 : 8);
    return static_cast<uint32_t>((65536 + pieces - 1) / pieces);
  }

  __device__ void Scores(const TileShape& shape, const std::byte* tile, float (&c)[4]) const {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const std::byte* low = tile + g * shape.entry_bytes;
    const std::byte* high = low + 8 * shape.entry_bytes;
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      if (j >= shape.groups) break;
      const float a = query_sum_[j][0], b = query_sum_[j][1];
      float dot[4] = {-kCodeBias * a, -kCodeBias * b, -kCodeBias * a, -kCodeBias * b};
      const int at = 4 * shape.groups + j * kGroupBytes + 4 * t;
#pragma unroll
      for (int w = 0; w < kGroupBytes / 16; ++w) {
        const uint32_t x = Word(low, at + 16 * w), y = Word(high, at + 16 * w);
        if constexpr (kBits == 8) {
          const uint32_t key[4] = {__byte_perm(x, kBiasBytes, 0x4140), __byte_perm(y, kBiasBytes, 0x4140),
                                   __byte_perm(x, kBiasBytes, 0x4342), __byte_perm(y, kBiasBytes, 0x4342)};
          Multiply<__half>(dot, key, query_[4 * j + w][0], query_[4 * j + w][1]);
        } else {
          const int bits_at = 4 * shape.groups + shape.dim / 2 + j * (kStoreGroup / 4) + 8 * w + t / 2 * 4;
          const uint32_t x_bits = Word(low, bits_at), y_bits = Word(high, bits_at);
          const auto pair = [&](uint32_t word, uint32_t bits, int nibble) {
            return BiasedNibbles(word, nibble) | HighBits(bits, t % 2, nibble);
          };
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const uint32_t key[4] = {pair(x, x_bits, 2 * e), pair(y, y_bits, 2 * e), pair(x, x_bits, 2 * e + 1),
                                     pair(y, y_bits, 2 * e + 1)};
            Multiply<__half>(dot, key, query_[4 * j + 2 * w + e][0], query_[4 * j + 2 * w + e][1]);
          }
        }
      }
      const float2 of_low = Halves(Word(low, 4 * j)), of_high = Halves(Word(high, 4 * j));  // scale, minimum
      c[0] += fmaf(of_low.x, dot[0], of_low.y * a);
      c[1] += fmaf(of_low.x, dot[1], of_low.y * b);
      c[2] += fmaf(of_high.x, dot[2], of_high.y * a);
      c[3] += fmaf(of_high.x, dot[3], of_high.y * b);
    }
  }

  __device__ void Rescale(float first, float second) {
#pragma unroll
    for (auto& rows : sum_) rows[0] *= first, rows[1] *= second, rows[2] *= first, rows[3] *= second;
#pragma unroll
    for (auto& heads : rest_) heads[0] *= first, heads[1] *= second;
  }

  __device__ void AddValues(const TileShape& shape, const std::byte* tile, const float (&weights)[4]) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, entry_bytes = shape.entry_bytes;
    const std::byte* values = tile + shape.key_bytes;
    const std::byte* mine = values + 2 * t * entry_bytes;  // entries 2t, 2t + 1, 2t + 8, 2t + 9
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      if (j >= shape.groups) break;
      const float2 of_low = Halves(Word(values + g * entry_bytes, 4 * j));
      const float2 of_high = Halves(Word(values + (g + 8) * entry_bytes, 4 * j));
      const uint32_t scaled_low = Pair<__half>(weights[0] * of_low.x, weights[1] * of_low.x);
      const uint32_t scaled_high = Pair<__half>(weights[2] * of_high.x, weights[3] * of_high.x);
      const float2 p = Halves(scaled_low), q = Halves(scaled_high);
      rest_[j][0] += fmaf(weights[0], of_low.y, weights[2] * of_high.y) - kCodeBias * (p.x + q.x);
      rest_[j][1] += fmaf(weights[1], of_low.y, weights[3] * of_high.y) - kCodeBias * (p.y + q.y);
      const uint32_t b0 = Transpose(scaled_low), b1 = Transpose(scaled_high);
#pragma unroll
      for (int w = 0; w < kGroupBytes / 32; ++w) {
        const int at = 4 * shape.groups + j * kGroupBytes + 32 * w + 4 * g;
        const uint32_t a = Word(mine, at), b = Word(mine + entry_bytes, at);
        const uint32_t c = Word(mine + 8 * entry_bytes, at), d = Word(mine + 9 * entry_bytes, at);
        AddWords(4 * j + 2 * w, a, b, c, d, b0, b1);
      }
    }
  }

  template <class Use>
  __device__ void ForSums(Use use) {
#pragma unroll
    for (auto& heads : rest_)
#pragma unroll
      for (float& x : heads) {
        x += __shfl_xor_sync(~0u, x, 4);
        x += __shfl_xor_sync(~0u, x, 8);
        x += __shfl_xor_sync(~0u, x, 16);
      }
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        use(ValueDim(i, r), sum_[i][2 * r] + rest_[i / 4][0], sum_[i][2 * r + 1] + rest_[i / 4][1]);
  }

 private:
  // Dims of keys in pair f of B for step i, number x of the pair: words of codes in the order in which lanes load them.
  __device__ static int KeyDim(int i, int f, int x) {
    const int t = threadIdx.x % 4;
    return kBits == 8 ? 16 * i + 4 * t + 2 * f + x : 64 * (i / 4) + 32 * (i % 4 / 2) + 8 * t + 2 * (i % 2) + f + 4 * x;
  }
  // Dims of values in rows g (r = 0) and g + 8 (r = 1) of product i.
  __device__ static int ValueDim(int i, int r) {
    const int g = threadIdx.x % 32 / 4;
    return kBits == 8 ? 64 * (i / 4) + 32 * (i % 4 / 2) + 4 * g + 2 * (i % 2) + r
                      : 64 * (i / 4) + 8 * g + 2 * (i % 4) + r;
  }
  __device__ static uint32_t Word(const std::byte* from, int offset) {
    return *reinterpret_cast<const uint32_t*>(from + offset);
  }

  // Words of the same dims in four entries: 4 numbers each for two products, or 8 for four.
  __device__ void AddWords(int i, uint32_t a, uint32_t b, uint32_t c, uint32_t d, uint32_t b0, uint32_t b1) {
    if constexpr (kBits == 8) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const uint32_t x = __byte_perm(a, b, e == 0 ? 0x5140 : 0x7362), y = __byte_perm(c, d, e == 0 ? 0x5140 : 0x7362);
        const uint32_t value[4] = {__byte_perm(x, kBiasBytes, 0x4140), __byte_perm(x, kBiasBytes, 0x4342),
                                   __byte_perm(y, kBiasBytes, 0x4140), __byte_perm(y, kBiasBytes, 0x4342)};
        Multiply<__half>(sum_[i + e], value, b0, b1);
      }
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const uint32_t x = __byte_perm(a, b, e < 2 ? 0x5410 : 0x7632), y = __byte_perm(c, d, e < 2 ? 0x5410 : 0x7632);
        const int n = e % 2 * 2;
        const uint32_t value[4] = {BiasedNibbles(x, n), BiasedNibbles(x, n + 1), BiasedNibbles(y, n),
                                   BiasedNibbles(y, n + 1)};
        Multiply<__half>(sum_[i + e], value, b0, b1);
      }
    }
  }

  // Copies the tile's bytes in pieces of 8 or 16, entry by entry, one piece per lane.
  template <int kBytes>
  __device__ static void StagePieces(const TileShape& shape, int pieces, std::byte* to, const std::byte* const* entries,
                                     int count) {
    for (int at = threadIdx.x % 32; at < kTileRows * pieces; at += 32) {
      const int row = static_cast<int>((at * shape.piece_inverse) >> 16), piece = at - row * pieces;
      CopyAsync<kBytes>(SharedAddress(to) + at * kBytes, entries[row] + piece * kBytes, row < count);
    }
  }

  uint32_t query_[kDim / 16][2];
  float query_sum_[kGroups][2];
  float sum_[kDim / 16][4];
  float rest_[kGroups][2];
};

}  // namespace infinigen
