// The warp-wide instructions of attention: asynchronous copies to shared memory, loads of 8 x 8 matrices of 16-bit
// numbers from shared memory, and their products on tensor cores. All exist from sm_80 on. Private to backend/cuda.
//
// Registers of a lane, with g = lane / 4 and t = lane % 4 (a pair is two 16-bit numbers in a register, the first one
// low):
//     8 x 8 matrix          row g, columns 2t and 2t + 1: one pair
//     A, 16 rows x 16 deep  pairs of rows g, g + 8, g, g + 8; at depth 2t for the first two, 2t + 8 for the others
//     B, 16 deep x 8        pairs of column g; at depth 2t, then 2t + 8
//     C, 16 rows x 8        f32 at (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace infinigen {

__device__ inline uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// Copies kBytes (16 or 8) to shared memory, or writes zeros if not `present`. `from` must be a valid address in any
// case.
template <int kBytes>
__device__ inline void CopyAsync(uint32_t to, const void* from, bool present) {
  const int bytes = present ? kBytes : 0;
  if constexpr (kBytes == 16)  // bypasses L1: every byte is used once
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
// CommitCopies makes the copies since the last commit a group. WaitCopies returns when all but the newest kPending
// groups are done. Other threads see them after a barrier.
__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ inline void WaitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Loads four matrices; lane 8i + r gives the address of row r of matrix i. LoadTransposed: lanes hold columns.
__device__ inline void LoadMatrices(uint32_t (&to)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}
__device__ inline void LoadTransposed(uint32_t (&to)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}
// Transposes an 8 x 8 matrix in registers.
__device__ inline uint32_t Transpose(uint32_t matrix) {
  uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(matrix));
  return transposed;
}

// c += a · b.
template <class T>
__device__ inline void Multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, __half>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// std::bit_cast, which does not accept CUDA's pair types.
template <class To, class From>
__device__ inline To Bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  return reinterpret_cast<const To&>(from);
}

// Rounds two numbers to nearest and packs them.
template <class T>
__device__ inline uint32_t Pair(float first, float second) {
  if constexpr (std::is_same_v<T, __half>)
    return Bits<uint32_t>(__floats2half2_rn(first, second));
  else
    return Bits<uint32_t>(__floats2bfloat162_rn(first, second));
}
__device__ inline float2 Halves(uint32_t pair) { return __half22float2(Bits<__half2>(pair)); }

// 2^x to about two units in the last place; exactly 1 at 0 and exactly 0 at -infinity.
__device__ inline float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace infinigen
