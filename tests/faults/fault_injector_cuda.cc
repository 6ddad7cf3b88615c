// The CUDA calls of src/backend/cuda, which the linker sends here (--wrap of the same names in CMakeLists.txt). A
// failed kernel launch is seen by the program in cudaGetLastError.
#include <cublasLt.h>
#include <cuda_runtime.h>

#include "faults/fault_injector.h"

using infinigen::FaultClass;
using infinigen::InjectFault;

#define FAILS(kind, error, name, parameters, arguments)                     \
  extern "C" cudaError_t __real_##name parameters;                          \
  extern "C" cudaError_t __wrap_##name parameters {                         \
    return InjectFault(FaultClass::kind) ? error : __real_##name arguments; \
  }

FAILS(kPin, cudaErrorMemoryAllocation, cudaHostRegister, (void* data, size_t bytes, unsigned flags),
      (data, bytes, flags))
FAILS(kPin, cudaErrorMemoryAllocation, cudaHostAlloc, (void** data, size_t bytes, unsigned flags), (data, bytes, flags))
FAILS(kCuda, cudaErrorMemoryAllocation, cudaMalloc, (void** data, size_t bytes), (data, bytes))
FAILS(kCuda, cudaErrorMemoryAllocation, cudaMallocAsync, (void** data, size_t bytes, cudaStream_t stream),
      (data, bytes, stream))
FAILS(kCuda, cudaErrorLaunchFailure, cudaMemcpyAsync,
      (void* to, const void* from, size_t bytes, cudaMemcpyKind way, cudaStream_t stream),
      (to, from, bytes, way, stream))
FAILS(kCuda, cudaErrorLaunchFailure, cudaMemsetAsync, (void* data, int value, size_t bytes, cudaStream_t stream),
      (data, value, bytes, stream))
FAILS(kCuda, cudaErrorMemoryAllocation, cudaEventCreate, (cudaEvent_t * event), (event))
FAILS(kCuda, cudaErrorMemoryAllocation, cudaEventCreateWithFlags, (cudaEvent_t * event, unsigned flags), (event, flags))
FAILS(kCuda, cudaErrorLaunchFailure, cudaEventRecord, (cudaEvent_t event, cudaStream_t stream), (event, stream))
FAILS(kCuda, cudaErrorLaunchFailure, cudaEventSynchronize, (cudaEvent_t event), (event))
FAILS(kCuda, cudaErrorLaunchFailure, cudaStreamSynchronize, (cudaStream_t stream), (stream))
FAILS(kCuda, cudaErrorLaunchFailure, cudaStreamWaitEvent, (cudaStream_t stream, cudaEvent_t event, unsigned flags),
      (stream, event, flags))
FAILS(kCuda, cudaErrorMemoryAllocation, cudaStreamCreateWithPriority,
      (cudaStream_t * stream, unsigned flags, int priority), (stream, flags, priority))
FAILS(kCuda, cudaErrorMemoryAllocation, cudaStreamCreateWithFlags, (cudaStream_t * stream, unsigned flags),
      (stream, flags))
FAILS(kCuda, cudaErrorUnknown, cudaStreamBeginCapture, (cudaStream_t stream, cudaStreamCaptureMode mode),
      (stream, mode))
FAILS(kCuda, cudaErrorMemoryAllocation, cudaGraphInstantiate,
      (cudaGraphExec_t * made, cudaGraph_t graph, unsigned long long flags), (made, graph, flags))
FAILS(kCuda, cudaErrorLaunchFailure, cudaGraphLaunch, (cudaGraphExec_t graph, cudaStream_t stream), (graph, stream))
FAILS(kCuda, cudaErrorUnknown, cudaMemGetInfo, (size_t * free_bytes, size_t* total), (free_bytes, total))
FAILS(kCuda, cudaErrorNoDevice, cudaGetDeviceCount, (int* count), (count))
FAILS(kCuda, cudaErrorDevicesUnavailable, cudaSetDevice, (int device), (device))
FAILS(kCuda, cudaErrorUnknown, cudaDeviceGetAttribute, (int* value, cudaDeviceAttr attribute, int device),
      (value, attribute, device))
FAILS(kCuda, cudaErrorLaunchFailure, cudaGetLastError, (), ())

#undef FAILS
#define FAILS(error, name, parameters, arguments)                            \
  extern "C" cublasStatus_t __real_##name parameters;                        \
  extern "C" cublasStatus_t __wrap_##name parameters {                       \
    return InjectFault(FaultClass::kCuda) ? error : __real_##name arguments; \
  }

FAILS(CUBLAS_STATUS_ALLOC_FAILED, cublasLtCreate, (cublasLtHandle_t * handle), (handle))
FAILS(CUBLAS_STATUS_EXECUTION_FAILED, cublasLtMatmul,
      (cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void* alpha, const void* a,
       cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
       cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm,
       void* workspace, size_t bytes, cudaStream_t stream),
      (handle, operation, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algorithm, workspace, bytes,
       stream))
