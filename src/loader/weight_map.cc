#include "loader/weight_map.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace infinigen {
namespace {

constexpr std::string_view kLlamaPrefixes[] = {"model.", ""};
constexpr std::string_view kOptPrefixes[] = {"model.decoder.", "decoder."};

std::string_view LlamaModule(WeightRole role) {
  switch (role) {
    case WeightRole::kEmbedding:
      return "embed_tokens";
    case WeightRole::kFinalNorm:
      return "norm";
    case WeightRole::kAttentionNorm:
      return "input_layernorm";
    case WeightRole::kQuery:
      return "self_attn.q_proj";
    case WeightRole::kKey:
      return "self_attn.k_proj";
    case WeightRole::kValue:
      return "self_attn.v_proj";
    case WeightRole::kOutput:
      return "self_attn.o_proj";
    case WeightRole::kMlpNorm:
      return "post_attention_layernorm";
    case WeightRole::kGate:
      return "mlp.gate_proj";
    case WeightRole::kUp:
      return "mlp.up_proj";
    case WeightRole::kDown:
      return "mlp.down_proj";
    default:
      CHECK(false);
  }
}

std::string_view OptModule(WeightRole role) {
  switch (role) {
    case WeightRole::kEmbedding:
      return "embed_tokens";
    case WeightRole::kPositions:
      return "embed_positions";
    case WeightRole::kProjectIn:
      return "project_in";
    case WeightRole::kProjectOut:
      return "project_out";
    case WeightRole::kFinalNorm:
    case WeightRole::kMlpNorm:
      return "final_layer_norm";  // the name says "final" in every layer too
    case WeightRole::kAttentionNorm:
      return "self_attn_layer_norm";
    case WeightRole::kQuery:
      return "self_attn.q_proj";
    case WeightRole::kKey:
      return "self_attn.k_proj";
    case WeightRole::kValue:
      return "self_attn.v_proj";
    case WeightRole::kOutput:
      return "self_attn.out_proj";
    case WeightRole::kUp:
      return "fc1";
    case WeightRole::kDown:
      return "fc2";
    default:
      CHECK(false);
  }
}

bool ConsumePrefix(std::string_view& text, std::string_view prefix) {
  if (text.substr(0, prefix.size()) != prefix) return false;
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace

std::span<const std::string_view> NamePrefixes(Architecture architecture) {
  return architecture == Architecture::kLlama ? std::span<const std::string_view>(kLlamaPrefixes)
                                              : std::span<const std::string_view>(kOptPrefixes);
}

std::string TensorName(Architecture architecture, std::string_view prefix, WeightRole role, WeightPart part,
                       int64_t layer) {
  const std::string_view suffix = part == WeightPart::kWeight ? "weight" : "bias";
  if (role == WeightRole::kLmHead) return fmt::format("lm_head.{}", suffix);
  const std::string_view module = architecture == Architecture::kLlama ? LlamaModule(role) : OptModule(role);
  if (IsPerLayer(role)) return fmt::format("{}layers.{}.{}.{}", prefix, layer, module, suffix);
  return fmt::format("{}{}.{}", prefix, module, suffix);
}

bool IsHarmlessTensor(Architecture architecture, std::string_view prefix, std::string_view name) {
  if (!ConsumePrefix(name, prefix)) return false;
  if (architecture == Architecture::kOpt) return name == "version";
  if (ConsumePrefix(name, "layers.")) {
    const size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
    if (digits == 0) return false;
    name.remove_prefix(digits);
    if (!ConsumePrefix(name, ".self_attn.")) return false;
  }
  return name == "rotary_emb.inv_freq";
}

}  // namespace infinigen
