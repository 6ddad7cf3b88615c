#include "runtime/run_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <span>
#include <thread>

#include "base/size.h"
#include "runtime/model.h"

namespace infinigen {
namespace {

struct PlainOption {
  std::string_view name, value, help;
  std::string (*set)(const std::string& text, RunOptions* options);
};

std::string SetText(const std::string& text, std::string* value) { return *value = text, std::string(); }

constexpr PlainOption kPlain[] = {
    {"device", "cpu|cuda|reference", "where to compute (default cpu)",
     [](const std::string& text, RunOptions* o) { return SetText(text, &o->device.device); }},
    {"threads", "N", "CPU threads (default: all)",
     [](const std::string& text, RunOptions* o) { return ParseInteger(text, 1, 1024, &o->device.threads); }},
    {"device-memory", "SIZE", "GPU memory to use at most, for example 24GiB (default: all that is free)",
     [](const std::string& text, RunOptions* o) { return SetText(text, &o->device.memory); }},
    {"weights-on-device", "PERCENT", "share of the weights to keep on the GPU; the rest is streamed (default 100%)",
     [](const std::string& text, RunOptions* o) { return SetText(text, &o->device.weights_on_device); }},
    {"weights-in", "memory|file",
     "on a CPU: memory (default) reads the weights into huge pages, which is faster; file uses the mapped files, which "
     "several processes share",
     [](const std::string& text, RunOptions* o) { return SetText(text, &o->device.weights_in); }},
    {"ctx", "N",
     "context: tokens of a prompt and its answer (default: the model's context, or less if memory is short)",
     [](const std::string& text, RunOptions* o) { return ParseInteger(text, 1, kMaxContext, &o->context); }},
    {"batch", "N", "sequences to run at once (default 32, or fewer if memory is short)",
     [](const std::string& text, RunOptions* o) { return ParseInteger(text, 1, 4096, &o->batch); }},
    {"queue", "N", "requests that may wait while others run (default 1024)",
     [](const std::string& text, RunOptions* o) { return ParseInteger(text, 0, 1 << 20, &o->queue); }},
    {"kv", "PRESET", "KV method (default infinigen)",
     [](const std::string& text, RunOptions* o) {
       std::vector<const KvPreset*> presets;
       std::string wrong = ParsePresets(text, /*list=*/false, &presets);
       if (wrong.empty()) o->kv.preset = presets[0];
       return wrong;
     }},
};

}  // namespace

Status RunOptions::Set(std::string_view name, const std::string& value) {
  const auto checked = [&](const std::string& wrong) -> Status {
    return wrong.empty() ? Status(Ok()) : Status(Invalid("{}: {}", name, wrong));
  };
  for (const PlainOption& option : kPlain)
    if (option.name == name) return checked(option.set(value, this));
  for (const KvOption& option : KvOptions())
    if (option.name == name) return checked(option.set(value, &kv));
  return Invalid("there is no option '{}'", name);
}

std::vector<OptionHelp> RunOptionHelp() {
  std::vector<OptionHelp> help;
  for (const PlainOption& option : kPlain)
    help.push_back({std::string(option.name), std::string(option.value),
                    option.name == "kv" ? PresetHelp() + " (default infinigen)" : std::string(option.help)});
  for (const KvOption& option : KvOptions()) help.push_back({option.name, option.meta, option.help});
  return help;
}

Result<DeviceChoice> ChooseDevice(const DeviceRequest& request) {
  DeviceChoice choice;
  const int64_t hardware = std::max<int64_t>(std::thread::hardware_concurrency(), 1);
  choice.threads = static_cast<int>(request.threads > 0 ? request.threads : hardware);
  if (request.weights_in != "memory" && request.weights_in != "file")
    return Invalid("--weights-in {}: use memory or file", request.weights_in);
  choice.reads_weights = request.weights_in == "memory";
  if (request.device != "cuda") {
    if (!request.memory.empty()) return Unsupported("--device-memory {}: needs --device cuda", request.memory);
    if (!request.weights_on_device.empty())
      return Unsupported("--weights-on-device {}: needs --device cuda", request.weights_on_device);
    if (request.device != "cpu" && request.device != "reference")
      return Invalid("--device {}: unknown device; use cpu, cuda or reference", request.device);
    choice.device = request.device == "reference" ? Device::kReference : Device::kCpu;
    if (choice.device == Device::kReference) choice.threads = 1;
    return choice;
  }
  const Result<GpuInfo> gpu = FindGpu();
  if (!gpu.ok()) return Unsupported("--device cuda: {}", gpu.error().message);
  choice.device = Device::kCuda;
  choice.device_memory_bytes = gpu->free_bytes;
  if (!request.memory.empty()) {
    ASSIGN_OR_RETURN(const uint64_t asked, ParseSize(request.memory));
    if (asked > gpu->free_bytes)
      return Exhausted("--device-memory {}: only {} of the {} of {} are free", FormatSize(asked),
                       FormatSize(gpu->free_bytes), FormatSize(gpu->total_bytes), gpu->name);
    choice.device_memory_bytes = asked;
  }
  if (!request.weights_on_device.empty()) {
    const std::string wrong = ParseShare(request.weights_on_device, &choice.weights_on_device);
    if (!wrong.empty()) return Invalid("--weights-on-device: {}", wrong);
  }
  return choice;
}

}  // namespace infinigen
