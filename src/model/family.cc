#include "model/family.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "model/config_reader.h"
#include "model/families/families.h"

namespace infinigen {
namespace {

// Whether `text` matches `pattern`, in which '#' stands for one or more digits.
bool Matches(std::string_view pattern, std::string_view text) {
  for (; !pattern.empty(); pattern.remove_prefix(1)) {
    if (pattern[0] == '#') {
      const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
      if (digits == 0) return false;
      text.remove_prefix(digits);
      continue;
    }
    if (text.empty() || text[0] != pattern[0]) return false;
    text.remove_prefix(1);
  }
  return text.empty();
}

}  // namespace

std::span<const ModelFamily* const> Families() {
  // One line per family.
  static constexpr std::array kFamilies = {
      &kLlamaFamily,   &kOptFamily,  &kQwen2Family,  &kQwen3Family,  &kMistralFamily,
      &kSmolLm3Family, &kPhi3Family, &kGemma2Family, &kGemma3Family,
  };
  return kFamilies;
}

const ModelFamily* FindFamily(std::string_view model_type) {
  for (const ModelFamily* family : Families())
    if (std::find(family->model_types.begin(), family->model_types.end(), model_type) != family->model_types.end())
      return family;
  return nullptr;
}

const ModelFamily* FindGgufFamily(std::string_view architecture) {
  for (const ModelFamily* family : Families()) {
    if (family->gguf == nullptr) continue;
    const std::span<const std::string_view> known = family->gguf->architectures;
    if (std::find(known.begin(), known.end(), architecture) != known.end()) return family;
  }
  return nullptr;
}

std::string TensorName(const ModelFamily& family, std::string_view prefix, const Parameter& parameter,
                       TensorNaming naming) {
  CHECK(naming == TensorNaming::kTransformers || family.gguf != nullptr);
  const std::span<const RoleName> modules =
      naming == TensorNaming::kTransformers ? family.modules : family.gguf->modules;
  const auto found =
      std::find_if(modules.begin(), modules.end(), [&](const RoleName& name) { return name.role == parameter.role; });
  CHECK(found != modules.end());
  std::string module(found->module);
  if (const size_t layer = module.find('#'); layer != std::string::npos)
    module.replace(layer, 1, fmt::format("{}", parameter.layer));
  return fmt::format("{}{}.{}", parameter.role == WeightRole::kLmHead ? "" : prefix, module,
                     parameter.part == WeightPart::kWeight ? "weight" : "bias");
}

bool IsExtraTensor(const ModelFamily& family, std::string_view prefix, std::string_view name, TensorNaming naming) {
  CHECK(naming == TensorNaming::kTransformers || family.gguf != nullptr);
  if (name.substr(0, prefix.size()) != prefix) return false;
  name.remove_prefix(prefix.size());
  const std::span<const std::string_view> extras =
      naming == TensorNaming::kTransformers ? family.extra_tensors : family.gguf->extra_tensors;
  return std::any_of(extras.begin(), extras.end(), [&](std::string_view pattern) { return Matches(pattern, name); });
}

std::string_view ModelConfig::family_name() const { return family == nullptr ? "none" : family->name; }

std::vector<std::string_view> ShapeNames() {
  std::vector<std::string_view> names;
  for (const ModelFamily* family : Families())
    for (const PublishedShape& shape : family->shapes) names.push_back(shape.name);
  return names;
}

Result<ModelConfig> ShapeByName(std::string_view name) {
  for (const ModelFamily* family : Families()) {
    for (const PublishedShape& shape : family->shapes) {
      if (shape.name != name) continue;
      ASSIGN_OR_RETURN(ModelConfig config, ParseModelConfig(shape.config, fmt::format("shape {}", name)));
      config.name = name;
      return config;
    }
  }
  const std::vector<std::string_view> known = ShapeNames();
  return Invalid("unknown shape '{}'; known are {}", name, fmt::join(known.begin(), known.end(), ", "));
}

}  // namespace infinigen
