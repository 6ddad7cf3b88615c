#include "runtime/device.h"

#include <algorithm>
#include <thread>

#include "base/size.h"
#include "runtime/kv_options.h"

namespace infinigen {

Result<DeviceChoice> ChooseDevice(const DeviceRequest& request) {
  DeviceChoice choice;
  const int64_t hardware = std::max<int64_t>(std::thread::hardware_concurrency(), 1);
  choice.threads = static_cast<int>(request.threads > 0 ? request.threads : hardware);
  if (request.device != "cuda") {
    if (!request.memory.empty())
      return Unsupported("--device-memory {}: only a GPU has memory of its own", request.memory);
    if (!request.weights_on_device.empty())
      return Unsupported("--weights-on-device {}: only a GPU has memory of its own", request.weights_on_device);
    if (request.device != "cpu" && request.device != "reference")
      return Invalid("--device {}: it can be cpu, cuda or reference", request.device);
    choice.device = request.device == "reference" ? Device::kReference : Device::kCpu;
    if (choice.device == Device::kReference) choice.threads = 1;
    return choice;
  }
  const Result<GpuInfo> gpu = FindGpu();
  if (!gpu.ok()) return Unsupported("--device cuda: {}", gpu.error().message);
  choice.device = Device::kCuda;
  choice.device_memory_bytes = gpu->free_bytes;
  if (!request.memory.empty()) {
    ASSIGN_OR_RETURN(const uint64_t asked, ParseSize(request.memory));
    if (asked > gpu->free_bytes)
      return Exhausted("--device-memory {}: {} of the {} of {} are free", FormatSize(asked),
                       FormatSize(gpu->free_bytes), FormatSize(gpu->total_bytes), gpu->name);
    choice.device_memory_bytes = asked;
  }
  if (!request.weights_on_device.empty()) {
    const std::string wrong = ParseShare(request.weights_on_device, &choice.weights_on_device);
    if (!wrong.empty()) return Invalid("--weights-on-device: {}", wrong);
  }
  return choice;
}

}  // namespace infinigen
