// Models with NaN or infinite numbers: refused by name at launch, at the first logits, and by quantize.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "loader/model_files.h"
#include "loader/tensor_source.h"
#include "runtime/launch.h"
#include "runtime/quantize.h"

namespace infinigen {
namespace {

using test::MessageOf;
using test::ReadAll;
using test::TempDir;
using testing::AllOf;
using testing::HasSubstr;

// A copy of a golden model that tests may damage.
class Damaged {
 public:
  explicit Damaged(const std::string& golden) {
    path = home.File("model");
    std::filesystem::copy(std::string(INFINIGEN_TEST_DATA) + "/golden/models/" + golden, path);
    std::filesystem::remove(path + "/infinigen.skew");
  }
  // Turns the model into a GGUF file.
  void Quantise(const std::string& type) {
    const std::string file = home.File("model.gguf");
    const Result<QuantizeReport> written = Quantize({.model = path, .output = file, .type = type}, {});
    ASSERT_TRUE(written.ok()) << MessageOf(written);
    path = file;
  }
  // Writes bytes at an offset of the first stored tensor whose name contains `part`. Its name and type.
  std::pair<std::string, WeightType> Overwrite(const std::string& part, size_t offset, std::string_view bytes) const {
    const std::string file = std::filesystem::is_directory(path) ? path + "/model.safetensors" : path;
    std::string all = ReadAll(file);
    std::pair<std::string, WeightType> found;
    {
      const auto source = OpenTensorSource(path).value();
      for (const StoredTensor& tensor : source->tensors()) {
        if (!found.first.empty() || tensor.name.find(part) == tensor.name.npos) continue;
        const std::string_view stored(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
        const size_t at = all.find(stored);
        CHECK(at != all.npos && offset + bytes.size() <= stored.size());
        all.replace(at + offset, bytes.size(), bytes);
        found = {std::string(tensor.name), *tensor.type};
      }
    }
    test::TempDir next;  // the mapped file is replaced, not written to
    std::filesystem::remove(file);
    std::ofstream(file, std::ios::binary) << all;
    return found;
  }

  TempDir home;
  std::string path;
};

template <class T>
std::string Bytes(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

std::string LaunchError(const std::string& path) {
  const Result<std::unique_ptr<Model>> model = OpenModel(path);
  if (!model.ok()) return model.error().message;
  RunRequest request{.max_tokens = 64, .batch = 1};
  request.kv.preset = FindPreset("full");
  const Result<RunPlan> plan = PlanRun(**model, request);
  if (!plan.ok()) return plan.error().message;
  return MessageOf(Launch(**model, *plan, {}));
}

TEST(BrokenNumbers, PlainTensorsAreNamedAtLaunch) {
  struct Case {
    const char* golden;
    WeightType type;
    std::vector<std::string> broken;
  };
  const Case cases[] = {
      {"llama_mha", WeightType::kF32, {Bytes(0x7FC00000u), Bytes(0x7F800000u), Bytes(0xFF800000u)}},
      {"llama_f16", WeightType::kF16, {Bytes(uint16_t{0x7E00}), Bytes(uint16_t{0x7C00}), Bytes(uint16_t{0xFC00})}},
      {"llama_bf16", WeightType::kBF16, {Bytes(uint16_t{0x7FC0}), Bytes(uint16_t{0x7F80}), Bytes(uint16_t{0xFF80})}},
  };
  for (const Case& each : cases) {
    EXPECT_EQ(LaunchError(Damaged(each.golden).path), "") << each.golden;
    for (const std::string& bytes : each.broken) {
      const Damaged model(each.golden);
      const auto [name, type] = model.Overwrite("layers.1.self_attn.k_proj", 3 * bytes.size(), bytes);
      EXPECT_EQ(type, each.type);
      EXPECT_THAT(LaunchError(model.path), AllOf(HasSubstr("model.safetensors: tensor '" + name + "'"),
                                                 HasSubstr("NaN or infinite at [0,3]"), HasSubstr(Name(type))));
    }
  }
}

TEST(BrokenNumbers, NormsAreNamedToo) {
  const Damaged model("llama_mha");
  const auto [name, type] = model.Overwrite("post_attention_layernorm", 8, Bytes(0x7FC00000u));
  EXPECT_THAT(LaunchError(model.path), AllOf(HasSubstr(name), HasSubstr("[2]")));
}

TEST(BrokenNumbers, ScalesOfBlocksAreNamedAtLaunch) {
  for (const std::string type : {"q8_0", "q4_k_m", "f16"}) {
    Damaged model("llama_mha");
    model.Quantise(type);
    ASSERT_EQ(LaunchError(model.path), "") << type;
    const auto [name, stored] = model.Overwrite("blk.1.attn_k", 0, Bytes(uint16_t{0x7C00}));
    EXPECT_THAT(LaunchError(model.path), AllOf(HasSubstr("model.gguf: tensor '" + name + "'"), HasSubstr("[0,0]")))
        << type;
  }
}

// Launch reads every tensor. A model too large for that is found at the first logits.
TEST(BrokenNumbers, TheFirstLogitsNameTheTensor) {
  const Damaged damaged("llama_mha");
  const auto [name, type] = damaged.Overwrite("layers.1.mlp.up_proj", 0, Bytes(0x7FC00000u));
  const std::unique_ptr<Model> model = OpenModel(damaged.path).value();
  const std::unique_ptr<Executor> executor =
      MakeExecutor(model->config, model->weights, {.max_tokens = 64, .pool_limit_bytes = 1 << 30}).value();
  Engine engine(*executor);
  RequestResult result;
  int tokens = 0;
  Request request{.prompt = {1, 2, 3}, .max_new_tokens = 4};
  request.on_token = [&](RequestId, int32_t) { return ++tokens > 0; };
  request.on_done = [&](RequestId, const RequestResult& done) { result = done; };
  ASSERT_TRUE(engine.Submit(std::move(request)).ok());
  while (engine.RunOnce()) {
  }
  EXPECT_EQ(tokens, 0);
  EXPECT_EQ(result.reason, FinishReason::kError);
  EXPECT_THAT(result.error, AllOf(HasSubstr("NaN or infinite"), HasSubstr(name)));
}

TEST(BrokenNumbers, QuantizeNamesTensorAndPosition) {
  for (const std::string type : {"f16", "q8_0", "q4_k_m", "q6_k"}) {
    const Damaged matrix("llama_mha"), norm("llama_mha");
    matrix.Overwrite("layers.1.mlp.up_proj", 4 * 5, Bytes(0x7FC00000u));
    norm.Overwrite("layers.0.input_layernorm", 4 * 5, Bytes(0x7F800000u));
    const std::string file = matrix.home.File("out.gguf");
    const auto message = [&](const Damaged& model) {
      return MessageOf(Quantize({.model = model.path, .output = file, .type = type}, {}));
    };
    EXPECT_THAT(message(matrix), AllOf(HasSubstr("blk.1.ffn_up.weight"), HasSubstr("row 0, column 5"))) << type;
    EXPECT_THAT(message(norm), AllOf(HasSubstr("blk.0.attn_norm.weight"), HasSubstr("row 0, column 5"))) << type;
    EXPECT_FALSE(std::filesystem::exists(file));
  }
}

// Finite in f32, but not in the scale of a block or as f16.
TEST(BrokenNumbers, QuantizeRefusesNumbersThatOverflow) {
  for (const std::string type : {"f16", "q8_0", "q4_k_m", "q6_k"}) {
    for (const float large : {1e10f, 3e38f, -1e10f}) {
      const Damaged model("llama_mha");
      model.Overwrite("layers.1.mlp.up_proj", 4 * 5, Bytes(large));
      const std::string file = model.home.File("out.gguf");
      EXPECT_THAT(MessageOf(Quantize({.model = model.path, .output = file, .type = type}, {})),
                  AllOf(HasSubstr("blk.1.ffn_up.weight"), HasSubstr("row 0"), HasSubstr("too large for")))
          << type << " " << large;
      EXPECT_FALSE(std::filesystem::exists(file));
    }
  }
}

}  // namespace
}  // namespace infinigen
