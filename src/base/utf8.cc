#include "base/utf8.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstring>

#include "base/check.h"

namespace infinigen {
namespace {

uint8_t ByteAt(std::string_view text, size_t position) { return static_cast<uint8_t>(text[position]); }

struct LeadByte {
  size_t length;           // bytes of the character; 0 when the byte cannot start one
  uint8_t second_min = 0;  // the range of the second byte excludes overlong forms and surrogates
  uint8_t second_max = 0;
};

LeadByte Classify(uint8_t lead) {
  if (lead < 0x80) return {1};
  if (lead < 0xC2 || lead > 0xF4) return {0};
  if (lead < 0xE0) return {2, 0x80, 0xBF};
  if (lead == 0xE0) return {3, 0xA0, 0xBF};
  if (lead == 0xED) return {3, 0x80, 0x9F};
  if (lead < 0xF0) return {3, 0x80, 0xBF};
  if (lead == 0xF0) return {4, 0x90, 0xBF};
  if (lead == 0xF4) return {4, 0x80, 0x8F};
  return {4, 0x80, 0xBF};
}

// C0 and C1 controls, DEL, line separators and direction marks, which could break or reorder a line.
bool IsControl(char32_t c) {
  return c < 0x20 || (c >= 0x7F && c <= 0x9F) || c == 0x2028 || c == 0x2029 || c == 0x200E || c == 0x200F ||
         (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

}  // namespace

Utf8Scan ScanUtf8(std::string_view text, size_t position) {
  const LeadByte lead = Classify(ByteAt(text, position));
  if (lead.length == 0) return {1, false, false};
  for (size_t i = 1; i < lead.length; ++i) {
    if (position + i >= text.size()) return {i, false, true};
    const uint8_t byte = ByteAt(text, position + i);
    const bool fits = i == 1 ? byte >= lead.second_min && byte <= lead.second_max : byte >= 0x80 && byte <= 0xBF;
    if (!fits) return {i, false, false};
  }
  return {lead.length, true, false};
}

char32_t DecodeUtf8(std::string_view text, size_t position) {
  const uint8_t lead = ByteAt(text, position);
  if (lead < 0x80) return lead;
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  DCHECK(position + length <= text.size());
  char32_t code_point = lead & (0x7FU >> length);
  for (size_t i = 1; i < length; ++i) code_point = (code_point << 6) | (ByteAt(text, position + i) & 0x3FU);
  return code_point;
}

void AppendUtf8(char32_t code_point, std::string& out) {
  const auto append = [&out](char32_t bits) { out += static_cast<char>(static_cast<uint8_t>(bits)); };
  if (code_point < 0x80) {
    append(code_point);
  } else if (code_point < 0x800) {
    append(0xC0 | (code_point >> 6));
    append(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    append(0xE0 | (code_point >> 12));
    append(0x80 | ((code_point >> 6) & 0x3F));
    append(0x80 | (code_point & 0x3F));
  } else {
    append(0xF0 | (code_point >> 18));
    append(0x80 | ((code_point >> 12) & 0x3F));
    append(0x80 | ((code_point >> 6) & 0x3F));
    append(0x80 | (code_point & 0x3F));
  }
}

size_t ValidUtf8Prefix(std::string_view text) {
  size_t position = 0;
  while (position < text.size()) {
    if (position + 8 <= text.size()) {
      uint64_t eight = 0;
      std::memcpy(&eight, text.data() + position, 8);
      if ((eight & 0x8080808080808080ULL) == 0) {
        position += 8;
        continue;
      }
    }
    const Utf8Scan scan = ScanUtf8(text, position);
    if (!scan.valid) return position;
    position += scan.length;
  }
  return position;
}

size_t IncompleteUtf8Tail(std::string_view text) {
  // A lead byte always starts a character or subpart, so it is enough to look back for the last one.
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const size_t position = text.size() - back;
    if ((ByteAt(text, position) & 0xC0) == 0x80) continue;
    const Utf8Scan scan = ScanUtf8(text, position);
    return scan.incomplete ? back : 0;
  }
  return 0;
}

std::string ReplaceInvalidUtf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t valid = ValidUtf8Prefix(text);
    out.append(text.substr(0, valid));
    text.remove_prefix(valid);
    if (text.empty()) break;
    out += "\xEF\xBF\xBD";
    text.remove_prefix(ScanUtf8(text, 0).length);
  }
  return out;
}

bool IsWhiteSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return lower;
}

bool EndsWithIgnoringCase(std::string_view text, std::string_view lower_suffix) {
  return text.size() >= lower_suffix.size() &&
         LowerCase(text.substr(text.size() - lower_suffix.size())) == lower_suffix;
}

std::string Escaped(std::string_view text, size_t max_bytes) {
  std::string out;
  for (size_t position = 0; position < text.size();) {
    const Utf8Scan scan = ScanUtf8(text, position);
    if (position + scan.length > max_bytes) return out + "…";
    const bool control = scan.valid && IsControl(DecodeUtf8(text, position));
    if (scan.valid && !control) {
      out += text.substr(position, scan.length);
    } else {
      for (size_t i = 0; i < scan.length; ++i) out += fmt::format("\\x{:02x}", ByteAt(text, position + i));
    }
    position += scan.length;
  }
  return out;
}

std::string OneLine(std::string_view text) {
  std::string line(text);
  for (char& c : line)
    if (c == '\n' || c == '\r' || c == '\t') c = ' ';
  return Escaped(line, SIZE_MAX);
}

std::string Quoted(std::string_view text, size_t max_bytes) { return "'" + Escaped(text, max_bytes) + "'"; }

}  // namespace infinigen
