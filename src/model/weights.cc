#include "model/weights.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "base/utf8.h"
#include "model/family.h"
#include "model/parameters.h"

namespace infinigen {
namespace {

// Vectors are packed into blocks of this size. With a page for each, a file of many tiny tensors could take far more
// memory than its size.
constexpr size_t kVectorBlockBytes = size_t{64} << 10;
constexpr size_t kVectorAlignment = 64;

class WeightLoader {
 public:
  WeightLoader(const TensorSource& source, const ModelConfig& config, WeightStorage& storage)
      : source_(source), config_(config), storage_(storage) {}

  Status Load(Weights& weights) {
    RETURN_IF_ERROR(FindPrefix());
    weights.layers.resize(static_cast<size_t>(config_.layers));
    RETURN_IF_ERROR(VisitParameters(weights, [&](const Parameter& parameter, auto& view) -> Status {
      const ParameterShape shape = ExpectedShape(config_, parameter);
      if (!shape) return Ok();
      if (parameter.role == WeightRole::kLmHead) return LoadHead(parameter, shape, weights);
      return LoadInto(view, parameter, shape);
    }));
    return RefuseExtras();
  }

 private:
  std::string NameOf(const Parameter& parameter) const {
    return TensorName(*config_.family, prefix_, parameter, source_.naming());
  }
  // What describes the model, for messages.
  std::string_view Description() const {
    return source_.naming() == TensorNaming::kGguf ? "the metadata" : "config.json";
  }

  // Every model has an embedding; its name shows which prefix the file uses.
  Status FindPrefix() {
    if (source_.naming() == TensorNaming::kGguf) return Ok();  // GGUF names have no prefix
    for (const std::string_view prefix : config_.family->prefixes) {
      prefix_ = prefix;
      if (source_.Find(NameOf({WeightRole::kEmbedding}))) return Ok();
    }
    prefix_ = config_.family->prefixes[0];
    return Missing(NameOf({WeightRole::kEmbedding}));
  }

  Error Missing(const std::string& name) const {
    return Invalid("{}: tensor '{}' is missing (model_type {}, {} layers)", source_.where(), name, config_.family->name,
                   config_.layers);
  }

  // The stored bytes of a parameter. Checks name, type and shape.
  Result<WeightView> Require(const Parameter& parameter, const ParameterShape& expected) {
    const std::string name = NameOf(parameter);
    const StoredTensor* const tensor = source_.Find(name);
    if (tensor == nullptr) return Missing(name);
    used_.insert(tensor);
    if (!tensor->type) {
      const bool gguf = source_.naming() == TensorNaming::kGguf;
      return Unsupported("{}: tensor '{}' has dtype {}, {}", tensor->path, name, tensor->type_name,
                         gguf ? "which is not supported" : "expected F32, F16 or BF16");
    }
    const Sharing shared = SharingOf(parameter);
    std::array<int64_t, 2> extents = {expected.rows, expected.cols};
    extents[parameter.is_matrix() ? 0 : 1] = shared.outputs;
    const std::span<const int64_t> wanted = std::span(extents).subspan(parameter.is_matrix() ? 0 : 1);
    if (!std::equal(tensor->shape.begin(), tensor->shape.end(), wanted.begin(), wanted.end()))
      return Invalid("{}: tensor '{}' has shape {}, but {} implies {} ({})", tensor->path, name,
                     FormatShape(tensor->shape), Description(), FormatShape(wanted),
                     shared.roles > 1 ? fmt::format("{} matrices in one", shared.roles) : expected.meaning);
    // A vector is read as one number per row, so that a part of it is a range of rows too.
    const int64_t cols = parameter.is_matrix() || shared.roles == 1 ? expected.cols : 1;
    const int64_t rows = cols == expected.cols && !parameter.is_matrix() ? 1 : shared.outputs;
    Result<WeightView> view = WeightView::Make(tensor->bytes.data(), *tensor->type, rows, cols);
    if (!view.ok()) return Invalid("{}: tensor '{}': {}", tensor->path, name, view.error().message);
    if (view->bytes() != std::ssize(tensor->bytes))
      return Invalid("{}: tensor '{}' has {} bytes, but its shape {} needs {}", tensor->path, name,
                     tensor->bytes.size(), FormatShape(tensor->shape), view->bytes());
    if (shared.roles == 1) return view;
    return WeightView::Make(view->row(shared.first), *tensor->type, expected.rows, expected.cols);
  }

  // The place of a parameter in a tensor that several roles share.
  struct Sharing {
    int64_t roles = 0;
    int64_t first = 0;    // its first output
    int64_t outputs = 0;  // of all roles
  };
  Sharing SharingOf(const Parameter& parameter) const {
    const std::string name = NameOf(parameter);
    Sharing shared;
    for (const RoleName& of : config_.family->modules) {
      const Parameter other{of.role, parameter.part, parameter.layer};
      const ParameterShape shape = ExpectedShape(config_, other);
      if (!shape || IsPerLayer(of.role) != IsPerLayer(parameter.role) || NameOf(other) != name) continue;
      if (of.role == parameter.role) shared.first = shared.outputs;
      shared.outputs += other.is_matrix() ? shape.rows : shape.cols;
      ++shared.roles;
    }
    return shared;
  }

