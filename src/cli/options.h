// Groups of flags that several commands share, the values they fill, and the output of --dry-run. A value that is wrong
// by itself is a usage error (exit 2); runtime refuses values that contradict each other (exit 1). One thread.
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
// FindModel (runtime/model.h) with a progress bar for a download; Ctrl-C cancels it.
Result<std::string> FindModelHere(const std::string& name);

void AddDeviceFlags(Flags& flags, DeviceRequest* device);

struct KvFlags {
  KvRequest request;                                                 // its preset is replaced by each of `presets`
  std::vector<const KvPreset*> presets = {FindPreset("infinigen")};  // several only if --kv accepts a list
  bool stats_per_layer = false;                                      // in reports
};
// `list`: --kv accepts several presets. kv->presets holds the default.
void AddKvFlags(Flags& flags, KvFlags* kv, bool list);
// One checked request for each preset.
Result<std::vector<KvRequest>> KvRequests(const KvFlags& flags);
// Precondition: the flags were added without `list`.
Result<KvRequest> OneKvRequest(const KvFlags& flags);

struct SamplingFlags {
  SamplingOptions options;
  int64_t top_k = 0, repeat_window = 0;  // fit into 32 bits
  int64_t seed = -1;                     // -1: random
};
void AddSamplingFlags(Flags& flags, SamplingFlags* sampling);
// Draws a seed if none was given.
SamplingOptions ResolveSampling(const SamplingFlags& flags);

// --prompt, --file and, for generation, --prompt-ids and --prompts.
void AddTextFlags(Flags& flags, PromptFlags* prompts);
void AddTokenFlags(Flags& flags, PromptFlags* prompts);

// --dry-run: prints all plans on standard output. Returns the exit code, or the refusal of the first plan that does not
// fit as an error.
Result<int> PrintPlans(const Model& model, std::span<const RunPlan> plans, bool json);

}  // namespace infinigen
