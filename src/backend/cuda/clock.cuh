// The device's clock, for FetchClock. Private to backend/cuda.
#pragma once

#include <cstdint>

namespace infinigen {

__device__ inline uint64_t NowNs() {
  uint64_t now = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

// Keeps the latest time noted by several blocks; the clock never goes back.
__device__ inline void NoteLatest(uint64_t* at) {
  static_assert(sizeof(unsigned long long) == sizeof(uint64_t));
  atomicMax(reinterpret_cast<unsigned long long*>(at), static_cast<unsigned long long>(NowNs()));
}

}  // namespace infinigen
