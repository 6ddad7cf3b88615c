#include "loader/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/size.h"
#include "base/utf8.h"
#include "json/parse.h"
#include "loader/tensor_source.h"

namespace infinigen {
namespace {

static_assert(std::endian::native == std::endian::little, "tensor bytes are used without conversion");

constexpr size_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the format's own reader
// Together these limit the memory that a hostile header can take to 30 MiB. The largest public models have a few
// thousand tensors with names of less than 100 bytes.
constexpr size_t kMaxTensors = 65536;
constexpr size_t kMaxNameBytes = 256;
constexpr JsonLimits kHeaderLimits = {.max_depth = 16};  // real headers nest three deep

struct FileType {
  std::string_view name;
  uint32_t bits;
};
// All types of the format. The engine computes only with F32, F16 and BF16 (TensorEntry::type).
constexpr FileType kFileTypes[] = {
    {"F32", 32},    {"F16", 16},    {"BF16", 16},       {"F64", 64},       {"I64", 64},    {"I32", 32},
    {"I16", 16},    {"I8", 8},      {"U64", 64},        {"U32", 32},       {"U16", 16},    {"U8", 8},
    {"BOOL", 8},    {"C64", 64},    {"F4", 4},          {"F6_E2M3", 6},    {"F6_E3M2", 6}, {"F8_E5M2", 8},
    {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}};

// {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, …, "__metadata__": {"format": "pt"}}
class HeaderHandler final : public JsonHandler {
 public:
  using JsonHandler::JsonHandler;

  std::vector<TensorEntry> TakeTensors() { return std::move(tensors_); }

  bool Open(bool object) override {
    if (object && where_ == Where::kOutside) return Enter(Where::kTop);
    if (object && where_ == Where::kMetadataValue) return Enter(Where::kMetadata);
    if (object && where_ == Where::kTensorValue) return Enter(Where::kTensor);
    if (!object && where_ == Where::kShapeValue) return Enter(Where::kShape);
    if (!object && where_ == Where::kOffsetsValue) return Enter(Where::kOffsets);
    return JsonHandler::Open(object);
  }
  bool Close(bool object) override {
    if (!object) return FinishNumbers();
    if (where_ == Where::kTop) return Enter(Where::kEnd);
    if (where_ == Where::kMetadata) return Enter(Where::kTop);
    if (where_ != Where::kTensor) return JsonHandler::Close(object);
    return FinishTensor();
  }
  bool Key(std::string& name) override {
    if (where_ == Where::kTop) return StartEntry(name);
    if (where_ == Where::kMetadata) return Enter(Where::kMetadataString);
    if (where_ == Where::kTensor) return StartField(name);
    return JsonHandler::Key(name);
  }
  bool String(std::string& text) override {
    if (where_ == Where::kMetadataString) return Enter(Where::kMetadata);
    if (where_ != Where::kType) return JsonHandler::String(text);
    const auto* type = std::find_if(std::begin(kFileTypes), std::end(kFileTypes),
                                    [&](const FileType& known) { return known.name == text; });
    if (type == std::end(kFileTypes)) return Fail(Invalid("{}: {}: unknown dtype {}", path(), Place(), Quoted(text)));
    tensors_.back().dtype = type->name;
    tensors_.back().element_bits = type->bits;
    return Enter(Where::kTensor);
  }
  bool Scalar(nlohmann::json number) override {
    if (!number.is_number_unsigned()) return JsonHandler::Scalar(number);
    const uint64_t value = number.get<uint64_t>();
    TensorEntry* const tensor = tensors_.empty() ? nullptr : &tensors_.back();
    if (where_ == Where::kShape) {
      if (tensor->rank == kMaxTensorRank)
        return Fail(Invalid("{}: {}: more than {} dimensions are not supported", path(), Place(), kMaxTensorRank));
      if (value > INT64_MAX) return Fail(Invalid("{}: {}: dimension {} overflows 63 bits", path(), Place(), value));
      tensor->extents[tensor->rank++] = static_cast<int64_t>(value);
      return true;
    }
    if (where_ != Where::kOffsets) return JsonHandler::Scalar(number);
    if (offsets_seen_ == 2)
      return Fail(Invalid("{}: {}: more than two numbers; expected [begin, end]", path(), Place()));
    (offsets_seen_++ == 0 ? tensor->begin : tensor->end) = value;
    return true;
  }

 protected:
  std::string Place() const override {
    switch (where_) {
      case Where::kOutside:
      case Where::kTop:
      case Where::kEnd:
        return "header";
      case Where::kMetadataValue:
      case Where::kMetadata:
      case Where::kMetadataString:
        return "header, __metadata__";
      case Where::kTensorValue:
      case Where::kTensor:
        return fmt::format("tensor {}", Quoted(tensors_.back().name));
      default:
        return fmt::format("tensor {}, field '{}'", Quoted(tensors_.back().name), field_);
    }
  }

