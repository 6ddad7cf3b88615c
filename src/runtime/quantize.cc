#include "runtime/quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "base/thread_pool.h"
#include "base/utf8.h"
#include "loader/gguf_source.h"
#include "loader/gguf_writer.h"
#include "model/family.h"
#include "runtime/gguf_description.h"
#include "runtime/model.h"
#include "tensor/block_encode.h"
#include "tensor/finite.h"
#include "text/gguf_tokenizer.h"

namespace infinigen {
namespace {

// What a value of --type means.
struct FileType {
  std::string_view name;
  uint32_t number;  // general.file_type
  WeightType matrices;
  WeightType more_bits;  // the output matrix, and some of v and down
};
constexpr FileType kFileTypeTable[] = {
    {"f16", 1, WeightType::kF16, WeightType::kF16},
    {"q8_0", 7, WeightType::kQ8_0, WeightType::kQ8_0},
    {"q4_k_m", 15, WeightType::kQ4_K, WeightType::kQ6_K},
    {"q6_k", 18, WeightType::kQ6_K, WeightType::kQ6_K},
};
constexpr std::string_view kShapePrefix = "shape:";
constexpr uint32_t kQuantizationVersion = 2;         // of the block layouts; the only one in use
constexpr int64_t kChunkNumbers = int64_t{1} << 22;  // numbers that are encoded between two writes

const FileType* FindFileType(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kFileTypeTable), std::end(kFileTypeTable),
                                         [&](const FileType& type) { return type.name == LowerCase(name); });
  return found == std::end(kFileTypeTable) ? nullptr : found;
}

