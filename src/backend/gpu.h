// Facts about a GPU, as plain structs that builds without CUDA can use too.
#pragma once

#include <cstdint>
#include <string>

namespace infinigen {

struct GpuInfo {
  std::string name;
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;
};

// Measured peak speeds of the device memory and of the link.
struct GpuCeilings {
  double device_gb_per_s = 0;  // reads
  double to_device_gb_per_s = 0;
  double to_host_gb_per_s = 0;
};

}  // namespace infinigen
