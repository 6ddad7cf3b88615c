// Where a run computes: what the caller asks for, checked against the machine. For clients of runtime this header also
// brings what is known of a GPU (GpuInfo, FindGpu, MeasureGpu).
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "model/cuda_executor.h"
#include "model/executor.h"

namespace infinigen {

// Where a run computes.
struct DeviceChoice {
  Device device = Device::kCpu;
  int threads = 1;
  uint64_t device_memory_bytes = UINT64_MAX;  // of a GPU: what may be used
  double weights_on_device = 1.0;
};

// What a caller says about the device; empty texts: nothing.
struct DeviceRequest {
  std::string device = "cpu";     // cpu, cuda or reference
  int64_t threads = 0;            // 0: as many as the machine has
  std::string memory;             // of a GPU: "24GiB"
  std::string weights_on_device;  // "30%"
};
// Refuses a GPU that is not there, and more of its memory than is free.
Result<DeviceChoice> ChooseDevice(const DeviceRequest& request);

}  // namespace infinigen
