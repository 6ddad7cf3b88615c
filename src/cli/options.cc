#include "cli/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <thread>

#include "base/size.h"
#include "model/cuda_executor.h"

namespace infinigen {

void AddModelFlag(Flags& flags, std::string* model) {
  flags.Text("-m,--model", model, "DIR",
             "model directory as Hugging Face lays it out (config.json, *.safetensors; default: the built-in "
             "infinigen-mini)");
}

void AddDeviceFlags(Flags& flags, DeviceFlags* device) {
  flags.Integer("-t,--threads", &device->threads, 1, 1024, "threads (default: as many as the machine has)");
  flags.Choice("--device", &device->device, {"cpu", "cuda", "reference"},
               "where to compute; reference is the slow oracle, for checking");
  flags.Text("--device-memory", &device->memory, "SIZE", "limit of GPU memory; needs --device cuda");
  flags.Text("--weights-on-device", &device->weights_on_device, "PERCENT",
             "share of the weights kept on the GPU; needs --device cuda");
}

namespace {

Result<DeviceChoice> ResolveGpu(const DeviceFlags& flags, DeviceChoice choice) {
  const Result<GpuInfo> gpu = FindGpu();
  if (!gpu.ok()) return Unsupported("--device cuda: {}", gpu.error().message);
  choice.device = Device::kCuda;
  choice.device_memory_bytes = gpu->free_bytes;
  if (!flags.memory.empty()) {
    ASSIGN_OR_RETURN(const uint64_t asked, ParseSize(flags.memory));
    if (asked > gpu->free_bytes)
      return Exhausted("--device-memory {}: {} of the {} of {} are free", FormatSize(asked),
                       FormatSize(gpu->free_bytes), FormatSize(gpu->total_bytes), gpu->name);
    choice.device_memory_bytes = asked;
  }
  if (!flags.weights_on_device.empty()) {
    const std::string error = SetShare(flags.weights_on_device, &choice.weights_on_device);
    if (!error.empty()) return Invalid("--weights-on-device: {}", error);
  }
  return choice;
}

}  // namespace

Result<DeviceChoice> ResolveDevice(const DeviceFlags& flags) {
  DeviceChoice choice;
  const int64_t hardware = std::max<int64_t>(std::thread::hardware_concurrency(), 1);
  choice.threads = static_cast<int>(flags.threads > 0 ? flags.threads : hardware);
  if (flags.device == "cuda") return ResolveGpu(flags, choice);
  if (!flags.memory.empty()) return Unsupported("--device-memory {}: only a GPU has memory of its own", flags.memory);
  if (!flags.weights_on_device.empty())
    return Unsupported("--weights-on-device {}: only a GPU has memory of its own", flags.weights_on_device);
  choice.device = flags.device == "reference" ? Device::kReference : Device::kCpu;
  if (choice.device == Device::kReference) choice.threads = 1;
  return choice;
}

void AddSamplingFlags(Flags& flags, SamplingFlags* sampling) {
  SamplingOptions& options = sampling->options;
  sampling->top_k = options.top_k;
  sampling->repeat_window = options.repeat_window;
  flags.Group("Sampling");
  flags.Real("--temp", &options.temperature, 0, 1000, false,
             fmt::format("temperature; 0: always the most likely token (default {})", options.temperature));
  flags.Integer("--top-k", &sampling->top_k, 0, INT32_MAX,
                fmt::format("keep the N most likely tokens; 0: all (default {})", options.top_k));
  flags.Real("--top-p", &options.top_p, 0, 1, true,
             fmt::format("keep the fewest tokens with this much probability; 1: all (default {})", options.top_p));
  flags.Real("--min-p", &options.min_p, 0, 1, false,
             fmt::format("drop what is less likely than this share of the best; 0: none (default {})", options.min_p));
  flags.Real("--repeat-penalty", &options.repeat_penalty, 0, 1000, true,
             fmt::format("above 1 recent tokens become less likely (default {})", options.repeat_penalty));
  flags.Integer("--repeat-last-n", &sampling->repeat_window, 0, INT32_MAX,
                fmt::format("how many tokens count as recent (default {})", options.repeat_window));
  flags.Integer("-s,--seed", &sampling->seed, -1, INT64_MAX,
                "the same seed gives the same text; -1: a random one (default -1)");
}

SamplingOptions ResolveSampling(const SamplingFlags& flags) {
  SamplingOptions options = flags.options;
  options.top_k = static_cast<int32_t>(flags.top_k);
  options.repeat_window = static_cast<int32_t>(flags.repeat_window);
  // 32 bits: a seed that is reported as JSON must survive readers that hold numbers as doubles.
  options.seed = flags.seed >= 0 ? static_cast<uint64_t>(flags.seed) : std::random_device()();
  return options;
}

void AddTextFlags(Flags& flags, PromptFlags* prompts) {
  flags.Custom(
      "-p,--prompt", [prompts](const std::string& text) { return prompts->text = text, std::string(); }, "TEXT",
      "the text");
  flags.Text("-f,--file", &prompts->file, "FILE", "read the text from a file, byte for byte; - is standard input");
}

void AddTokenFlags(Flags& flags, PromptFlags* prompts) {
  const auto set_ids = [prompts](const std::string& text) {
    prompts->has_ids = true;
    return ParseIntegerList(text, 0, INT32_MAX, &prompts->ids);
  };
  flags.Custom("--prompt-ids", set_ids, "1,2,3", "the prompt as token ids, used as they are");
  flags.Text(
      "--prompts", &prompts->lines_file, "FILE.jsonl",
      "many prompts, run together: on each line \"text\", [ids], {\"prompt\": \"text\"} or {\"prompt_ids\": [ids]}, "
      "objects also with \"n\" and \"seed\"");
}

}  // namespace infinigen
