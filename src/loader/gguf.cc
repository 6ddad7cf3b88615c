#include "loader/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/size.h"
#include "base/utf8.h"
#include "loader/tensor_source.h"

namespace infinigen {
namespace {

static_assert(std::endian::native == std::endian::little, "tensor bytes are used without conversion");

constexpr std::string_view kMagic = "GGUF";
// Published files have below 100 entries and a few thousand tensors, with names below 100 bytes.
constexpr uint64_t kMaxGgufTensors = 65536;
constexpr uint64_t kMaxGgufEntries = 65536;
constexpr uint64_t kMaxGgufKeyBytes = 1024;
constexpr uint64_t kMaxGgufNameBytes = 256;
constexpr int kMaxArrayDepth = 4;  // no published key nests arrays
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxAlignment = 1 << 20;

uint64_t ScalarBytes(GgufValueType type) {
  switch (type) {
    case GgufValueType::kUint8:
    case GgufValueType::kInt8:
    case GgufValueType::kBool:
      return 1;
    case GgufValueType::kUint16:
    case GgufValueType::kInt16:
      return 2;
    case GgufValueType::kUint32:
    case GgufValueType::kInt32:
    case GgufValueType::kFloat32:
      return 4;
    case GgufValueType::kUint64:
    case GgufValueType::kInt64:
    case GgufValueType::kFloat64:
      return 8;
    case GgufValueType::kString:
    case GgufValueType::kArray:
      return 0;
  }
  CHECK(false);
}

// Reads the header from front to back. The first error is kept and every later read returns nothing, so that callers
// check once for each entry.
class HeaderReader {
 public:
  HeaderReader(std::span<const std::byte> file, const std::string& path)
      : file_(reinterpret_cast<const char*>(file.data()), file.size()), path_(path) {}

  uint64_t position() const { return at_; }
  uint64_t left() const { return file_.size() - at_; }
  bool failed() const { return error_.has_value(); }
  Error error() const { return *error_; }

  void Fail(Error error) {
    if (!error_) error_ = std::move(error);
  }

  template <class T>
  T Number(std::string_view what) {
    T value{};
    if (const std::string_view bytes = Take(sizeof(T), what); !bytes.empty())
      std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }
  // Empty after an error.
  std::string_view Take(uint64_t bytes, std::string_view what) {
    if (error_) return {};
    if (bytes > left()) {
      Fail(Invalid("{}: {} at byte {}: needs {} bytes, but only {} are left (is the file truncated?)", path_, what, at_,
                   bytes, left()));
      return {};
    }
    const std::string_view taken = file_.substr(at_, bytes);
    at_ += bytes;
    return taken;
  }
  std::string_view String(uint64_t limit, std::string_view what) {
    const uint64_t start = at_;
    const auto length = Number<uint64_t>(what);
    if (!error_ && length > limit)
      Fail(Invalid("{}: {} at byte {} has {} bytes; at most {} are allowed", path_, what, start, length, limit));
    return Take(length, what);
  }

  GgufEntry Entry();
  GgufTensor Tensor();

 private:
  GgufValueType ValueType();
  GgufValue Value(GgufValueType type, int depth);
  GgufValue Array(int depth);

