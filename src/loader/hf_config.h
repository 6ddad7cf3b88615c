// config.json of a Hugging Face model directory, parsed and checked. Called once while a model is opened, from any
// thread; model/config.h turns the result into the architecture-neutral description that the decoder uses.
//
// Every field of the file is either used here, known not to change what is computed (hf_config_fields.cc), or refused
// by name: a field that we do not know may be one that we would compute wrongly without. Absent fields take the
// defaults of transformers' LlamaConfig and OPTConfig; the sizes have none and must be there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tensor/dtype.h"

namespace infinigen {

// The widest head that the backends' attention takes; the widest published one is 256.
inline constexpr int64_t kHeadDimLimit = 512;

enum class Architecture { kLlama, kOpt };

constexpr std::string_view Name(Architecture architecture) {
  return architecture == Architecture::kLlama ? "llama" : "opt";
}

enum class RopeScaling { kNone, kLinear, kLlama3 };

// Rotary positions. For kLinear only `factor` counts; the last three belong to kLlama3.
struct RopeConfig {
  double theta = 10000.0;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int64_t original_max_positions = 0;

  bool operator==(const RopeConfig&) const = default;
};

// Sizes are positive and bounded (kMax… in hf_config.cc), so that the product of any two fits in int64_t.
struct HfConfig {
  Architecture architecture = Architecture::kLlama;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;  // OPT: the attention heads
  int64_t head_dim = 0;             // OPT: hidden_size / heads
  int64_t ffn_size = 0;             // Llama: intermediate_size; OPT: ffn_dim
  int64_t max_position_embeddings = 0;
  bool tie_word_embeddings = false;
  bool attention_bias = false;  // on q, k, v and o; OPT: enable_bias
  bool mlp_bias = false;        // OPT: enable_bias
  std::optional<DType> dtype;   // as stated; every tensor has its own in the file
  std::optional<int64_t> bos_token_id;
  std::vector<int64_t> eos_token_ids;

  // Llama.
  double rms_norm_eps = 1e-6;
  RopeConfig rope;

  // OPT.
  bool do_layer_norm_before = true;
  bool remove_final_layer_norm = false;
  bool layer_norm_affine = true;
  int64_t word_embed_proj_dim = 0;  // Llama: hidden_size
};

// `text` is the file's content; `path` is used in messages only.
Result<HfConfig> ParseHfConfig(std::string_view text, const std::string& path);

// The end-of-text ids of a generation_config.json (an id or a list of ids); empty when it names none. Everything else
// in that file is a sampling preference, which is the user's to state, and is not looked at.
Result<std::vector<int64_t>> ParseGenerationEosIds(std::string_view text, const std::string& path);

// Reads config.json, and generation_config.json where there is one: its end-of-text ids replace config.json's.
Result<HfConfig> LoadHfConfig(const std::string& directory);

}  // namespace infinigen
