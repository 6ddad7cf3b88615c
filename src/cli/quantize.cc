// `infinigen quantize`: writes a model as a GGUF file in another weight type.
#include "runtime/quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/size.h"
#include "base/utf8.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/flags.h"
#include "cli/options.h"
#include "runtime/report.h"
#include "runtime/run_options.h"

namespace infinigen {
namespace {

struct QuantizeFlags {
  std::string model, output, type = "q4_k_m";
  DeviceRequest device;
  bool json = false;
};

Result<int> QuantizeCommand(const QuantizeFlags& flags) {
  ASSIGN_OR_RETURN(const DeviceChoice device, ChooseDevice(flags.device));
  const Clock::time_point start = Clock::now();
  Terminal terminal;
  const QuantizeRequest request{
      .model = flags.model, .output = flags.output, .type = flags.type, .threads = device.threads};
  ASSIGN_OR_RETURN(const QuantizeReport report, Quantize(request, terminal.callbacks()));
  terminal.Erase();
  Output output;
  if (flags.json) {
    output.Write(Dump({{"file", flags.output},
                       {"type", flags.type},
                       {"bytes", report.bytes},
                       {"weight_bytes_before", report.weight_bytes_before},
                       {"tensors", report.tensors},
                       {"seconds", Seconds(start)}}));
  } else {
    std::string types;
    for (const auto& [name, count] : report.tensors)
      types += fmt::format("{}{} {}", types.empty() ? "" : ", ", count, name);
    output.Write(fmt::format("{}: {} (weights before: {}), tensors: {}, in {:.1f} s\n", OneLine(flags.output),
                             FormatSize(report.bytes), FormatSize(report.weight_bytes_before), types, Seconds(start)));
  }
  RETURN_IF_ERROR(output.status());
  return kExitOk;
}

}  // namespace

int RunQuantize(Arguments arguments) {
  QuantizeFlags values;
  Flags flags("quantize", "Write a model as a GGUF file with smaller weights, which this program and llama.cpp open.");
  flags.Group("Model");
  flags.Text("-m,--model", &values.model, "PATH",
             "GGUF file, model directory in Hugging Face layout, hf:ORG/NAME[:FILE], or shape:NAME for random weights "
             "in the shape of a "
             "published model (default: the built-in infinigen-mini)");
  flags.Group("Output");
  flags.Text("-o,--output", &values.output, "FILE", "the GGUF file to write; it appears when it is complete");
  flags.Custom(
      "--type",
      [&](const std::string& text) {
        const std::vector<std::string> types = QuantizeTypes();
        values.type = LowerCase(text);
        const bool known = std::find(types.begin(), types.end(), values.type) != types.end();
        return known ? std::string() : fmt::format("not one of {}", fmt::join(types, ", "));
      },
      fmt::format("{}", fmt::join(QuantizeTypes(), "|")),
      "type of the matrices; q4_k_m gives the output and some layers more bits (default q4_k_m)");
  flags.Switch("--json", &values.json, "print one JSON object instead of text");
  flags.Group("Machine");
  flags.Integer("-t,--threads", &values.device.threads, 1, 1024, "CPU threads (default: all)");
  if (const std::optional<int> exit_code = flags.Parse(arguments)) return *exit_code;
  if (values.output.empty()) return FailUsage("quantize", "the output is missing; pass -o FILE.gguf");
  InstallInterrupt();
  return Finish(QuantizeCommand(values));
}

}  // namespace infinigen
