// CUDA's and cuBLASLt's errors. What fails here is a bug or a lost device: both end the program with the place. What
// can be refused for want of memory is asked for with Asked, which hands the answer on. Beside that, driver and
// libraries take memory of their own at times when nothing can be handed back (a kernel's code, on its first launch):
// where none is left, that is the end too, but with a sentence instead of a signal.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

#include "base/result.h"

namespace infinigen {

[[noreturn]] inline void CudaFailed(const char* file, int line, const char* call, const char* reason,
                                    bool out_of_memory) {
  if (out_of_memory) {
    std::fprintf(stderr,
                 "infinigen: the GPU has no memory left for its driver and libraries (%s:%d); a smaller "
                 "--device-memory leaves them more\n",
                 file, line);
    std::_Exit(1);
  }
  std::fprintf(stderr, "%s:%d: %s: %s\n", file, line, call, reason);
  std::abort();
}

inline Status Asked(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return Ok();
  cudaGetLastError();  // it was only an answer
  return Exhausted("the GPU's driver gave no {}: {}", what, cudaGetErrorString(status));
}

}  // namespace infinigen

#define CUDA_CHECK(call)                                                                  \
  do {                                                                                    \
    if (const cudaError_t cuda_status = (call); cuda_status != cudaSuccess)               \
      ::infinigen::CudaFailed(__FILE__, __LINE__, #call, cudaGetErrorString(cuda_status), \
                              cuda_status == cudaErrorMemoryAllocation);                  \
  } while (false)

#define CUBLAS_CHECK(call)                                                                       \
  do {                                                                                           \
    if (const cublasStatus_t cublas_status = (call); cublas_status != CUBLAS_STATUS_SUCCESS)     \
      ::infinigen::CudaFailed(__FILE__, __LINE__, #call, cublasLtGetStatusString(cublas_status), \
                              cublas_status == CUBLAS_STATUS_ALLOC_FAILED);                      \
  } while (false)

// After a launch: its configuration was wrong, which is a bug.
#define CUDA_CHECK_LAUNCH() CUDA_CHECK(cudaGetLastError())
