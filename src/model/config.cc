#include "model/config.h"

#include <cmath>
#include <filesystem>
#include <utility>

#include "backend/backend.h"

namespace infinigen {
namespace {

static_assert(kHeadDimLimit <= kMaxHeadDim, "a head that loads must also run");

// Torch's default, which OPT's layer norms never override.
constexpr float kOptNormEps = 1e-5f;
constexpr int64_t kOptPositionOffset = 2;

struct LlamaShape {
  std::string_view name;
  int64_t layers, hidden, heads, kv_heads, ffn, vocab, max_positions;
  double theta;
  double rope_factor;  // llama3 scaling from 8192 positions; 0: none
  bool tied;
};
// head_dim is hidden / heads in all of them.
constexpr LlamaShape kLlamaShapes[] = {
    {"llama-2-7b", 32, 4096, 32, 32, 11008, 32000, 4096, 1e4, 0, false},
    {"llama-2-13b", 40, 5120, 40, 40, 13824, 32000, 4096, 1e4, 0, false},
    {"llama-3-8b", 32, 4096, 32, 8, 14336, 128256, 8192, 5e5, 0, false},
    {"llama-3.1-8b", 32, 4096, 32, 8, 14336, 128256, 131072, 5e5, 8, false},
    {"llama-3.2-1b", 16, 2048, 32, 8, 8192, 128256, 131072, 5e5, 32, true},
    {"llama-3.2-3b", 28, 3072, 24, 8, 8192, 128256, 131072, 5e5, 32, true},
};

struct OptShape {
  std::string_view name;
  int64_t layers, hidden, heads;
};
// ffn is 4 · hidden, vocab 50272, 2048 positions in all of them.
constexpr OptShape kOptShapes[] = {
    {"opt-125m", 12, 768, 12},  {"opt-1.3b", 24, 2048, 32}, {"opt-2.7b", 32, 2560, 32},
    {"opt-6.7b", 32, 4096, 32}, {"opt-13b", 40, 5120, 40},  {"opt-30b", 48, 7168, 56},
};

HfConfig ToFile(const LlamaShape& shape) {
  HfConfig file;
  file.architecture = Architecture::kLlama;
  file.vocab_size = shape.vocab;
  file.hidden_size = shape.hidden;
  file.num_hidden_layers = shape.layers;
  file.num_attention_heads = shape.heads;
  file.num_key_value_heads = shape.kv_heads;
  file.head_dim = shape.hidden / shape.heads;
  file.ffn_size = shape.ffn;
  file.max_position_embeddings = shape.max_positions;
  file.tie_word_embeddings = shape.tied;
  file.rms_norm_eps = 1e-5;
  file.rope.theta = shape.theta;
  if (shape.rope_factor > 0) file.rope = {shape.theta, RopeScaling::kLlama3, shape.rope_factor, 1.0, 4.0, 8192};
  file.word_embed_proj_dim = shape.hidden;
  return file;
}

HfConfig ToFile(const OptShape& shape) {
  HfConfig file;
  file.architecture = Architecture::kOpt;
  file.vocab_size = 50272;
  file.hidden_size = shape.hidden;
  file.num_hidden_layers = shape.layers;
  file.num_attention_heads = shape.heads;
  file.num_key_value_heads = shape.heads;
  file.head_dim = shape.hidden / shape.heads;
  file.ffn_size = 4 * shape.hidden;
  file.max_position_embeddings = 2048;
  file.tie_word_embeddings = true;
  file.attention_bias = true;
  file.mlp_bias = true;
  file.word_embed_proj_dim = shape.hidden;
  return file;
}

// "/models/llama/" → "llama".
std::string BaseName(const std::string& directory) {
  std::filesystem::path path = std::filesystem::path(directory).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path.filename().string();
}

}  // namespace

ModelConfig MakeModelConfig(const HfConfig& file, std::string name) {
  ModelConfig config;
  config.name = std::move(name);
  config.architecture = file.architecture;
  config.layers = file.num_hidden_layers;
  config.hidden = file.hidden_size;
  config.heads = file.num_attention_heads;
  config.kv_heads = file.num_key_value_heads;
  config.head_dim = file.head_dim;
  config.ffn = file.ffn_size;
  config.vocab = file.vocab_size;
  config.embed_dim = file.word_embed_proj_dim;
  config.max_positions = file.max_position_embeddings;
  config.attention_bias = file.attention_bias;
  config.mlp_bias = file.mlp_bias;
  config.tied_embeddings = file.tie_word_embeddings;
  config.dtype = file.dtype;
  config.eos_ids = file.eos_token_ids;
  config.bos_id = file.bos_token_id;
  if (file.architecture == Architecture::kLlama) {
    config.norm_eps = static_cast<float>(file.rms_norm_eps);
    config.rope = file.rope;
    return config;
  }
  config.norm = NormKind::kLayer;
  config.norm_eps = kOptNormEps;
  config.norm_affine = file.layer_norm_affine;
  config.pre_norm = file.do_layer_norm_before;
  config.final_norm = file.do_layer_norm_before && !file.remove_final_layer_norm;
  config.positions = PositionKind::kLearned;
  config.position_offset = kOptPositionOffset;
  config.mlp = MlpKind::kRelu;
  return config;
}

Result<ModelConfig> LoadModelConfig(const std::string& directory) {
  ASSIGN_OR_RETURN(const HfConfig file, LoadHfConfig(directory));
  return MakeModelConfig(file, BaseName(directory));
}

std::vector<std::string_view> ShapeNames() {
  std::vector<std::string_view> names;
  for (const LlamaShape& shape : kLlamaShapes) names.push_back(shape.name);
  for (const OptShape& shape : kOptShapes) names.push_back(shape.name);
  return names;
}

Result<ModelConfig> ShapeByName(std::string_view name) {
  for (const LlamaShape& shape : kLlamaShapes)
    if (shape.name == name) return MakeModelConfig(ToFile(shape), std::string(name));
  for (const OptShape& shape : kOptShapes)
    if (shape.name == name) return MakeModelConfig(ToFile(shape), std::string(name));
  const std::vector<std::string_view> known = ShapeNames();
  return Invalid("unknown shape '{}'; known are {}", name, fmt::join(known.begin(), known.end(), ", "));
}

std::vector<float> RopeInverseFrequencies(const RopeConfig& rope, int64_t head_dim) {
  CHECK(head_dim > 0 && head_dim % 2 == 0);
  const auto theta = static_cast<float>(rope.theta);
  const auto factor = static_cast<float>(rope.factor);
  std::vector<float> result(static_cast<size_t>(head_dim / 2));
  for (size_t i = 0; i < result.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    const float frequency = 1.0f / std::pow(theta, exponent);
    result[i] = frequency;
    if (rope.scaling == RopeScaling::kLinear) result[i] = frequency / factor;
    if (rope.scaling != RopeScaling::kLlama3) continue;
    // Long wavelengths are stretched by `factor`, short ones stay, those between are mixed.
    const auto context = static_cast<double>(rope.original_max_positions);
    const auto low_wavelength = static_cast<float>(context / rope.low_freq_factor);
    const auto high_wavelength = static_cast<float>(context / rope.high_freq_factor);
    const float wavelength = static_cast<float>(2.0 * M_PI) / frequency;
    if (wavelength > low_wavelength) {
      result[i] = frequency / factor;
    } else if (wavelength >= high_wavelength) {
      const float smooth = (static_cast<float>(context) / wavelength - static_cast<float>(rope.low_freq_factor)) /
                           static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
      result[i] = (1.0f - smooth) * frequency / factor + smooth * frequency;
    }
  }
  return result;
}

}  // namespace infinigen
