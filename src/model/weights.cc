#include "model/weights.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <unordered_set>
#include <utility>

#include "base/utf8.h"
#include "loader/weight_map.h"

namespace infinigen {
namespace {

// Small vectors are packed into blocks of this size: a page each would let a file of many tiny tensors take far more
// memory than it has bytes.
constexpr size_t kVectorBlockBytes = size_t{64} << 10;
constexpr size_t kVectorAlignment = 64;

// What a shape follows from, for messages: "heads·head_dim × hidden".
struct ExpectedShape {
  std::vector<int64_t> extents;
  std::string_view meaning;
};

class WeightLoader {
 public:
  WeightLoader(const Checkpoint& checkpoint, const ModelConfig& config, WeightStorage& storage)
      : checkpoint_(checkpoint), config_(config), storage_(storage) {}

  Status Load(Weights& weights) {
    RETURN_IF_ERROR(FindPrefix());
    RETURN_IF_ERROR(LoadEnds(weights));
    for (int64_t layer = 0; layer < config_.layers; ++layer) {
      LayerWeights& target = weights.layers.emplace_back();
      RETURN_IF_ERROR(LoadAttention(layer, target));
      RETURN_IF_ERROR(LoadMlp(layer, target));
    }
    RETURN_IF_ERROR(LoadFinalNorm(weights));
    RETURN_IF_ERROR(LoadHead(weights));
    return RefuseExtras();
  }

 private:
  std::string NameOf(WeightRole role, WeightPart part, int64_t layer) const {
    return TensorName(config_.architecture, prefix_, role, part, layer);
  }

  // The embedding is in every model: its name tells which prefix the file uses.
  Status FindPrefix() {
    for (const std::string_view prefix : NamePrefixes(config_.architecture)) {
      prefix_ = prefix;
      if (checkpoint_.Find(NameOf(WeightRole::kEmbedding, WeightPart::kWeight, 0))) return Ok{};
    }
    prefix_ = NamePrefixes(config_.architecture)[0];
    return Missing(NameOf(WeightRole::kEmbedding, WeightPart::kWeight, 0));
  }

  Error Missing(const std::string& name) const {
    return Invalid("{}: tensor '{}' is missing (model_type {}, {} layers)", Where(), name, Name(config_.architecture),
                   config_.layers);
  }

  // The only file, or the directory of the shards.
  std::string Where() const {
    const std::string& path = checkpoint_.files()[0].path();
    return checkpoint_.files().size() == 1 ? path : path.substr(0, path.rfind('/'));
  }

  // The tensor by that name, after its type and shape were checked.
  Result<TensorRef> Require(const std::string& name, const ExpectedShape& expected) {
    const TensorRef tensor = checkpoint_.Find(name);
    if (!tensor) return Missing(name);
    used_.insert(tensor.entry);
    if (!tensor.entry->type())
      return Unsupported("{}: tensor '{}' has dtype {}, expected F32, F16 or BF16", tensor.file->path(), name,
                         tensor.entry->dtype);
    const std::span<const int64_t> shape = tensor.entry->shape();
    if (!std::equal(shape.begin(), shape.end(), expected.extents.begin(), expected.extents.end()))
      return Invalid("{}: tensor '{}' has shape {}, config.json implies {} ({})", tensor.file->path(), name,
                     FormatShape(shape), FormatShape(expected.extents), expected.meaning);
    return tensor;
  }

  // In place, unless its bytes lie at an odd address for their type.
  Result<ConstTensor> Matrix(WeightRole role, int64_t rows, int64_t cols, std::string_view meaning, int64_t layer = 0) {
    const std::string name = NameOf(role, WeightPart::kWeight, layer);
    ASSIGN_OR_RETURN(const TensorRef tensor, Require(name, {{rows, cols}, meaning}));
    const DType type = *tensor.entry->type();
    const std::byte* data = tensor.bytes().data();
    if (reinterpret_cast<uintptr_t>(data) % SizeOf(type) != 0) {
      ASSIGN_OR_RETURN(Buffer copy, Buffer::Make(storage_.allocator, tensor.bytes().size()));
      std::memcpy(copy.data(), data, tensor.bytes().size());
      data = copy.data();
      storage_.buffers.push_back(std::move(copy));
    }
    return ConstTensor(data, type, rows, cols);
  }

  Result<float*> AllocateVector(int64_t length) {
    const size_t bytes = (static_cast<size_t>(length) * sizeof(float) + kVectorAlignment - 1) & ~(kVectorAlignment - 1);
    if (bytes > block_left_) {
      const size_t block_bytes = std::max(bytes, kVectorBlockBytes);
      ASSIGN_OR_RETURN(Buffer block, Buffer::Make(storage_.allocator, block_bytes));
      block_next_ = block.data();
      block_left_ = block_bytes;
      storage_.buffers.push_back(std::move(block));
    }
    float* data = reinterpret_cast<float*>(block_next_);
    block_next_ += bytes;
    block_left_ -= bytes;
    return data;
  }

