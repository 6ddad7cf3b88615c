#include "model/calibrate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <functional>
#include <numeric>
#include <span>
#include <vector>

#include "base/split_mix.h"
#include "golden/golden_file.h"
#include "kv/skew.h"
#include "loader/model_files.h"

namespace infinigen {
namespace {

using test::MessageOf;
using test::TempDir;
using testing::Each;
using testing::HasSubstr;

const std::string kModels = std::string(INFINIGEN_TEST_DATA) + "/golden/models/";

struct Loaded {
  ModelConfig config;
  Weights weights;
  std::unique_ptr<Executor> executor;

  ModelIdentity identity() const { return IdentifyModel(config, weights); }
};

std::unique_ptr<Loaded> Open(const std::string& directory, Device device = Device::kCpu, int threads = 1) {
  auto loaded = std::make_unique<Loaded>();
  Result<ModelConfig> config = LoadModelConfig(directory);
  CHECK(config.ok());
  loaded->config = *config;
  Result<Weights> weights = LoadWeights(directory, loaded->config);
  CHECK(weights.ok());
  loaded->weights = std::move(weights).value();
  Result<std::unique_ptr<Executor>> executor =
      MakeExecutor(loaded->config, loaded->weights,
                   {.device = device, .threads = threads, .max_tokens = loaded->config.max_positions});
  CHECK(executor.ok());
  loaded->executor = std::move(executor).value();
  return loaded;
}

Skew CalibrateRandom(Loaded& model, int threads = 1) {
  const int64_t tokens = std::min(kCalibrationTokens, model.config.max_positions);
  Result<Skew> skew = Calibrate(*model.executor, RandomCalibrationText(model.config.vocab, tokens),
                                {.model = model.identity(), .threads = threads});
  CHECK(skew.ok());
  return std::move(skew).value();
}

void ExpectFetched(const std::vector<float>& a, const std::vector<float>& b, float bound) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], bound) << i;
}

TEST(Calibrate, EveryGoldenModelGivesFiniteColumnsThatKeepScores) {
  const Result<std::vector<std::string>> directories = ListGolden(kModels);
  ASSERT_TRUE(directories.ok());
  ASSERT_GE(directories->size(), 15u);
  for (const std::string& directory : *directories) {
    SCOPED_TRACE(directory);
    const std::unique_ptr<Loaded> model = Open(directory);
    const Skew skew = CalibrateRandom(*model);
    EXPECT_EQ(skew.origin().tokens, std::min<int64_t>(kCalibrationTokens, model->config.max_positions));
    EXPECT_EQ(skew.origin().model, model->identity());
    const int64_t d = model->config.head_dim;
    for (LayerId layer : IdRange<LayerId>(model->config.layers)) {
      for (const ProjectionKind kind : {ProjectionKind::kRotation, ProjectionKind::kPair}) {
        const SketchMatrices basis = skew.Basis(layer, kind, d);
        for (const std::vector<float>* numbers : {&basis.query, &basis.key, &basis.key_offset})
          for (const float number : *numbers) ASSERT_TRUE(std::isfinite(number));
        // query · keyᵀ = 1, for every head.
        for (int64_t head = 0; head < model->config.kv_heads; ++head)
          for (int64_t i = 0; i < d; ++i)
            for (int64_t j = 0; j < d; ++j) {
              double sum = 0, size = 0;
              for (int64_t c = 0; c < d; ++c) {
                const double term = static_cast<double>(basis.query[static_cast<size_t>((head * d + i) * d + c)]) *
                                    static_cast<double>(basis.key[static_cast<size_t>((head * d + j) * d + c)]);
                sum += term;
                size += std::fabs(term);
              }
              ASSERT_NEAR(sum, i == j, 2e-3 * std::max(size, 1.0));
            }
        EXPECT_GT(skew.HeldEnergy(layer, kind, d), 0.999);
      }
      EXPECT_GE(skew.HeldEnergy(layer, ProjectionKind::kPair, 8) + 1e-3,
                skew.HeldEnergy(layer, ProjectionKind::kRotation, 8));
    }
  }
}

