// Compiled instead of cuda_executor.cc in builds without CUDA.
#include "base/check.h"
#include "model/cuda_executor.h"

namespace infinigen {

Result<GpuInfo> FindGpu() { return Unsupported("this program was built without CUDA; available: cpu, reference"); }

Result<GpuCeilings> MeasureGpu() { return FindGpu().error(); }

Status CheckGpuLayout(const EntryLayout&) { return FindGpu().error(); }

int64_t HotRows(const ModelConfig&, const ExecutorOptions&, const HotSetLimit&) { return 0; }

MemoryPlan PlanCudaMemory(const ModelConfig&, const ExecutorOptions&, uint64_t) { CHECK(false); }

Result<std::unique_ptr<Executor>> MakeCudaExecutor(const ModelConfig&, const Weights&, const ExecutorOptions&,
                                                   SketchSource) {
  return FindGpu().error();
}

}  // namespace infinigen
