// Python's text operations that chat templates use.

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/utf8.h"
#include "jinja/value.h"

namespace infinigen::jinja {
namespace {

constexpr char32_t kInvalid = 0xFFFFFFFF;  // a byte that is not UTF-8

// A character, or a byte that is not valid UTF-8.
struct Unit {
  char32_t code_point;
  size_t bytes;
};

Unit UnitAt(std::string_view text, size_t position) {
  const auto byte = static_cast<unsigned char>(text[position]);
  if (byte < 0x80) return {byte, 1};
  const Utf8Scan scan = ScanUtf8(text, position);
  return scan.valid ? Unit{DecodeUtf8(text, position), scan.length} : Unit{kInvalid, 1};
}

// The unit that ends at byte `end` > 0.
Unit UnitBefore(std::string_view text, size_t end) {
  for (size_t bytes = 2; bytes <= std::min<size_t>(4, end); ++bytes) {
    const Unit unit = UnitAt(text, end - bytes);
    if (unit.bytes == bytes) return unit;
  }
  return UnitAt(text, end - 1);
}

utf8proc_int32_t Signed(char32_t code_point) { return static_cast<utf8proc_int32_t>(code_point); }
char32_t ToUpper(char32_t code_point) { return static_cast<char32_t>(utf8proc_toupper(Signed(code_point))); }
char32_t ToLower(char32_t code_point) { return static_cast<char32_t>(utf8proc_tolower(Signed(code_point))); }

bool IsUpperLetter(char32_t code_point) {
  return code_point != kInvalid && utf8proc_category(Signed(code_point)) == UTF8PROC_CATEGORY_LU;
}
bool IsLowerLetter(char32_t code_point) {
  return code_point != kInvalid && utf8proc_category(Signed(code_point)) == UTF8PROC_CATEGORY_LL;
}

// Maps every unit of `text` by map(code_point). Bytes that are not UTF-8 are kept; `map` is called for them too.
template <class Map>
std::string MapText(std::string_view text, Map map) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Unit unit = UnitAt(text, at);
    if (unit.code_point == kInvalid) {
      map(unit.code_point);
      out.push_back(text[at]);
    } else {
      AppendUtf8(map(unit.code_point), out);
    }
    at += unit.bytes;
  }
  return out;
}

}  // namespace

bool IsSpace(char32_t code_point) {
  return code_point != kInvalid && (IsWhiteSpace(code_point) || (code_point >= 0x1C && code_point <= 0x1F));
}

std::vector<std::string_view> Characters(std::string_view text) {
  std::vector<std::string_view> out;
  for (size_t at = 0; at < text.size(); at += out.back().size()) {
    out.push_back(text.substr(at, UnitAt(text, at).bytes));
  }
  return out;
}

size_t CountCharacters(std::string_view text) {
  size_t count = 0;
  for (size_t at = 0; at < text.size(); at += UnitAt(text, at).bytes) ++count;
  return count;
}

size_t ByteOffset(std::string_view text, size_t index) {
  size_t at = 0;
  for (; index > 0 && at < text.size(); --index) at += UnitAt(text, at).bytes;
  return at;
}

size_t FindText(std::string_view text, std::string_view needle, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (needle.empty()) return from;
  if (from == text.size()) return std::string_view::npos;
  const void* found = memmem(text.data() + from, text.size() - from, needle.data(), needle.size());
  return found ? static_cast<size_t>(static_cast<const char*>(found) - text.data()) : std::string_view::npos;
}

std::string_view Strip(std::string_view text, std::optional<std::string_view> characters, bool left, bool right) {
  std::vector<char32_t> set;
  if (characters) {
    for (size_t at = 0; at < characters->size();) {
      const Unit unit = UnitAt(*characters, at);
      if (unit.code_point != kInvalid) set.push_back(unit.code_point);
      at += unit.bytes;
    }
    std::sort(set.begin(), set.end());
  }
  const auto strips = [&](char32_t code_point) {
    return characters ? std::binary_search(set.begin(), set.end(), code_point) : IsSpace(code_point);
  };
  while (left && !text.empty()) {
    const Unit unit = UnitAt(text, 0);
    if (!strips(unit.code_point)) break;
    text.remove_prefix(unit.bytes);
  }
  while (right && !text.empty()) {
    const Unit unit = UnitBefore(text, text.size());
    if (!strips(unit.code_point)) break;
    text.remove_suffix(unit.bytes);
  }
  return text;
}

