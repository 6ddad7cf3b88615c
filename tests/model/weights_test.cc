#include "model/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "golden/golden_file.h"
#include "loader/model_files.h"

namespace infinigen {
namespace {

using test::MessageOf;
using test::SafetensorsOf;
using test::TempDir;
using test::TestTensor;
using testing::AllOf;
using testing::HasSubstr;

Result<Weights> Load(const std::string& directory) {
  ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(directory));
  return LoadWeights(directory, config);
}

Result<Weights> LoadTiny(const std::vector<TestTensor>& tensors, std::string_view config = test::kTinyConfig) {
  const TempDir dir;
  dir.Write("config.json", config);
  dir.Write("model.safetensors", SafetensorsOf(tensors));
  return Load(dir.path());  // the mapping stays valid when the directory is removed
}

TEST(LoadWeights, ReadsEveryGoldenModel) {
  const Result<std::vector<std::string>> directories = ListGolden(std::string(INFINIGEN_TEST_DATA) + "/golden/models");
  ASSERT_TRUE(directories.ok());
  ASSERT_GE(directories->size(), 15u);
  for (const std::string& directory : *directories) {
    const Result<ModelConfig> config = LoadModelConfig(directory);
    ASSERT_TRUE(config.ok()) << MessageOf(config);
    const Result<Weights> weights = LoadWeights(directory, *config);
    ASSERT_TRUE(weights.ok()) << MessageOf(weights);
    EXPECT_EQ(static_cast<int64_t>(weights->layers.size()), config->layers);
    EXPECT_EQ(static_cast<bool>(weights->layers[0].gate), config->specs[0].mlp.gated);
    EXPECT_EQ(static_cast<bool>(weights->positions), config->positions == PositionKind::kLearned);
    EXPECT_EQ(static_cast<bool>(weights->final_norm), config->final_norm.has_value());
    EXPECT_EQ(static_cast<bool>(weights->layers[0].q.bias), config->specs[0].qkv_bias);
    EXPECT_EQ(weights->lm_head.weight.data == weights->embedding.data, config->tied_embeddings);
    EXPECT_GE(weights->TotalBytes(), 2 * ParameterCount(*config));
    const Result<GoldenModel> golden = LoadGolden(directory);
    ASSERT_TRUE(golden.ok()) << MessageOf(golden);
    EXPECT_EQ(golden->prompts.size(), 4u);
    EXPECT_EQ(static_cast<int64_t>(golden->prompts[0].logits[0].size()), config->vocab);
  }
}

TEST(LoadWeights, ShardsHoldTheSameBytesAsOneFile) {
  const std::string root = std::string(INFINIGEN_TEST_DATA) + "/golden/models/";
  const Result<Weights> whole = Load(root + "llama_mha");  // made from the same seed
  const Result<Weights> shards = Load(root + "llama_sharded");
  ASSERT_TRUE(whole.ok() && shards.ok());
  std::set<std::string_view> files;
  for (const StoredTensor& tensor : shards->storage->source->tensors()) files.insert(tensor.path);
  EXPECT_GT(files.size(), 2u);
  for (size_t layer = 0; layer < whole->layers.size(); ++layer) {
    const WeightView& a = whole->layers[layer].down.weight;
    const WeightView& b = shards->layers[layer].down.weight;
    ASSERT_EQ(a.bytes(), b.bytes());
    EXPECT_EQ(std::memcmp(a.data, b.data, static_cast<size_t>(a.bytes())), 0) << layer;
  }
}

TEST(LoadWeights, KeepsMatricesInTheirTypeAndConvertsVectors) {
  for (const char* dtype : {"F32", "F16", "BF16"}) {
    const Result<Weights> weights = LoadTiny(test::TinyTensors(dtype));
    ASSERT_TRUE(weights.ok()) << MessageOf(weights);
    EXPECT_EQ(weights->embedding.row_bytes, std::string(dtype) == "F32" ? 16 : 8);
    const ConstTensor& norm = weights->final_norm.weight;
    EXPECT_EQ(norm.type, DType::kF32);
    ASSERT_EQ(norm.cols, 4);
    // Elements from 33 on; all values are multiples of 1/16, which are exact in every type.
    for (int i = 0; i < 4; ++i) EXPECT_EQ(norm.as<float>()[i], static_cast<float>((33 + i) % 17) / 16.0f) << dtype;
    EXPECT_FALSE(weights->final_norm.bias);
    EXPECT_FALSE(weights->layers[0].q.bias);
  }
}

TEST(LoadWeights, TypesMayDifferFromTensorToTensor) {
  std::vector<TestTensor> tensors = test::TinyTensors("BF16");
  tensors[1].dtype = "F32";
  tensors[4].dtype = "F16";
  const Result<Weights> weights = LoadTiny(tensors);
  ASSERT_TRUE(weights.ok()) << MessageOf(weights);
  EXPECT_EQ(weights->layers[0].q.weight.type, WeightType::kF16);
  EXPECT_EQ(weights->layers[0].k.weight.type, WeightType::kBF16);
}

TEST(LoadWeights, RealignsMatricesAtOddAddresses) {
  std::string header = "{";
  std::string data;
  for (const TestTensor& tensor : test::TinyTensors()) {
    size_t bytes = 4;
    for (const int64_t extent : tensor.shape) bytes *= static_cast<size_t>(extent);
    header += fmt::format(R"("{}":{{"dtype":"F32","shape":[{}],"data_offsets":[{},{}]}},)", tensor.name,
                          fmt::join(tensor.shape, ","), data.size(), data.size() + bytes);
    for (size_t i = 0; i < bytes; ++i) data += static_cast<char>(data.size() % 61);
  }
  header.back() = '}';
  while (header.size() % 4 != 1) header += ' ';
  const TempDir dir;
  dir.Write("config.json", test::kTinyConfig);
  dir.Write("model.safetensors", test::Safetensors(header, data));
  const Result<Weights> weights = Load(dir.path());
  ASSERT_TRUE(weights.ok()) << MessageOf(weights);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(weights->embedding.data) % 4, 0u);
  EXPECT_EQ(std::memcmp(weights->embedding.data, data.data(), 8 * 4 * 4), 0);
}

