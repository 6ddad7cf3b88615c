// Parses the input as config.json and as generation_config.json. Products of an accepted configuration's sizes do not
// overflow.
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

#include "base/check.h"
#include "model/config_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace infinigen;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const Result<std::vector<int64_t>> ids = ParseGenerationEosIds(text, "g.json"); !ids.ok())
    CHECK(ids.error().message.find('\n') == std::string::npos);
  const Result<ModelConfig> config = ParseModelConfig(text, "f.json");
  if (!config.ok()) {
    CHECK(config.error().message.find('\n') == std::string::npos);
    return 0;
  }
  CHECK(config->kv_heads > 0 && config->heads % config->kv_heads == 0);
  CHECK(config->head_dim > 0 && config->ffn > 0 && config->embed_dim > 0);
  int64_t product = 0;
  CHECK(!__builtin_mul_overflow(config->heads * config->head_dim, config->hidden, &product));
  CHECK(!__builtin_mul_overflow(product, config->layers * 4, &product));
  CHECK(std::ssize(config->specs) == config->layers && CheckSupported(*config).ok());
  for (const RopeConfig& rope : config->ropes) CHECK(rope.factor > 0 && rope.base > 0);
  return 0;
}