  Result<ConstTensor> Vector(WeightRole role, WeightPart part, int64_t length, std::string_view meaning,
                             int64_t layer) {
    const std::string name = NameOf(role, part, layer);
    ASSIGN_OR_RETURN(const TensorRef tensor, Require(name, {{length}, meaning}));
    ASSIGN_OR_RETURN(float* const data, AllocateVector(length));
    const std::byte* source = tensor.bytes().data();
    Dispatch(*tensor.entry->type(), [&](auto tag) {
      using T = decltype(tag);
      for (int64_t i = 0; i < length; ++i) {
        T element;
        std::memcpy(&element, source + static_cast<size_t>(i) * sizeof(T), sizeof(T));
        data[i] = ToFloat(element);
      }
    });
    return ConstTensor(reinterpret_cast<const std::byte*>(data), DType::kF32, 1, length);
  }

  Result<Linear> LoadLinear(WeightRole role, int64_t out, int64_t in, bool bias, std::string_view meaning,
                            int64_t layer) {
    Linear linear;
    ASSIGN_OR_RETURN(linear.weight, Matrix(role, out, in, meaning, layer));
    if (bias) {
      ASSIGN_OR_RETURN(linear.bias, Vector(role, WeightPart::kBias, out, meaning, layer));
    }
    return linear;
  }

  Result<ConstTensor> Constant(float value) {
    ASSIGN_OR_RETURN(float* const data, AllocateVector(config_.hidden));
    std::fill_n(data, config_.hidden, value);
    return ConstTensor(reinterpret_cast<const std::byte*>(data), DType::kF32, 1, config_.hidden);
  }

  Result<NormWeights> LoadNorm(WeightRole role, int64_t layer) {
    const bool has_bias = config_.norm == NormKind::kLayer;
    NormWeights norm;
    if (config_.norm_affine) {
      ASSIGN_OR_RETURN(norm.weight, Vector(role, WeightPart::kWeight, config_.hidden, "hidden", layer));
      if (has_bias) {
        ASSIGN_OR_RETURN(norm.bias, Vector(role, WeightPart::kBias, config_.hidden, "hidden", layer));
      }
      return norm;
    }
    if (!plain_norm_) {  // shared by every norm of the model
      ASSIGN_OR_RETURN(norm.weight, Constant(1.0f));
      if (has_bias) {
        ASSIGN_OR_RETURN(norm.bias, Constant(0.0f));
      }
      plain_norm_ = norm;
    }
    return *plain_norm_;
  }

  // Embedding, positions and projections: from here on the file has confirmed `hidden`, `vocab` and `embed_dim`.
  Status LoadEnds(Weights& weights) {
    ASSIGN_OR_RETURN(weights.embedding,
                     Matrix(WeightRole::kEmbedding, config_.vocab, config_.embed_dim, "vocab × embedding width"));
    if (config_.positions == PositionKind::kLearned) {
      ASSIGN_OR_RETURN(weights.positions,
                       Matrix(WeightRole::kPositions, config_.max_positions + config_.position_offset, config_.hidden,
                              "positions + 2 × hidden"));
    }
    if (!config_.has_projections()) return Ok{};
    ASSIGN_OR_RETURN(weights.project_in, LoadLinear(WeightRole::kProjectIn, config_.hidden, config_.embed_dim, false,
                                                    "hidden × embedding width", 0));
    ASSIGN_OR_RETURN(weights.project_out, LoadLinear(WeightRole::kProjectOut, config_.embed_dim, config_.hidden, false,
                                                     "embedding width × hidden", 0));
    return Ok{};
  }

  Status LoadAttention(int64_t layer, LayerWeights& target) {
    const int64_t q_size = config_.heads * config_.head_dim;
    const int64_t kv_size = config_.kv_heads * config_.head_dim;
    const bool bias = config_.attention_bias;
    const int64_t hidden = config_.hidden;
    ASSIGN_OR_RETURN(target.q, LoadLinear(WeightRole::kQuery, q_size, hidden, bias, "heads·head_dim × hidden", layer));
    ASSIGN_OR_RETURN(target.k,
                     LoadLinear(WeightRole::kKey, kv_size, hidden, bias, "kv_heads·head_dim × hidden", layer));
    ASSIGN_OR_RETURN(target.v,
                     LoadLinear(WeightRole::kValue, kv_size, hidden, bias, "kv_heads·head_dim × hidden", layer));
    ASSIGN_OR_RETURN(target.o, LoadLinear(WeightRole::kOutput, hidden, q_size, bias, "hidden × heads·head_dim", layer));
    ASSIGN_OR_RETURN(target.attention_norm, LoadNorm(WeightRole::kAttentionNorm, layer));
    return Ok{};
  }