TEST(Calibrate, TheOracleBackendAndThreadsGiveTheSame) {
  const std::unique_ptr<Loaded> cpu = Open(kModels + "llama_gqa_tied"),
                                threaded = Open(kModels + "llama_gqa_tied", Device::kCpu, 2),
                                reference = Open(kModels + "llama_gqa_tied", Device::kReference);
  const Skew first = CalibrateRandom(*cpu), second = CalibrateRandom(*threaded, 2), third = CalibrateRandom(*reference);
  EXPECT_EQ(SerialiseSkew(first), SerialiseSkew(second));
  // The two backends add in different orders and use different units; nearly equal eigenvalues may magnify the
  // difference. So compare only numbers that do not depend on the choice of eigenvectors.
  for (LayerId layer : IdRange<LayerId>(cpu->config.layers)) {
    for (KvHead head : IdRange<KvHead>(cpu->config.kv_heads)) {
      ExpectFetched(first.head(layer, head).key_mean, third.head(layer, head).key_mean, 1e-4f);
      const std::vector<float>&a = first.head(layer, head).pair_energy, &b = third.head(layer, head).pair_energy;
      for (size_t c = 0; c < a.size(); ++c) EXPECT_NEAR(a[c], b[c], 1e-3f * a[0]);
    }
  }
}

TEST(Calibrate, TheExecutorIsUnchanged) {
  const std::unique_ptr<Loaded> model = Open(kModels + "llama_mha");
  const uint64_t bytes = model->executor->instruments().pool_bytes();
  const Skew first = CalibrateRandom(*model);
  EXPECT_EQ(model->executor->instruments().pool_bytes(), bytes);
  EXPECT_EQ(SerialiseSkew(CalibrateRandom(*model)), SerialiseSkew(first));
}

TEST(Calibrate, TooFewTokensAndAnInterruptAreErrors) {
  const std::unique_ptr<Loaded> model = Open(kModels + "llama_mha");
  const Result<Skew> few =
      Calibrate(*model->executor, {.name = "short.txt", .tokens = std::vector<int32_t>(15, 1)}, {});
  EXPECT_THAT(MessageOf(few), testing::AllOf(HasSubstr("short.txt"), HasSubstr("15 tokens")));
  int64_t calls = 0;
  const auto stop = [&](int64_t done, int64_t units) {
    EXPECT_EQ(done, ++calls);
    EXPECT_LT(done, units);
    return false;
  };
  const Result<Skew> stopped =
      Calibrate(*model->executor, RandomCalibrationText(model->config.vocab, 100), {.progress = stop});
  EXPECT_THAT(MessageOf(stopped), HasSubstr("interrupted"));
  EXPECT_EQ(calls, 1);
  CalibrateRandom(*model);  // the slot of the interrupted sequence is free again
}

// A text longer than the context is read in several sequences, and all of them count. A rest of a few tokens is left
// out.
TEST(Calibrate, LongTextsAreReadInSequences) {
  const std::unique_ptr<Loaded> model = Open(kModels + "llama_mha");
  const int64_t context = model->config.max_positions;
  const auto value_mean = [&](std::span<const std::vector<int32_t>> parts) {
    CalibrationText text{.name = "parts"};
    for (const std::vector<int32_t>& part : parts) text.tokens.insert(text.tokens.end(), part.begin(), part.end());
    const Skew skew = Calibrate(*model->executor, text, {}).value();
    EXPECT_EQ(skew.origin().tokens, std::ssize(text.tokens) / context * context);
    return skew.Tail(LayerId(0), 8).value_mean;
  };
  const std::vector<int32_t> ids = RandomCalibrationText(model->config.vocab, 2 * context).tokens;
  const std::vector<int32_t> first(ids.begin(), ids.begin() + context), second(ids.begin() + context, ids.end());
  const std::vector<int32_t> rest(static_cast<size_t>(kLeastCalibrationTokens - 1), 1);
  const std::vector<float> a = value_mean(std::array{first}), b = value_mean(std::array{second});
  ExpectFetched(value_mean(std::array{first, first, rest}), a, 1e-6f);
  std::vector<float> half = a;
  float most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    half[i] = (a[i] + b[i]) / 2;
    most = std::max(most, std::abs(a[i] - b[i]));
  }
  EXPECT_GT(most, 1e-4f) << "the parts differ";
  ExpectFetched(value_mean(std::array{first, second}), half, 1e-6f);
}

