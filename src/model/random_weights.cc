// Random weights for benchmarks. A value depends on the seed, its matrix and its position alone, so that any number of
// threads gives the same bytes.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/checked.h"
#include "base/thread_pool.h"
#include "model/weights.h"

namespace infinigen {
namespace {

// Elements of one task: large enough to hide the hand-over, small enough to balance two threads.
constexpr int64_t kTaskElements = int64_t{1} << 18;
constexpr float kBiasDeviation = 0.02f;

// Mixes all bits of a counter (the finaliser of SplitMix64): one call gives four 16-bit values.
uint64_t Mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

float FromFloat(float value, float /*tag*/) { return value; }
BF16 FromFloat(float value, BF16 /*tag*/) { return ToBF16(value); }
F16 FromFloat(float value, F16 /*tag*/) { return ToF16(value); }

// Uniform around `mean` with the given standard deviation: elements [begin, end) of the stream `stream`.
template <class T>
void Fill(T* data, int64_t begin, int64_t end, uint64_t stream, float mean, float deviation) {
  const float step = deviation * std::sqrt(3.0f) / 32768.0f;  // 16 bits onto [-√3σ, √3σ)
  for (int64_t i = begin; i < end; i += 4) {
    const uint64_t bits = Mix(stream ^ static_cast<uint64_t>(i));
    const int64_t count = std::min<int64_t>(4, end - i);
    for (int64_t k = 0; k < count; ++k) {
      const auto centred = static_cast<int32_t>((bits >> (16 * k)) & 0xffff) - 32768;
      data[i + k] = FromFloat(mean + (static_cast<float>(centred) + 0.5f) * step, T{});
    }
  }
}

class RandomMaker {
 public:
  RandomMaker(WeightStorage& storage, DType type, uint64_t seed, int threads)
      : storage_(storage), type_(type), seed_(seed), pool_(threads) {}

  Result<ConstTensor> Matrix(int64_t rows, int64_t cols) {
    return Make(type_, rows, cols, 0.0f, 1.0f / std::sqrt(static_cast<float>(cols)));
  }
  // Rows that are looked up, not multiplied: unit variance.
  Result<ConstTensor> Table(int64_t rows, int64_t cols) { return Make(type_, rows, cols, 0.0f, 1.0f); }

  Result<Linear> MakeLinear(int64_t out, int64_t in, bool bias) {
    Linear linear;
    ASSIGN_OR_RETURN(linear.weight, Matrix(out, in));
    if (bias) {
      ASSIGN_OR_RETURN(linear.bias, Make(DType::kF32, 1, out, 0.0f, kBiasDeviation));
    }
    return linear;
  }

  Result<NormWeights> MakeNorm(const ModelConfig& config) {
    NormWeights norm;
    ASSIGN_OR_RETURN(norm.weight, Make(DType::kF32, 1, config.hidden, 1.0f, 0.0f));
    if (config.norm == NormKind::kLayer) {
      ASSIGN_OR_RETURN(norm.bias,
                       Make(DType::kF32, 1, config.hidden, 0.0f, config.norm_affine ? kBiasDeviation : 0.0f));
    }
    return norm;
  }

 private:
  Result<ConstTensor> Make(DType type, int64_t rows, int64_t cols, float mean, float deviation) {
    const std::optional<uint64_t> bytes =
        CheckedMul(static_cast<uint64_t>(rows), static_cast<uint64_t>(cols) * SizeOf(type));
    if (!bytes) return Exhausted("a matrix of {} x {} does not fit in memory", rows, cols);
    ASSIGN_OR_RETURN(Buffer buffer, Buffer::Make(storage_.allocator, *bytes));
    std::byte* const data = buffer.data();
    storage_.buffers.push_back(std::move(buffer));
    // Positions are below 2^40: streams differ in the bits above, then all bits are mixed.
    const uint64_t stream = Mix(seed_) ^ (next_stream_++ << 40);
    const int64_t elements = rows * cols;
    Dispatch(type, [&](auto tag) {
      auto* const typed = reinterpret_cast<decltype(tag)*>(data);
      pool_.Run((elements + kTaskElements - 1) / kTaskElements, [&](int64_t task, int) {
        const int64_t begin = task * kTaskElements;
        Fill(typed, begin, std::min(begin + kTaskElements, elements), stream, mean, deviation);
      });
    });
    return ConstTensor(data, type, rows, cols);
  }

  WeightStorage& storage_;
  DType type_;
  uint64_t seed_;
  uint64_t next_stream_ = 1;
  ThreadPool pool_;
};

Result<LayerWeights> MakeLayer(const ModelConfig& config, RandomMaker& maker) {
  const int64_t q_size = config.heads * config.head_dim;
  const int64_t kv_size = config.kv_heads * config.head_dim;
  LayerWeights layer;
  ASSIGN_OR_RETURN(layer.attention_norm, maker.MakeNorm(config));
  ASSIGN_OR_RETURN(layer.mlp_norm, maker.MakeNorm(config));
  ASSIGN_OR_RETURN(layer.q, maker.MakeLinear(q_size, config.hidden, config.attention_bias));
  ASSIGN_OR_RETURN(layer.k, maker.MakeLinear(kv_size, config.hidden, config.attention_bias));
  ASSIGN_OR_RETURN(layer.v, maker.MakeLinear(kv_size, config.hidden, config.attention_bias));
  ASSIGN_OR_RETURN(layer.o, maker.MakeLinear(config.hidden, q_size, config.attention_bias));
  if (config.mlp == MlpKind::kGatedSilu) {
    ASSIGN_OR_RETURN(layer.gate, maker.MakeLinear(config.ffn, config.hidden, config.mlp_bias));
  }
  ASSIGN_OR_RETURN(layer.up, maker.MakeLinear(config.ffn, config.hidden, config.mlp_bias));
  ASSIGN_OR_RETURN(layer.down, maker.MakeLinear(config.hidden, config.ffn, config.mlp_bias));
  return layer;
}

}  // namespace

Result<Weights> RandomWeights(const ModelConfig& config, DType type, uint64_t seed, int threads) {
  Weights weights;
  weights.storage = std::make_unique<WeightStorage>();
  RandomMaker maker(*weights.storage, type, seed, threads);
  ASSIGN_OR_RETURN(weights.embedding, config.tied_embeddings ? maker.Matrix(config.vocab, config.embed_dim)
                                                             : maker.Table(config.vocab, config.embed_dim));
  if (config.positions == PositionKind::kLearned) {
    ASSIGN_OR_RETURN(weights.positions, maker.Matrix(config.max_positions + config.position_offset, config.hidden));
  }
  if (config.has_projections()) {
    ASSIGN_OR_RETURN(weights.project_in, maker.MakeLinear(config.hidden, config.embed_dim, false));
    ASSIGN_OR_RETURN(weights.project_out, maker.MakeLinear(config.embed_dim, config.hidden, false));
  }
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    ASSIGN_OR_RETURN(LayerWeights made, MakeLayer(config, maker));
    weights.layers.push_back(made);
  }
  if (config.final_norm) {
    ASSIGN_OR_RETURN(weights.final_norm, maker.MakeNorm(config));
  }
  if (config.tied_embeddings) {
    weights.lm_head.weight = weights.embedding;
  } else {
    ASSIGN_OR_RETURN(weights.lm_head, maker.MakeLinear(config.vocab, config.embed_dim, false));
  }
  return weights;
}

}  // namespace infinigen
