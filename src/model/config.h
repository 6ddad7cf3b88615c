// ModelConfig: what a model computes, in terms common to all families. The decoder branches on these fields and never
// on the family. Made from a model directory (LoadModelConfig) or from a published shape (ShapeByName, for benchmarks
// with random weights). Plain data; any thread may read it.
//
// It can describe more than the backends compute; CheckSupported rejects the rest and names the field.
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

enum class RopeScaling : uint8_t { kNone, kLinear, kLlama3, kYarn };
// Which two dimensions of a head form a rotation plane.
enum class RopeOrder : uint8_t {
  kHalves,  // i and i + rotary_dims/2
  kPairs,   // 2i and 2i + 1
};

// Rotary position embedding. kLinear uses only `factor`; kLlama3 and kYarn also use the three fields after it. A plane
// that turns more than high_freq_factor times over the original positions keeps its frequency, one that turns less than
// low_freq_factor times is slowed down by `factor`, those between are interpolated (by wavelength, or in yarn by
// index).
struct RopeConfig {
  double base = 10000.0;  // rope_theta in config.json
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int64_t original_max_positions = 0;
  RopeOrder order = RopeOrder::kHalves;
  int64_t rotary_dims = 0;  // number of first dimensions of a head that are rotated; 0: all
  // [rotated dimensions / 2] the frequency of each plane is divided by its number, after `scaling`; empty: by none.
  // (`rope_freqs` of GGUF files; longrope.)
  std::vector<float> frequency_divisors;
  // longrope: the divisors of runs whose context exceeds original_max_positions; empty: the same. A sequence that is
  // still short then uses them too, because entries that are stored cannot be rotated again.
  std::vector<float> long_divisors;
  bool truncate = true;    // kYarn: the planes between which frequencies are interpolated are whole numbers
  double magnitude = 1.0;  // factor on cosines and sines, so on rotated queries and keys (yarn, longrope)

  int64_t dims(int64_t head_dim) const { return rotary_dims == 0 ? head_dim : rotary_dims; }
  bool operator==(const RopeConfig&) const = default;
};

enum class NormKind : uint8_t {
  kRms,    // x / rms(x) · weight
  kLayer,  // (x - mean) / std · weight + bias
};
struct NormSpec {
  NormKind kind = NormKind::kRms;
  float eps = 1e-6f;
  bool affine = true;  // false: the files have no parameters, and Weights has ones (and zeros)

  bool operator==(const NormSpec&) const = default;
};
enum class NormPlacement : uint8_t {
  kBefore,         // on the input of attention and MLP
  kAfterResidual,  // on the residual stream, after the output of attention or MLP was added (OPT-350m)
  kBothSides,      // on the input, and on the output before it is added; the latter has its own weights (Gemma)
};

enum class Activation : uint8_t { kSilu, kGeluTanh, kRelu };
struct MlpSpec {
  bool gated = true;  // down(activation(gate x) · up x); else down(activation(up x))
  Activation activation = Activation::kSilu;
  bool bias = false;  // on gate, up and down

  bool operator==(const MlpSpec&) const = default;
};

// The fields of one layer. Defaults are Llama's, except the scale, which depends on head_dim (PlainLayer).
enum class QkNorm : uint8_t {
  kNone,
  kHead,   // over head_dim, on each head
  kWhole,  // over all heads together; no backend computes it yet
};

struct LayerSpec {
  static constexpr int32_t kNoRope = -1;

  float attention_scale = 0;     // a score is query · key · scale
  int32_t rope = 0;              // index in ModelConfig::ropes; kNoRope: queries and keys are not rotated
  int64_t window = 0;            // a token attends to this many newest rows, its own included; 0: to all. The same in
                                 // all layers that have one (docs/windows.md)
  float attention_soft_cap = 0;  // scores become cap · tanh(score / cap); 0: unchanged
  bool qkv_bias = false;         // on q, k and v
  bool o_bias = false;
  QkNorm qk_norm = QkNorm::kNone;  // RMS norms of q and k before rotation; eps is norm.eps
  NormSpec norm;                   // of both norms of the layer
  NormPlacement norm_placement = NormPlacement::kBefore;
  MlpSpec mlp;

