// The histogram of a task's keys, by which many blocks choose together (choose_split.cu, late_rows.cu). Private to
// backend/cuda.
#pragma once

#include "backend/cuda/choose.cuh"

namespace infinigen {

// Bins are finer than the first digit of a key. They cover the range of −r in which the last chosen item probably
// falls, 2⁻⁶ to 2¹⁰, with 128 bins per doubling; keys outside fall into the first or last bin.
inline constexpr int kBinShift = 16;                // leaves 7 bits of the mantissa
inline constexpr int kFirstLevel = (127 - 6) << 7;  // level of 2⁻⁶
inline constexpr int kLastLevel = kRadixBins - 1;   // counted from kFirstLevel
inline constexpr int kEdgeBits = kBinShift + 1;     // bits of a key's distance from the least key of its bin, plus 1
inline constexpr uint32_t kTopKey = kInfinityBits + 1;  // key of r = 0
inline constexpr uint32_t kNoKey = 0xffffffffu;         // above all keys
static_assert((kFirstLevel + kRadixBins) >> 7 == 137);  // 2¹⁰

// Requires key > 0. A larger key never has a smaller bin.
__device__ inline uint32_t BinOf(uint32_t key) {
  const int level = static_cast<int>((kTopKey - key) >> kBinShift) - kFirstLevel;
  return static_cast<uint32_t>(kLastLevel - min(max(level, 0), kLastLevel));
}
// The least key of a bin; for bins past the last, a key above all.
__device__ inline uint32_t LeastOfBin(uint32_t bin) {
  if (bin == 0) return 1;
  if (bin > static_cast<uint32_t>(kLastLevel)) return kNoKey;
  const uint32_t level = static_cast<uint32_t>(kFirstLevel + kLastLevel) - bin;
  return kTopKey - (((level + 1) << kBinShift) - 1);
}

// Result of the histogram: keys ≥ `above` are chosen, and `need` of the `inside` keys in [edge, above). edge = above if
// the edge is empty.
struct Boundary {
  uint32_t above, edge, need, inside;
  int64_t count;  // chosen items
};

// The boundary of the `wanted` largest keys that a task's histogram counts. Every block of the task can compute it.
__device__ inline Boundary FindBoundary(const ChoiceTally& tally, int64_t wanted, RadixScratch& radix) {
  uint32_t mine = 0;
  for (int i = static_cast<int>(threadIdx.x); i < kRadixBins / 4; i += static_cast<int>(blockDim.x)) {
    const uint4 four = reinterpret_cast<const uint4*>(tally.bins)[i];
    reinterpret_cast<uint4*>(radix.bins)[i] = four;
    mine += four.x + four.y + four.z + four.w;
  }
  const uint32_t candidates = BlockSum(mine, 0, radix).x;
  const auto count = static_cast<uint32_t>(min(wanted, static_cast<int64_t>(candidates)));
  if (count == 0) return {kNoKey, kNoKey, 0, 0, 0};
  if (count == candidates) return {1, 1, 0, 0, count};
  FindBin(count, radix);
  const uint32_t least = LeastOfBin(radix.bin), need = count - radix.above;
  if (need == radix.inside) return {least, least, 0, 0, count};
  return {LeastOfBin(radix.bin + 1), least, need, radix.inside, count};
}

}  // namespace infinigen