  Status LoadMlp(int64_t layer, LayerWeights& target) {
    const bool bias = config_.mlp_bias;
    if (config_.mlp == MlpKind::kGatedSilu) {
      ASSIGN_OR_RETURN(target.gate,
                       LoadLinear(WeightRole::kGate, config_.ffn, config_.hidden, bias, "ffn × hidden", layer));
    }
    ASSIGN_OR_RETURN(target.up, LoadLinear(WeightRole::kUp, config_.ffn, config_.hidden, bias, "ffn × hidden", layer));
    ASSIGN_OR_RETURN(target.down,
                     LoadLinear(WeightRole::kDown, config_.hidden, config_.ffn, bias, "hidden × ffn", layer));
    ASSIGN_OR_RETURN(target.mlp_norm, LoadNorm(WeightRole::kMlpNorm, layer));
    return Ok{};
  }

  Status LoadFinalNorm(Weights& weights) {
    if (!config_.final_norm) return Ok{};
    ASSIGN_OR_RETURN(weights.final_norm, LoadNorm(WeightRole::kFinalNorm, 0));
    return Ok{};
  }

  Status LoadHead(Weights& weights) {
    const std::string name = NameOf(WeightRole::kLmHead, WeightPart::kWeight, 0);
    if (config_.tied_embeddings && !checkpoint_.Find(name)) {
      weights.lm_head.weight = weights.embedding;
      return Ok{};
    }
    ASSIGN_OR_RETURN(weights.lm_head, LoadLinear(WeightRole::kLmHead, config_.vocab, config_.embed_dim, false,
                                                 "vocab × embedding width", 0));
    if (!config_.tied_embeddings) return Ok{};
    // Some exporters write the shared matrix twice. A second one that differs belongs to another model.
    const ConstTensor& head = weights.lm_head.weight;
    const size_t bytes = static_cast<size_t>(head.rows * head.cols) * SizeOf(head.type);
    if (head.type != weights.embedding.type || std::memcmp(head.data, weights.embedding.data, bytes) != 0)
      return Invalid("{}: tensor '{}' differs from the embedding, but config.json says tie_word_embeddings", Where(),
                     name);
    weights.lm_head.weight = weights.embedding;
    return Ok{};
  }

  Status RefuseExtras() const {
    for (const SafetensorsFile& file : checkpoint_.files()) {
      for (const TensorEntry& tensor : file.tensors()) {
        if (used_.count(&tensor) == 0 && !IsHarmlessTensor(config_.architecture, prefix_, tensor.name))
          return Unsupported("{}: tensor {} of shape {} has no place in a {} model as config.json describes it",
                             file.path(), Quoted(tensor.name), FormatShape(tensor.shape()), Name(config_.architecture));
      }
    }
    return Ok{};
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  WeightStorage& storage_;
  std::string_view prefix_;
  std::unordered_set<const TensorEntry*> used_;
  std::optional<NormWeights> plain_norm_;
  std::byte* block_next_ = nullptr;  // free space of the last vector block
  size_t block_left_ = 0;
};

int64_t Bytes(const ConstTensor& tensor) {
  return tensor.rows * tensor.cols * static_cast<int64_t>(SizeOf(tensor.type));
}
int64_t Bytes(const Linear& linear) { return Bytes(linear.weight) + Bytes(linear.bias); }
int64_t Bytes(const NormWeights& norm) { return Bytes(norm.weight) + Bytes(norm.bias); }

}  // namespace

int64_t Weights::TotalBytes() const {
  int64_t total = Bytes(embedding) + Bytes(positions) + Bytes(project_in) + Bytes(project_out) + Bytes(final_norm);
  for (const LayerWeights& layer : layers) {
    total += Bytes(layer.attention_norm) + Bytes(layer.mlp_norm);
    for (const Linear* linear : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down})
      total += Bytes(*linear);
  }
  if (lm_head.weight.data != embedding.data) total += Bytes(lm_head);
  return total;
}

Result<Weights> LoadWeights(const std::string& directory, const ModelConfig& config) {
  ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(directory));
  Weights weights;
  weights.storage = std::make_unique<WeightStorage>();
  weights.storage->checkpoint = std::make_unique<Checkpoint>(std::move(checkpoint));
  WeightLoader loader(*weights.storage->checkpoint, config, *weights.storage);
  RETURN_IF_ERROR(loader.Load(weights));
  return weights;
}

}  // namespace infinigen