TEST(Calibrate, RandomIdsAreTheSameEverywhere) {
  const CalibrationText text = RandomCalibrationText(160, 5);
  EXPECT_EQ(text.tokens, RandomCalibrationText(160, 5).tokens);
  EXPECT_THAT(text.tokens, Each(testing::AllOf(testing::Ge(0), testing::Lt(160))));
}

// Queries and keys of layer 0.
struct LayerRows {
  std::vector<float> queries, keys;  // [rows][heads · head_dim], [rows][kv_heads · head_dim]
};

LayerRows RowsOf(Loaded& model, const std::vector<int32_t>& tokens) {
  LayerRows rows;
  model.executor->instruments().ObservePrefill([&](LayerId layer, const PrefillRows& unit) {
    if (layer != LayerId(0)) return;
    const ConstTensor &q = unit.queries, &k = unit.keys;
    rows.queries.insert(rows.queries.end(), q.as<float>(), q.as<float>() + q.rows * q.cols);
    rows.keys.insert(rows.keys.end(), k.as<float>(), k.as<float>() + k.rows * k.cols);
  });
  const Result<SeqSlot> slot = model.executor->Admit(static_cast<int64_t>(tokens.size()));
  CHECK(slot.ok() && model.executor->BeginPrefill(*slot, 0, tokens).ok());
  while (!model.executor->RunPrefillUnit(*slot)) {
  }
  model.executor->Release(*slot);
  model.executor->instruments().ObservePrefill({});
  return rows;
}

// Queries and keys of layer 0 depend only on token and position, so those of a repeated token differ only by rotation.
TEST(Calibrate, ARotatedRowEqualsTheRowAtThatPosition) {
  constexpr size_t kRows = 300, kTarget = 250;
  for (const char* name : {"llama_gqa_tied", "llama_rope_llama3", "llama_rope_linear"}) {
    const std::unique_ptr<Loaded> model = Open(kModels + name);
    LayerRows layer = RowsOf(*model, std::vector<int32_t>(kRows, 7));
    std::vector<double> offsets;
    for (size_t row = 0; row < kRows; ++row) offsets.push_back(static_cast<double>(kTarget) - static_cast<double>(row));
    for (std::vector<float>* rows : {&layer.queries, &layer.keys}) {
      const size_t width = rows->size() / kRows;
      const auto row_of = [&](size_t row) {
        return std::vector<float>(rows->data() + row * width, rows->data() + (row + 1) * width);
      };
      const std::vector<float> expected = row_of(kTarget);
      EXPECT_NE(row_of(0), expected);
      TurnRows(RopeInverseFrequencies(model->config.ropes[0], model->config.head_dim, 512), model->config.ropes[0],
               model->config.head_dim, offsets, *rows);
      for (size_t row = 0; row < kRows; ++row) ExpectFetched(row_of(row), expected, 2e-4f);
    }
  }
}

// Mean square error of a guess of q·k in the first head, up to a constant for each query.
double GuessError(const LayerRows& rows, const SketchMatrices& basis, const ModelConfig& config, int64_t dims) {
  const int64_t d = config.head_dim, count = static_cast<int64_t>(rows.keys.size()) / (config.kv_heads * d);
  const auto sketch = [&](const float* row, const std::vector<float>& matrix) {
    std::vector<float> numbers(static_cast<size_t>(dims));
    for (int64_t i = 0; i < d; ++i)
      for (int64_t c = 0; c < dims; ++c)
        numbers[static_cast<size_t>(c)] += row[i] * matrix[static_cast<size_t>(i * dims + c)];
    return numbers;
  };
  double error = 0;
  for (int64_t i = 0; i < count; i += 3) {
    const float* query = rows.queries.data() + i * config.heads * d;
    const std::vector<float> query_sketch = sketch(query, basis.query);
    double sum = 0, square = 0;
    for (int64_t j = 0; j < count; ++j) {
      const float* key = rows.keys.data() + j * config.kv_heads * d;
      const std::vector<float> key_sketch = sketch(key, basis.key);
      const double off =
          static_cast<double>(std::inner_product(query, query + d, key, 0.0f) -
                              std::inner_product(query_sketch.begin(), query_sketch.end(), key_sketch.begin(), 0.0f));
      sum += off;
      square += off * off;
    }
    error += square - sum * sum / static_cast<double>(count);
  }
  return error;
}

