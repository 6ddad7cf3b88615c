#include "model/executor.h"

#include <utility>

#include "backend/cpu/cpu_backend.h"
#include "backend/reference/reference_backend.h"
#include "base/machine.h"
#include "model/cuda_executor.h"
#include "model/decoder_executor.h"

namespace infinigen {

MemoryPlan PlanMemory(const ModelConfig& config, const ExecutorOptions& options, uint64_t weights_bytes) {
  switch (options.device) {
    case Device::kCpu:
      return PlanFor<CpuBackend>(config, options, weights_bytes);
    case Device::kReference:
      return PlanFor<ReferenceBackend>(config, options, weights_bytes);
    case Device::kCuda:
      return PlanCudaMemory(config, options, weights_bytes);
  }
  CHECK(false);
}

Result<std::unique_ptr<Executor>> MakeExecutor(const ModelConfig& config, const Weights& weights,
                                               const ExecutorOptions& options, SketchSource sketches) {
  CHECK(options.max_tokens > 0 && options.max_batch > 0 && options.threads > 0);
  if (const Status supported = CheckSupported(config); !supported.ok())
    return Unsupported("{}: {}", config.name, supported.error().message);
  switch (options.device) {
    case Device::kCpu:
      return MakeDecoderExecutor(config, weights, options, std::move(sketches), CpuName(),
                                 std::make_unique<CpuBackend>(options.threads));
    case Device::kReference:
      return MakeDecoderExecutor(config, weights, options, std::move(sketches), CpuName(),
                                 std::make_unique<ReferenceBackend>());
    case Device::kCuda:
      return MakeCudaExecutor(config, weights, options, std::move(sketches));
  }
  CHECK(false);
}

}  // namespace infinigen