  std::string_view file_;
  const std::string& path_;
  uint64_t at_ = 0;
  std::string what_;  // the entry that is being read, for messages
  std::optional<Error> error_;
};

GgufEntry HeaderReader::Entry() {
  GgufEntry entry;
  entry.offset = at_;
  entry.key = String(kMaxGgufKeyBytes, "metadata key");
  if (!error_ && entry.key.empty()) Fail(Invalid("{}: the metadata key at byte {} is empty", path_, entry.offset));
  if (error_) return entry;
  what_ = fmt::format("metadata key {}", Quoted(entry.key));
  entry.value = Value(ValueType(), 0);
  return entry;
}

GgufValueType HeaderReader::ValueType() {
  const uint64_t start = at_;
  const auto number = Number<uint32_t>(what_);
  if (number > static_cast<uint32_t>(GgufValueType::kFloat64))
    Fail(Invalid("{}: {} at byte {}: unknown value type {}", path_, what_, start, number));
  return error_ ? GgufValueType::kUint8 : static_cast<GgufValueType>(number);
}

GgufValue HeaderReader::Value(GgufValueType type, int depth) {
  if (type == GgufValueType::kArray) return Array(depth);
  GgufValue value{.type = type};
  const uint64_t start = at_;
  value.bytes = type == GgufValueType::kString ? String(UINT64_MAX, what_) : Take(ScalarBytes(type), what_);
  if (!error_ && type == GgufValueType::kBool && static_cast<uint8_t>(value.bytes[0]) > 1)
    Fail(Invalid("{}: {} at byte {}: a bool must be 0 or 1, not {}", path_, what_, start,
                 static_cast<uint8_t>(value.bytes[0])));
  return value;
}

GgufValue HeaderReader::Array(int depth) {
  GgufValue value{.type = GgufValueType::kArray};
  const uint64_t start = at_;
  value.element = ValueType();
  value.count = Number<uint64_t>(what_);
  const uint64_t begin = at_;
  if (depth == kMaxArrayDepth)
    Fail(Unsupported("{}: {} at byte {}: arrays nested more than {} deep are not supported", path_, what_, start,
                     kMaxArrayDepth));
  if (error_) return value;
  if (const uint64_t size = ScalarBytes(value.element); size != 0) {
    const std::optional<uint64_t> bytes = CheckedMul(value.count, size);
    if (!bytes || *bytes > left()) {
      Fail(Invalid("{}: {} at byte {}: {} elements of type {} need more than the {} bytes that are left", path_, what_,
                   start, value.count, Name(value.element), left()));
      return value;
    }
    value.bytes = Take(*bytes, what_);
    if (value.element == GgufValueType::kBool)
      for (const char byte : value.bytes)
        if (static_cast<uint8_t>(byte) > 1) Fail(Invalid("{}: {}: a bool must be 0 or 1", path_, what_));
    return value;
  }
  // Each string has at least 8 bytes and each array 12, so a huge count ends at the end of the file.
  for (uint64_t i = 0; i < value.count && !error_; ++i) Value(value.element, depth + 1);
  value.bytes = error_ ? std::string_view() : file_.substr(begin, at_ - begin);
  return value;
}

GgufTensor HeaderReader::Tensor() {
  GgufTensor tensor;
  const uint64_t start = at_;
  tensor.name = String(kMaxGgufNameBytes, "tensor name");
  if (!error_ && tensor.name.empty()) Fail(Invalid("{}: the tensor name at byte {} is empty", path_, start));
  if (error_) return tensor;
  const std::string what = fmt::format("tensor {}", Quoted(tensor.name));
  tensor.rank = Number<uint32_t>(what);
  if (!error_ && (tensor.rank == 0 || tensor.rank > kMaxGgufRank)) {
    Fail(Invalid("{}: {}: {} dimensions; expected 1 to {}", path_, what, tensor.rank, kMaxGgufRank));
    tensor.rank = 0;
  }
  for (uint32_t i = 0; i < tensor.rank && !error_; ++i) {
    const auto extent = Number<uint64_t>(what);
    if (!error_ && (extent == 0 || extent > static_cast<uint64_t>(INT64_MAX)))
      Fail(Invalid("{}: {}: dimension {} is {}", path_, what, i, extent));
    tensor.extents[tensor.rank - 1 - i] = static_cast<int64_t>(extent);
  }
  const auto type = Number<uint32_t>(what);
  tensor.offset = Number<uint64_t>(what);
  tensor.type = FindGgufTensorType(type);
  if (error_ || tensor.type != nullptr) return tensor;
  if (const std::string_view withdrawn = WithdrawnGgufType(type); !withdrawn.empty())
    Fail(Unsupported("{}: {}: the type {} ({}) was withdrawn from GGUF; convert the model again", path_, what,
                     withdrawn, type));
  else
    Fail(Invalid("{}: {}: unknown tensor type {}", path_, what, type));
  return tensor;
}

Status CheckVersion(uint32_t version, const std::string& path) {
  if (version == 2 || version == 3) return Ok();
  if (version == 1) return Unsupported("{}: GGUF version 1 is not supported; supported are 2 and 3", path);
  if (const uint32_t swapped = __builtin_bswap32(version); swapped >= 1 && swapped <= 3)
    return Unsupported("{}: a big-endian GGUF file (version {}) is not supported; convert it to little-endian", path,
                       swapped);
  return Unsupported("{}: GGUF version {} is not supported; supported are 2 and 3", path, version);
}

Result<uint64_t> AlignmentOf(const GgufMetadata& metadata) {
  constexpr std::string_view kKey = "general.alignment";
  ASSIGN_OR_RETURN(const std::optional<uint64_t> stated, metadata.Unsigned(kKey));
  const uint64_t alignment = stated.value_or(kDefaultAlignment);
  if (!std::has_single_bit(alignment) || alignment > kMaxAlignment)
    return metadata.Mismatch(kKey, fmt::format("a power of two up to {}", kMaxAlignment));
  return alignment;
}

// Sets tensor.bytes.
Status CheckTensor(GgufTensor& tensor, uint64_t alignment, uint64_t data_bytes, const std::string& path) {
  const GgufTensorType& type = *tensor.type;
  const auto row = static_cast<uint64_t>(tensor.extents[tensor.rank - 1]);
  if (row % type.block_numbers != 0)
    return Invalid("{}: tensor {}: a row of {} numbers is not a whole number of {} blocks (of {} numbers each)", path,
                   Quoted(tensor.name), row, type.name, type.block_numbers);
  std::optional<uint64_t> bytes = CheckedMul(row / type.block_numbers, type.block_bytes);
  for (uint32_t i = 0; bytes && i + 1 < tensor.rank; ++i)
    bytes = CheckedMul(*bytes, static_cast<uint64_t>(tensor.extents[i]));
  if (!bytes)
    return Invalid("{}: tensor {}: the size of shape {} and type {} overflows", path, Quoted(tensor.name),
                   FormatShape(tensor.shape()), type.name);
  const std::optional<uint64_t> end = CheckedAdd(tensor.offset, *bytes);
  if (!end)
    return Invalid("{}: tensor {}: {} bytes at the offset {} end beyond 64 bits", path, Quoted(tensor.name), *bytes,
                   tensor.offset);
  if (tensor.offset % alignment != 0)
    return Invalid("{}: tensor {}: offset {} is not a multiple of the alignment {}", path, Quoted(tensor.name),
                   tensor.offset, alignment);
  if (*end > data_bytes)
    return Invalid("{}: tensor {}: bytes {} to {} exceed the data section of {} bytes (is the file truncated?)", path,
                   Quoted(tensor.name), tensor.offset, *end, data_bytes);
  tensor.bytes = *bytes;
  return Ok();
}

// No byte of the data section belongs to two tensors. Gaps are allowed: writers pad.
Status CheckOverlap(const std::vector<GgufTensor>& tensors, const std::string& path) {
  std::vector<uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return tensors[a].offset < tensors[b].offset; });
  for (size_t i = 1; i < order.size(); ++i) {
    const GgufTensor& before = tensors[order[i - 1]];
    const GgufTensor& tensor = tensors[order[i]];
    if (tensor.offset < before.offset + before.bytes)
      return Invalid("{}: tensor {}: starts at byte {} of the data section, inside tensor {}, which ends at {}", path,
                     Quoted(tensor.name), tensor.offset, Quoted(before.name), before.offset + before.bytes);
  }
  return Ok();
}

