// Loading weights to a backend, plain and quantised.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "model/executor.h"
#include "model/random_model.h"
#include "model/weight_stream.h"

namespace infinigen {
namespace {

// The layers' matrices rounded to Q8_0; `decoded` has the same numbers as f32. Both use the vectors of `model`.
class BlockWeights {
 public:
  explicit BlockWeights(const WeightViews& model) : blocks(model), decoded(model) {
    for (size_t layer = 0; layer < model.layers.size(); ++layer) {
      VisitMatrices(blocks.layers[layer], [&](WeightView& matrix) { Encode(matrix); });
      VisitMatrices(decoded.layers[layer], [&](WeightView& matrix) {
        if (matrix) Decode(next_++, matrix);
      });
    }
  }

  WeightViews blocks, decoded;

 private:
  void Encode(WeightView& matrix) {
    if (!matrix) return;
    std::vector<std::byte> bytes;
    for (int64_t i = 0; i < matrix.rows * matrix.cols; ++i) {
      const float scale = 4.0f / 127 / std::sqrt(static_cast<float>(matrix.cols));
      const F16 stored = ToF16(scale);
      const std::byte* const halves = reinterpret_cast<const std::byte*>(&stored);
      if (i % 32 == 0) bytes.insert(bytes.end(), halves, halves + 2);
      const float code = std::round(matrix.as<float>()[i] / ToFloat(stored));
      bytes.push_back(static_cast<std::byte>(static_cast<int8_t>(std::clamp(code, -127.0f, 127.0f))));
    }
    encoded_.push_back(std::move(bytes));
    matrix = WeightView(encoded_.back().data(), WeightType::kQ8_0, matrix.rows, matrix.cols);
    views_.push_back(matrix);
  }
  void Decode(size_t index, WeightView& matrix) {
    std::vector<float>& numbers = numbers_.emplace_back(static_cast<size_t>(matrix.rows * matrix.cols));
    const auto cols = static_cast<size_t>(matrix.cols);
    for (int64_t r = 0; r < matrix.rows; ++r)
      DecodeRow(views_[index], r, std::span(numbers).subspan(static_cast<size_t>(r) * cols, cols));
    matrix.data = reinterpret_cast<const std::byte*>(numbers.data());
  }

  std::vector<std::vector<std::byte>> encoded_;
  std::vector<WeightView> views_;
  std::vector<std::vector<float>> numbers_;
  size_t next_ = 0;
};

ModelConfig WholeBlocks() {
  ModelConfig config = Llama();
  config.hidden = config.embed_dim = 64;
  return config;  // 6 heads of 16, ffn 64: whole blocks of 32 in every row
}

Result<std::unique_ptr<Executor>> Make(const ModelConfig& config, const Weights& weights, Device device,
                                       double on_device = 1.0) {
  return MakeExecutor(config, weights, {.device = device, .max_tokens = 64, .weights_on_device = on_device});
}

// The largest difference of two lists of logits, as a share of the largest logit.
double Difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, largest = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    difference = std::max(difference, std::fabs(static_cast<double>(a[i]) - b[i]));
    largest = std::max(largest, std::fabs(static_cast<double>(b[i])));
  }
  return difference / largest;
}

// Quantised products round their activations to eight bits: 1/254 of the largest of 32 numbers at most, per product.
TEST(StoredTypes, HostBackendsRunABlockQuantisedModel) {
  const RandomModelWithBases model(WholeBlocks(), 8, 3);
  const BlockWeights made(model.weights);
  Weights blocks, decoded;
  static_cast<WeightViews&>(blocks) = made.blocks;
  static_cast<WeightViews&>(decoded) = made.decoded;
  EXPECT_EQ(blocks.layers[1].down.weight.type, WeightType::kQ8_0);
  EXPECT_LT(blocks.TotalBytes(), decoded.TotalBytes() / 2);
  EXPECT_EQ(blocks.DominantType(), WeightType::kQ8_0);
  const std::vector<int32_t> ids = model.Ids(20, 1);
  const std::vector<float> want = Decode(**Make(model.config, decoded, Device::kReference), ids, 7);
  const std::vector<float> reference = Decode(**Make(model.config, blocks, Device::kReference), ids, 7);
  EXPECT_LT(Difference(reference, want), 0.02);
  EXPECT_GT(Difference(reference, want), 1e-5) << "activations were not rounded";
  const std::vector<float> cpu = Decode(**Make(model.config, blocks, Device::kCpu), ids, 7);
  EXPECT_LT(Difference(cpu, want), 0.02);
  EXPECT_EQ(cpu, Decode(**Make(model.config, blocks, Device::kCpu, 0.0), ids, 7)) << "streamed weights";
}

TEST(DeviceWeights, ATiedHeadIsTheLoadedEmbedding) {
  ModelConfig config = Llama();
  config.tied_embeddings = true;
  const RandomModelWithBases model(config, 8, 3);
  CpuBackend backend(1);
  WeightStream<CpuBackend> stream(backend);
  const WeightViews placed = LoadWeightsTo(backend, stream, model.weights, 1.0).value();
  EXPECT_TRUE(placed.has_tied_head());
  EXPECT_EQ(placed.TotalBytes(), model.weights.TotalBytes());
}

}  // namespace
}  // namespace infinigen
