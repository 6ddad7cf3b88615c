// UTF-8 by hand: scanning, decoding, encoding, and foreign text made fit for a message. Pure functions, any thread.
//
// Malformed text is cut into the "maximal subparts" of the Unicode standard (chapter 3.9): the longest prefix of a
// well-formed character, at least one byte. A decoder replaces each subpart by one U+FFFD.
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

// Foreign text for a message: valid UTF-8 on one line. Control characters, direction marks and malformed bytes are
// written as \xNN. Text of more than `max_bytes` is cut before a character and ends in "…".
std::string Escaped(std::string_view text, size_t max_bytes = 120);
// The same in single quotes.
std::string Quoted(std::string_view text, size_t max_bytes = 120);

}  // namespace infinigen
