// Truncated, damaged and hostile model files. Loading never crashes; an error is one line that names the file; memory
// stays below the file's size plus a fixed allowance. Also run under the sanitizers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdint>
#include <functional>

#include "loader/model_files.h"
#include "model/parameters.h"
#include "model/weights.h"
#include "sanitized.h"

namespace infinigen {
namespace {

using test::TempDir;
using testing::HasSubstr;

// Reads every byte of every view, so that a wrong view causes a sanitizer report or a signal.
uint64_t TouchAll(const Weights& weights) {
  uint64_t sum = 0;
  VisitParameters(weights, [&](const Parameter&, const auto& view) {
    for (const std::byte* at = view.data; at != view.data + view.bytes(); ++at) sum += static_cast<uint8_t>(*at);
  });
  return sum;
}

// True when the directory loads. Checks that an error is short, on one line, and names the directory.
bool Loads(const std::string& directory) {
  const Result<ModelConfig> config = LoadModelConfig(directory);
  const Result<Weights> weights =
      config.ok() ? LoadWeights(directory, *config) : Result<Weights>(Error(config.error()));
  if (weights.ok()) {
    TouchAll(*weights);
    return true;
  }
  const std::string& message = weights.error().message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  EXPECT_THAT(message, HasSubstr(directory)) << "names the file";
  EXPECT_LT(message.size(), 700u);
  return false;
}

struct Model {
  TempDir dir;
  std::string config{test::kTinyConfig};
  std::string weights = test::SafetensorsOf(test::TinyTensors("BF16"));

  Model() {
    dir.Write("config.json", config);
    dir.Write("model.safetensors", weights);
  }
};

TEST(HostileFiles, EveryTruncationIsRefused) {
  const Model model;
  ASSERT_TRUE(Loads(model.dir.path()));
  for (size_t length = 0; length < model.weights.size(); ++length) {
    model.dir.Write("model.safetensors", std::string_view(model.weights).substr(0, length));
    EXPECT_FALSE(Loads(model.dir.path())) << length;
  }
  model.dir.Write("model.safetensors", model.weights);
  for (size_t length = 0; length < model.config.size(); ++length) {
    model.dir.Write("config.json", std::string_view(model.config).substr(0, length));
    EXPECT_FALSE(Loads(model.dir.path())) << length;
  }
}

// Distance between flipped bits. It is coprime to 8, so that every bit position of a byte is reached.
constexpr size_t kBitStep = kSanitized ? 5 : 1;

// Flips the bits of `name` one at a time and calls `check` after each.
void FlipEachBit(const Model& model, const std::string& name, const std::string& good,
                 const std::function<void(size_t)>& check) {
  std::string bytes = good;
  for (size_t bit = 0; bit < bytes.size() * 8; bit += kBitStep) {
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    model.dir.Write(name, bytes);
    check(bit / 8);
    bytes[bit / 8] = good[bit / 8];
  }
  model.dir.Write(name, good);
}

TEST(HostileFiles, EveryFlippedBitEndsInAResult) {
  const Model model;
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, model.weights.data(), 8);
  size_t refused = 0;
  FlipEachBit(model, "model.safetensors", model.weights, [&](size_t byte) {
    const bool loads = Loads(model.dir.path());
    refused += loads ? 0 : 1;
    if (byte >= 8 + header_bytes) {
      EXPECT_TRUE(loads) << "only a weight changed, at byte " << byte;
    }
  });
  EXPECT_GT(refused * kBitStep, header_bytes * 4) << "most flips in the header are noticed";
  FlipEachBit(model, "config.json", model.config, [&](size_t) { Loads(model.dir.path()); });
}

TEST(HostileFiles, EveryFlippedBitOfAnIndexEndsInAResult) {
  const Model model;
  std::vector<test::TestTensor> first = test::TinyTensors();
  const std::vector<test::TestTensor> second(first.begin() + 6, first.end());
  first.resize(6);
  std::filesystem::remove(model.dir.File("model.safetensors"));
  model.dir.Write("a.safetensors", test::SafetensorsOf(first));
  model.dir.Write("b.safetensors", test::SafetensorsOf(second));
  std::string index = R"({"metadata":{"total_size":1},"weight_map":{)";
  for (const test::TestTensor& tensor : first) index += fmt::format(R"("{}":"a.safetensors",)", tensor.name);
  for (const test::TestTensor& tensor : second) index += fmt::format(R"("{}":"b.safetensors",)", tensor.name);
  index.back() = '}';
  index += '}';
  model.dir.Write("model.safetensors.index.json", index);
  ASSERT_TRUE(Loads(model.dir.path()));
  FlipEachBit(model, "model.safetensors.index.json", index, [&](size_t) { Loads(model.dir.path()); });
  for (size_t length = 0; length < index.size(); ++length) {
    model.dir.Write("model.safetensors.index.json", std::string_view(index).substr(0, length));
    EXPECT_FALSE(Loads(model.dir.path())) << length;
  }
}

// Peak resident memory of this process since the last reset, in bytes.
uint64_t PeakBytes() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line))
    if (line.compare(0, 6, "VmHWM:") == 0) return std::stoull(line.substr(6)) * 1024;
  return 0;
}