  // A view into the file, or a copy if the data is not aligned for its type.
  Status LoadInto(WeightView& matrix, const Parameter& parameter, const ParameterShape& shape) {
    ASSIGN_OR_RETURN(matrix, Require(parameter, shape));
    if (reinterpret_cast<uintptr_t>(matrix.data) % AlignmentOf(matrix.type) == 0) return Ok();
    const auto bytes = static_cast<size_t>(matrix.bytes());
    ASSIGN_OR_RETURN(Buffer copy, Buffer::Make(storage_.allocator, bytes));
    std::memcpy(copy.data(), matrix.data, bytes);
    matrix.data = copy.data();
    storage_.buffers.push_back(std::move(copy));
    return Ok();
  }

  static ConstTensor VectorOf(std::span<const float> numbers) {
    return {reinterpret_cast<const std::byte*>(numbers.data()), DType::kF32, 1, std::ssize(numbers)};
  }

  Result<std::span<float>> AllocateVector(int64_t length) {
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
    return std::span(data, static_cast<size_t>(length));
  }

  // A copy, converted to f32.
  Status LoadInto(ConstTensor& vector, const Parameter& parameter, const ParameterShape& shape) {
    if (!shape.stored) {
      ASSIGN_OR_RETURN(vector, Constant(parameter, shape.cols));
      return Ok();
    }
    ASSIGN_OR_RETURN(const WeightView stored, Require(parameter, shape));
    ASSIGN_OR_RETURN(const std::span<float> numbers, AllocateVector(shape.cols));
    DecodeRow(stored, 0, numbers);
    if (IsNorm(parameter.role) && parameter.part == WeightPart::kWeight)
      for (float& number : numbers) number += config_.norm_offset;
    vector = VectorOf(numbers);
    return Ok();
  }

  // Ones or zeros for norms without parameters; shared by all of them.
  Result<ConstTensor> Constant(const Parameter& parameter, int64_t length) {
    const bool ones = parameter.part == WeightPart::kWeight;
    ConstTensor& constant = constants_[ones];
    if (constant.cols != length) {
      ASSIGN_OR_RETURN(const std::span<float> numbers, AllocateVector(length));
      std::fill(numbers.begin(), numbers.end(), ones ? 1.0f : 0.0f);
      constant = VectorOf(numbers);
    }
    return constant;
  }

  Status LoadHead(const Parameter& parameter, const ParameterShape& shape, Weights& weights) {
    const std::string name = NameOf(parameter);
    WeightView& head = weights.lm_head.weight;
    if (shape.stored || source_.Find(name)) RETURN_IF_ERROR(LoadInto(head, parameter, shape));
    if (shape.stored) return Ok();
    // Some exporters write a tied matrix twice. If the copies differ, the matrix is not tied.
    const WeightView& embedding = weights.embedding;
    if (head &&
        (head.type != embedding.type || std::memcmp(head.data, embedding.data, static_cast<size_t>(head.bytes())) != 0))
      return Invalid("{}: tensor '{}' differs from the embedding, but config.json sets tie_word_embeddings",
                     source_.where(), name);
    head = embedding;
    return Ok();
  }

  Status RefuseExtras() const {
    for (const StoredTensor& tensor : source_.tensors()) {
      if (used_.count(&tensor) == 0 && !IsExtraTensor(*config_.family, prefix_, tensor.name, source_.naming()))
        return Unsupported("{}: tensor {} of shape {} is unknown in the {} model that {} describes", tensor.path,
                           Quoted(tensor.name), FormatShape(tensor.shape), config_.family->name, Description());
    }
    return Ok();
  }

  const TensorSource& source_;
  const ModelConfig& config_;
  WeightStorage& storage_;
  std::string_view prefix_;
  std::unordered_set<const StoredTensor*> used_;
  std::array<ConstTensor, 2> constants_;  // zeros and ones, f32; null until needed
  std::byte* block_next_ = nullptr;       // free part of the last vector block
  size_t block_left_ = 0;
};

}  // namespace

int64_t WeightViews::TotalBytes() const {
  int64_t total = 0;
  VisitParameters(*this, [&](const Parameter& parameter, const auto& view) {
    if (parameter.role != WeightRole::kLmHead || !has_tied_head()) total += view.bytes();
  });
  return total;
}

int64_t WeightViews::BytesPerStep() const {
  return TotalBytes() - positions.bytes() - (has_tied_head() ? 0 : embedding.bytes());
}

WeightType WeightViews::DominantType() const {
  std::array<int64_t, kWeightFormats.size()> bytes{};  // by WeightType
  VisitParameters(*this, [&](const Parameter& parameter, const auto& view) {
    if (parameter.role == WeightRole::kLmHead && has_tied_head()) return;
    if (parameter.is_matrix()) bytes[static_cast<size_t>(view.type)] += view.bytes();
  });
  return static_cast<WeightType>(std::max_element(bytes.begin(), bytes.end()) - bytes.begin());
}

int64_t ParameterCount(const ModelConfig& config) {
  int64_t count = 0;
  VisitShapes(config,
              [&](const Parameter&, const ParameterShape& shape) { count += shape.stored ? shape.count() : 0; });
  return count;
}

Result<Weights> LoadWeights(std::unique_ptr<const TensorSource> source, const ModelConfig& config) {
  Weights weights;
  weights.storage = std::make_unique<WeightStorage>();
  weights.storage->source = std::move(source);
  WeightLoader loader(*weights.storage->source, config, *weights.storage);
  RETURN_IF_ERROR(loader.Load(weights));
  return weights;
}

Result<Weights> LoadWeights(const std::string& path, const ModelConfig& config) {
  ASSIGN_OR_RETURN(std::unique_ptr<const TensorSource> source, OpenTensorSource(path));
  return LoadWeights(std::move(source), config);
}

}  // namespace infinigen
