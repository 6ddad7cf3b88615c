// Copies from device to shared memory that run beside the warp that asked for them, any number of bytes at a time. Each
// has a barrier that says when all its bytes are there. Devices before sm_90 copy 16 bytes per lane and instruction.
// Private to backend/cuda.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace infinigen {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
inline constexpr unsigned kCopyArrivals = 1;
#else
inline constexpr unsigned kCopyArrivals = 32;
#endif
__device__ inline void InitCopyBarrier(uint32_t barrier) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(kCopyArrivals) : "memory");
}
// Makes initialised barriers visible to copies. Called by the thread that initialised them.
__device__ inline void PublishCopyBarriers() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
// All lanes of a warp call it, after they have read what was there.
__device__ inline void StartCopy(uint32_t to, const uint8_t* from, int bytes, uint32_t barrier) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#if __CUDA_ARCH__ >= 900
  if (lane != 0) return;
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
#else
  for (int at = lane * 16; at < bytes; at += 512)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + static_cast<uint32_t>(at)), "l"(from + at)
                 : "memory");
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
#endif
}
__device__ inline void WaitForCopy(uint32_t barrier, uint32_t parity) {
  uint32_t there = 0;
  while (there == 0) {
#if __CUDA_ARCH__ >= 900
    asm volatile("{ .reg .pred there; mbarrier.try_wait.parity.shared.b64 there, [%1], %2; selp.u32 %0, 1, 0, there; }"
                 : "=r"(there)
                 : "r"(barrier), "r"(parity)
                 : "memory");
#else
    asm volatile("{ .reg .pred there; mbarrier.test_wait.parity.shared.b64 there, [%1], %2; selp.u32 %0, 1, 0, there; }"
                 : "=r"(there)
                 : "r"(barrier), "r"(parity)
                 : "memory");
#endif
  }
}

}  // namespace infinigen
