#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <new>

#include "base/check.h"
#include "base/utf8.h"
#include "text/pipeline.h"

namespace infinigen {
namespace {

// Characters with a combining class or a decomposition that are newer than Unicode 9, the version of Hugging Face's
// library. That library does not change them and moves nothing across them, so only the text between them is
// normalized. U+11A7 is listed because utf8proc treats it as a Hangul final consonant and drops it.
struct CharRange {
  char32_t first;
  char32_t last;
};
constexpr CharRange kLeftAlone[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
    {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x11A7, 0x11A7},   {0x1715, 0x1715},   {0x1ABF, 0x1ACE},
    {0x1DF6, 0x1DFA},   {0x32FF, 0x32FF},   {0xA7F2, 0xA7F4},   {0xA82C, 0xA82C},   {0xAB69, 0xAB69},
    {0x10781, 0x10785}, {0x10787, 0x107B0}, {0x107B2, 0x107BA}, {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC},
    {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B},
    {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930}, {0x11935, 0x11938}, {0x1193D, 0x1193E},
    {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99},
    {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1},
    {0x1E030, 0x1E06D}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF},
    {0x1E4EC, 0x1E4EF}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9}};

bool LeftAlone(char32_t c) {
  const CharRange* range = std::upper_bound(std::begin(kLeftAlone), std::end(kLeftAlone), c,
                                            [](char32_t value, const CharRange& r) { return value < r.first; });
  return range != std::begin(kLeftAlone) && c <= std::prev(range)->last;
}

void AppendNormalForm(std::string_view part, int options, std::string& out) {
  if (part.empty()) return;
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(part.data()), static_cast<utf8proc_ssize_t>(part.size()),
                   &mapped, static_cast<utf8proc_option_t>(options | UTF8PROC_STABLE));
  if (length < 0) throw std::bad_alloc();  // nothing else can fail for valid UTF-8
  out.append(reinterpret_cast<const char*>(mapped), static_cast<size_t>(length));
  std::free(mapped);
}

std::string NormalForm(std::string_view text, int options) {
  std::string result;
  result.reserve(text.size());
  size_t begin = 0;
  for (size_t position = 0; position < text.size();) {
    const size_t length = ScanUtf8(text, position).length;
    if (length > 1 && LeftAlone(DecodeUtf8(text, position))) {
      AppendNormalForm(text.substr(begin, position - begin), options, result);
      result.append(text.substr(position, length));
      begin = position + length;
    }
    position += length;
  }
  AppendNormalForm(text.substr(begin), options, result);
  return result;
}

std::string Replaced(const std::string& text, std::string_view pattern, std::string_view content) {
  if (pattern.empty()) return text;
  std::string result;
  result.reserve(text.size());
  size_t begin = 0;
  for (size_t hit = text.find(pattern); hit != std::string::npos; hit = text.find(pattern, begin)) {
    result.append(text, begin, hit - begin).append(content);
    begin = hit + pattern.size();
  }
  return result.append(text, begin);
}

std::string Lowercased(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (size_t position = 0; position < text.size(); position += ScanUtf8(text, position).length) {
    const char32_t c = DecodeUtf8(text, position);
    // The only character with a lower case of two characters.
    if (c == 0x130)
      result += "i\xCC\x87";
    else
      AppendUtf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), result);
  }
  return result;
}

std::string Stripped(std::string_view text, bool left, bool right) {
  while (left && !text.empty() && IsWhiteSpace(DecodeUtf8(text, 0))) text.remove_prefix(ScanUtf8(text, 0).length);
  while (right && !text.empty()) {
    size_t last = text.size() - 1;
    while (last > 0 && (static_cast<unsigned char>(text[last]) & 0xC0) == 0x80) --last;
    if (!IsWhiteSpace(DecodeUtf8(text, last))) break;
    text = text.substr(0, last);
  }
  return std::string(text);
}

// SentencePiece's remove_extra_whitespaces: no spaces at the ends, single spaces between words.
std::string SpacesCollapsed(std::string_view text) {
  std::string result;
  for (const char c : text)
    if (c != ' ' || (!result.empty() && result.back() != ' ')) result += c;
  if (!result.empty() && result.back() == ' ') result.pop_back();
  return result;
}

}  // namespace

std::string Normalizer::Apply(std::string_view text, bool continues) const {
  using Kind = NormalizerStep::Kind;
  std::string result(text);
  for (const NormalizerStep& step : steps_) {
    switch (step.kind) {
      case Kind::kNfc:
        result = NormalForm(result, UTF8PROC_COMPOSE);
        break;
      case Kind::kNfd:
        result = NormalForm(result, UTF8PROC_DECOMPOSE);
        break;
      case Kind::kNfkc:
        result = NormalForm(result, UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
        break;
      case Kind::kNfkd:
        result = NormalForm(result, UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT);
        break;
      case Kind::kLowercase:
        result = Lowercased(result);
        break;
      case Kind::kPrepend:
        if (!result.empty() && !continues) result.insert(0, step.content);
        break;
      case Kind::kReplace:
        result = Replaced(result, step.pattern, step.content);
        break;
      case Kind::kStrip:
        result = Stripped(result, step.strip_left, step.strip_right);
        break;
      case Kind::kCollapseSpaces:
        result = SpacesCollapsed(result);
        break;
    }
  }
  return result;
}

}  // namespace infinigen
