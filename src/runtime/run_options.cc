#include "runtime/run_options.h"

#include <fmt/format.h>

#include <charconv>
#include <span>

#include "runtime/kv_options.h"
#include "runtime/model.h"

namespace infinigen {
namespace {

// What is wrong with the value, or nothing.
std::string SetNumber(const std::string& text, int64_t least, int64_t most, int64_t* value) {
  int64_t number = 0;
  const auto [rest, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc() || rest != text.data() + text.size())
    return fmt::format("'{}' is not a whole number", text);
  if (number < least || number > most) return fmt::format("{} is not between {} and {}", number, least, most);
  *value = number;
  return {};
}

struct PlainOption {
  std::string_view name, value, help;
  std::string (*set)(const std::string& text, RunOptions* options);
};

std::string SetText(const std::string& text, std::string* value) { return *value = text, std::string(); }

constexpr PlainOption kPlain[] = {
    {"device", "cpu|cuda|reference", "where to compute (default cpu)",
     [](const std::string& text, RunOptions* o) { return SetText(text, &o->device.device); }},
    {"threads", "N", "threads (default: as many as the machine has)",
     [](const std::string& text, RunOptions* o) { return SetNumber(text, 1, 1024, &o->device.threads); }},
    {"device-memory", "SIZE", "limit of GPU memory",
     [](const std::string& text, RunOptions* o) { return SetText(text, &o->device.memory); }},
    {"weights-on-device", "PERCENT", "share of the weights kept on the GPU",
     [](const std::string& text, RunOptions* o) { return SetText(text, &o->device.weights_on_device); }},
    {"ctx", "N",
     "tokens of a prompt and its answer (default: what the model was made for, or less where memory is short)",
     [](const std::string& text, RunOptions* o) { return SetNumber(text, 1, kMaxContext, &o->context); }},
    {"batch", "N", "sequences at once (default 32, or fewer where memory is short)",
     [](const std::string& text, RunOptions* o) { return SetNumber(text, 1, 4096, &o->batch); }},
    {"queue", "N", "requests that may wait beyond those that run (default 1024)",
     [](const std::string& text, RunOptions* o) { return SetNumber(text, 0, 1 << 20, &o->queue); }},
    {"kv", "PRESET", "how the cache is kept (default infinigen)",
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

}  // namespace infinigen
