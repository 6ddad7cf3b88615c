// Weights: every parameter of a model as views, and whatever keeps their memory alive. Made by LoadWeights (matrices
// lie in the mapped files, in their stored type; small vectors are converted to f32 once) or by RandomWeights
// (benchmarks). Move-only; views stay valid when it moves, and die with it. Read-only, so any number of threads may use
// it.
#pragma once

#include <cstdint>
#include <memory>
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
  Linear q;            // [heads · head_dim][hidden]
  Linear k;            // [kv_heads · head_dim][hidden]
  Linear v;            // [kv_heads · head_dim][hidden]
  Linear o;            // [hidden][heads · head_dim]
  NormWeights q_norm;  // [1][head_dim], no bias; null unless queries and keys are normed
  NormWeights k_norm;  // likewise
  Linear gate;         // [ffn][hidden]; null unless the MLP is gated
  Linear up;           // [ffn][hidden]; OPT's fc1
  Linear down;         // [hidden][ffn]; OPT's fc2
};

// What the views of a Weights point into. Held by pointer, so that moving a Weights moves no buffer's allocator.
struct WeightStorage {
  HostAllocator allocator;                     // outlives `buffers`: declared first
  std::vector<Buffer> buffers;                 // converted vectors, realigned matrices, random weights
  std::unique_ptr<const TensorSource> source;  // null for random weights
};

// Every parameter as a view. Copies are cheap and own nothing.
struct WeightViews {
  WeightView embedding;  // [vocab][embed_dim]
  WeightView positions;  // [max_positions + position_offset][hidden]; null unless positions are learned
  Linear project_in;     // [hidden][embed_dim]; null unless embed_dim ≠ hidden
  Linear project_out;    // [embed_dim][hidden]; likewise
  std::vector<LayerWeights> layers;
  NormWeights final_norm;  // null when the model has none
  Linear lm_head;          // [vocab][embed_dim]; the embedding itself when tied

  // The output matrix is the embedding.
  bool has_tied_head() const { return lm_head.weight.data == embedding.data; }
  // Bytes of all distinct parameters as held (a tied head counts once): what a plan must place.
  int64_t TotalBytes() const;
  // Bytes that a step reads whole. It reads single rows of learned positions, and of an embedding that is not also the
  // output matrix.
  int64_t BytesPerStep() const;
  // The type of most bytes of the matrices.
  WeightType DominantType() const;
};

// The views, and the memory they point into.
struct Weights : WeightViews {
  std::unique_ptr<WeightStorage> storage;
};

// Checks every tensor's presence, type and shape against `config`. A tensor that belongs to no role is refused, since
// it would mean that the model is not what we take it for. No matrix or vector is allocated from the config's numbers
// before the source has confirmed them.
Result<Weights> LoadWeights(std::unique_ptr<const TensorSource> source, const ModelConfig& config);
// The same with the weights of a model directory.
Result<Weights> LoadWeights(const std::string& directory, const ModelConfig& config);

// Weights that keep activations in a sane range (uniform of variance 1/fan_in, norms near 1, small biases): for speed,
// not for text. Matrices have `type`. The same config, type and seed give the same bytes whatever `threads` is.
Result<Weights> RandomWeights(const ModelConfig& config, DType type, uint64_t seed, int threads);

}  // namespace infinigen