 private:
  // The parser's position. k…Value: after a key, before its value.
  enum class Where {
    kOutside,
    kTop,
    kMetadataValue,
    kMetadata,
    kMetadataString,
    kTensorValue,
    kTensor,
    kType,
    kShapeValue,
    kShape,
    kOffsetsValue,
    kOffsets,
    kEnd
  };
  enum Field : unsigned { kTypeField = 1, kShapeField = 2, kOffsetsField = 4, kAllFields = 7 };

  bool Enter(Where where) {
    where_ = where;
    return true;
  }

  bool StartEntry(const std::string& name) {
    if (name == "__metadata__") {
      if (std::exchange(metadata_seen_, true)) return Fail(Invalid("{}: header: '__metadata__' occurs twice", path()));
      return Enter(Where::kMetadataValue);
    }
    if (name.size() > kMaxNameBytes)
      return Fail(Invalid("{}: header: tensor name {} has {} bytes; at most {} are allowed", path(), Quoted(name),
                          name.size(), kMaxNameBytes));
    if (tensors_.size() == kMaxTensors)
      return Fail(Unsupported("{}: header: more than {} tensors are not supported", path(), kMaxTensors));
    tensors_.emplace_back();
    tensors_.back().name = name;
    fields_seen_ = 0;
    offsets_seen_ = 0;
    return Enter(Where::kTensorValue);
  }

  bool StartField(const std::string& name) {
    unsigned field = 0;
    Where next = Where::kType;
    if (name == "dtype") {
      field = kTypeField;
    } else if (name == "shape") {
      field = kShapeField;
      next = Where::kShapeValue;
    } else if (name == "data_offsets") {
      field = kOffsetsField;
      next = Where::kOffsetsValue;
    } else {
      return Fail(Invalid("{}: {}: unknown field {}", path(), Place(), Quoted(name)));
    }
    if ((fields_seen_ & field) != 0) return Fail(Invalid("{}: {}: field '{}' occurs twice", path(), Place(), name));
    fields_seen_ |= field;
    field_ = name;
    return Enter(next);
  }

  bool FinishNumbers() {
    if (where_ == Where::kOffsets && offsets_seen_ != 2)
      return Fail(Invalid("{}: {}: {} of two numbers; expected [begin, end]", path(), Place(), offsets_seen_));
    return Enter(Where::kTensor);
  }

  bool FinishTensor() {
    if (fields_seen_ == kAllFields) return Enter(Where::kTop);
    const char* missing = "data_offsets";
    if ((fields_seen_ & kTypeField) == 0)
      missing = "dtype";
    else if ((fields_seen_ & kShapeField) == 0)
      missing = "shape";
    return Fail(Invalid("{}: {}: field '{}' is missing", path(), Place(), missing));
  }

