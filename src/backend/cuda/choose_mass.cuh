// How many rows hold a given share of the estimated attention (CountForMass of kv/select.h), counted by one block.
// Private to backend/cuda.
//
// Shares are integers, so that their sums depend on no order. The rows that are counted are those above a share t and
// some of those equal to it. Binary search finds t: every step sums the shares that are at least t.
#pragma once

#include <cstdint>

#include "backend/cuda/choose.cuh"

namespace infinigen {

// Shared memory of one block.
struct MassScratch {
  uint64_t warps[32];
  float factors[kMaxGroup];  // shares per weight of each query head
};

// Sums a number over the block; every thread gets the sum.
__device__ inline uint64_t BlockSum64(uint64_t x, MassScratch& s) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  __syncthreads();  // the previous sum has been read
  if (Lane() == 0) s.warps[Warp()] = x;
  __syncthreads();
  uint64_t sum = 0;
  for (int w = 0; w < Warps(); ++w) sum += s.warps[w];
  return sum;
}

__device__ inline uint32_t BlockMax(uint32_t x, MassScratch& s) {
  x = __reduce_max_sync(kAllLanes, x);
  __syncthreads();
  if (Lane() == 0) s.warps[Warp()] = x;
  __syncthreads();
  uint32_t largest = 0;
  for (int w = 0; w < Warps(); ++w) largest = max(largest, static_cast<uint32_t>(s.warps[w]));
  return largest;
}

// The number of rows, largest share first, whose shares reach the rule's mass; an item counts as task.page rows.
// maxima: of the task's query heads. shares: memory for the items, private to the block.
__device__ inline int64_t CountForMass(const ScoreTable& table, int64_t index, const Task& task, const float* maxima,
                                       uint32_t* shares, MassScratch& s) {
  const int items = static_cast<int>(task.items), step = static_cast<int>(blockDim.x);
  const auto weight = [&](int g, int i) {
    const float below = table.Scores(index, g)[i] - maxima[g];
    return below <= 0 ? expf(below) : 0.0f;  // NaN: 0
  };
  for (int g = 0; g < table.group; ++g) {
    uint64_t sum = 0;
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < items; i += step)
      sum += static_cast<uint32_t>(weight(g, i) * kMassUnit);
    sum = BlockSum64(sum, s) * task.page;
    if (threadIdx.x == 0)
      s.factors[g] = sum == 0 ? 0.0f : __fmul_rn(__fdiv_rn(kMassUnit, static_cast<float>(sum)), kMassUnit);
  }
  __syncthreads();
  uint32_t largest = 0;
  for (int i = static_cast<int>(threadIdx.x); i < items; i += step) {
    uint32_t share = 0;
    for (int g = 0; g < table.group; ++g)
      share = max(share, static_cast<uint32_t>(__fmul_rn(weight(g, i), s.factors[g])));
    shares[i] = share;
    largest = max(largest, share);
  }
  largest = BlockMax(largest, s);

  // A thread reads only shares that it has written.
  const auto sum_from = [&](uint32_t least) {
    uint64_t sum = 0;
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < items; i += step) sum += shares[i] >= least ? shares[i] : 0u;
    return BlockSum64(sum, s) * task.page;
  };
  const uint64_t target = MassTarget(task.rule.mass, sum_from(1));
  if (target == 0) return 0;
  // The largest t whose sum reaches the target, bit by bit. Shares are at most 2^30, so t - 1 has 30 bits.
  uint32_t low = 1;
  for (int bit = 29; bit >= 0; --bit) {
    const uint32_t next = low + (1u << bit);
    if (next <= largest && sum_from(next) >= target) low = next;
  }
  uint64_t above = 0;
  for (int i = static_cast<int>(threadIdx.x); i < items; i += step) above += shares[i] > low ? 1u : 0u;
  above = BlockSum64(above, s) * task.page;
  return static_cast<int64_t>(above + (target - sum_from(low + 1) + low - 1) / low);
}

}  // namespace infinigen
