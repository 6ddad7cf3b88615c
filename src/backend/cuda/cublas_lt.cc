// Loads cuBLASLt when a GPU is first looked for: the library takes 200 MB of memory and a tenth of a second, which runs
// without a GPU need not pay. The functions below have the names of the library's own and forward to them.
#include "backend/cuda/cublas_lt.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <string>

#include "base/check.h"

namespace infinigen {
namespace {

struct Library {
  void* handle = nullptr;
  std::string problem;  // empty: the library is loaded
};

Library Load() {
  Library library;
  const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
  for (const std::string& path : {name, std::string(INFINIGEN_CUDA_LIBRARIES) + "/" + name}) {
    library.handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library.handle != nullptr) return library;
    const char* const reason = ::dlerror();
    library.problem = reason != nullptr ? reason : name;
  }
  return library;
}

const Library& Loaded() {
  static const Library library = Load();
  return library;
}

// Looks up a function of the library. Called once per function.
template <class Function>
Function* Find(const char* name) {
  CHECK(Loaded().handle != nullptr);
  void* const symbol = ::dlsym(Loaded().handle, name);
  CHECK(symbol != nullptr);
  return reinterpret_cast<Function*>(symbol);
}

}  // namespace

const std::string& CublasLtProblem() {
  static const std::string none;
  return Loaded().handle != nullptr ? none : Loaded().problem;
}

}  // namespace infinigen

using infinigen::Find;

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  static auto* const call = Find<decltype(cublasLtCreate)>(__func__);
  return call(handle);
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  static auto* const call = Find<decltype(cublasLtDestroy)>(__func__);
  return call(handle);
}
const char* cublasLtGetStatusString(cublasStatus_t status) {
  static auto* const call = Find<decltype(cublasLtGetStatusString)>(__func__);
  return call(status);
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute, cudaDataType_t scale) {
  static auto* const call = Find<decltype(cublasLtMatmulDescCreate)>(__func__);
  return call(desc, compute, scale);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  static auto* const call = Find<decltype(cublasLtMatmulDescDestroy)>(__func__);
  return call(desc);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  static auto* const call = Find<decltype(cublasLtMatmulDescSetAttribute)>(__func__);
  return call(desc, attribute, value, bytes);
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                                          uint64_t cols, int64_t ld) {
  static auto* const call = Find<decltype(cublasLtMatrixLayoutCreate)>(__func__);
  return call(layout, type, rows, cols, ld);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  static auto* const call = Find<decltype(cublasLtMatrixLayoutDestroy)>(__func__);
  return call(layout);
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  static auto* const call = Find<decltype(cublasLtMatmulPreferenceCreate)>(__func__);
  return call(preference);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  static auto* const call = Find<decltype(cublasLtMatmulPreferenceDestroy)>(__func__);
  return call(preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t bytes) {
  static auto* const call = Find<decltype(cublasLtMatmulPreferenceSetAttribute)>(__func__);
  return call(preference, attribute, value, bytes);
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int asked,
                                              cublasLtMatmulHeuristicResult_t* results, int* found) {
  static auto* const call = Find<decltype(cublasLtMatmulAlgoGetHeuristic)>(__func__);
  return call(handle, operation, a, b, c, d, preference, asked, results, found);
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  static auto* const call = Find<decltype(cublasLtMatmul)>(__func__);
  return call(handle, operation, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algorithm, workspace,
              workspace_bytes, stream);
}
