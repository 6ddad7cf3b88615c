// `infinigen calibrate`: computes a model's skew file and reports the share of the scores' energy in its first columns.
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/flags.h"
#include "cli/options.h"
#include "cli/prompts.h"
#include "runtime/launch.h"
#include "runtime/model.h"
#include "runtime/report.h"

namespace infinigen {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kShownRatio = 0.3;  // small enough to tell a good basis from a bad one
constexpr int64_t kMostTokens = 1 << 20;

struct CalibrateFlags {
  std::string model;
  std::string file;
  std::string output;
  int64_t tokens = kCalibrationTokens;
  int64_t positions = 0;  // 0: the model's context
  DeviceRequest device;
  bool json = false;
};

struct Calibration {
  const Model& model;
  const Skew& skew;
  std::string path;
  double seconds = 0;

  int64_t head_dim() const { return skew.shape().head_dim; }
  int64_t dims() const { return SketchDims(head_dim(), kShownRatio); }
  double Held(int64_t layer, ProjectionKind kind) const { return skew.HeldEnergy(LayerId(layer), kind, dims()); }
};

Json CalibrationJson(const Calibration& made) {
  Json energy = Json::array();
  for (int64_t layer = 0; layer < made.skew.shape().layers; ++layer)
    energy.push_back({{"layer", layer},
                      {"rotation", made.Held(layer, ProjectionKind::kRotation)},
                      {"pair", made.Held(layer, ProjectionKind::kPair)}});
  return {{"model", ModelJson(made.model)},
          {"identity", made.skew.origin().model.Hex()},
          {"file", made.path},
          {"text", made.skew.origin().text},
          {"tokens", made.skew.origin().tokens},
          {"positions", made.skew.origin().positions},
          {"seconds", made.seconds},
          {"head_dim", made.head_dim()},
          {"dims", made.dims()},
          {"energy", std::move(energy)}};
}

std::string CalibrationLines(const Calibration& made) {
  const SkewOrigin& origin = made.skew.origin();
  std::string text =
      fmt::format("{} calibrated on {} tokens ({}) for contexts of up to {} in {:.2f} s\n",
                  OneLine(made.model.config.name), origin.tokens, OneLine(origin.text), origin.positions, made.seconds);
  text += fmt::format("share of the scores' energy in the first {} of {} columns\nlayer  rotation    pair\n",
                      made.dims(), made.head_dim());
  double rotation = 0, pair = 0;
  const int64_t layers = made.skew.shape().layers;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const double rotation_share = made.Held(layer, ProjectionKind::kRotation);
    const double pair_share = made.Held(layer, ProjectionKind::kPair);
    text += fmt::format("{:>5}  {:>6.2f} %  {:>6.2f} %\n", layer, 100 * rotation_share, 100 * pair_share);
    rotation += rotation_share / static_cast<double>(layers);
    pair += pair_share / static_cast<double>(layers);
  }
  text += fmt::format(" mean  {:>6.2f} %  {:>6.2f} %\n", 100 * rotation, 100 * pair);
  return text + fmt::format("written to {}\n", OneLine(made.path));
}

Result<int> CalibrateCommand(const CalibrateFlags& flags) {
  ASSIGN_OR_RETURN(const DeviceChoice device, ChooseDevice(flags.device));
  ASSIGN_OR_RETURN(const std::string directory, FindModelHere(flags.model));
  ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, OpenModel(directory));
  std::optional<NamedText> given;
  if (!flags.file.empty()) {
    given.emplace();
    given->name = flags.file == "-" ? "standard input" : std::filesystem::path(flags.file).filename().string();
    if (model->tokenizer != nullptr) {
      ASSIGN_OR_RETURN(given->bytes, ReadText(flags.file));
    }
  }
  ASSIGN_OR_RETURN(const CalibrationText text, MakeCalibrationText(*model, given, flags.tokens));
  if (model->tokenizer == nullptr)
    Warn(fmt::format("{} has no tokenizer, so it is calibrated on random token ids", model->config.name));
  ASSIGN_OR_RETURN(const int64_t positions, ChooseContext(model->config, flags.positions));
  const Clock::time_point start = Clock::now();
  Terminal terminal;
  ASSIGN_OR_RETURN(const Skew skew, CalibrateModel(*model, text, device, positions, terminal.callbacks()));
  terminal.Erase();
  const double seconds = Seconds(start);
  std::string path = flags.output;
  if (path.empty()) {
    ASSIGN_OR_RETURN(path, SaveSkew(skew, directory));
  } else {
    RETURN_IF_ERROR(WriteSkew(skew, path));
  }
  const Calibration made{.model = *model, .skew = skew, .path = path, .seconds = seconds};
  Output output;
  output.Write(flags.json ? Dump(CalibrationJson(made)) : CalibrationLines(made));
  RETURN_IF_ERROR(output.status());
  return kExitOk;
}

}  // namespace

int RunCalibrate(Arguments arguments) {
  CalibrateFlags values;
  Flags flags(
      "calibrate",
      "Compute a model's skew file: the rotation of keys with which small sketches estimate attention scores (--kv "
      "infinigen). Other commands do this on first use; run it yourself to choose the text or the context.");
  flags.Group("Text");
  flags.Text("-f,--file", &values.file, "FILE",
             "calibrate on the first tokens of this text; - is standard input (default: a built-in text)");
  flags.Integer("--tokens", &values.tokens, kLeastCalibrationTokens, kMostTokens,
                fmt::format("tokens of the text to use, in sequences of at most {} (default {})", kCalibrationTokens,
                            kCalibrationTokens));
  flags.Integer(
      "-c,--ctx", &values.positions, 1, kMaxContext,
      "longest context that the skew is made for (default: the model's context); a smaller N gives better selections "
      "up to N tokens and bad ones beyond");
  flags.Group("Model and machine");
  AddModelFlag(flags, &values.model);
  AddDeviceFlags(flags, &values.device);
  flags.Group("Output");
  flags.Text(
      "-o,--output", &values.output, "FILE",
      fmt::format("file to write (default: {} in the model's directory, or in the user's cache if that is read-only)",
                  kSkewFileName));
  flags.Switch("--json", &values.json, "print one JSON object instead of text");
  if (const std::optional<int> exit_code = flags.Parse(arguments)) return *exit_code;
  InstallInterrupt();
  return Finish(CalibrateCommand(values));
}

}  // namespace infinigen
