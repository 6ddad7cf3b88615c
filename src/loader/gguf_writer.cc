#include "loader/gguf_writer.h"

#include "base/check.h"

namespace infinigen {
namespace {

constexpr uint64_t kWriterAlignment = 32;
constexpr uint64_t kHeaderBytes = 24;  // magic, version, two counts

template <class T>
void AppendRaw(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

void AppendText(std::string& out, std::string_view text) {
  AppendRaw(out, static_cast<uint64_t>(text.size()));
  out.append(text);
}

uint64_t Aligned(uint64_t bytes) { return (bytes + kWriterAlignment - 1) / kWriterAlignment * kWriterAlignment; }

}  // namespace

void GgufWriter::AddKey(std::string_view key, GgufValueType type) {
  ++entries_;
  AppendText(metadata_, key);
  AppendRaw(metadata_, static_cast<uint32_t>(type));
}

void GgufWriter::AddUint32(std::string_view key, uint32_t value) {
  AddKey(key, GgufValueType::kUint32);
  AppendRaw(metadata_, value);
}
void GgufWriter::AddFloat(std::string_view key, float value) {
  AddKey(key, GgufValueType::kFloat32);
  AppendRaw(metadata_, value);
}
void GgufWriter::AddBool(std::string_view key, bool value) {
  AddKey(key, GgufValueType::kBool);
  AppendRaw(metadata_, static_cast<uint8_t>(value));
}
void GgufWriter::AddString(std::string_view key, std::string_view value) {
  AddKey(key, GgufValueType::kString);
  AppendText(metadata_, value);
}
void GgufWriter::AddStrings(std::string_view key, std::span<const std::string> values) {
  AddKey(key, GgufValueType::kArray);
  AppendRaw(metadata_, static_cast<uint32_t>(GgufValueType::kString));
  AppendRaw(metadata_, static_cast<uint64_t>(values.size()));
  for (const std::string& value : values) AppendText(metadata_, value);
}
void GgufWriter::AddFloats(std::string_view key, std::span<const float> values) {
  AddKey(key, GgufValueType::kArray);
  AppendRaw(metadata_, static_cast<uint32_t>(GgufValueType::kFloat32));
  AppendRaw(metadata_, static_cast<uint64_t>(values.size()));
  for (const float value : values) AppendRaw(metadata_, value);
}
void GgufWriter::AddInt32s(std::string_view key, std::span<const int32_t> values) {
  AddKey(key, GgufValueType::kArray);
  AppendRaw(metadata_, static_cast<uint32_t>(GgufValueType::kInt32));
  AppendRaw(metadata_, static_cast<uint64_t>(values.size()));
  for (const int32_t value : values) AppendRaw(metadata_, value);
}

void GgufWriter::AddCopy(const GgufEntry& entry) {
  AddKey(entry.key, entry.value.type);
  if (entry.value.type == GgufValueType::kString) return AppendText(metadata_, entry.value.bytes);
  if (entry.value.type == GgufValueType::kArray) {
    AppendRaw(metadata_, static_cast<uint32_t>(entry.value.element));
    AppendRaw(metadata_, entry.value.count);
  }
  metadata_.append(entry.value.bytes);
}

void GgufWriter::AddTensor(std::string_view name, std::span<const int64_t> shape, WeightType type) {
  CHECK(!shape.empty() && shape.size() <= kMaxGgufRank && !file_.begun());
  const GgufTensorType& stored = GgufTensorTypeOf(type);
  CHECK(shape.back() % stored.block_numbers == 0);
  uint64_t bytes = static_cast<uint64_t>(shape.back()) / stored.block_numbers * stored.block_bytes;
  for (const int64_t extent : shape.first(shape.size() - 1)) bytes *= static_cast<uint64_t>(extent);
  const uint64_t offset = Aligned(data_bytes_);
  AppendText(table_, name);
  AppendRaw(table_, static_cast<uint32_t>(shape.size()));
  for (size_t i = shape.size(); i-- > 0;) AppendRaw(table_, static_cast<uint64_t>(shape[i]));
  AppendRaw(table_, stored.id);
  AppendRaw(table_, offset);
  tensors_.push_back({offset, bytes});
  data_bytes_ = offset + bytes;
}

uint64_t GgufWriter::file_bytes() const {
  return Aligned(kHeaderBytes + metadata_.size() + table_.size()) + Aligned(data_bytes_);
}

Status GgufWriter::Begin() {
  RETURN_IF_ERROR(file_.Begin(file_bytes()));
  std::string header = "GGUF";
  AppendRaw(header, uint32_t{3});
  AppendRaw(header, static_cast<uint64_t>(tensors_.size()));
  AppendRaw(header, entries_);
  header += metadata_ + table_;
  header.resize(Aligned(header.size()), '\0');
  return file_.Append(header);
}

Status GgufWriter::Write(std::span<const std::byte> bytes) {
  CHECK(file_.begun() && current_ < tensors_.size());
  const Tensor& tensor = tensors_[current_];
  CHECK(bytes.size() <= tensor.bytes - current_bytes_);
  RETURN_IF_ERROR(file_.Append({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
  current_bytes_ += bytes.size();
  if (current_bytes_ < tensor.bytes) return Ok();
  ++current_;
  current_bytes_ = 0;
  return file_.Append(std::string(Aligned(tensor.bytes) - tensor.bytes, '\0'));
}

Status GgufWriter::Finish() {
  CHECK(file_.begun() && current_ == tensors_.size());
  return file_.Finish();
}

}  // namespace infinigen
