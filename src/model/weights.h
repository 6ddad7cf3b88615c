// Weights: views of every parameter of a model, and the memory that they point into. Made by LoadWeights (matrices stay
// in the mapped files, in their stored type; vectors are converted to f32) or by RandomWeights (for benchmarks).
// Move-only; views stay valid when it is moved. Immutable; any thread may read it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/result.h"
#include "loader/tensor_source.h"
#include "model/config.h"
#include "tensor/buffer.h"
#include "tensor/view.h"
#include "tensor/weight_view.h"

namespace infinigen {

struct Linear {
  WeightView weight;  // [out][in], stored type
  ConstTensor bias;   // [1][out], f32; null when the model has none

  explicit operator bool() const { return static_cast<bool>(weight); }
};

struct NormWeights {
  ConstTensor weight;  // [1][n], f32; n is hidden, or head_dim in norms of queries and keys
  ConstTensor bias;    // [1][n], f32; null for RMS norms

  explicit operator bool() const { return static_cast<bool>(weight); }
};

struct LayerWeights {
  NormWeights attention_norm;
  NormWeights mlp_norm;
  Linear q;                        // [heads · head_dim][hidden]
  Linear k;                        // [kv_heads · head_dim][hidden]
  Linear v;                        // [kv_heads · head_dim][hidden]
  Linear o;                        // [hidden][heads · head_dim]
  NormWeights attention_out_norm;  // on the output of attention; null unless NormPlacement::kBothSides
  NormWeights mlp_out_norm;        // on the output of the MLP; null unless NormPlacement::kBothSides
  NormWeights q_norm;              // [1][head_dim], no bias; null unless LayerSpec::qk_norm
  NormWeights k_norm;              // [1][head_dim], no bias; null unless LayerSpec::qk_norm
  Linear gate;                     // [ffn][hidden]; null unless the MLP is gated
  Linear up;                       // [ffn][hidden]; OPT's fc1
  Linear down;                     // [hidden][ffn]; OPT's fc2
};

// The memory of a Weights. Held by pointer, so that moving a Weights does not move the allocator of its buffers.
struct WeightStorage {
  HostAllocator allocator;                     // outlives `buffers`: declared first
  std::vector<Buffer> buffers;                 // converted vectors, realigned matrices, random weights
  std::unique_ptr<const TensorSource> source;  // null for random weights
  std::once_flag placed;                       // the first run has decided where the files' bytes lie
};

// Views of every parameter. Copies are cheap and own nothing.
struct WeightViews {
  WeightView embedding;  // [vocab][embed_dim]
  WeightView positions;  // [max_positions + position_offset][hidden]; null unless positions are learned
  Linear project_in;     // [hidden][embed_dim]; null unless embed_dim ≠ hidden
  Linear project_out;    // [embed_dim][hidden]; null unless embed_dim ≠ hidden
  std::vector<LayerWeights> layers;
  NormWeights final_norm;  // null if the model has none
  Linear lm_head;          // [vocab][embed_dim]; the embedding itself when tied

  // The output matrix is the embedding.
  bool has_tied_head() const { return lm_head.weight.data == embedding.data; }
  // Bytes of all distinct parameters (a tied head counts once).
  int64_t TotalBytes() const;
  // Bytes that a step reads: all but the position table and an embedding that is not also the output matrix, of which
  // it reads single rows.
  int64_t BytesPerStep() const;
  // The type that most matrix bytes have.
  WeightType DominantType() const;
};

// The views, and the memory they point into.
struct Weights : WeightViews {
  std::unique_ptr<WeightStorage> storage;
};

// Checks presence, type and shape of every tensor against `config`. A tensor without a role is an error, because the
// config then does not describe the model. Nothing is allocated by the sizes of the config before the source confirms
// them.
Result<Weights> LoadWeights(std::unique_ptr<const TensorSource> source, const ModelConfig& config);
// Loads the weights of a model directory or GGUF file.
Result<Weights> LoadWeights(const std::string& path, const ModelConfig& config);

// Random weights for speed measurements, scaled so that activations stay in a normal range (variance 1/fan_in, norms 1,
// small biases). Matrices have `type`, or FittingType of it. The
// result depends on config, type and seed, not on `threads`.
Result<Weights> RandomWeights(const ModelConfig& config, WeightType type, uint64_t seed, int threads);

}  // namespace infinigen