// The reason for rotating rows to other positions: a calibration text of the first positions must serve the others too.
// Needs a trained model, because random weights have no preferred directions.
TEST(Calibrate, ShippedModelHoldsForPositionsThatTheTextDidNotReach) {
  constexpr int64_t kContext = 8192, kDims = 24;
  const std::unique_ptr<Loaded> model = Open(std::string(INFINIGEN_TEST_DATA) + "/../models/infinigen-mini");
  const CalibrationText text = RandomCalibrationText(model->config.vocab, 500);
  const Result<Skew> near = Calibrate(*model->executor, text, {.positions = 500});
  const Result<Skew> far = Calibrate(*model->executor, text, {.positions = kContext});
  const Result<Skew> again = Calibrate(*model->executor, text, {.positions = kContext});
  ASSERT_TRUE(near.ok() && far.ok() && again.ok());
  EXPECT_EQ(far->origin().positions, kContext);
  EXPECT_EQ(SerialiseSkew(*far), SerialiseSkew(*again));

  LayerRows rows = RowsOf(*model, RandomCalibrationText(model->config.vocab, 400).tokens);
  SplitMix random(3);
  std::vector<double> offsets;
  for (int row = 0; row < 400; ++row) offsets.push_back(std::floor(random.Unit() * kContext) - row);
  const std::vector<float> frequencies = RopeInverseFrequencies(model->config.ropes[0], model->config.head_dim, 512);
  TurnRows(frequencies, model->config.ropes[0], model->config.head_dim, offsets, rows.queries);
  TurnRows(frequencies, model->config.ropes[0], model->config.head_dim, offsets, rows.keys);
  for (const ProjectionKind kind : {ProjectionKind::kRotation, ProjectionKind::kPair}) {
    const double near_error = GuessError(rows, near->Basis(LayerId(0), kind, kDims), model->config, kDims);
    const double far_error = GuessError(rows, far->Basis(LayerId(0), kind, kDims), model->config, kDims);
    EXPECT_LT(far_error, 0.9 * near_error) << Name(kind);
  }
}

// Keys of a layer without RoPE are the same at every position, so its skew does not depend on the number of positions.
TEST(Calibrate, LayersWithoutRopeAreNotRotated) {
  ModelConfig config = *ShapeByName("llama-3.2-1b");
  config.SetLayers(2, config.specs.front());
  config.hidden = config.embed_dim = 64;
  config.heads = config.kv_heads = 2;
  config.head_dim = 16;
  config.ffn = 32;
  config.vocab = 50;
  config.specs[1].rope = LayerSpec::kNoRope;
  const Result<Weights> weights = RandomWeights(config, WeightType::kF32, 1, 1);
  const auto calibrate = [&](int64_t positions) {
    const std::unique_ptr<Executor> executor = MakeExecutor(config, *weights, {.max_tokens = 512}).value();
    return Calibrate(*executor, RandomCalibrationText(config.vocab, 512), {.positions = positions}).value();
  };
  const Skew near = calibrate(1000), far = calibrate(30000);
  EXPECT_NE(near.Rotation(LayerId(0)), far.Rotation(LayerId(0)));
  EXPECT_EQ(near.Rotation(LayerId(1)), far.Rotation(LayerId(1)));
}

// ---- identity ----

