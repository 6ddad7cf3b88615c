// The character class and the byte-level alphabet that tokenizers use; base/utf8.h has UTF-8 itself. Pure functions,
// any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/utf8.h"

namespace infinigen {

// Letter, mark, number or connector: \w of regular expressions.
bool IsWordChar(char32_t code_point);

// Vocabulary files of byte-level BPE write each byte as one printable character: bytes that are printable in Latin-1 as
// that character, the other 68 as U+0100 to U+0143, in order ("Ġ" is the space).
char32_t ByteLevelChar(uint8_t byte);
std::optional<uint8_t> ByteOfByteLevelChar(char32_t code_point);

// Appends the characters of `bytes`.
void AppendByteLevel(std::string_view bytes, std::string& out);

// The bytes of a token's text; nullopt when one of its characters does not represent a byte.
std::optional<std::string> BytesOfByteLevel(std::string_view token);

}  // namespace infinigen
