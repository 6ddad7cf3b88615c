// Flag groups that several commands share. Unknown words are refused where they are read (usage, exit 2); what values
// contradict together is refused by runtime (exit 1).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/flags.h"
#include "cli/prompts.h"
#include "runtime/generation.h"
#include "runtime/kv_request.h"
#include "runtime/plan.h"

namespace infinigen {

void AddModelFlag(Flags& flags, std::string* model);

void AddDeviceFlags(Flags& flags, DeviceRequest* device);

struct KvFlags {
  KvRequest request;                                                 // without a preset
  std::vector<const KvPreset*> presets = {FindPreset("infinigen")};  // several where a command takes a list
  bool stats_per_layer = false;                                      // of reports
};
// `list`: --kv takes several presets.
void AddKvFlags(Flags& flags, KvFlags* kv, bool list);
// One request for each preset, each checked.
Result<std::vector<KvRequest>> KvRequests(const KvFlags& flags);
// Precondition: the flags were added without `list`.
Result<KvRequest> OneKvRequest(const KvFlags& flags);

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
