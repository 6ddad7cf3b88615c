// The source of a chat template as tokens. All of Jinja's whitespace rules live here (trim_blocks and lstrip_blocks are
// on,
// `-` and `+` signs, one newline dropped at the end), so that the parser sees text exactly as it will be printed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace infinigen::jinja {

inline constexpr size_t kMaxSourceBytes = size_t{1} << 20;
inline constexpr size_t kMaxTokens =
    200'000;  // bounds the parsed template to tens of MB; real ones have a few thousand

enum class TokenKind {
  kData,        // text outside of tags
  kPrintBegin,  // {{
  kPrintEnd,    // }}
  kBlockBegin,  // {%
  kBlockEnd,    // %}
  kName,
  kString,  // `text` is unescaped
  kInteger,
  kFloat,
  kOperator,
  kEnd,  // of the source; always the last token
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int line = 1;
  std::string text;
};

// Errors name the line.
Result<std::vector<Token>> Tokenize(std::string_view source);

// "chat template: line N: ...", the form of every message about the source.
Error SyntaxError(int line, std::string_view reason);
Error NotSupported(int line, std::string_view what);

}  // namespace infinigen::jinja
