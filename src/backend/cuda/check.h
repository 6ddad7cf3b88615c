// CUDA's and cuBLASLt's errors. What fails here is a bug or a lost device: both end the program with the place. What
// can be refused (memory) is asked for in memory.cu alone.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

namespace infinigen {

[[noreturn]] inline void CudaFailed(const char* file, int line, const char* call, const char* reason) {
  std::fprintf(stderr, "%s:%d: %s: %s\n", file, line, call, reason);
  std::abort();
}

}  // namespace infinigen

#define CUDA_CHECK(call)                                                                   \
  do {                                                                                     \
    if (const cudaError_t cuda_status = (call); cuda_status != cudaSuccess)                \
      ::infinigen::CudaFailed(__FILE__, __LINE__, #call, cudaGetErrorString(cuda_status)); \
  } while (false)

#define CUBLAS_CHECK(call)                                                                        \
  do {                                                                                            \
    if (const cublasStatus_t cublas_status = (call); cublas_status != CUBLAS_STATUS_SUCCESS)      \
      ::infinigen::CudaFailed(__FILE__, __LINE__, #call, cublasLtGetStatusString(cublas_status)); \
  } while (false)

// After a launch: its configuration was wrong, which is a bug.
#define CUDA_CHECK_LAUNCH() CUDA_CHECK(cudaGetLastError())
