// Writes GGUF files for tests, valid and broken, byte by byte.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "loader/gguf.h"

namespace infinigen::test {

template <class T>
std::string Raw(T number) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &number, sizeof(T));
  return bytes;
}
inline std::string GgufText(std::string_view text) { return Raw(uint64_t{text.size()}) + std::string(text); }

// A metadata entry with the bytes of its value.
struct GgufKey {
  std::string key;
  GgufValueType type;
  std::string value;
};
inline GgufKey U32(std::string key, uint32_t value) { return {std::move(key), GgufValueType::kUint32, Raw(value)}; }
inline GgufKey F32(std::string key, float value) { return {std::move(key), GgufValueType::kFloat32, Raw(value)}; }
inline GgufKey Bool(std::string key, bool value) { return {std::move(key), GgufValueType::kBool, Raw(uint8_t{value})}; }
inline GgufKey Text(std::string key, std::string_view value) {
  return {std::move(key), GgufValueType::kString, GgufText(value)};
}
inline std::string ArrayHead(GgufValueType element, uint64_t count) {
  return Raw(static_cast<uint32_t>(element)) + Raw(count);
}
inline GgufKey Texts(std::string key, const std::vector<std::string>& values) {
  std::string bytes = ArrayHead(GgufValueType::kString, values.size());
  for (const std::string& value : values) bytes += GgufText(value);
  return {std::move(key), GgufValueType::kArray, std::move(bytes)};
}
inline GgufKey I32s(std::string key, const std::vector<int32_t>& values) {
  std::string bytes = ArrayHead(GgufValueType::kInt32, values.size());
  for (const int32_t value : values) bytes += Raw(value);
  return {std::move(key), GgufValueType::kArray, std::move(bytes)};
}

struct GgufRow {
  std::string name;
  std::vector<uint64_t> dims;  // innermost first, as in the file
  uint32_t type = 0;           // F32
  uint64_t offset = 0;
};

// `data` is the data section.
inline std::string GgufBytes(const std::vector<GgufKey>& keys, const std::vector<GgufRow>& tensors,
                             std::string_view data, uint32_t version = 3, size_t alignment = 32) {
  std::string file = "GGUF" + Raw(version) + Raw(uint64_t{tensors.size()}) + Raw(uint64_t{keys.size()});
  for (const GgufKey& key : keys) file += GgufText(key.key) + Raw(static_cast<uint32_t>(key.type)) + key.value;
  for (const GgufRow& tensor : tensors) {
    file += GgufText(tensor.name) + Raw(static_cast<uint32_t>(tensor.dims.size()));
    for (const uint64_t extent : tensor.dims) file += Raw(extent);
    file += Raw(tensor.type) + Raw(tensor.offset);
  }
  file.append((alignment - file.size() % alignment) % alignment, '\0');
  return file.append(data);
}

}  // namespace infinigen::test
