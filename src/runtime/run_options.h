// The options of a run as text, by the names of the command line's flags. The command line (--kv-cap 5%) and the
// library (Set("kv-cap", "5%")) read the same tables. Every value is checked when it is set; CheckKvRequest
// (kv_request.h) checks KV options against each other, and ChooseDevice checks the device options against this machine.
//
// Clients of runtime also get GpuInfo, FindGpu and MeasureGpu from this header.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/cuda_executor.h"
#include "model/executor.h"
#include "runtime/kv_request.h"

namespace infinigen {

// ---- the device ----

// The device options as the user gives them. An empty string means that the option was not given.
struct DeviceRequest {
  std::string device = "cpu";         // cpu, cuda or reference
  int64_t threads = 0;                // 0: all hardware threads
  std::string memory;                 // GPU memory that may be used: "24GiB"
  std::string weights_on_device;      // "30%"
  std::string weights_in = "memory";  // memory or file
};

// The device that a run uses.
struct DeviceChoice {
  Device device = Device::kCpu;
  int threads = 1;
  uint64_t device_memory_bytes = UINT64_MAX;  // GPU memory that may be used
  double weights_on_device = 1.0;
  bool reads_weights = true;  // into memory, on a CPU; false: they are used from the mapped files
};

// Refuses a GPU that does not exist, and more GPU memory than is free.
Result<DeviceChoice> ChooseDevice(const DeviceRequest& request);

// ---- the KV cache ----

struct KvOption {
  std::string name;  // "kv-cap"; the flag is --kv-cap
  std::string meta;  // placeholder for the value in help: "SHARE"
  std::string help;
  // Sets the value. Returns what is wrong with it, or an empty string; on failure the request is unchanged.
  std::string (*set)(const std::string& value, KvRequest* request);
};

// All KV options except the preset, in the order of the help text.
std::span<const KvOption> KvOptions();

// Parses "full", or with `list` also "full,infinigen". Returns what is wrong with the text, or an empty string.
std::string ParsePresets(std::string_view text, bool list, std::vector<const KvPreset*>* presets);
// Help text of the preset option: every preset with its summary.
std::string PresetHelp();

// Parses 0.05 or 5%. Returns what is wrong with the text, or an empty string.
std::string ParseShare(std::string_view text, double* share);

// ---- all options of an engine, for the public API ----

struct RunOptions {
  DeviceRequest device;
  KvRequest kv;
  int64_t context = 0;   // 0: the model's context, or less if memory is short
  int64_t batch = 0;     // 0: chosen by the plan
  int64_t queue = 1024;  // requests that may wait while others run

  Status Set(std::string_view name, const std::string& value);
};

struct OptionHelp {
  std::string name, value, help;
};
std::vector<OptionHelp> RunOptionHelp();

}  // namespace infinigen
