// ModelConfig: what a model computes, in words that fit every family. The decoder branches on these fields and never on
// the family. Made from a model directory (LoadModelConfig) or from a published shape (ShapeByName, for benchmarks with
// random weights). Plain data; any thread may read it.
//
// It can describe more than the backends compute; CheckSupported refuses the rest by name.
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

enum class RopeScaling : uint8_t { kNone, kLinear, kLlama3 };
// Which two dimensions of a head turn together.
enum class RopeOrder : uint8_t {
  kHalves,  // i and i + rotary_dims/2
  kPairs,   // 2i and 2i + 1
};

// Rotary positions. For kLinear only `factor` counts; the three after it belong to kLlama3.
struct RopeConfig {
  double base = 10000.0;  // called theta in files
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int64_t original_max_positions = 0;
  RopeOrder order = RopeOrder::kHalves;
  int64_t rotary_dims = 0;  // the first dimensions of a head, which turn; 0: all of head_dim

  bool operator==(const RopeConfig&) const = default;
};

enum class NormKind : uint8_t {
  kRms,    // x / rms(x) · weight
  kLayer,  // (x - mean) / std · weight + bias
};
struct NormSpec {
  NormKind kind = NormKind::kRms;
  float eps = 1e-6f;
  bool affine = true;  // false: the files hold no parameters; Weights then holds ones (and zeros)

  bool operator==(const NormSpec&) const = default;
};
enum class NormPlacement : uint8_t {
  kBefore,         // on the input of attention and MLP
  kAfterResidual,  // on the residual stream, after their output was added (OPT-350m)
  kBothSides,      // on their input, and on their output before it is added (Gemma)
};

enum class Activation : uint8_t { kSilu, kGeluTanh, kRelu };
struct MlpSpec {
  bool gated = true;  // down(activation(gate x) · up x); else down(activation(up x))
  Activation activation = Activation::kSilu;
  bool bias = false;  // on gate, up and down

  bool operator==(const MlpSpec&) const = default;
};

// One layer's own fields. Defaults are Llama's, but for the scale, which follows from head_dim (PlainLayer).
struct LayerSpec {
  static constexpr int32_t kNoRope = -1;

  float attention_scale = 0;     // a score is query · key · scale
  int32_t rope = 0;              // into ModelConfig::ropes; kNoRope: queries and keys are not rotated
  int64_t window = 0;            // a token attends to so many of the newest rows, its own included; 0: to all
  float attention_soft_cap = 0;  // scores become cap · tanh(score / cap); 0: they stay
  bool qkv_bias = false;         // on q, k and v
  bool o_bias = false;
  bool qk_norm = false;  // RMS norms over head_dim on each head of q and k, before rotation; eps is the layer norms'
  NormSpec norm;         // of both norms of the layer
  NormPlacement norm_placement = NormPlacement::kBefore;
  MlpSpec mlp;

  bool operator==(const LayerSpec&) const = default;
};

enum class PositionKind : uint8_t {
  kNone,     // nothing is added to the embedding; layers may rotate
  kLearned,  // a row of a table is added to the embedding; nothing exists beyond `max_positions`
};

struct ModelConfig {
  std::string name;                     // base name of the directory, or of the shape
  const ModelFamily* family = nullptr;  // null: made by hand, so it cannot be loaded

  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;     // query heads of the model
  int64_t kv_heads = 0;  // KV heads of the model; divides heads
  int64_t head_dim = 0;  // heads · head_dim need not equal hidden
  int64_t ffn = 0;
  int64_t vocab = 0;
  int64_t embed_dim = 0;      // width of the embedding; ≠ hidden: project_in after it and project_out before lm_head
  int64_t max_positions = 0;  // with learned positions the most there are, else what the model was trained for

  std::vector<LayerSpec> specs;   // [layers]
  std::vector<RopeConfig> ropes;  // the RoPE tables that layers use
  PositionKind positions = PositionKind::kNone;
  int64_t position_offset = 0;  // learned: position p uses row p + position_offset (2 in OPT)

  float embedding_scale = 1;                        // of what the embedding gives
  std::optional<NormSpec> final_norm = NormSpec();  // after the last layer
  float logit_soft_cap = 0;                         // logits become cap · tanh(logit / cap); 0: they stay
  bool tied_embeddings = false;                     // the output matrix is the embedding

  std::optional<DType> dtype;     // as stated by config.json; for information
  std::vector<int64_t> eos_ids;   // generation stops on any of them; may be empty; each < vocab
  std::optional<int64_t> bos_id;  // for information: the tokenizer decides

  // Sets the number of layers and makes them all alike.
  void SetLayers(int64_t count, const LayerSpec& spec) {
    layers = count;
    specs.assign(static_cast<size_t>(count), spec);
  }

  bool has_projections() const { return embed_dim != hidden; }
  bool rotates() const;                  // some layer does
  bool has_gate() const;                 // some layer's MLP is gated
  std::string_view family_name() const;  // "llama"
};

// A layer of Llama, with the usual scale 1/√head_dim.
LayerSpec PlainLayer(int64_t head_dim);

// The heads that this process computes and whose entries its pool holds. A model's own numbers are config.heads and
// config.kv_heads. The two differ once a model's heads are split over several processes.
struct OwnedHeads {
  int64_t first_kv_head = 0;  // of the model
  int64_t kv_heads = 0;
  int64_t heads = 0;  // query heads: those of the KV heads' groups
};
// The only place where owned heads are set to the model's.
OwnedHeads AllHeads(const ModelConfig& config);

// kUnsupported, with layer and field, when the config describes something that no backend computes. Every opened model
// has passed it. Precondition: one spec per layer.
Status CheckSupported(const ModelConfig& config);

// Reads config.json (and generation_config.json where there is one).
Result<ModelConfig> LoadModelConfig(const std::string& directory);

// Distinct parameters: tied embeddings count once.
int64_t ParameterCount(const ModelConfig& config);

// Published dimensions by name ("llama-3.1-8b", "opt-13b", …); an unknown name is refused with the list of known ones.
Result<ModelConfig> ShapeByName(std::string_view name);
std::vector<std::string_view> ShapeNames();

// One angular frequency per pair of dimensions that turn: position p turns pair i by p · result[i]. Computed in float32
// in the order of operations of transformers, so that long positions agree.
std::vector<float> RopeInverseFrequencies(const RopeConfig& rope, int64_t head_dim);

}  // namespace infinigen
