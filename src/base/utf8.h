// UTF-8: scanning, decoding, encoding, and escaping foreign text for messages. Pure functions, any thread.
//
// Malformed text is divided into the "maximal subparts" of the Unicode standard (chapter 3.9): the longest prefix of a
// well-formed character, at least one byte. Decoders replace each subpart by one U+FFFD.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace infinigen {

struct Utf8Scan {
  size_t length = 0;        // bytes of the character or of the malformed subpart; at least 1
  bool valid = false;       // a well-formed character
  bool incomplete = false;  // malformed only because the text ends here
};

// Scans the character or malformed subpart that starts at `position` < text.size().
Utf8Scan ScanUtf8(std::string_view text, size_t position);

// The code point at `position`. Precondition: a well-formed character starts there.
char32_t DecodeUtf8(std::string_view text, size_t position);

void AppendUtf8(char32_t code_point, std::string& out);

// Length of the longest well-formed prefix.
size_t ValidUtf8Prefix(std::string_view text);

// Number of bytes at the end (0 to 3) that begin a character which further bytes could complete.
size_t IncompleteUtf8Tail(std::string_view text);

// Replaces each malformed subpart by U+FFFD.
std::string ReplaceInvalidUtf8(std::string_view text);

bool IsWhiteSpace(char32_t code_point);  // Unicode property White_Space

// Of ASCII letters only.
std::string LowerCase(std::string_view text);
bool EndsWithIgnoringCase(std::string_view text, std::string_view lower_suffix);

// Makes foreign text safe to show in a message: one line of valid UTF-8. Control characters, direction marks and
// malformed bytes become \xNN. Text longer than `max_bytes` is cut between two characters and ends in "…".
std::string Escaped(std::string_view text, size_t max_bytes = 120);
// The same without a limit, for whole messages: line ends and tabs become spaces.
std::string OneLine(std::string_view text);
// Escaped, in single quotes.
std::string Quoted(std::string_view text, size_t max_bytes = 120);

}  // namespace infinigen
