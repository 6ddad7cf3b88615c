#include "cli/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "base/check.h"
#include "cli/console.h"
#include "runtime/report.h"
#include "runtime/run_options.h"

namespace infinigen {

void AddModelFlag(Flags& flags, std::string* model) {
  flags.Text("-m,--model", model, "PATH",
             "GGUF file, model directory in Hugging Face layout (config.json, *.safetensors), or hf:ORG/NAME[:FILE or "
             "quantisation] to download (default: the built-in infinigen-mini)");
}

Result<std::string> FindModelHere(const std::string& name) {
  Terminal terminal;
  return FindModel(name, terminal.callbacks());
}

void AddDeviceFlags(Flags& flags, DeviceRequest* device) {
  flags.Integer("-t,--threads", &device->threads, 1, 1024, "CPU threads (default: all)");
  flags.Choice("--device", &device->device, {"cpu", "cuda", "reference"},
               "where to compute; reference is a simple and slow CPU implementation, for checking results");
  flags.Text("--device-memory", &device->memory, "SIZE",
             "GPU memory to use at most, for example 24GiB (default: all that is free); needs --device cuda");
  flags.Text("--weights-on-device", &device->weights_on_device, "PERCENT",
             "share of the weights to keep on the GPU; the rest is streamed in every step (default 100%); needs "
             "--device cuda");
  flags.Choice("--weights-in", &device->weights_in, {"memory", "file"},
               "on a CPU: memory reads the weights into huge pages, which is faster; file uses the mapped files, which "
               "several processes share");
}

void AddKvFlags(Flags& flags, KvFlags* kv, bool list) {
  flags.Group("KV cache");
  flags.Custom(
      "--kv", [=](const std::string& text) { return ParsePresets(text, list, &kv->presets); },
      list ? "PRESET,..." : "PRESET",
      fmt::format("{} (default {})", PresetHelp(), kv->presets.size() > 1 ? "all of them" : kv->presets[0]->name));
  for (const KvOption& option : KvOptions()) {
    const auto set = [&option, kv](const std::string& text) { return option.set(text, &kv->request); };
    if (option.meta.empty())
      flags.Switch("--" + option.name, set, option.help);
    else
      flags.Custom("--" + option.name, set, option.meta, option.help);
  }
  flags.Switch("--stats-per-layer", &kv->stats_per_layer, "also report the attended share of every layer");
}

Result<std::vector<KvRequest>> KvRequests(const KvFlags& flags) {
  std::vector<KvRequest> requests;
  for (const KvPreset* preset : flags.presets) {
    KvRequest& request = requests.emplace_back(flags.request);
    request.preset = preset;
    request.one_of_several = flags.presets.size() > 1;
    RETURN_IF_ERROR(CheckKvRequest(request));
  }
  return requests;
}

Result<KvRequest> OneKvRequest(const KvFlags& flags) {
  ASSIGN_OR_RETURN(std::vector<KvRequest> requests, KvRequests(flags));
  CHECK(requests.size() == 1);
  return std::move(requests[0]);
}

void AddSamplingFlags(Flags& flags, SamplingFlags* sampling) {
  SamplingOptions& options = sampling->options;
  sampling->top_k = options.top_k;
  sampling->repeat_window = options.repeat_window;
  flags.Group("Sampling");
  flags.Real("--temp", &options.temperature, 0, 1000, false,
             fmt::format("temperature; 0: always the most likely token (default {})", options.temperature));
  flags.Integer("--top-k", &sampling->top_k, 0, INT32_MAX,
                fmt::format("sample from the N most likely tokens; 0: all (default {})", options.top_k));
  flags.Real("--top-p", &options.top_p, 0, 1, true,
             fmt::format("sample from the most likely tokens that together have this probability; 1: all (default {})",
                         options.top_p));
  flags.Real("--min-p", &options.min_p, 0, 1, false,
             fmt::format("drop tokens with less than this share of the highest probability; 0: none (default {})",
                         options.min_p));
  flags.Real("--repeat-penalty", &options.repeat_penalty, 0, 1000, true,
             fmt::format("above 1, tokens in the recent text become less likely (default {})", options.repeat_penalty));
  flags.Integer(
      "--repeat-last-n", &sampling->repeat_window, 0, INT32_MAX,
      fmt::format("number of tokens that --repeat-penalty counts as recent (default {})", options.repeat_window));
  flags.Integer("-s,--seed", &sampling->seed, -1, INT64_MAX,
                "random seed; the same seed gives the same text; -1: random (default -1)");
}

SamplingOptions ResolveSampling(const SamplingFlags& flags) {
  SamplingOptions options = flags.options;
  options.top_k = static_cast<int32_t>(flags.top_k);
  options.repeat_window = static_cast<int32_t>(flags.repeat_window);
  // A random seed has 32 bits, so that JSON readers that use doubles read it exactly.
  options.seed = flags.seed >= 0 ? static_cast<uint64_t>(flags.seed) : std::random_device()();
  return options;
}

void AddTextFlags(Flags& flags, PromptFlags* prompts) {
  flags.Custom(
      "-p,--prompt", [prompts](const std::string& text) { return prompts->text = text, std::string(); }, "TEXT",
      "text on the command line");
  flags.Text("-f,--file", &prompts->file, "FILE", "text in a file, read byte for byte; - is standard input");
}

void AddTokenFlags(Flags& flags, PromptFlags* prompts) {
  const auto set_ids = [prompts](const std::string& text) {
    prompts->has_ids = true;
    return ParseIntegerList(text, 0, INT32_MAX, &prompts->ids);
  };
  flags.Custom("--prompt-ids", set_ids, "1,2,3", "the prompt as token ids; nothing is added to them");
  flags.Text(
      "--prompts", &prompts->lines_file, "FILE.jsonl",
      "many prompts, run together; each line is \"text\", [ids], {\"prompt\": \"text\"} or {\"prompt_ids\": [ids]}; an "
      "object may also have \"n\" (tokens to generate) and \"seed\"");
}

Result<int> PrintPlans(const Model& model, std::span<const RunPlan> plans, bool json) {
  CHECK(!plans.empty());
  Output output;
  if (json) {
    nlohmann::ordered_json all = {
        {"model", ModelJson(model)}, {"kv", KvJson(plans[0].options)}, {"plan", PlanJson(plans[0])}};
    for (const RunPlan& plan : plans) all["plans"].push_back({{"kv", KvJson(plan.options)}, {"plan", PlanJson(plan)}});
    output.Write(Dump(all));
  } else {
    for (const RunPlan& plan : plans) output.Write(DescribePlan(model.config, plan));
  }
  for (const RunPlan& plan : plans)
    if (!plan.refusal.empty()) return Exhausted("{}", plan.refusal);
  RETURN_IF_ERROR(output.status());
  return kExitOk;
}

}  // namespace infinigen
