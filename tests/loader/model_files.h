// Helpers that write model files, valid and broken, into a temporary directory.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "tensor/dtype.h"

namespace infinigen::test {

class TempDir {
 public:
  TempDir() {
    std::string pattern = testing::TempDir() + "/modelXXXXXX";
    CHECK(::mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }
  void Write(const std::string& name, std::string_view bytes) const {
    std::ofstream file(File(name), std::ios::binary | std::ios::trunc);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    CHECK(file.good());
  }

 private:
  std::string path_;
};

inline std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// The error message; empty on success.
template <class R>
std::string MessageOf(const R& result) {
  return result.ok() ? std::string() : result.error().message;
}

// A safetensors file of the given header and data, which need not match.
inline std::string Safetensors(std::string_view header, std::string_view data) {
  const uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file.append(header).append(data);
}

struct TestTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::string dtype = "F32";
};

// A valid file; the values are small and vary from element to element.
inline std::string SafetensorsOf(const std::vector<TestTensor>& tensors) {
  std::string header = "{\"__metadata__\":{\"format\":\"pt\"}";
  std::string data;
  uint16_t next = 1;
  for (const TestTensor& tensor : tensors) {
    size_t elements = 1;
    for (const int64_t extent : tensor.shape) elements *= static_cast<size_t>(extent);
    const size_t begin = data.size();
    for (size_t i = 0; i < elements; ++i, ++next) {
      const float value = static_cast<float>(next % 17) / 16.0f;
      if (tensor.dtype == "F32") {
        data.append(reinterpret_cast<const char*>(&value), 4);
      } else {
        const uint16_t bits = tensor.dtype == "BF16" ? ToBF16(value).bits : ToF16(value).bits;
        data.append(reinterpret_cast<const char*>(&bits), 2);
      }
    }
    header += fmt::format(R"(,"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", tensor.name, tensor.dtype,
                          fmt::join(tensor.shape, ","), begin, data.size());
  }
  header += "}";
  while (header.size() % 8 != 0) header += ' ';
  return Safetensors(header, data);
}

// The smallest complete Llama: vocab 8, hidden 4, 2 heads, 1 KV head, ffn 6, 1 layer.
inline constexpr std::string_view kTinyConfig = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 8, "hidden_size": 4,
  "intermediate_size": 6, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
  "max_position_embeddings": 64, "rms_norm_eps": 1e-05, "hidden_act": "silu", "tie_word_embeddings": true,
  "rope_theta": 10000.0, "rope_scaling": null, "eos_token_id": 2, "bos_token_id": 1, "torch_dtype": "float32"
})";

inline std::vector<TestTensor> TinyTensors(const std::string& dtype = "F32") {
  return {{"model.embed_tokens.weight", {8, 4}, dtype},
          {"model.norm.weight", {4}, dtype},
          {"model.layers.0.input_layernorm.weight", {4}, dtype},
          {"model.layers.0.post_attention_layernorm.weight", {4}, dtype},
          {"model.layers.0.self_attn.q_proj.weight", {4, 4}, dtype},
          {"model.layers.0.self_attn.k_proj.weight", {2, 4}, dtype},
          {"model.layers.0.self_attn.v_proj.weight", {2, 4}, dtype},
          {"model.layers.0.self_attn.o_proj.weight", {4, 4}, dtype},
          {"model.layers.0.mlp.gate_proj.weight", {6, 4}, dtype},
          {"model.layers.0.mlp.up_proj.weight", {6, 4}, dtype},
          {"model.layers.0.mlp.down_proj.weight", {4, 6}, dtype}};
}

}  // namespace infinigen::test
