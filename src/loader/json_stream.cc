#include "loader/json_stream.h"

#include <cstddef>
#include <exception>

namespace infinigen {
namespace {

// The parser keeps one token in memory, twice while it grows. Real tokens are names and short numbers; metadata strings
// may be longer.
constexpr size_t kMaxTokenBytes = size_t{1} << 20;
// Tensor headers nest three deep, index files two.
constexpr size_t kMaxDepth = 16;
constexpr size_t kQuotedBytes = 120;

bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

// Bounds what the parser will hold before it sees the text, and refuses NUL, which the parser takes for the end.
// Malformed text passes here and is refused by the parser.
Status CheckBounds(std::string_view text, size_t offset, const std::string& path) {
  bool in_string = false;
  size_t token_begin = 0;
  size_t depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\0') return Invalid("{}: invalid JSON: zero byte at byte {}", path, offset + i);
    if (i - token_begin > kMaxTokenBytes)
      return Invalid("{}: JSON token at byte {} is longer than {} bytes", path, offset + token_begin, kMaxTokenBytes);
    if (in_string) {
      if (c == '\\') {
        ++i;
        if (i < text.size() && text[i] == '\0') --i;  // looked at by the next round
      } else if (c == '"') {
        in_string = false;
        token_begin = i + 1;
      }
      continue;
    }
    if (c == '"') {
      in_string = true;
      token_begin = i;
    } else if (IsSpace(c) || c == ',' || c == ':') {
      token_begin = i + 1;
    } else if (c == '{' || c == '[') {
      token_begin = i + 1;
      if (++depth > kMaxDepth) return Invalid("{}: JSON nested deeper than {} at byte {}", path, kMaxDepth, offset + i);
    } else if (c == '}' || c == ']') {
      token_begin = i + 1;
      if (depth > 0) --depth;
    }
  }
  return Ok{};
}

}  // namespace

std::string Quoted(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text.substr(0, kQuotedBytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f)
      quoted += fmt::format("\\x{:02x}", byte);
    else
      quoted += c;
  }
  quoted += text.size() > kQuotedBytes ? "…'" : "'";
  return quoted;
}

bool JsonHandler::parse_error(size_t position, const std::string&, const nlohmann::json::exception& reason) {
  // The library's text starts with its own tag, "[json.exception.parse_error.101] parse error at line 1, column 5: …".
  std::string_view what = reason.what();
  if (const size_t tag = what.find("] "); tag != std::string_view::npos) what.remove_prefix(tag + 2);
  const std::string printable = Quoted(what.substr(0, 200));
  return Fail(Invalid("{}: invalid JSON near byte {} of its text: {}", path_, position,
                      std::string_view(printable).substr(1, printable.size() - 2)));
}

bool JsonHandler::Unexpected(std::string_view what) {
  return Fail(Invalid("{}: {}: unexpected {}", path_, Place(), what));
}

Status ParseJsonStream(std::string_view text, size_t offset, JsonHandler& handler) {
  RETURN_IF_ERROR(CheckBounds(text, offset, handler.path()));
  try {
    const bool ok = nlohmann::json::sax_parse(text.begin(), text.end(), &handler);
    if (handler.error()) return *handler.error();
    if (!ok) return Invalid("{}: invalid JSON", handler.path());
  } catch (const std::exception& reason) {
    return Invalid("{}: invalid JSON: {}", handler.path(), reason.what());
  }
  return Ok{};
}

}  // namespace infinigen
