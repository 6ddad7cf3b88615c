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
FAILS(kCuda, cudaErrorLaunchFailure, cudaMemcpy2DAsync,
      (void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind way,
       cudaStream_t stream),
      (to, to_pitch, from, from_pitch, width, height, way, stream))
FAILS(kCuda, cudaErrorInvalidValue, cudaFuncSetAttribute, (const void* kernel, cudaFuncAttribute attribute, int value),
      (kernel, attribute, value))
FAILS(kCuda, cudaErrorInvalidDeviceFunction, cudaFuncGetAttributes, (cudaFuncAttributes * made, const void* kernel),
      (made, kernel))
FAILS(kCuda, cudaErrorInvalidDeviceFunction, cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
      (int* blocks, const void* kernel, int threads, size_t shared, unsigned flags),
      (blocks, kernel, threads, shared, flags))
FAILS(kCuda, cudaErrorLaunchFailure, cudaLaunchKernelExC,
      (const cudaLaunchConfig_t* config, const void* kernel, void** arguments), (config, kernel, arguments))
FAILS(kCuda, cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture, (cudaStream_t stream, cudaGraph_t* graph),
      (stream, graph))
FAILS(kCuda, cudaErrorUnknown, cudaEventElapsedTime, (float* ms, cudaEvent_t begin, cudaEvent_t end), (ms, begin, end))
FAILS(kCuda, cudaErrorUnknown, cudaGetDevice, (int* device), (device))
FAILS(kCuda, cudaErrorUnknown, cudaGetDeviceProperties, (cudaDeviceProp * properties, int device), (properties, device))
FAILS(kCuda, cudaErrorUnknown, cudaDeviceGetStreamPriorityRange, (int* least, int* greatest), (least, greatest))
FAILS(kCuda, cudaErrorNotSupported, cudaDeviceGetDefaultMemPool, (cudaMemPool_t * pool, int device), (pool, device))
FAILS(kCuda, cudaErrorInvalidValue, cudaMemPoolSetAttribute,
      (cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value), (pool, attribute, value))
FAILS(kCuda, cudaErrorUnknown, cudaMemPoolTrimTo, (cudaMemPool_t pool, size_t bytes), (pool, bytes))

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
FAILS(CUBLAS_STATUS_ALLOC_FAILED, cublasLtMatmulDescCreate,
      (cublasLtMatmulDesc_t * made, cublasComputeType_t compute, cudaDataType_t scale), (made, compute, scale))
FAILS(CUBLAS_STATUS_INVALID_VALUE, cublasLtMatmulDescSetAttribute,
      (cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, const void* value, size_t bytes),
      (operation, attribute, value, bytes))
FAILS(CUBLAS_STATUS_ALLOC_FAILED, cublasLtMatrixLayoutCreate,
      (cublasLtMatrixLayout_t * made, cudaDataType type, uint64_t rows, uint64_t cols, int64_t stride),
      (made, type, rows, cols, stride))
FAILS(CUBLAS_STATUS_ALLOC_FAILED, cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t * made), (made))
FAILS(CUBLAS_STATUS_INVALID_VALUE, cublasLtMatmulPreferenceSetAttribute,
      (cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
       size_t bytes),
      (preference, attribute, value, bytes))
FAILS(CUBLAS_STATUS_NOT_SUPPORTED, cublasLtMatmulAlgoGetHeuristic,
      (cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int wanted,
       cublasLtMatmulHeuristicResult_t* results, int* count),
      (handle, operation, a, b, c, d, preference, wanted, results, count))
