// Byte-level BPE writes each byte as one printable character in its vocabulary files: bytes that are printable in
// Latin-1 stand for themselves, the other 68 for U+0100 to U+0143 in order ("Ġ" is the space). Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace infinigen {

char32_t ByteLevelChar(uint8_t byte);
std::optional<uint8_t> ByteOfByteLevelChar(char32_t code_point);

// Appends the bytes as their characters.
void AppendByteLevel(std::string_view bytes, std::string& out);

// The bytes that a token's text spells; nothing when one of its characters stands for no byte.
std::optional<std::string> BytesOfByteLevel(std::string_view token);

}  // namespace infinigen
