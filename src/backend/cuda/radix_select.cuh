// Sums, prefix sums and selection of the largest keys, each by one block of threads. Private to backend/cuda.
//
// The `count` largest of many keys are found without sorting. A histogram of the highest digit gives the bin of the
// last chosen key; a histogram of the next digit within that bin narrows it down, and so on, until the bin is taken
// whole or its keys are all equal. Keys and counts are integers, so the result does not depend on the number or order
// of threads.
#pragma once

#include <cstdint>

#include "backend/cuda/numbers.cuh"

namespace infinigen {

inline constexpr int kRadixDigit = 11;
inline constexpr int kRadixBins = 1 << kRadixDigit;
inline constexpr uint32_t kAllLanes = 0xffffffffu;

// Shared memory of one block. The number of threads is a multiple of 32 and divides kRadixBins.
struct RadixScratch {
  uint32_t bins[kRadixBins];
  uint32_t warps[32], others[32];
  uint32_t bin, above, inside;
};

__device__ inline int Lane() { return static_cast<int>(threadIdx.x % 32); }
__device__ inline int Warp() { return static_cast<int>(threadIdx.x / 32); }
__device__ inline int Warps() { return static_cast<int>(blockDim.x / 32); }

// Sums two numbers at once; every thread gets both sums.
__device__ inline uint2 BlockSum(uint32_t x, uint32_t y, RadixScratch& s) {
  x = __reduce_add_sync(kAllLanes, x);
  y = __reduce_add_sync(kAllLanes, y);
  if (Lane() == 0) {
    s.warps[Warp()] = x;
    s.others[Warp()] = y;
  }
  __syncthreads();
  const bool mine = Lane() < Warps();
  const uint2 sum = make_uint2(__reduce_add_sync(kAllLanes, mine ? s.warps[Lane()] : 0u),
                               __reduce_add_sync(kAllLanes, mine ? s.others[Lane()] : 0u));
  __syncthreads();
  return sum;
}

__device__ inline uint32_t WarpInclusive(uint32_t x) {
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t below = __shfl_up_sync(kAllLanes, x, step);
    if (Lane() >= step) x += below;
  }
  return x;
}

// The sum of x over the threads before this one.
__device__ inline uint32_t BlockExclusive(uint32_t x, RadixScratch& s) {
  const uint32_t inclusive = WarpInclusive(x);
  if (Lane() == 31) s.warps[Warp()] = inclusive;
  __syncthreads();
  const uint32_t of_warp = Lane() < Warps() ? s.warps[Lane()] : 0u;
  const uint32_t before = __shfl_sync(kAllLanes, WarpInclusive(of_warp) - of_warp, Warp());
  __syncthreads();
  return before + inclusive - x;
}

