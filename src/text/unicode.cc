#include "text/unicode.h"

#include <utf8proc.h>

#include <array>

namespace infinigen {
namespace {

constexpr bool IsPrintableLatin1(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

constexpr int kShifted = 68;  // number of bytes that are not printable in Latin-1

struct Tables {
  std::array<char32_t, 256> char_of_byte{};
  std::array<int16_t, 256 + kShifted> byte_of_char{};  // -1: the character does not represent a byte

  constexpr Tables() {
    for (int16_t& byte : byte_of_char) byte = -1;
    char32_t next = 256;
    for (int byte = 0; byte < 256; ++byte) {
      const char32_t c = IsPrintableLatin1(byte) ? static_cast<char32_t>(byte) : next++;
      char_of_byte[static_cast<size_t>(byte)] = c;
      byte_of_char[c] = static_cast<int16_t>(byte);
    }
  }
};

constexpr Tables kByteTables;

}  // namespace

bool IsWordChar(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      // Join controls and circled letters are alphabetic, but their general category is not letter.
      return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
             (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
  }
}

char32_t ByteLevelChar(uint8_t byte) { return kByteTables.char_of_byte[byte]; }

std::optional<uint8_t> ByteOfByteLevelChar(char32_t code_point) {
  if (code_point >= kByteTables.byte_of_char.size() || kByteTables.byte_of_char[code_point] < 0) return std::nullopt;
  return static_cast<uint8_t>(kByteTables.byte_of_char[code_point]);
}

void AppendByteLevel(std::string_view bytes, std::string& out) {
  for (const char byte : bytes) AppendUtf8(ByteLevelChar(static_cast<uint8_t>(byte)), out);
}

std::optional<std::string> BytesOfByteLevel(std::string_view token) {
  std::string bytes;
  bytes.reserve(token.size());
  for (size_t position = 0; position < token.size();) {
    const Utf8Scan scan = ScanUtf8(token, position);
    if (!scan.valid) return std::nullopt;
    const std::optional<uint8_t> byte = ByteOfByteLevelChar(DecodeUtf8(token, position));
    if (!byte) return std::nullopt;
    bytes += static_cast<char>(*byte);
    position += scan.length;
  }
  return bytes;
}

}  // namespace infinigen
