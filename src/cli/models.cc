// `infinigen models`: the models on this machine, with the name to pass to -m.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/size.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/flags.h"
#include "runtime/model.h"
#include "runtime/report.h"

namespace infinigen {
namespace {

std::string ModelsJson(const std::vector<InstalledModel>& models) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const InstalledModel& model : models)
    list.push_back({{"name", model.name},
                    {"form", model.complete ? nlohmann::ordered_json(model.form) : nullptr},
                    {"bytes", model.bytes},
                    {"path", model.path},
                    {"cache", model.cache},
                    {"complete", model.complete}});
  return Dump({{"models", std::move(list)}, {"caches", ModelCaches()}});
}

std::string ModelsText(const std::vector<InstalledModel>& models) {
  const auto name = [](const InstalledModel& model) { return model.name.empty() ? "(no -m)" : OneLine(model.name); };
  const auto form = [](const InstalledModel& model) { return model.complete ? model.form : "partial"; };
  size_t names = 0, forms = 0;
  bool downloaded = false, partial = false;
  for (const InstalledModel& model : models) {
    names = std::max(names, name(model).size());
    forms = std::max(forms, form(model).size());
    downloaded |= model.cache != "built-in" && model.complete;
    partial |= !model.complete;
  }
  std::string text;
  for (const InstalledModel& model : models)
    text += fmt::format("{:<{}}  {:<{}}  {:>10}  {:<9}  {}\n", name(model), names, form(model), forms,
                        FormatSize(model.bytes), model.cache, OneLine(model.path));
  if (partial) text += "\nA partial download continues when its name is passed to -m again.\n";
  if (!downloaded && ModelCaches().empty())
    text += "\nThere is no cache of models: HOME is not set.\n";
  else if (!downloaded)
    text += fmt::format(
        "\nNo other model is complete in {}.\nTo download one, pass its name: infinigen chat -m "
        "hf:HuggingFaceTB/SmolLM2-135M-Instruct\n",
        OneLine(fmt::format("{}", fmt::join(ModelCaches(), ", "))));
  return text;
}

}  // namespace

int RunModels(Arguments arguments) {
  bool json = false;
  Flags flags("models",
              "List the models on this machine: the name to pass to -m, form, size, cache (the hub's own or this "
              "program's) and path.");
  flags.Group("Output");
  flags.Switch("--json", &json, "print one JSON object instead of text");
  if (const std::optional<int> exit_code = flags.Parse(arguments)) return *exit_code;
  const std::vector<InstalledModel> models = InstalledModels();
  Output output;
  output.Write(json ? ModelsJson(models) : ModelsText(models));
  if (const Status written = output.status(); !written.ok()) return Fail(written.error());
  return kExitOk;
}

}  // namespace infinigen