// A float other than NaN as an integer in the same order; never 0. Both zeros give the same integer.
__device__ inline uint32_t OrderedBits(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// The last chosen key: every key above `least` is chosen, and `need` of the `ties` keys equal to it. If need = ties, no
// key need be equal to `least`.
struct RadixBound {
  uint32_t least, need, ties;
};

// Finds the bin of s.bins that holds the `need`-th largest key: sets s.bin, s.above and s.inside.
__device__ inline void FindBin(uint32_t need, RadixScratch& s) {
  const int per_thread = kRadixBins / static_cast<int>(blockDim.x);
  const int top = kRadixBins - 1 - static_cast<int>(threadIdx.x) * per_thread;  // this thread's highest bin
  uint32_t sum = 0;
  for (int i = 0; i < per_thread; ++i) sum += s.bins[top - i];
  uint32_t above = BlockExclusive(sum, s);
  if (above < need && need <= above + sum) {
    int bin = top;
    while (above + s.bins[bin] < need) above += s.bins[bin--];
    s.bin = static_cast<uint32_t>(bin);
    s.above = above;
    s.inside = s.bins[bin];
  }
  __syncthreads();
}

// Calls use(i, load(i)) for all i in [0, items), divided among the threads of the block. Keeps several loads in flight,
// which the compiler cannot do by itself if use() writes to memory.
template <int kBatch, class Load, class Use>
__device__ void ForItems(int64_t items, const Load& load, const Use& use) {
  const int end = static_cast<int>(items), step = static_cast<int>(blockDim.x);
  for (int first = static_cast<int>(threadIdx.x); first < end; first += kBatch * step) {
    uint32_t loaded[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) loaded[b] = first + b * step < end ? load(first + b * step) : 0u;
#pragma unroll
    for (int b = 0; b < kBatch; ++b)
      if (first + b * step < end) use(first + b * step, loaded[b]);
  }
}

// key_of(i), i in [0, items), is a key below 2^bits; 0 if i is not a candidate. Requires 0 < count ≤ candidates.
template <class KeyOf>
__device__ RadixBound SelectLargest(const KeyOf& key_of, int64_t items, uint32_t count, int bits, RadixScratch& s) {
  uint32_t prefix = 0, need = count;
  for (int shift = bits;;) {
    const int next = shift > kRadixDigit ? shift - kRadixDigit : 0, width = shift - next;
    for (int b = static_cast<int>(threadIdx.x); b < kRadixBins; b += static_cast<int>(blockDim.x)) s.bins[b] = 0;
    __syncthreads();
    ForItems<8>(items, key_of, [&](int, uint32_t key) {
      if (key != 0 && static_cast<uint32_t>(static_cast<uint64_t>(key) >> shift) == prefix)
        atomicAdd(&s.bins[key >> next & ((1u << width) - 1)], 1u);
    });
    __syncthreads();
    FindBin(need, s);
    prefix = prefix << width | s.bin;
    need -= s.above;
    shift = next;
    if (need == s.inside || shift == 0) {
      const uint32_t least = prefix << shift;
      return {least > 0 ? least : 1u, need, s.inside};
    }
  }
}

// A cut chooses all keys above `key`, and equal keys from `age` up.
struct RadixCut {
  uint32_t key, age;
  __device__ bool Takes(uint32_t of_key, uint32_t of_age) const {
    return of_key > key || (of_key == key && of_age >= age);
  }
};

// Finds the cut of the `count` ≤ candidates largest keys. Among equal keys the larger age_of(i) ≥ 1 goes first; ages
// are distinct.
template <class KeyOf, class AgeOf>
__device__ RadixCut CutLargest(const KeyOf& key_of, const AgeOf& age_of, int64_t items, uint32_t count,
                               uint32_t candidates, int bits, RadixScratch& s) {
  if (count == 0) return {0xffffffffu, 0xffffffffu};
  if (count == candidates) return {1u, 0u};
  const RadixBound bound = SelectLargest(key_of, items, count, bits, s);
  if (bound.need == bound.ties) return {bound.least, 0u};
  const auto tied_age = [&](int64_t i) { return key_of(i) == bound.least ? age_of(i) : 0u; };
  return {bound.least, SelectLargest(tied_age, items, bound.need, 32, s).least};
}

// Writes the rows of [0, n) for which attends(row) is true, in ascending order; returns their number. A warp owns a
// range of rows: it counts, learns its offset, then writes.
template <class Attends>
__device__ uint32_t WriteRows(const Attends& attends, int64_t n, int32_t* rows, int64_t capacity, RadixScratch& radix) {
  const int64_t share = (n + blockDim.x - 1) / blockDim.x * 32;  // rows per warp
  const int64_t begin = Warp() * share, end = min(begin + share, n);
  uint32_t mine = 0;
#pragma unroll 8
  for (int64_t row = begin + Lane(); row < end; row += 32) mine += attends(row) ? 1 : 0;
  mine = __reduce_add_sync(kAllLanes, mine);
  const uint32_t total = BlockSum(Lane() == 0 ? mine : 0, 0, radix).x;
  uint32_t at = BlockExclusive(Lane() == 0 ? mine : 0, radix);
  at = __shfl_sync(kAllLanes, at, 0);
  if (total > capacity) __trap();  // the list was allocated too small: a bug
  constexpr int kBatch = 4;        // see ForItems
  for (int64_t first = begin; first < end; first += 32 * kBatch) {
    bool writes[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int64_t row = first + 32 * b + Lane();
      writes[b] = row < end && attends(row);
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const uint32_t writers = __ballot_sync(kAllLanes, writes[b]);
      if (writes[b]) rows[at + __popc(writers & ((1u << Lane()) - 1))] = static_cast<int32_t>(first + 32 * b + Lane());
      at += __popc(writers);
    }
  }
  return total;
}

}  // namespace infinigen