TEST(Identity, DoesNotDependOnNameOrFiles) {
  const TempDir dir;
  std::filesystem::copy(kModels + "llama_mha", dir.path(), std::filesystem::copy_options::recursive);
  const ModelIdentity identity = Open(kModels + "llama_mha")->identity();
  EXPECT_EQ(Open(dir.path())->identity(), identity);
  EXPECT_EQ(Open(kModels + "llama_sharded")->identity(), identity);  // the same weights, divided into several files
  EXPECT_EQ(identity.Hex().size(), 32u);
}

TEST(Identity, EveryGoldenModelHasItsOwn) {
  const Result<std::vector<std::string>> directories = ListGolden(kModels);
  ASSERT_TRUE(directories.ok());
  std::vector<std::string> seen;
  for (const std::string& directory : *directories)
    if (directory.find("sharded") == std::string::npos && directory.find("_old") == std::string::npos)
      seen.push_back(Open(directory)->identity().Hex());
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end());
}

// Skew files contain the identity of their model, so a change of the hash would invalidate all of them.
TEST(Identity, IsTheSameAsInExistingSkewFiles) {
  const std::pair<const char*, const char*> known[] = {
      {"llama_bf16", "93e37269f92bb4ac9cb59b29c7182932"},
      {"llama_bias", "0ca2e94d4a7b61bb1c3972c08ccf4c66"},
      {"llama_f16", "1045701266daa31e687e26b6ba8561b6"},
      {"llama_gqa_tied", "ce5a2bdddf44470f14e16f3fab4c3e24"},
      {"llama_head_dim", "3aab42d42659383debcf8af0eef67552"},
      {"llama_mha", "a8678f6c32ccfb41c48970802d019a6f"},
      {"llama_rope_linear", "3a3009288184f21b240d21f58423501f"},
      {"llama_rope_llama3", "3bf45079de75cb65adb9efb1b9b51704"},
      {"opt_bare", "c9e5d4a2a6cc57471daa84037669bc7c"},
      {"opt_f16", "a9b1bad3c79f3dcdd91e0d5b85b06f6a"},
      {"opt_post_norm", "be258fc4f22ef2112d4a63a30c1e1fd6"},
      {"opt_pre_norm", "e9015c6c1d4bc047d1bae7dbea9d5f18"},
      {"../../../models/infinigen-mini", "027349e0d92f52f78ad9db0a2fcd6b4d"}};
  for (const auto& [name, hex] : known) EXPECT_EQ(Open(kModels + name)->identity().Hex(), hex) << name;
}

TEST(Identity, ChangesWithAWeightAndWithTheComputation) {
  const std::unique_ptr<Loaded> model = Open(kModels + "llama_mha");
  const ModelIdentity identity = model->identity();
  const auto with_changed = [&](auto& tensor) {  // flips one bit of the last element, in a copy
    std::vector<std::byte> copy(tensor.data, tensor.data + tensor.bytes());
    copy.back() ^= std::byte{1};
    const auto original = tensor;
    tensor.data = copy.data();
    const ModelIdentity changed = model->identity();
    tensor = original;
    return changed;
  };
  LayerWeights& last = model->weights.layers.back();
  EXPECT_NE(with_changed(last.q.weight), identity);
  EXPECT_NE(with_changed(last.k.weight), identity);
  EXPECT_NE(with_changed(last.attention_norm.weight), identity);
  EXPECT_NE(with_changed(model->weights.embedding), identity);
  EXPECT_EQ(model->identity(), identity);

  ModelConfig config = model->config;
  config.ropes[0].base *= 2;
  EXPECT_NE(IdentifyModel(config, model->weights), identity);
  config = model->config;
  config.specs.back().norm.eps *= 2;
  EXPECT_NE(IdentifyModel(config, model->weights), identity);
  config = model->config;
  config.name = "other";
  EXPECT_EQ(IdentifyModel(config, model->weights), identity);
}