std::vector<std::string_view> SplitAtSpace(std::string_view text, int64_t limit) {
  std::vector<std::string_view> out;
  while (true) {
    text = Strip(text, std::nullopt, true, false);
    if (text.empty()) return out;
    if (limit >= 0 && static_cast<int64_t>(out.size()) == limit) {
      out.push_back(text);
      return out;
    }
    size_t end = 0;
    while (end < text.size()) {
      const Unit unit = UnitAt(text, end);
      if (IsSpace(unit.code_point)) break;
      end += unit.bytes;
    }
    out.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
}

std::vector<std::string_view> SplitAt(std::string_view text, std::string_view separator, int64_t limit) {
  std::vector<std::string_view> out;
  size_t start = 0;
  while (limit < 0 || static_cast<int64_t>(out.size()) < limit) {
    const size_t found = FindText(text, separator, start);
    if (found == std::string_view::npos) break;
    out.push_back(text.substr(start, found - start));
    start = found + separator.size();
  }
  out.push_back(text.substr(start));
  return out;
}

std::vector<std::string_view> SplitLines(std::string_view text) {
  const auto ends_line = [](char32_t c) {
    return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
  };
  std::vector<std::string_view> out;
  size_t start = 0;
  for (size_t at = 0; at < text.size();) {
    const Unit unit = UnitAt(text, at);
    const size_t line_end = at;
    at += unit.bytes;
    if (!ends_line(unit.code_point)) continue;
    if (unit.code_point == '\r' && at < text.size() && text[at] == '\n') ++at;
    out.push_back(text.substr(start, line_end - start));
    start = at;
  }
  if (start < text.size()) out.push_back(text.substr(start));
  return out;
}

size_t CountReplacements(std::string_view text, std::string_view needle, int64_t limit) {
  const size_t most = limit < 0 ? SIZE_MAX : static_cast<size_t>(limit);
  if (needle.empty()) return std::min(most, CountCharacters(text) + 1);
  size_t count = 0;
  for (size_t at = 0; count < most; ++count) {
    const size_t found = FindText(text, needle, at);
    if (found == std::string_view::npos) break;
    at = found + needle.size();
  }
  return count;
}

std::string Replace(std::string_view text, std::string_view needle, std::string_view replacement, size_t count) {
  std::string out;
  size_t at = 0;
  for (; count > 0; --count) {
    const size_t found = FindText(text, needle, at);
    if (found == std::string_view::npos) break;
    out.append(text.substr(at, found - at)).append(replacement);
    at = found + needle.size();
    if (needle.empty() && at < text.size()) {  // an empty needle matches before every character and at the end
      const size_t bytes = UnitAt(text, at).bytes;
      out.append(text.substr(at, bytes));
      at += bytes;
    }
  }
  out.append(text.substr(at));
  return out;
}

std::string Upper(std::string_view text) {
  return MapText(text, [](char32_t c) { return c == kInvalid ? c : ToUpper(c); });
}

std::string Lower(std::string_view text) {
  return MapText(text, [](char32_t c) { return c == kInvalid ? c : ToLower(c); });
}

std::string Capitalize(std::string_view text) {
  bool first = true;
  return MapText(text, [&](char32_t c) {
    const bool starts = std::exchange(first, false);
    return c == kInvalid ? c : (starts ? ToUpper(c) : ToLower(c));
  });
}

std::string TitleWords(std::string_view text) {
  bool starts_word = true;
  return MapText(text, [&](char32_t c) {
    const bool starts = starts_word;
    starts_word = IsSpace(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    return c == kInvalid ? c : (starts ? ToUpper(c) : ToLower(c));
  });
}

std::string TitleLetters(std::string_view text) {
  bool in_word = false;
  return MapText(text, [&](char32_t c) {
    const bool continues = in_word;
    in_word = IsUpperLetter(c) || IsLowerLetter(c);
    return c == kInvalid ? c : (continues ? ToLower(c) : ToUpper(c));
  });
}

bool HasOnlyCase(std::string_view text, bool upper) {
  bool found = false;
  for (size_t at = 0; at < text.size();) {
    const Unit unit = UnitAt(text, at);
    if (upper ? IsLowerLetter(unit.code_point) : IsUpperLetter(unit.code_point)) return false;
    found = found || (upper ? IsUpperLetter(unit.code_point) : IsLowerLetter(unit.code_point));
    at += unit.bytes;
  }
  return found;
}

}  // namespace infinigen::jinja
