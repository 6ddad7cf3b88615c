// Error handling for CUDA and cuBLASLt. There are two cases:
//  * CUDA_CHECK and friends: a failure is a bug or a lost device. The program prints the source line and ends with 1.
//  * Asked(): the call may fail for lack of memory. The failure is returned as a Status.
// The driver and the libraries also allocate memory on their own, for example for a kernel's code at its first launch.
// That cannot be handed back to a caller: the program ends, but with a readable message.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

#include "base/check.h"
#include "base/result.h"

namespace infinigen {

[[noreturn]] inline void CudaFailed(const char* file, int line, const char* call, const char* reason,
                                    bool out_of_memory) {
  SayLastWords();
  if (out_of_memory) {
    std::fprintf(stderr,
                 "infinigen: out of GPU memory in the driver or a library (%s:%d); "
                 "lower --device-memory to leave them more\n",
                 file, line);
    std::_Exit(1);
  }
  std::fprintf(stderr, "infinigen: the GPU failed: %s (%s:%d: %s)\n", reason, file, line, call);
  std::_Exit(1);  // without destructors, which would call the failed device
}

inline Status Asked(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return Ok();
  cudaGetLastError();  // clears the error, which has been handled
  return Exhausted("the GPU driver could not provide: {} ({})", what, cudaGetErrorString(status));
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

// After a launch. A failure means a wrong launch configuration, which is a bug.
#define CUDA_CHECK_LAUNCH() CUDA_CHECK(cudaGetLastError())