// About half of the layers: the first and last eighth, and every third between.
bool TakesMoreBits(int64_t layer, int64_t layers) {
  return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

bool CanWrite(WeightType type) { return IsPlain(type) || CanEncode(type); }

// Encodes a row into any type that a file may have.
void EncodeStored(WeightType type, std::span<const float> numbers, std::byte* out) {
  if (!IsPlain(type)) return EncodeRow(type, numbers, out);
  for (const float number : numbers) {
    DispatchPlain(type, [&](auto tag) {
      if constexpr (std::is_same_v<decltype(tag), F16>)
        tag = ToF16(number);
      else if constexpr (std::is_same_v<decltype(tag), BF16>)
        tag = ToBF16(number);
      else
        tag = number;
      std::memcpy(out, &tag, sizeof(tag));
      out += sizeof(tag);
    });
  }
}

// A tensor of the output file.
struct OutputTensor {
  std::string name;
  std::vector<WeightView> parts;  // their rows one after the other: several where a family stores roles in one tensor
  bool is_vector = false;         // each part is one row
  WeightType type = WeightType::kF32;
  int64_t paired_heads = 0;  // ≠ 0: rows (of a vector, numbers) of this many heads are reordered
};

class Quantizer {
 public:
  Quantizer(const QuantizeRequest& request, const FileType& type, const Callbacks& callbacks)
      : request_(request), type_(type), callbacks_(callbacks), writer_(request.output), pool_(request.threads) {}

  Result<QuantizeReport> Run() {
    RETURN_IF_ERROR(Open());
    ListTensors();
    for (const OutputTensor& tensor : tensors_)
      if (!CanWrite(tensor.type)) return Unsupported("{}: no encoder writes {}", request_.output, Name(tensor.type));
    RETURN_IF_ERROR(AddMetadata());
    AddTensors();
    RETURN_IF_ERROR(writer_.Begin());
    for (const GgufNumbers& tensor : numbers_) RETURN_IF_ERROR(writer_.Write(std::as_bytes(std::span(tensor.numbers))));
    for (const StoredTensor* extra : extras_) RETURN_IF_ERROR(writer_.Write(extra->bytes));
    for (const OutputTensor& tensor : tensors_) RETURN_IF_ERROR(WriteTensor(tensor));
    RETURN_IF_ERROR(writer_.Finish());
    report_.bytes = writer_.file_bytes();
    return report_;
  }

 private:
  const ModelConfig& config() const { return model_->config; }

  Status Open() {
    if (request_.model.starts_with(kShapePrefix)) {
      const std::string shape = request_.model.substr(kShapePrefix.size());
      ASSIGN_OR_RETURN(const ModelConfig config, ShapeByName(shape));
      RETURN_IF_ERROR(CheckFamily(config, /*describe=*/true));  // before the weights, which take long
      ASSIGN_OR_RETURN(model_, RandomModel(shape, WeightType::kBF16, request_.threads));
    } else {
      ASSIGN_OR_RETURN(const std::string path, FindModel(request_.model, callbacks_));
      ASSIGN_OR_RETURN(model_, OpenModel(path));
      if (LooksLikeGguf(path)) {
        ASSIGN_OR_RETURN(GgufSource source, GgufSource::Open(path));
        gguf_.emplace(std::move(source));
      }
      RETURN_IF_ERROR(CheckFamily(config(), /*describe=*/!gguf_));
      RETURN_IF_ERROR(CheckOutput(path));
    }
    report_.weight_bytes_before = static_cast<uint64_t>(model_->weights.TotalBytes());
    return Ok();
  }

  // `describe`: metadata is written, not copied.
  Status CheckFamily(const ModelConfig& config, bool describe) const {
    if (config.family == nullptr || config.family->gguf == nullptr)
      return Unsupported("{}: models of the family {} cannot be stored as GGUF", request_.model, config.family_name());
    if (!describe) return Ok();
    if (const Status can = CheckDescribable(config); !can.ok())
      return Error{can.error().kind, fmt::format("{}: {}", request_.model, can.error().message)};
    return Ok();
  }

  // Refuses an output that is a file of the model: a part of a split GGUF model, or anything that may be read of a
  // directory. Other GGUF files in a directory are no part of its model.
  Status CheckOutput(const std::string& path) const {
    std::vector<std::string> files;
    if (gguf_) files = gguf_->paths();
    std::error_code error;  // the model was opened: a directory that cannot be listed holds nothing to protect
    if (!gguf_)
      for (std::filesystem::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error))
        if (!HasGgufSuffix(entry->path().string())) files.push_back(entry->path().string());
    for (const std::string& file : files) {
      std::error_code ignored;  // of an output that is not there yet
      if (std::filesystem::equivalent(file, request_.output, ignored))
        return Invalid("{}: the output is a file of the model, {}; pass another name", request_.output, file);
    }
    return Ok();
  }

  // Rotation planes of a GGUF file lie in the order of its family; those of the source in the order of its config.
  bool MustReorder() const {
    return !config().ropes.empty() && config().family->gguf->rope_order == RopeOrder::kPairs &&
           config().ropes.front().order == RopeOrder::kHalves;
  }

  void ListTensors() {
    const WeightViews& views = model_->weights;
    VisitParameters(views, [&](const Parameter& parameter, const auto& view) {
      if (!view || !ExpectedShape(config(), parameter).stored) return;
      std::string name = TensorName(*config().family, "", parameter, TensorNaming::kGguf);
      if (!tensors_.empty() && tensors_.back().name == name) {
        tensors_.back().parts.emplace_back(view);
        return;
      }
      OutputTensor& tensor = tensors_.emplace_back();
      tensor.name = std::move(name);
      tensor.parts.emplace_back(view);
      tensor.is_vector = !parameter.is_matrix();
      if (!tensor.is_vector) tensor.type = QuantizedType(type_.name, config(), parameter, view.cols);
      if (MustReorder() && parameter.role == WeightRole::kQuery) tensor.paired_heads = config().heads;
      if (MustReorder() && parameter.role == WeightRole::kKey) tensor.paired_heads = config().kv_heads;
    });
    if (gguf_) {
      for (const StoredTensor& tensor : gguf_->tensors())
        if (IsExtraTensor(*config().family, "", tensor.name, TensorNaming::kGguf)) extras_.push_back(&tensor);
    } else {
      numbers_ = DescribeRotation(config());
    }
  }

  void AddTensors() {
    for (const GgufNumbers& tensor : numbers_) {
      const int64_t length = std::ssize(tensor.numbers);
      writer_.AddTensor(tensor.name, std::span(&length, 1), WeightType::kF32);
    }
    for (const StoredTensor* extra : extras_) writer_.AddTensor(extra->name, extra->shape, *extra->type);
    for (const OutputTensor& tensor : tensors_) {
      std::vector<int64_t> shape = {tensor.parts[0].cols};
      if (!tensor.is_vector) shape.insert(shape.begin(), 0);
      for (const WeightView& part : tensor.parts)
        if (!tensor.is_vector) shape[0] += part.rows;
      if (tensor.is_vector && tensor.parts.size() > 1)
        for (size_t i = 1; i < tensor.parts.size(); ++i) shape[0] += tensor.parts[i].cols;
      writer_.AddTensor(tensor.name, shape, tensor.type);
      ++report_.tensors[std::string(GgufTensorTypeOf(tensor.type).name)];
    }
  }

  Status AddMetadata() {
    if (gguf_) {
      CopyMetadata(gguf_->metadata());
    } else {
      DescribeModel(config(), writer_);
      RETURN_IF_ERROR(DescribeTokenizer());
    }
    writer_.AddUint32("general.file_type", type_.number);
    if (!IsPlain(type_.matrices)) writer_.AddUint32("general.quantization_version", kQuantizationVersion);
    return Ok();
  }

  void CopyMetadata(const GgufMetadata& metadata) {
    for (const GgufEntry& entry : metadata.entries()) {
      const bool replaced = entry.key == "general.file_type" || entry.key == "general.quantization_version" ||
                            entry.key == "general.alignment" || entry.key.starts_with("split.");
      if (!replaced) writer_.AddCopy(entry);
    }
  }

  Status DescribeTokenizer() {
    if (model_->tokenizer == nullptr) {
      writer_.AddString("tokenizer.ggml.model", "no_vocab");
      return Ok();
    }
    ASSIGN_OR_RETURN(const GgufTokenizerText text, ExportGgufTokenizer(model_->path, config().vocab));
    writer_.AddString("tokenizer.ggml.model", text.model);
    if (!text.pre.empty()) writer_.AddString("tokenizer.ggml.pre", text.pre);
    writer_.AddStrings("tokenizer.ggml.tokens", text.tokens);
    if (!text.scores.empty()) writer_.AddFloats("tokenizer.ggml.scores", text.scores);
    writer_.AddInt32s("tokenizer.ggml.token_type", text.types);
    if (!text.merges.empty()) writer_.AddStrings("tokenizer.ggml.merges", text.merges);
    const auto id = [&](std::string_view name, std::optional<int32_t> value) {
      if (value) writer_.AddUint32(fmt::format("tokenizer.ggml.{}_token_id", name), static_cast<uint32_t>(*value));
    };
    id("bos", text.bos);
    // Generation ends on the ids of generation_config.json; readers know a single one besides those with known names.
    const std::vector<int64_t>& ends = config().eos_ids;
    const bool known = text.eos && std::find(ends.begin(), ends.end(), *text.eos) != ends.end();
    id("eos", ends.empty() || known ? text.eos : static_cast<int32_t>(ends.front()));
    id("unknown", text.unk);
    id("padding", text.pad);
    writer_.AddBool("tokenizer.ggml.add_bos_token", text.add_bos);
    writer_.AddBool("tokenizer.ggml.add_eos_token", text.add_eos);
    writer_.AddBool("tokenizer.ggml.add_space_prefix", text.add_space_prefix);
    if (!text.chat_template.empty()) writer_.AddString("tokenizer.chat_template", text.chat_template);
    return Ok();
  }

  // The source row (or number) that stands at `row` of the output.
  int64_t SourceRow(const OutputTensor& tensor, int64_t row) const {
    if (tensor.paired_heads == 0) return row;
    const int64_t head_dim = config().head_dim, half = config().ropes.front().dims(head_dim) / 2;
    const int64_t in_head = row % head_dim;
    if (in_head >= 2 * half) return row;
    return row - in_head + in_head / 2 + (in_head % 2) * half;
  }

  static constexpr int64_t kNone = INT64_MAX;
  static void Lower(std::atomic<int64_t>& least, int64_t number) {
    int64_t before = least;
    while (number < before && !least.compare_exchange_weak(before, number)) {
    }
  }
  Error NotFinite(const OutputTensor& tensor, const WeightView& from, int64_t number) const {
    return Invalid("{}: tensor '{}' has a number that is not finite at row {}, column {}", request_.model, tensor.name,
                   number / from.cols, number % from.cols);
  }

  Status WriteTensor(const OutputTensor& tensor) {
    for (const WeightView& part : tensor.parts) {
      if (tensor.is_vector) {
        RETURN_IF_ERROR(WriteVector(tensor, part));
      } else {
        RETURN_IF_ERROR(WriteMatrix(tensor, part));
      }
    }
    return Ok();
  }

  Status WriteMatrix(const OutputTensor& tensor, const WeightView& from) {
    const WeightView to(nullptr, tensor.type, from.rows, from.cols);
    const int64_t rows = std::clamp<int64_t>(kChunkNumbers / from.cols, 1, from.rows);
    std::vector<std::byte> chunk;
    std::vector<std::vector<float>> scratch(static_cast<size_t>(pool_.threads()));
    for (int64_t first = 0; first < from.rows; first += rows) {
      const int64_t count = std::min(rows, from.rows - first);
      chunk.resize(static_cast<size_t>(count * to.row_bytes));
      std::atomic<int64_t> broken = kNone, overflowed = kNone;  // number of the tensor
      pool_.Run(count, [&](int64_t row, int thread) {
        std::byte* const out = chunk.data() + row * to.row_bytes;
        const int64_t source = SourceRow(tensor, first + row);
        const int64_t begin = source * from.cols;
        const std::span stored(from.row(source), static_cast<size_t>(from.cols / FormatOf(from.type).block_numbers *
                                                                     FormatOf(from.type).block_bytes));
        if (const auto number = FirstNotFinite(from.type, stored)) return Lower(broken, begin + *number);
        if (from.type == to.type) {
          std::copy_n(from.row(source), to.row_bytes, out);
          return;
        }
        std::vector<float>& numbers = scratch[static_cast<size_t>(thread)];
        numbers.resize(static_cast<size_t>(from.cols));
        DecodeRow(from, source, numbers);
        EncodeStored(to.type, numbers, out);
        if (const auto number = FirstNotFinite(to.type, {out, static_cast<size_t>(to.row_bytes)}))
          Lower(overflowed, begin + *number);
      });
      if (broken != kNone) return NotFinite(tensor, from, broken);
      if (overflowed != kNone)
        return Invalid("{}: tensor '{}' has a number at row {}, from column {} on, that is too large for {}",
                       request_.model, tensor.name, overflowed / from.cols, overflowed % from.cols, Name(to.type));
      RETURN_IF_ERROR(writer_.Write(chunk));
      done_ += count * from.cols;
      callbacks_.Status(fmt::format("{} %, {}", 100 * done_ / ParameterCount(config()), tensor.name));
      if (callbacks_.Cancelled()) return Invalid("{}: interrupted; nothing was written", request_.output);
    }
    return Ok();
  }

  Status WriteVector(const OutputTensor& tensor, const WeightView& from) {
    std::vector<float> numbers(static_cast<size_t>(from.cols)), ordered(numbers.size());
    DecodeRow(from, 0, numbers);
    if (const auto number = FirstNotFinite(WeightType::kF32, std::as_bytes(std::span(numbers))))
      return NotFinite(tensor, from, *number);
    for (size_t i = 0; i < ordered.size(); ++i)
      ordered[i] = numbers[static_cast<size_t>(SourceRow(tensor, static_cast<int64_t>(i)))];
    done_ += from.cols;
    return writer_.Write(std::as_bytes(std::span(ordered)));
  }

  const QuantizeRequest& request_;
  const FileType& type_;
  const Callbacks& callbacks_;
  std::unique_ptr<Model> model_;
  std::optional<GgufSource> gguf_;  // the model's file, if it is one
  std::vector<OutputTensor> tensors_;
  std::vector<const StoredTensor*> extras_;  // of gguf_: tensors without parameters, copied
  std::vector<GgufNumbers> numbers_;         // of a directory: divisors of rotary frequencies
  GgufWriter writer_;
  ThreadPool pool_;
  int64_t done_ = 0;  // numbers written
  QuantizeReport report_;
};

}  // namespace

