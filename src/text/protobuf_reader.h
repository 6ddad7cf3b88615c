// ProtobufReader: walks the fields of one protocol buffer message. Every length is checked against the bytes that are
// left; groups and unknown wire types end in an error.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>

namespace infinigen {

class ProtobufReader {
 public:
  enum class Wire { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

  struct Field {
    uint32_t number = 0;
    Wire wire = Wire::kVarint;
    uint64_t value = 0;      // kVarint, kFixed32, kFixed64
    std::string_view bytes;  // kBytes

    float AsFloat() const { return std::bit_cast<float>(static_cast<uint32_t>(value)); }
  };

  explicit ProtobufReader(std::string_view message) : rest_(message), size_(message.size()) {}

  // Nothing at the end of the message and at the first malformed field.
  std::optional<Field> Next() {
    if (rest_.empty() || malformed_) return std::nullopt;
    Field field;
    uint64_t tag = 0;
    if (!Varint(tag) || tag >> 3 == 0 || tag >> 3 > UINT32_MAX) return Malformed();
    field.number = static_cast<uint32_t>(tag >> 3);
    field.wire = static_cast<Wire>(tag & 7);
    switch (field.wire) {
      case Wire::kVarint:
        if (!Varint(field.value)) return Malformed();
        return field;
      case Wire::kFixed64:
        if (!Fixed(8, field.value)) return Malformed();
        return field;
      case Wire::kFixed32:
        if (!Fixed(4, field.value)) return Malformed();
        return field;
      case Wire::kBytes: {
        uint64_t length = 0;
        if (!Varint(length) || length > rest_.size()) return Malformed();
        field.bytes = rest_.substr(0, length);
        rest_.remove_prefix(length);
        return field;
      }
    }
    return Malformed();
  }

  bool malformed() const { return malformed_; }
  // Bytes read so far.
  size_t offset() const { return size_ - rest_.size(); }

 private:
  std::optional<Field> Malformed() {
    malformed_ = true;
    return std::nullopt;
  }

  bool Varint(uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) return false;
      const uint8_t byte = static_cast<uint8_t>(rest_[0]);
      rest_.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  bool Fixed(size_t bytes, uint64_t& value) {
    if (rest_.size() < bytes) return false;
    value = 0;
    for (size_t i = 0; i < bytes; ++i) value |= static_cast<uint64_t>(static_cast<uint8_t>(rest_[i])) << (8 * i);
    rest_.remove_prefix(bytes);
    return true;
  }

  std::string_view rest_;
  size_t size_;
  bool malformed_ = false;
};

}  // namespace infinigen