  bool operator==(const LayerSpec&) const = default;
};

enum class PositionKind : uint8_t {
  kNone,     // nothing is added to the embedding; layers may use RoPE
  kLearned,  // a row of a table is added to the embedding; positions end at max_positions
};

struct ModelConfig {
  std::string name;                     // base name of the directory, or name of the shape
  const ModelFamily* family = nullptr;  // null: made by hand, so weights cannot be loaded

  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;     // query heads of the model
  int64_t kv_heads = 0;  // KV heads of the model; divides heads
  int64_t head_dim = 0;  // heads · head_dim need not equal hidden
  int64_t ffn = 0;
  int64_t vocab = 0;
  int64_t embed_dim = 0;      // width of the embedding; ≠ hidden: project_in after it and project_out before lm_head
  int64_t max_positions = 0;  // size of the position table, or the context that the model was trained for

  std::vector<LayerSpec> specs;   // [layers]
  std::vector<RopeConfig> ropes;  // the RoPE tables that layers use
  PositionKind positions = PositionKind::kNone;
  int64_t position_offset = 0;  // learned: position p uses row p + position_offset (2 in OPT)

  float embedding_scale = 1;                        // factor on embeddings
  std::optional<NormSpec> final_norm = NormSpec();  // after the last layer
  float norm_offset = 0;         // added to the weights of all norms when they are loaded; Gemma stores weight − 1
  float logit_soft_cap = 0;      // logits become cap · tanh(logit / cap); 0: unchanged
  bool tied_embeddings = false;  // the output matrix is the embedding

  std::optional<DType> dtype;     // as stated in config.json; informative
  std::vector<int64_t> eos_ids;   // generation stops on any of them; may be empty; each < vocab
  std::optional<int64_t> bos_id;  // informative: the tokenizer decides

  // Sets the number of layers and gives all the same fields.
  void SetLayers(int64_t count, const LayerSpec& spec) {
    layers = count;
    specs.assign(static_cast<size_t>(count), spec);
  }

  bool has_projections() const { return embed_dim != hidden; }
  bool rotates() const;                  // some layer uses RoPE
  bool has_gate() const;                 // some layer's MLP is gated
  int64_t window() const;                // of the layers that have one; 0: none has
  bool norms_outputs() const;            // layers have norms on both sides
  std::string_view family_name() const;  // "llama"
};

// A Llama layer with the usual scale 1/√head_dim.
LayerSpec PlainLayer(int64_t head_dim);

// The attention heads that this process computes and has in its pool. They differ from the model's (config.heads,
// config.kv_heads) if heads are split over several processes.
struct OwnedHeads {
  int64_t first_kv_head = 0;  // index among the model's KV heads
  int64_t kv_heads = 0;
  int64_t heads = 0;  // query heads: all that belong to the KV heads
};
// All heads of the model.
OwnedHeads AllHeads(const ModelConfig& config);

// kUnsupported, with layer and field, if the config describes something that no backend computes. Called for every
// model that is opened. Precondition: one spec for each layer.
Status CheckSupported(const ModelConfig& config);

// Reads config.json, and generation_config.json if it exists; or the metadata of a GGUF file.
Result<ModelConfig> LoadModelConfig(const std::string& directory);

// Number of distinct parameters: tied embeddings count once.
int64_t ParameterCount(const ModelConfig& config);

// Published dimensions by name ("llama-3.1-8b", "opt-13b", …). The error for an unknown name lists the known ones.
Result<ModelConfig> ShapeByName(std::string_view name);
std::vector<std::string_view> ShapeNames();

// The angular frequency of each rotated pair of dimensions: position p rotates pair i by p · result[i]. Computed in f32
// with the operations of transformers in the same order, so that large positions agree. `context`: the most tokens of a
// sequence in this run; it matters to longrope only.
std::vector<float> RopeInverseFrequencies(const RopeConfig& rope, int64_t head_dim, int64_t context = 0);

}  // namespace infinigen
