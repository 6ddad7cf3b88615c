// What several commands share beside the flags themselves: groups of flags and the values they fill, and the output of
// --dry-run. A value that is wrong by itself is refused where it is read (usage, exit 2); values that contradict each
// other are refused by runtime (exit 1). One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/flags.h"
#include "cli/prompts.h"
#include "runtime/generation.h"
#include "runtime/kv_request.h"
#include "runtime/model.h"
#include "runtime/plan.h"

namespace infinigen {

void AddModelFlag(Flags& flags, std::string* model);

void AddDeviceFlags(Flags& flags, DeviceRequest* device);

struct KvFlags {
  KvRequest request;                                                 // without a preset
  std::vector<const KvPreset*> presets = {FindPreset("infinigen")};  // several where a command takes a list
  bool stats_per_layer = false;                                      // of reports
};
// `list`: --kv takes several presets. kv->presets has the default.
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
// With a seed drawn where none was given.
SamplingOptions ResolveSampling(const SamplingFlags& flags);

// --prompt, --file and, for generation, --prompt-ids and --prompts.
void AddTextFlags(Flags& flags, PromptFlags* prompts);
void AddTokenFlags(Flags& flags, PromptFlags* prompts);

// --dry-run: prints every plan on standard output. Returns the exit code, or the refusal of the first plan that does
// not fit.
Result<int> PrintPlans(const Model& model, std::span<const RunPlan> plans, bool json);

}  // namespace infinigen