std::vector<std::string> QuantizeTypes() {
  std::vector<std::string> names;
  for (const FileType& type : kFileTypeTable) names.emplace_back(type.name);
  return names;
}

WeightType QuantizedType(std::string_view type, const ModelConfig& config, const Parameter& parameter, int64_t cols) {
  const FileType* const file = FindFileType(type);
  CHECK(file != nullptr);
  const bool output =
      parameter.role == WeightRole::kLmHead || (parameter.role == WeightRole::kEmbedding && config.tied_embeddings);
  const bool sensitive = parameter.role == WeightRole::kValue || parameter.role == WeightRole::kDown;
  // Where queries, keys and values are one tensor, it has a type between those of its parts in every layer.
  const auto name = [&](WeightRole role) {
    return TensorName(*config.family, "", {.role = role, .layer = parameter.layer}, TensorNaming::kGguf);
  };
  if (parameter.role == WeightRole::kQuery && file->matrices == WeightType::kQ4_K && config.family != nullptr &&
      name(WeightRole::kQuery) == name(WeightRole::kValue))
    return FittingType(WeightType::kQ5_K, cols);
  // An output matrix whose rows are no whole blocks becomes q8_0 in every quantised file.
  if (output && cols % FormatOf(file->matrices).block_numbers != 0) return FittingType(WeightType::kQ8_0, cols);
  const bool more = output || (sensitive && TakesMoreBits(parameter.layer, config.layers));
  return FittingType(more ? file->more_bits : file->matrices, cols);
}

Result<QuantizeReport> Quantize(const QuantizeRequest& request, const Callbacks& callbacks) {
  const FileType* const type = FindFileType(request.type);
  if (type == nullptr)
    return Invalid("'{}' is not a type; known are {}", request.type, fmt::join(QuantizeTypes(), ", "));
  std::error_code ignored;  // of paths that are not there yet
  if (std::filesystem::equivalent(request.model, request.output, ignored))
    return Invalid("{}: the output is the model itself; pass another name", request.output);
  return Quantizer(request, *type, callbacks).Run();
}

}  // namespace infinigen
