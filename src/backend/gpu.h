// What is known of a GPU, in builds with and without a backend for one.
#pragma once

#include <cstdint>
#include <string>

namespace infinigen {

struct GpuInfo {
  std::string name;
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;
};

// What its memory and the link to it give at most, measured here and now.
struct GpuCeilings {
  double device_gb_per_s = 0;  // read
  double to_device_gb_per_s = 0;
  double to_host_gb_per_s = 0;
};

}  // namespace infinigen
