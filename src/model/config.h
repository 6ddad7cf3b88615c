// ModelConfig: what a model computes, in words that fit every family. The decoder branches on these fields and never on
// the family. Made from a model directory (LoadModelConfig) or from a published shape (ShapeByName, for benchmarks with
// random weights). Plain data; any thread may read it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tensor/dtype.h"

namespace infinigen {

struct ModelFamily;  // model/family.h

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

enum class NormKind {
  kRms,    // x / rms(x) · weight
  kLayer,  // (x - mean) / std · weight + bias
};
enum class PositionKind {
  kRope,     // queries and keys are rotated; unbounded, `max_positions` is what was trained
  kLearned,  // a row of a table is added to the embedding; nothing exists beyond `max_positions`
};
enum class MlpKind {
  kGatedSilu,  // down(silu(gate x) · up x)
  kRelu,       // down(relu(up x))
};

struct ModelConfig {
  std::string name;                     // base name of the directory, or of the shape
  const ModelFamily* family = nullptr;  // null: made by hand, so it cannot be loaded

  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;     // query heads
  int64_t kv_heads = 0;  // divides heads
  int64_t head_dim = 0;  // heads · head_dim need not equal hidden
  int64_t ffn = 0;
  int64_t vocab = 0;
  int64_t embed_dim = 0;  // width of the embedding; ≠ hidden: project_in after it and project_out before lm_head
  int64_t max_positions = 0;

  NormKind norm = NormKind::kRms;
  float norm_eps = 1e-6f;
  bool norm_affine = true;  // false: norms have no parameters in the file; Weights then holds ones (and zeros)
  bool pre_norm = true;     // norm before attention and MLP; false (OPT-350m): after the residual addition
  bool final_norm = true;   // a norm after the last layer

  PositionKind positions = PositionKind::kRope;
  int64_t position_offset = 0;  // learned: position p uses row p + position_offset (2 in OPT)
  RopeConfig rope;              // kRope only

  MlpKind mlp = MlpKind::kGatedSilu;
  bool attention_bias = false;  // q, k, v, o
  bool mlp_bias = false;        // gate, up, down
  bool tied_embeddings = false;

  std::optional<DType> dtype;     // as stated by config.json; for information
  std::vector<int64_t> eos_ids;   // generation stops on any of them; may be empty; each < vocab
  std::optional<int64_t> bos_id;  // for information: the tokenizer decides

  bool has_projections() const { return embed_dim != hidden; }
  std::string_view family_name() const;  // "llama"
};

// Reads config.json (and generation_config.json where there is one).
Result<ModelConfig> LoadModelConfig(const std::string& directory);

// Distinct parameters: tied embeddings count once.
int64_t ParameterCount(const ModelConfig& config);

// Published dimensions by name ("llama-3.1-8b", "opt-13b", …); an unknown name is refused with the list of known ones.
Result<ModelConfig> ShapeByName(std::string_view name);
std::vector<std::string_view> ShapeNames();

// One angular frequency per pair of dimensions: position p turns pair i by p · result[i]. head_dim/2 values, computed
// in float32 in the order of operations of transformers, so that long positions agree.
std::vector<float> RopeInverseFrequencies(const RopeConfig& rope, int64_t head_dim);

}  // namespace infinigen