Status SortByName(std::vector<GgufTensor>& tensors, const std::string& path) {
  std::sort(tensors.begin(), tensors.end(), [](const GgufTensor& a, const GgufTensor& b) { return a.name < b.name; });
  const auto twice = std::adjacent_find(tensors.begin(), tensors.end(),
                                        [](const GgufTensor& a, const GgufTensor& b) { return a.name == b.name; });
  if (twice != tensors.end()) return Invalid("{}: tensor {} occurs twice", path, Quoted(twice->name));
  return Ok();
}

}  // namespace

Result<GgufHeader> ParseGguf(std::span<const std::byte> file, const std::string& path) {
  HeaderReader reader(file, path);
  if (reader.Take(kMagic.size(), "the magic GGUF") != kMagic)
    return Invalid("{}: does not start with '{}' (is this a GGUF file?)", path, kMagic);
  GgufHeader header;
  header.version = reader.Number<uint32_t>("the GGUF version");
  if (reader.failed()) return reader.error();
  RETURN_IF_ERROR(CheckVersion(header.version, path));
  const auto tensor_count = reader.Number<uint64_t>("number of tensors");
  const auto entry_count = reader.Number<uint64_t>("number of metadata entries");
  if (reader.failed()) return reader.error();
  if (tensor_count > kMaxGgufTensors || entry_count > kMaxGgufEntries)
    return Invalid("{}: the header states {} tensors and {} metadata entries; at most {} and {} are supported", path,
                   tensor_count, entry_count, kMaxGgufTensors, kMaxGgufEntries);

  std::vector<GgufEntry> entries;
  for (uint64_t i = 0; i < entry_count; ++i) {
    entries.push_back(reader.Entry());
    if (reader.failed()) return reader.error();
  }
  ASSIGN_OR_RETURN(header.metadata, GgufMetadata::Make(path, std::move(entries)));
  for (uint64_t i = 0; i < tensor_count; ++i) {
    header.tensors.push_back(reader.Tensor());
    if (reader.failed()) return reader.error();
  }
  ASSIGN_OR_RETURN(const uint64_t alignment, AlignmentOf(header.metadata));
  const uint64_t padding = (alignment - reader.position() % alignment) % alignment;
  header.data_begin = reader.position() + std::min(padding, reader.left());
  const uint64_t data_bytes = file.size() - header.data_begin;
  for (GgufTensor& tensor : header.tensors) RETURN_IF_ERROR(CheckTensor(tensor, alignment, data_bytes, path));
  RETURN_IF_ERROR(SortByName(header.tensors, path));
  RETURN_IF_ERROR(CheckOverlap(header.tensors, path));
  return header;
}

Result<GgufFile> GgufFile::Open(const std::string& path) {
  ASSIGN_OR_RETURN(MmapFile file, MmapFile::Open(path));
  ASSIGN_OR_RETURN(GgufHeader header, ParseGguf(file.bytes(), path));
  return GgufFile(std::move(file), std::move(header));
}

}  // namespace infinigen
