// Random weights for benchmarks. A value depends only on the seed, its matrix and its position, so the result does not
// depend on the number of threads.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/thread_pool.h"
#include "model/parameters.h"
#include "model/weights.h"
#include "tensor/random_blocks.h"

namespace infinigen {
namespace {

// Elements of one task: large enough to hide the overhead of a task, small enough to balance the threads.
constexpr int64_t kTaskElements = int64_t{1} << 18;
constexpr float kBiasDeviation = 0.02f;

// Mixes all bits of a counter (the finaliser of SplitMix64). One call gives four 16-bit values.
uint64_t Mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

float FromFloat(float value, float /*tag*/) { return value; }
BF16 FromFloat(float value, BF16 /*tag*/) { return ToBF16(value); }
F16 FromFloat(float value, F16 /*tag*/) { return ToF16(value); }

// Fills elements [begin, end) of the stream `stream`: uniform around `mean` with the given standard deviation.
template <class T>
void FillRange(T* data, int64_t begin, int64_t end, uint64_t stream, float mean, float deviation) {
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

// Fills blocks [begin, end) of a block type: random codes, scales for a mean near zero and the given standard
// deviation.
void FillBlocks(WeightType type, std::byte* data, int64_t begin, int64_t end, uint64_t stream, float deviation) {
  const int64_t bytes = FormatOf(type).block_bytes;
  for (int64_t block = begin; block < end; ++block) {
    std::byte* const out = data + block * bytes;
    for (int64_t i = 0; i < bytes; i += 8) {
      const uint64_t bits = Mix(stream ^ static_cast<uint64_t>(block * bytes + i));
      std::memcpy(out + i, &bits, static_cast<size_t>(std::min<int64_t>(8, bytes - i)));
    }
    SetBlockScales(type, deviation, out);
  }
}

class RandomMaker {
 public:
  RandomMaker(WeightStorage& storage, WeightType type, uint64_t seed, int threads)
      : storage_(storage), type_(type), seed_(seed), pool_(threads) {}

  // Makes the next parameter. Each call draws from its own stream.
  Status Make(const ModelConfig& config, const Parameter& parameter, const ParameterShape& shape, WeightView& matrix) {
    // Embeddings have unit variance; other matrices preserve the variance of their input.
    const bool looked_up = parameter.role == WeightRole::kEmbedding && !config.tied_embeddings;
    return Fill(FittingType(type_, shape.cols), shape, 0.0f,
                looked_up ? 1.0f : 1.0f / std::sqrt(static_cast<float>(shape.cols)), matrix);
  }
  Status Make(const ModelConfig&, const Parameter& parameter, const ParameterShape& shape, ConstTensor& vector) {
    const bool bias = parameter.part == WeightPart::kBias;
    WeightView filled;
    RETURN_IF_ERROR(
        Fill(WeightType::kF32, shape, bias ? 0.0f : 1.0f, bias && shape.stored ? kBiasDeviation : 0.0f, filled));
    vector = ConstTensor(filled.data, DType::kF32, filled.rows, filled.cols);
    return Ok();
  }

 private:
  Status Fill(WeightType type, const ParameterShape& shape, float mean, float deviation, WeightView& filled) {
    Result<WeightView> view = WeightView::Make(nullptr, type, shape.rows, shape.cols);
    if (!view.ok()) return Exhausted("a matrix of {} x {} does not fit in memory", shape.rows, shape.cols);
    ASSIGN_OR_RETURN(Buffer buffer, Buffer::Make(storage_.allocator, static_cast<size_t>(view->bytes())));
    std::byte* const data = buffer.data();
    storage_.buffers.push_back(std::move(buffer));
    // Positions are below 2^40, so streams differ in the bits above.
    const uint64_t stream = Mix(seed_) ^ (next_stream_++ << 40);
    const int64_t block = FormatOf(type).block_numbers, blocks = shape.count() / block;
    const int64_t task_blocks = kTaskElements / block;
    pool_.Run((blocks + task_blocks - 1) / task_blocks, [&](int64_t task, int) {
      const int64_t begin = task * task_blocks, end = std::min(begin + task_blocks, blocks);
      if (!IsPlain(type)) return FillBlocks(type, data, begin, end, stream, deviation);
      DispatchPlain(type, [&](auto tag) {
        FillRange(reinterpret_cast<decltype(tag)*>(data), begin, end, stream, mean, deviation);
      });
    });
    view->data = data;
    filled = *view;
    return Ok();
  }

  WeightStorage& storage_;
  WeightType type_;
  uint64_t seed_;
  uint64_t next_stream_ = 1;
  ThreadPool pool_;
};

}  // namespace

Result<Weights> RandomWeights(const ModelConfig& config, WeightType type, uint64_t seed, int threads) {
  Weights weights;
  weights.storage = std::make_unique<WeightStorage>();
  RandomMaker maker(*weights.storage, type, seed, threads);
  weights.layers.resize(static_cast<size_t>(config.layers));
  RETURN_IF_ERROR(VisitParameters(weights, [&](const Parameter& parameter, auto& view) -> Status {
    const ParameterShape shape = ExpectedShape(config, parameter);
    if (!shape || (parameter.role == WeightRole::kLmHead && !shape.stored)) return Ok();
    return maker.Make(config, parameter, shape, view);
  }));
  if (config.tied_embeddings) weights.lm_head.weight = weights.embedding;
  return weights;
}

}  // namespace infinigen