  Where where_ = Where::kOutside;
  std::vector<TensorEntry> tensors_;  // the last one is being read
  unsigned fields_seen_ = 0;
  int offsets_seen_ = 0;
  bool metadata_seen_ = false;
  std::string field_;
};

// Bytes of the tensor: shape · element size. nullopt when that overflows or is not a whole number of bytes.
std::optional<uint64_t> ShapeBytes(const TensorEntry& tensor) {
  uint64_t bits = tensor.element_bits;
  for (const int64_t extent : tensor.shape()) {
    const std::optional<uint64_t> product = CheckedMul(bits, static_cast<uint64_t>(extent));
    if (!product) return std::nullopt;
    bits = *product;
  }
  if (bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

Status CheckTensor(const TensorEntry& tensor, uint64_t data_bytes, const std::string& path) {
  if (tensor.begin > tensor.end)
    return Invalid("{}: tensor {}: data_offsets [{}, {}]: end is before begin", path, Quoted(tensor.name), tensor.begin,
                   tensor.end);
  if (tensor.end > data_bytes)
    return Invalid("{}: tensor {}: data_offsets [{}, {}] exceed the data section of {} bytes (is the file truncated?)",
                   path, Quoted(tensor.name), tensor.begin, tensor.end, data_bytes);
  const std::optional<uint64_t> bytes = ShapeBytes(tensor);
  if (!bytes)
    return Invalid("{}: tensor {}: the size of shape {} and dtype {} overflows or is not a whole number of bytes", path,
                   Quoted(tensor.name), FormatShape(tensor.shape()), tensor.dtype);
  if (*bytes != tensor.end - tensor.begin)
    return Invalid("{}: tensor {}: data_offsets [{}, {}] span {} bytes, but shape {} and dtype {} need {}", path,
                   Quoted(tensor.name), tensor.begin, tensor.end, tensor.end - tensor.begin,
                   FormatShape(tensor.shape()), tensor.dtype, *bytes);
  return Ok{};
}

// Every byte of the data section belongs to exactly one tensor.
Status CheckTiling(const std::vector<TensorEntry>& tensors, uint64_t data_bytes, const std::string& path) {
  std::vector<uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return std::pair(tensors[a].begin, tensors[a].end) < std::pair(tensors[b].begin, tensors[b].end);
  });
  uint64_t reached = 0;
  for (const uint32_t index : order) {
    const TensorEntry& tensor = tensors[index];
    if (tensor.begin < reached)
      return Invalid("{}: tensor {}: data_offsets [{}, {}] overlap the previous tensor, which ends at {}", path,
                     Quoted(tensor.name), tensor.begin, tensor.end, reached);
    if (tensor.begin > reached)
      return Invalid(
          "{}: tensor {}: starts at byte {} of the data section, after a gap of {} bytes that belong to no tensor",
          path, Quoted(tensor.name), tensor.begin, tensor.begin - reached);
    reached = tensor.end;
  }
  if (reached != data_bytes)
    return Invalid("{}: {} bytes after the last tensor belong to no tensor", path, data_bytes - reached);
  return Ok{};
}

Result<std::string_view> HeaderText(std::span<const std::byte> file, const std::string& path) {
  if (file.size() < kLengthBytes)
    return Invalid("{}: file of {} bytes is too short: a safetensors file starts with the header's length in 8 bytes",
                   path, file.size());
  uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  if (length > kMaxHeaderBytes)
    return Invalid("{}: header length is {} bytes, more than the allowed {} (is this a safetensors file?)", path,
                   length, kMaxHeaderBytes);
  if (length > file.size() - kLengthBytes)
    return Invalid("{}: header length is {} bytes, but only {} bytes follow (is the file truncated?)", path, length,
                   file.size() - kLengthBytes);
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes, length);
  if (text.empty() || text[0] != '{')
    return Invalid("{}: the header at byte 8 does not start with '{{' (is this a safetensors file?)", path);
  return text;
}

}  // namespace

std::optional<WeightType> TensorEntry::type() const {
  if (dtype == "F32") return WeightType::kF32;
  if (dtype == "F16") return WeightType::kF16;
  if (dtype == "BF16") return WeightType::kBF16;
  return std::nullopt;
}

Result<std::vector<TensorEntry>> ParseSafetensorsHeader(std::span<const std::byte> file, const std::string& path,
                                                        size_t* data_begin) {
  ASSIGN_OR_RETURN(const std::string_view text, HeaderText(file, path));
  HeaderHandler handler(path);
  RETURN_IF_ERROR(ParseJsonEvents(text, kHeaderLimits, handler, kLengthBytes));
  std::vector<TensorEntry> tensors = handler.TakeTensors();
  std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; });
  const auto twice = std::adjacent_find(tensors.begin(), tensors.end(),
                                        [](const TensorEntry& a, const TensorEntry& b) { return a.name == b.name; });
  if (twice != tensors.end()) return Invalid("{}: tensor {} occurs twice", path, Quoted(twice->name));
  *data_begin = kLengthBytes + text.size();
  const uint64_t data_bytes = file.size() - *data_begin;
  for (const TensorEntry& tensor : tensors) RETURN_IF_ERROR(CheckTensor(tensor, data_bytes, path));
  RETURN_IF_ERROR(CheckTiling(tensors, data_bytes, path));
  return tensors;
}

Result<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  ASSIGN_OR_RETURN(MmapFile file, MmapFile::Open(path));
  size_t data_begin = 0;
  ASSIGN_OR_RETURN(std::vector<TensorEntry> tensors, ParseSafetensorsHeader(file.bytes(), path, &data_begin));
  return SafetensorsFile(std::move(file), std::move(tensors), data_begin);
}

const TensorEntry* SafetensorsFile::Find(std::string_view name) const {
  const auto found =
      std::lower_bound(tensors_.begin(), tensors_.end(), name,
                       [](const TensorEntry& tensor, std::string_view wanted) { return tensor.name < wanted; });
  return found != tensors_.end() && found->name == name ? &*found : nullptr;
}

std::span<const std::byte> SafetensorsFile::Data(const TensorEntry& tensor) const {
  DCHECK(data_begin_ + tensor.end <= file_.bytes().size());
  return file_.bytes().subspan(data_begin_ + tensor.begin, tensor.end - tensor.begin);
}

}  // namespace infinigen
