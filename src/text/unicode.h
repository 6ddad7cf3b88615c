// Character classes of tokenizers, and the byte-level alphabet. UTF-8 itself is in base/utf8.h. Pure functions, any
// thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/utf8.h"

namespace infinigen {

bool IsNumeric(char32_t code_point);   // general category N
bool IsWordChar(char32_t code_point);  // letter, mark, number or connector: \w of regular expressions

// Byte-level BPE writes each byte as one printable character in its vocabulary files: bytes that are printable in
// Latin-1 stand for themselves, the other 68 for U+0100 to U+0143 in order ("Ġ" is the space).
char32_t ByteLevelChar(uint8_t byte);
std::optional<uint8_t> ByteOfByteLevelChar(char32_t code_point);

// Appends the bytes as their characters.
void AppendByteLevel(std::string_view bytes, std::string& out);

// The bytes that a token's text spells; nullopt when one of its characters stands for no byte.
std::optional<std::string> BytesOfByteLevel(std::string_view token);

}  // namespace infinigen