TEST(Identity, ChangesWithEveryFieldOfALayer) {
  ModelConfig plain = *ShapeByName("llama-3.2-1b");
  plain.SetLayers(3, plain.specs.front());
  plain.hidden = plain.embed_dim = 64;
  plain.heads = plain.kv_heads = 2;
  plain.ffn = 32;
  plain.vocab = 50;
  const auto identity = [&](const std::function<void(ModelConfig&)>& set) {
    ModelConfig config = plain;
    set(config);
    const Result<Weights> weights = RandomWeights(config, WeightType::kF32, 1, 1);
    return IdentifyModel(config, *weights).Hex();
  };
  std::vector<std::string> seen = {identity([](ModelConfig&) {})};
  const std::function<void(ModelConfig&)> changes[] = {
      [](ModelConfig& c) { c.specs[1].attention_scale *= 2; },
      [](ModelConfig& c) { c.specs[2].attention_scale *= 2; },
      [](ModelConfig& c) { c.specs[1].rope = LayerSpec::kNoRope; },
      [](ModelConfig& c) { c.specs[1].window = 8; },
      [](ModelConfig& c) { c.specs[1].attention_soft_cap = 8; },
      [](ModelConfig& c) { c.specs[1].qkv_bias = true; },
      [](ModelConfig& c) { c.specs[1].o_bias = true; },
      [](ModelConfig& c) { c.specs[1].qk_norm = QkNorm::kHead; },
      [](ModelConfig& c) { c.specs[1].norm.eps *= 2; },
      [](ModelConfig& c) { c.specs[1].norm.kind = NormKind::kLayer; },
      [](ModelConfig& c) { c.specs[1].norm_placement = NormPlacement::kBothSides; },
      [](ModelConfig& c) { c.specs[1].mlp.activation = Activation::kGeluTanh; },
      [](ModelConfig& c) { c.specs[1].mlp.gated = false; },
      [](ModelConfig& c) { c.specs[1].mlp.bias = true; },
      [](ModelConfig& c) { c.ropes.push_back({}); },
      [](ModelConfig& c) { c.ropes[0].order = RopeOrder::kPairs; },
      [](ModelConfig& c) { c.ropes[0].rotary_dims = 32; },
      [](ModelConfig& c) { c.ropes[0].frequency_divisors.assign(32, 2.0f); },
      [](ModelConfig& c) { c.ropes[0].frequency_divisors.assign(32, 3.0f); },
      [](ModelConfig& c) { c.ropes[0].magnitude = 1.5; },
      [](ModelConfig& c) { c.final_norm->eps *= 2; },
      [](ModelConfig& c) { c.embedding_scale = 8; },
      [](ModelConfig& c) { c.logit_soft_cap = 8; },
  };
  for (const auto& change : changes) seen.push_back(identity(change));
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end());

  plain.specs[1].qk_norm = QkNorm::kHead;
  Result<Weights> weights = RandomWeights(plain, WeightType::kF32, 1, 1);
  const ModelIdentity before = IdentifyModel(plain, *weights);
  const std::vector<float> other(static_cast<size_t>(plain.head_dim), 2.0f);
  weights->layers[1].k_norm.weight.data = reinterpret_cast<const std::byte*>(other.data());
  EXPECT_NE(IdentifyModel(plain, *weights), before);
}

TEST(Identity, SamplesLargeTensorsInAllParts) {
  ModelConfig config = *ShapeByName("llama-3.2-1b");
  config.SetLayers(1, config.specs.front());
  config.vocab = 1000;
  Result<Weights> weights = RandomWeights(config, WeightType::kBF16, 1, 1);
  ASSERT_TRUE(weights.ok());
  const ModelIdentity identity = IdentifyModel(config, *weights);
  WeightView& q = weights->layers[0].q.weight;
  const auto bytes = static_cast<size_t>(q.bytes());
  ASSERT_GT(bytes, size_t{4} << 20);  // far more than is hashed
  const std::byte* original = q.data;
  for (size_t part = 0; part < 4; ++part) {
    std::vector<std::byte> copy(original, original + bytes);
    for (size_t i = part * bytes / 4; i < (part + 1) * bytes / 4; ++i) copy[i] ^= std::byte{1};
    q.data = copy.data();
    EXPECT_NE(IdentifyModel(config, *weights), identity) << part;
  }
  q.data = original;
  EXPECT_EQ(IdentifyModel(config, *weights), identity);
}

}  // namespace
}  // namespace infinigen