// Writes `file` as the weights and loads it. Expects an error, and a peak that grows by less than file size + 64 MiB.
void ExpectRefusedWithinBounds(const std::string& name, const std::string& file, const std::string& reason) {
  const Model model;
  if (name != "model.safetensors") std::filesystem::remove(model.dir.File("model.safetensors"));
  model.dir.Write(name, file);
  ::malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << "5";  // resets the peak
  const uint64_t before = PeakBytes();
  ASSERT_GT(before, 0u) << "the peak cannot be measured";
  const Result<ModelConfig> config = LoadModelConfig(model.dir.path());
  ASSERT_TRUE(config.ok());
  const Result<Weights> weights = LoadWeights(model.dir.path(), *config);
  const uint64_t after = PeakBytes();
  ASSERT_FALSE(weights.ok());
  EXPECT_THAT(weights.error().message, HasSubstr(reason));
  if (!kSanitized) {  // the sanitizer's own memory would count
    EXPECT_LT(after - before, file.size() + (uint64_t{64} << 20)) << reason;
  }
}

TEST(HostileFiles, LargeHeadersStayWithinBounds) {
  // As a JSON tree such a header would take ten times its size.
  constexpr size_t kBytes = kSanitized ? 20'000'000 : 45'000'000;
  std::string header = "{";
  header.reserve(kBytes + 1000);
  for (int i = 0; header.size() < kBytes; ++i)
    header +=
        fmt::format("\"{}{}\":{{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,0]}},", std::string(200, 'n'), i);
  header.back() = '}';
  ExpectRefusedWithinBounds("model.safetensors", test::Safetensors(header, ""), "more than 65536 tensors");
  header = "{\"__metadata__\":{\"a\":\"" + std::string(kBytes, 'x') + "\"}}";
  ExpectRefusedWithinBounds("model.safetensors", test::Safetensors(header, ""), "longer than 1048576 bytes");
  header = "{\"t\":{\"shape\":" + std::string(kBytes, '[') + "}}";
  ExpectRefusedWithinBounds("model.safetensors", test::Safetensors(header, ""), "nested deeper");
  header = "{\"t\":{\"shape\":[0";
  while (header.size() < kBytes) header += ",0";
  ExpectRefusedWithinBounds("model.safetensors", test::Safetensors(header + "]}}", ""), "more than 8 dimensions");
  header = "{\"__metadata__\":{\"a\":\"\"";
  while (header.size() < kBytes) header += ",\"a\":\"\"";
  ExpectRefusedWithinBounds("model.safetensors", test::Safetensors(header + "}}", ""), "is missing");
}

TEST(HostileFiles, LargeIndicesStayWithinBounds) {
  std::string index = "{\"weight_map\":{";
  for (int i = 0; index.size() < 15'000'000; ++i) index += fmt::format("\"t{}\":\"s{}.safetensors\",", i, i);
  index.back() = '}';
  ExpectRefusedWithinBounds("model.safetensors.index.json", index + "}", "more than 1024 shards");
  ExpectRefusedWithinBounds("model.safetensors.index.json", std::string(17 << 20, ' '), "may have at most 16777216");
}

}  // namespace
}  // namespace infinigen
