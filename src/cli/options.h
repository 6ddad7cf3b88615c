// Flag groups that several commands share, and what their words mean. Words that nobody knows are refused where they
// are read (usage); words of the interface that this version lacks are refused here, by name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/flags.h"
#include "cli/kv_choice.h"
#include "cli/prompts.h"
#include "engine/request.h"
#include "model/executor.h"
#include "tensor/dtype.h"

namespace infinigen {

void AddModelFlag(Flags& flags, std::string* model);

struct DeviceFlags {
  std::string device = "cpu";
  int64_t threads = 0;  // 0: as many as the machine has
  std::string memory;
  std::string weights_on_device;
};
void AddDeviceFlags(Flags& flags, DeviceFlags* device);

struct DeviceChoice {
  Device device = Device::kCpu;
  int threads = 1;
  uint64_t device_memory_bytes = UINT64_MAX;  // of a GPU: what may be used
  double weights_on_device = 1.0;
};
Result<DeviceChoice> ResolveDevice(const DeviceFlags& flags);

struct SamplingFlags {
  SamplingOptions options;
  int64_t top_k = 0, repeat_window = 0;  // as read; checked to fit
  int64_t seed = -1;                     // -1: a random one
};
void AddSamplingFlags(Flags& flags, SamplingFlags* sampling);
// With the seed settled.
SamplingOptions ResolveSampling(const SamplingFlags& flags);

// --prompt, --file and, for generation, --prompt-ids and --prompts.
void AddTextFlags(Flags& flags, PromptFlags* prompts);
void AddTokenFlags(Flags& flags, PromptFlags* prompts);

}  // namespace infinigen
