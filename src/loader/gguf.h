// GgufFile: one mapped GGUF file (version 2 or 3, little-endian) whose header is fully checked: metadata and tensor
// table. Move-only; spans, string views and values from it survive a move and are valid as long as the object lives.
// Read-only after Open, so any thread may use it.
//
// The format: magic "GGUF", version, number of tensors, number of metadata entries; the entries (key, type, value); the
// tensor table (name, dimensions, type, offset); padding; the data section. Nothing is allocated by a number in the
// file before the file has shown as many bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mmap_file.h"
#include "base/result.h"
#include "tensor/weight_view.h"

namespace infinigen {

// ---- tensor types ----

// A tensor type of the format. The table has every type in use, so that messages can name it.
struct GgufTensorType {
  uint32_t id;
  std::string_view name;  // "Q4_K"
  uint32_t block_numbers;
  uint32_t block_bytes;
  bool is_weight;  // numbers of a model, not indices or doubles
};
const GgufTensorType* FindGgufTensorType(uint32_t id);  // null if unknown
// The name of a type that the format has withdrawn; empty for other numbers.
std::string_view WithdrawnGgufType(uint32_t id);
// The stored type with the same name; nullopt if the engine cannot compute with it.
std::optional<WeightType> WeightTypeOf(const GgufTensorType& type);
const GgufTensorType& GgufTensorTypeOf(WeightType type);

// ---- metadata ----

enum class GgufValueType : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
};
std::string_view Name(GgufValueType type);

// A checked metadata value: a view into the file.
struct GgufValue {
  GgufValueType type = GgufValueType::kUint8;
  GgufValueType element = GgufValueType::kUint8;  // kArray: type of its elements
  uint64_t count = 0;                             // kArray: number of elements
  std::string_view bytes = {};                    // scalar: its bytes; string: its text; array: all elements

  bool is_array_of(GgufValueType wanted) const { return type == GgufValueType::kArray && element == wanted; }

  // nullopt if the value is of another kind. Unsigned and Signed accept every integer type, Number every number type.
  std::optional<bool> AsBool() const;
  std::optional<uint64_t> AsUnsigned() const;
  std::optional<int64_t> AsSigned() const;
  std::optional<double> AsNumber() const;
  std::optional<std::string_view> AsString() const;
  // The elements of an array of strings, of integers or of numbers; nullopt if it is not one.
  std::optional<std::vector<std::string_view>> AsStrings() const;
  std::optional<std::vector<int64_t>> AsIntegers() const;
  std::optional<std::vector<float>> AsFloats() const;

  // The value on one line, for messages and `inspect`; long strings and arrays are shortened.
  std::string Shown() const;
};

struct GgufEntry {
  std::string_view key;
  uint64_t offset = 0;  // of the key in the file, for messages
  GgufValue value;
};

// Most elements of an array that GgufMetadata converts: four times the largest published vocabulary.
inline constexpr uint64_t kMaxGgufElements = uint64_t{1} << 20;

// The metadata of a file. A missing key is nullopt; a value of a wrong kind is an error that names file and key.
class GgufMetadata {
 public:
  GgufMetadata() = default;
  // Fails if a key occurs twice.
  static Result<GgufMetadata> Make(std::string path, std::vector<GgufEntry> entries);

  const std::string& path() const { return path_; }
  std::span<const GgufEntry> entries() const { return entries_; }  // in the order of the file
  const GgufValue* Find(std::string_view key) const;               // null if not found

  Result<std::optional<bool>> Bool(std::string_view key) const;
  Result<std::optional<uint64_t>> Unsigned(std::string_view key) const;
  Result<std::optional<double>> Number(std::string_view key) const;  // finite
  // A token id. Some writers store -1, signed or unsigned, for a token that does not exist: nullopt, as for every
  // number that is no 31-bit id.
  Result<std::optional<int64_t>> TokenId(std::string_view key) const;
  Result<std::optional<std::string_view>> String(std::string_view key) const;
  Result<std::optional<std::vector<std::string_view>>> Strings(std::string_view key) const;
  Result<std::optional<std::vector<int64_t>>> Integers(std::string_view key) const;
  Result<std::optional<std::vector<float>>> Floats(std::string_view key) const;

  // "FILE: metadata key 'KEY' is VALUE, expected `expected`".
  Error Mismatch(std::string_view key, std::string_view expected) const;

 private:
  std::string path_;
  std::vector<GgufEntry> entries_;
  std::vector<uint32_t> by_key_;  // indices of entries_, sorted by key
};

// ---- file ----

inline constexpr size_t kMaxGgufRank = 4;

struct GgufTensor {
  std::string_view name;
  const GgufTensorType* type = nullptr;
  uint32_t rank = 0;
  std::array<int64_t, kMaxGgufRank> extents{};  // outermost dimension first; the file has the innermost first
  uint64_t offset = 0;                          // bytes from the start of the data section
  uint64_t bytes = 0;

  std::span<const int64_t> shape() const { return {extents.data(), rank}; }
};

struct GgufHeader {
  uint32_t version = 0;
  GgufMetadata metadata;
  std::vector<GgufTensor> tensors;  // sorted by name, names are unique
  uint64_t data_begin = 0;          // offset of the data section in the file
};

// Parses and checks a whole file in memory. `path` is used in messages only. The result points into `file`.
Result<GgufHeader> ParseGguf(std::span<const std::byte> file, const std::string& path);

class GgufFile {
 public:
  static Result<GgufFile> Open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  uint32_t version() const { return header_.version; }
  const GgufMetadata& metadata() const { return header_.metadata; }
  std::span<const GgufTensor> tensors() const { return header_.tensors; }
  std::span<const std::byte> Data(const GgufTensor& tensor) const {
    return file_.bytes().subspan(header_.data_begin + tensor.offset, tensor.bytes);
  }
  void ReadIntoMemory(ThreadPool& threads) const { file_.ReadIntoMemory(threads); }  // see MmapFile

 private:
  GgufFile(MmapFile file, GgufHeader header) : file_(std::move(file)), header_(std::move(header)) {}

  MmapFile file_;
  GgufHeader header_;
};

}  // namespace infinigen
