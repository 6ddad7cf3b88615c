// The families, and fields that several of them share. Private to model/family.cc and the files of this directory.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "json/fields.h"
#include "model/config.h"
#include "model/family.h"

namespace infinigen {

extern const ModelFamily kLlamaFamily;
extern const ModelFamily kOptFamily;
extern const ModelFamily kQwen2Family;
extern const ModelFamily kQwen3Family;
extern const ModelFamily kMistralFamily;
extern const ModelFamily kSmolLm3Family;
extern const ModelFamily kPhi3Family;
extern const ModelFamily kGemma2Family;
extern const ModelFamily kGemma3Family;

// Tensor names of Hugging Face's Llama, which several families share.
inline constexpr std::string_view kLlamaPrefixes[] = {"model.", ""};
inline constexpr RoleName kLlamaModules[] = {
    {WeightRole::kEmbedding, "embed_tokens"},
    {WeightRole::kAttentionNorm, "layers.#.input_layernorm"},
    {WeightRole::kMlpNorm, "layers.#.post_attention_layernorm"},
    {WeightRole::kQuery, "layers.#.self_attn.q_proj"},
    {WeightRole::kKey, "layers.#.self_attn.k_proj"},
    {WeightRole::kValue, "layers.#.self_attn.v_proj"},
    {WeightRole::kOutput, "layers.#.self_attn.o_proj"},
    {WeightRole::kGate, "layers.#.mlp.gate_proj"},
    {WeightRole::kUp, "layers.#.mlp.up_proj"},
    {WeightRole::kDown, "layers.#.mlp.down_proj"},
    {WeightRole::kFinalNorm, "norm"},
    {WeightRole::kLmHead, "lm_head"},
};
// Rotary frequencies that some exporters store. They are computed from the config.
inline constexpr std::string_view kRotaryTensors[] = {"rotary_emb.inv_freq", "layers.#.self_attn.rotary_emb.inv_freq"};

// The tensor names of GGUF files, which are the same in every family.
inline constexpr RoleName kGgufNames[] = {
    {WeightRole::kEmbedding, "token_embd"},
    {WeightRole::kAttentionNorm, "blk.#.attn_norm"},
    {WeightRole::kMlpNorm, "blk.#.ffn_norm"},
    {WeightRole::kQuery, "blk.#.attn_q"},
    {WeightRole::kKey, "blk.#.attn_k"},
    {WeightRole::kValue, "blk.#.attn_v"},
    {WeightRole::kOutput, "blk.#.attn_output"},
    {WeightRole::kQueryNorm, "blk.#.attn_q_norm"},
    {WeightRole::kKeyNorm, "blk.#.attn_k_norm"},
    {WeightRole::kGate, "blk.#.ffn_gate"},
    {WeightRole::kUp, "blk.#.ffn_up"},
    {WeightRole::kDown, "blk.#.ffn_down"},
    {WeightRole::kFinalNorm, "output_norm"},
    {WeightRole::kLmHead, "output"},
    {WeightRole::kAttentionOutNorm, "blk.#.post_attention_norm"},
    {WeightRole::kMlpOutNorm, "blk.#.post_ffw_norm"},
};
// Divisors of the rotary frequencies, which model/gguf_config.cc reads, and frequencies that follow from the metadata.
inline constexpr std::string_view kGgufRopeTensors[] = {"rope_freqs.weight", "blk.#.attn_rot_embd.weight"};

// Reads kv_heads and head_dim as in Llama, from num_key_value_heads and head_dim; both may be absent. head_dim: the
// default, if it is not hidden / heads.
void ReadGroupedHeads(FieldReader& fields, ModelConfig& config, std::optional<int64_t> head_dim = std::nullopt);

// What a RoPE object leaves out.
struct RopeDefaults {
  int64_t max_positions = 0;
  double theta = 10000.0;
  int64_t head_dim = 0;                       // needed for longrope
  int64_t rotary_dims = 0;                    // as in RopeConfig; 0: partial_rotary_factor must be 1
  std::optional<int64_t> original_positions;  // original_max_position_embeddings outside of the object
};
// Reads rope_theta and rope_scaling (old) or rope_parameters (new). If both exist they must agree.
RopeConfig ReadRope(FieldReader& fields, const RopeDefaults& defaults);
// Reads one of these objects; `name` is its name in messages.
Result<RopeConfig> ParseRope(const nlohmann::json& object, const std::string& path, const std::string& name,
                             const RopeDefaults& defaults);

// Reads layer_types: [layers] whether a layer is sliding_attention; the others are full_attention. None if absent.
std::optional<std::vector<bool>> ReadLayerTypes(FieldReader& fields, int64_t layers);
// Sets the window of the layers in `sliding` [layers]. A window of max_positions or more has no effect, so it is left
// out: the layers can then select.
void SetWindows(ModelConfig& config, int64_t window, const std::vector<bool>& sliding);
// Reads windows as in Qwen: sliding_window counts if use_sliding_window is true, in the layers from max_window_layers
// on, or in those that layer_types names.
void ReadSwitchedWindows(FieldReader& fields, ModelConfig& config, int64_t default_window, int64_t default_first);

}  // namespace infinigen