TEST(LoadWeights, NamesTensorShapeAndExpectation) {
  std::vector<TestTensor> tensors = test::TinyTensors();
  tensors[4].shape = {4, 2};
  EXPECT_THAT(
      MessageOf(LoadTiny(tensors)),
      HasSubstr("model.safetensors: tensor 'model.layers.0.self_attn.q_proj.weight' has shape [4,2], but config.json "
                "implies [4,4] (heads·head_dim × hidden)"));
  for (size_t i = 0; i < tensors.size(); ++i) {
    tensors = test::TinyTensors();
    tensors[i].shape[0] += 1;
    EXPECT_THAT(MessageOf(LoadTiny(tensors)), AllOf(HasSubstr(tensors[i].name), HasSubstr("has shape")));
    tensors[i].shape = {1, 1, 2, 2};
    EXPECT_THAT(MessageOf(LoadTiny(tensors)), AllOf(HasSubstr(tensors[i].name), HasSubstr("has shape [1,1,2,2]")));
  }
}

TEST(LoadWeights, NamesMissingTensors) {
  for (size_t i = 0; i < test::TinyTensors().size(); ++i) {
    std::vector<TestTensor> tensors = test::TinyTensors();
    const std::string name = tensors[i].name;
    tensors.erase(tensors.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_THAT(MessageOf(LoadTiny(tensors)), AllOf(HasSubstr(name), HasSubstr("is missing")));
  }
}

TEST(LoadWeights, RefusesUnknownTensors) {
  for (const char* name : {"model.layers.0.self_attn.q_norm.weight", "model.layers.0.self_attn.q_proj.bias",
                           "model.layers.1.input_layernorm.weight", "score.weight"}) {
    std::vector<TestTensor> tensors = test::TinyTensors();
    tensors.push_back({name, {4}});
    EXPECT_THAT(MessageOf(LoadTiny(tensors)), AllOf(HasSubstr(name), HasSubstr("is unknown in the")));
  }
  std::vector<TestTensor> tensors = test::TinyTensors();
  tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", {1}});
  EXPECT_TRUE(LoadTiny(tensors).ok());
}

TEST(LoadWeights, RefusesUnsupportedTypes) {
  std::vector<TestTensor> tensors = test::TinyTensors("F16");
  tensors[0].dtype = "I16";
  EXPECT_THAT(MessageOf(LoadTiny(tensors)), AllOf(HasSubstr("has dtype I16"), HasSubstr("expected F32, F16 or BF16")));
}

// A source in memory, with types that do not exist in safetensors files.
class MemorySource final : public TensorSource {
 public:
  void Add(std::string name, WeightType type, std::vector<int64_t> shape, std::vector<std::byte> bytes) {
    Held& held = held_[std::move(name)];
    held = {type, std::move(shape), std::move(bytes)};
    tensors_.clear();
    for (const auto& [key, value] : held_)
      tensors_.push_back({key, "memory", Name(value.type), value.type, value.shape, value.bytes});
  }
  std::span<const StoredTensor> tensors() const override { return tensors_; }
  std::string where() const override { return "memory"; }

 private:
  struct Held {
    WeightType type;
    std::vector<int64_t> shape;
    std::vector<std::byte> bytes;
  };
  std::map<std::string, Held> held_;
  std::vector<StoredTensor> tensors_;
};

// The tiny model with rows of 32 numbers, in Q8_0 except its norms.
std::unique_ptr<MemorySource> BlockSource() {
  auto source = std::make_unique<MemorySource>();
  for (TestTensor& tensor : test::TinyTensors()) {
    for (int64_t& extent : tensor.shape) extent *= 32;
    const bool matrix = tensor.shape.size() == 2;
    const int64_t bytes = matrix ? tensor.shape[0] * tensor.shape[1] / 32 * 34 : tensor.shape[0] * 4;
    source->Add(tensor.name, matrix ? WeightType::kQ8_0 : WeightType::kF32, tensor.shape,
                std::vector<std::byte>(static_cast<size_t>(bytes)));
  }
  return source;
}

TEST(LoadWeights, AcceptsEveryStoredTypeOfASource) {
  const TempDir dir;
  dir.Write("config.json", test::kTinyConfig);
  ModelConfig config = LoadModelConfig(dir.path()).value();
  config.vocab *= 32;
  config.hidden *= 32;
  config.embed_dim *= 32;
  config.ffn *= 32;
  config.head_dim *= 32;
  const Result<Weights> weights = LoadWeights(BlockSource(), config);
  ASSERT_TRUE(weights.ok()) << MessageOf(weights);
  EXPECT_EQ(weights->layers[0].down.weight.type, WeightType::kQ8_0);
  EXPECT_EQ(weights->layers[0].down.weight.row_bytes, 6 * 34);
  EXPECT_EQ(weights->DominantType(), WeightType::kQ8_0);

  std::unique_ptr<MemorySource> short_one = BlockSource();
  short_one->Add("model.norm.weight", WeightType::kF32, {128}, std::vector<std::byte>(100));
  EXPECT_THAT(MessageOf(LoadWeights(std::move(short_one), config)),
              HasSubstr("memory: tensor 'model.norm.weight' has 100 bytes, but its shape [128] needs 512"));
  config.hidden = 100;
  config.embed_dim = 100;
  std::unique_ptr<MemorySource> torn = BlockSource();
  torn->Add("model.embed_tokens.weight", WeightType::kQ8_0, {256, 100}, {});
  EXPECT_THAT(MessageOf(LoadWeights(std::move(torn), config)), HasSubstr("not a whole number of q8_0 blocks"));
}

TEST(LoadWeights, AcceptsNamesWithoutPrefix) {
  std::vector<TestTensor> tensors = test::TinyTensors();
  for (TestTensor& tensor : tensors) tensor.name.erase(0, 6);
  EXPECT_EQ(MessageOf(LoadTiny(tensors)), "");
}

TEST(LoadWeights, ATiedHeadMustBeTheEmbedding) {
  // Values repeat every 17 elements.
  std::vector<TestTensor> tensors = test::TinyTensors();
  tensors.push_back({"lm_head.weight", {8, 4}});
  EXPECT_THAT(MessageOf(LoadTiny(tensors)), HasSubstr("'lm_head.weight' differs from the embedding"));
  int64_t elements = 0;
  for (const TestTensor& tensor : test::TinyTensors())
    elements += tensor.shape[0] * (tensor.shape.size() > 1 ? tensor.shape[1] : 1);
  tensors.back() = {"model.rotary_emb.inv_freq", {17 - elements % 17}};
  tensors.push_back({"lm_head.weight", {8, 4}});
  const Result<Weights> weights = LoadTiny(tensors);
  ASSERT_TRUE(weights.ok()) << MessageOf(weights);
  EXPECT_EQ(weights->lm_head.weight.data, weights->embedding.data);
}

TEST(LoadWeights, AnUntiedHeadIsRequired) {
  std::string config(test::kTinyConfig);
  config.replace(config.find("\"tie_word_embeddings\": true"), 27, "\"tie_word_embeddings\": false");
  EXPECT_THAT(MessageOf(LoadTiny(test::TinyTensors(), config)), HasSubstr("'lm_head.weight' is missing"));
}

TEST(LoadWeights, HugeConfigNumbersAllocateNothing) {
  std::string config(test::kTinyConfig);
  config.replace(config.find("\"vocab_size\": 8"), 15, "\"vocab_size\": 16777216");
  config.replace(config.find("\"num_hidden_layers\": 1"), 22, "\"num_hidden_layers\": 4096");
  EXPECT_THAT(MessageOf(LoadTiny(test::TinyTensors(), config)), HasSubstr("config.json implies [16777216,4]"));
}

bool SameBytes(const WeightView& a, const WeightView& b) {
  return a.type == b.type && a.rows == b.rows && a.cols == b.cols &&
         std::memcmp(a.data, b.data, static_cast<size_t>(a.bytes())) == 0;
}

ModelConfig SmallShape() {
  ModelConfig config = ShapeByName("llama-3.2-1b").value();
  config.SetLayers(2, config.specs.front());
  config.hidden = 256;
  config.ffn = 512;
  config.vocab = 3001;
  config.embed_dim = 256;
  return config;
}

TEST(RandomWeights, DependOnlyOnTheSeed) {
  const ModelConfig config = SmallShape();
  const Result<Weights> one = RandomWeights(config, WeightType::kBF16, 7, 1);
  const Result<Weights> three = RandomWeights(config, WeightType::kBF16, 7, 3);
  const Result<Weights> other = RandomWeights(config, WeightType::kBF16, 8, 1);
  ASSERT_TRUE(one.ok() && three.ok() && other.ok());
  EXPECT_TRUE(SameBytes(one->embedding, three->embedding));
  EXPECT_TRUE(SameBytes(one->layers[1].down.weight, three->layers[1].down.weight));
  EXPECT_FALSE(SameBytes(one->embedding, other->embedding));
  EXPECT_FALSE(SameBytes(one->layers[0].down.weight, one->layers[1].down.weight));
  EXPECT_EQ(one->TotalBytes(), 2 * ParameterCount(config) + 2 * (2 * config.layers + 1) * config.hidden)
      << "norms are f32";
}

// FNV-1a over the bytes of all parameters, one after the other.
class BytesHash {
 public:
  template <class View>
  void AddView(const View& view) {
    for (const std::byte* at = view.data; at != view.data + view.bytes(); ++at)
      value_ = (value_ ^ static_cast<uint8_t>(*at)) * 0x100000001b3u;
  }
  // `pair` is a Linear or NormWeights.
  template <class Pair>
  void Add(const Pair& pair) {
    AddView(pair.weight);
    AddView(pair.bias);
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325u;
};

uint64_t HashOf(const Weights& weights) {
  BytesHash hash;
  hash.AddView(weights.embedding);
  hash.AddView(weights.positions);
  hash.Add(weights.project_in);
  hash.Add(weights.project_out);
  for (const LayerWeights& layer : weights.layers) {
    hash.Add(layer.attention_norm);
    hash.Add(layer.mlp_norm);
    for (const Linear* linear : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down})
      hash.Add(*linear);
  }
  hash.Add(weights.final_norm);
  if (weights.lm_head.weight.data != weights.embedding.data) hash.Add(weights.lm_head);
  return hash.value();
}

TEST(RandomWeights, RowsOfPartialBlocksHaveAnotherType) {
  ModelConfig config = SmallShape();
  config.ffn = 96;
  const Result<Weights> weights = RandomWeights(config, WeightType::kQ4_K, 1, 2);
  ASSERT_TRUE(weights.ok());
  EXPECT_EQ(weights->layers[0].up.weight.type, WeightType::kQ4_K);
  EXPECT_EQ(weights->layers[0].down.weight.type, WeightType::kQ5_0);
  config.ffn = 100;
  EXPECT_EQ(RandomWeights(config, WeightType::kQ4_K, 1, 2)->layers[0].down.weight.type, WeightType::kF16);
}

// Benchmarks of different versions are comparable only if a seed always gives the same bytes.
TEST(RandomWeights, NeverChange) {
  EXPECT_EQ(HashOf(*RandomWeights(SmallShape(), WeightType::kBF16, 7, 1)), 0x6c3b5a966a0035d5u);

  ModelConfig opt = ShapeByName("opt-125m").value();
  opt.SetLayers(2, opt.specs.front());
  opt.hidden = 96;
  opt.heads = opt.kv_heads = 3;
  opt.head_dim = 32;
  opt.ffn = 128;
  opt.vocab = 101;
  opt.embed_dim = 48;
  opt.max_positions = 40;
  EXPECT_EQ(HashOf(*RandomWeights(opt, WeightType::kF32, 3, 2)), 0xea93620c80a304b5u);
  EXPECT_EQ(ParameterCount(opt), 143152);
  opt.tied_embeddings = false;
  opt.final_norm->affine = false;
  for (LayerSpec& spec : opt.specs) spec.norm.affine = spec.qkv_bias = spec.o_bias = spec.mlp.bias = false;
  EXPECT_EQ(HashOf(*RandomWeights(opt, WeightType::kF32, 3, 2)), 0x87b95db30aa10337u);
  EXPECT_EQ(ParameterCount(opt), 145824);

  ModelConfig llama = ShapeByName("llama-2-7b").value();
  llama.SetLayers(3, llama.specs.front());
  llama.hidden = llama.embed_dim = 64;
  llama.heads = 4;
  llama.kv_heads = 2;
  llama.head_dim = 16;
  llama.ffn = 96;
  llama.vocab = 77;
  for (LayerSpec& spec : llama.specs) spec.qkv_bias = spec.o_bias = spec.mlp.bias = true;
  EXPECT_EQ(HashOf(*RandomWeights(llama, WeightType::kF16, 11, 1)), 0xbff40ebb35831c4cu);
  EXPECT_EQ(ParameterCount(llama), 103808);
}

TEST(RandomWeights, HaveTheScaleOfTheirFanIn) {
  ModelConfig config = SmallShape();
  for (LayerSpec& spec : config.specs) spec.qkv_bias = true;
  for (size_t t = 0; t < kWeightFormats.size(); ++t) {
    const auto type = static_cast<WeightType>(t);
    const Result<Weights> weights = RandomWeights(config, type, 1, 2);
    ASSERT_TRUE(weights.ok());
    const WeightView& down = weights->layers[0].down.weight;
    EXPECT_EQ(down.type, type);
    double sum = 0;
    double squares = 0;
    std::vector<float> row(static_cast<size_t>(down.cols));
    for (int64_t r = 0; r < down.rows; ++r) {
      DecodeRow(down, r, row);
      for (const float value : row) {
        sum += value;
        squares += static_cast<double>(value) * value;
      }
    }
    const auto count = static_cast<double>(down.rows * down.cols);
    // Codes of signed block types are centred at minus one half of a step; the scale of mxfp4 is a power of two.
    const double variance = squares / count * static_cast<double>(config.ffn);
    EXPECT_NEAR(sum / count, 0.0, IsPlain(type) ? 0.001 : 0.25 / std::sqrt(static_cast<double>(config.ffn)));
    if (type == WeightType::kMxfp4)
      EXPECT_TRUE(variance > 0.45 && variance < 2.1) << variance;
    else
      EXPECT_NEAR(variance, 1.0, IsPlain(type) ? 0.02 : 0.06) << Name(type);
    EXPECT_EQ(weights->final_norm.weight.as<float>()[5], 1.0f);
    EXPECT_TRUE(weights->layers[0].q.bias);
    EXPECT_FALSE(weights->layers[0].o.bias);
  }
}

}  // namespace
}  // namespace infinigen
