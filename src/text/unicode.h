// UTF-8, by hand, and the few character classes that tokenizers need. Pure functions, any thread.
//
// Malformed text is cut into the "maximal subparts" of the Unicode standard (chapter 3.9): the longest prefix of a
// well-formed character, at least one byte. Each of them is what decoders replace by one U+FFFD.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace infinigen {

struct Utf8Scan {
  size_t length = 0;        // bytes of the character, or of the malformed subpart; at least 1
  bool valid = false;       // a well-formed character
  bool incomplete = false;  // malformed only because the text ends
};

// The unit that starts at `position` < text.size().
Utf8Scan ScanUtf8(std::string_view text, size_t position);

// The code point at `position`, where a well-formed character must start.
char32_t DecodeUtf8(std::string_view text, size_t position);

void AppendUtf8(char32_t code_point, std::string& out);

// Length of the longest well-formed prefix.
size_t ValidUtf8Prefix(std::string_view text);

// Number of bytes at the end that begin a character which more bytes could complete: 0 to 3.
size_t IncompleteUtf8Tail(std::string_view text);

// Each malformed subpart becomes U+FFFD.
std::string ReplaceInvalidUtf8(std::string_view text);

bool IsWhiteSpace(char32_t code_point);  // the property White_Space
bool IsNumeric(char32_t code_point);     // general category N
bool IsWordChar(char32_t code_point);    // letter, mark, number or connector: \w of regular expressions

}  // namespace infinigen
