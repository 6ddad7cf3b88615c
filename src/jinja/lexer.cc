// The lexer, which turns source into tokens and applies Jinja's white space rules, and TokenStream.
#include <algorithm>
#include <charconv>
#include <optional>

#include "base/utf8.h"
#include "jinja/parser.h"

namespace infinigen::jinja {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameStart(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

// Replaces "\r\n" and "\r" by "\n" and removes one newline at the end.
std::string NormalizeNewlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
      out.push_back('\n');
    } else {
      out.push_back(source[i]);
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)), text_(source_) {}

  Result<std::vector<Token>> Run() {
    while (position_ < text_.size()) RETURN_IF_ERROR(LexText());
    RETURN_IF_ERROR(Add(TokenKind::kEnd, ""));
    return std::move(tokens_);
  }

 private:
  // Lexes text up to the next tag, and that tag.
  Status LexText();
  Status LexComment();
  // Lexes the inside of {{ }} or {% %} and its end. Inside brackets the end marks are ordinary: {{ {'a': {}} }}.
  Status LexTag(bool is_block);
  Status LexToken();
  Status LexNumber();
  Status LexString();
  Status LexOperator();
  bool LexTagEnd(bool is_block);

  Status Add(TokenKind kind, std::string text) {
    if (tokens_.size() >= kMaxTokens) {
      return Exhausted("chat template: line {}: more than {} tokens are not supported", line_, kMaxTokens);
    }
    tokens_.push_back({kind, line_, std::move(text)});
    return Ok{};
  }
  // Moves on by `bytes` and counts lines.
  void Advance(size_t bytes) {
    const std::string_view passed = text_.substr(position_, bytes);
    line_ += static_cast<int>(std::count(passed.begin(), passed.end(), '\n'));
    if (!passed.empty()) line_starting_ = passed.back() == '\n';
    position_ += bytes;
  }
  void AdvanceOverSpace() {
    const std::string_view rest = text_.substr(position_);
    Advance(rest.size() - Strip(rest, std::nullopt, true, false).size());
  }
  bool At(std::string_view text) const { return text_.substr(position_, text.size()) == text; }

  const std::string source_;
  const std::string_view text_;
  size_t position_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // the position is at the start of a line
  std::string brackets_;       // expected closing brackets, innermost last
  std::vector<Token> tokens_;
};

Status Lexer::LexText() {
  size_t tag = position_;
  while (tag < text_.size()) {
    tag = text_.find('{', tag);
    if (tag == std::string_view::npos || tag + 1 >= text_.size()) {
      tag = text_.size();
      break;
    }
    const char next = text_[tag + 1];
    if (next == '{' || next == '%' || next == '#') break;
    ++tag;
  }
  std::string_view data = text_.substr(position_, tag - position_);
  if (tag >= text_.size()) {
    RETURN_IF_ERROR(Add(TokenKind::kData, std::string(data)));
    Advance(data.size());
    return Ok{};
  }
  const size_t consumed = data.size();
  const char type = text_[tag + 1];
  const char sign = tag + 2 < text_.size() ? text_[tag + 2] : '\0';
  if (sign == '-') {
    data = Strip(data, std::nullopt, false, true);
  } else if (sign != '+' && type != '{') {
    // lstrip_blocks: white space between the start of a line and the tag is removed.
    const size_t line_start = data.rfind('\n') + 1;  // npos + 1 == 0
    const std::string_view indent = data.substr(line_start);
    if ((line_start > 0 || line_starting_) && Strip(indent, std::nullopt, true, false).empty()) {
      data = data.substr(0, line_start);
    }
  }
  if (!data.empty()) RETURN_IF_ERROR(Add(TokenKind::kData, std::string(data)));
  Advance(consumed + 2 + (sign == '-' || sign == '+' ? 1 : 0));
  if (type == '#') return LexComment();
  RETURN_IF_ERROR(Add(type == '{' ? TokenKind::kPrintBegin : TokenKind::kBlockBegin, ""));
  return LexTag(type == '%');
}

Status Lexer::LexComment() {
  const int line = line_;
  const size_t end = text_.find("#}", position_);
  if (end == std::string_view::npos) return SyntaxError(line, "the comment is not closed with '#}'");
  const char sign = end > position_ ? text_[end - 1] : '\0';
  Advance(end + 2 - position_);
  if (sign == '-') {
    AdvanceOverSpace();
  } else if (sign != '+' && At("\n")) {
    Advance(1);
  }
  return Ok{};
}

bool Lexer::LexTagEnd(bool is_block) {
  const std::string_view end = is_block ? "%}" : "}}";
  const bool has_sign = At("-") || (is_block && At("+"));
  if (text_.substr(position_ + (has_sign ? 1 : 0), 2) != end) return false;
  const char sign = has_sign ? text_[position_] : '\0';
  Advance(has_sign ? 3 : 2);
  if (sign == '-') {
    AdvanceOverSpace();
  } else if (is_block && sign == '\0' && At("\n")) {
    Advance(1);  // trim_blocks
  }
  return true;
}

Status Lexer::LexTag(bool is_block) {
  const int line = line_;
  const size_t first = tokens_.size();
  while (position_ < text_.size()) {
    const int end_line = line_;
    if (brackets_.empty() && LexTagEnd(is_block)) {
      RETURN_IF_ERROR(Add(is_block ? TokenKind::kBlockEnd : TokenKind::kPrintEnd, ""));
      tokens_.back().line = end_line;
      return Ok{};
    }
    const Utf8Scan scan = ScanUtf8(text_, position_);
    if (scan.valid && IsSpace(DecodeUtf8(text_, position_))) {
      Advance(scan.length);
      continue;
    }
    RETURN_IF_ERROR(LexToken());
    // Must be rejected here: the content of a raw block is not lexed as tags, so the parser cannot do it.
    if (is_block && tokens_.size() == first + 1 && tokens_.back().text == "raw") return NotSupported(line, "tag 'raw'");
  }
  return SyntaxError(line, is_block ? "the tag is not closed with '%}'" : "the expression is not closed with '}}'");
}

Status Lexer::LexToken() {
  const char c = text_[position_];
  if (IsDigit(c)) return LexNumber();
  if (c == '\'' || c == '"') return LexString();
  if (!IsNameStart(c)) return LexOperator();
  size_t end = position_;
  while (end < text_.size() && (IsNameStart(text_[end]) || IsDigit(text_[end]))) ++end;
  RETURN_IF_ERROR(Add(TokenKind::kName, std::string(text_.substr(position_, end - position_))));
  Advance(end - position_);
  return Ok{};
}

Status Lexer::LexNumber() {
  size_t end = position_;
  const auto skip_digits = [&] {
    while (end < text_.size() && (IsDigit(text_[end]) || (text_[end] == '_' && IsDigit(text_[end - 1])))) ++end;
  };
  const auto char_at = [&](size_t at) { return at < text_.size() ? text_[at] : '\0'; };
  skip_digits();
  bool is_float = false;
  if (position_ == 0 || text_[position_ - 1] != '.') {  // the numbers of x.0.1 are subscripts
    if (char_at(end) == '.' && IsDigit(char_at(end + 1))) {
      is_float = true;
      ++end;
      skip_digits();
    }
    const size_t sign = char_at(end + 1) == '+' || char_at(end + 1) == '-' ? 1 : 0;
    if ((char_at(end) == 'e' || char_at(end) == 'E') && IsDigit(char_at(end + 1 + sign))) {
      is_float = true;
      end += 1 + sign;
      skip_digits();
    }
  }
  std::string digits(text_.substr(position_, end - position_));
  const bool odd = digits.back() == '_' || digits.find("__") != std::string::npos || IsNameStart(char_at(end)) ||
                   (!is_float && digits.size() > 1 && digits[0] == '0');
  if (odd) return NotSupported(line_, fmt::format("the form of the number that starts with '{}'", digits));
  digits.erase(std::remove(digits.begin(), digits.end(), '_'), digits.end());
  RETURN_IF_ERROR(Add(is_float ? TokenKind::kFloat : TokenKind::kInteger, std::move(digits)));
  Advance(end - position_);
  return Ok{};
}

// The code point written with `count` digits of base `base` at `at`; nullopt when invalid.
std::optional<char32_t> ReadEscape(std::string_view text, size_t at, size_t count, int base) {
  if (at + count > text.size()) return std::nullopt;
  uint32_t value = 0;
  const char* begin = text.data() + at;
  const auto [end, error] = std::from_chars(begin, begin + count, value, base);
  if (error != std::errc() || end != begin + count) return std::nullopt;
  if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) return std::nullopt;
  return value;
}

// Resolves Python's escapes as the codec unicode-escape does. False for invalid escapes and for \N{...}.
bool Unescape(std::string_view text, std::string& out) {
  constexpr std::string_view kLetters = "abfnrtv\\'\"";
  constexpr std::string_view kMeanings = "\a\b\f\n\r\t\v\\'\"";
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      out.push_back(text[i]);
      continue;
    }
    const char c = text[++i];
    if (const size_t known = kLetters.find(c); known != std::string_view::npos) {
      out.push_back(kMeanings[known]);
    } else if (c == '\n') {
      continue;
    } else if (c >= '0' && c <= '7') {
      size_t count = 1;
      while (count < 3 && i + count < text.size() && text[i + count] >= '0' && text[i + count] <= '7') ++count;
      AppendUtf8(*ReadEscape(text, i, count, 8), out);
      i += count - 1;
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const size_t count = c == 'x' ? 2 : (c == 'u' ? 4 : 8);
      const std::optional<char32_t> code_point = ReadEscape(text, i + 1, count, 16);
      if (!code_point) return false;
      AppendUtf8(*code_point, out);
      i += count;
    } else if (c == 'N') {
      return false;
    } else {
      out.push_back('\\');
      out.push_back(c);
    }
  }
  return true;
}

Status Lexer::LexString() {
  const char quote = text_[position_];
  size_t end = position_ + 1;
  while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
  if (end >= text_.size()) return SyntaxError(line_, fmt::format("a string is not closed with {}", quote));
  std::string value;
  if (!Unescape(text_.substr(position_ + 1, end - position_ - 1), value)) {
    return NotSupported(line_, "an escape sequence in a string");
  }
  RETURN_IF_ERROR(Add(TokenKind::kString, std::move(value)));
  Advance(end + 1 - position_);
  return Ok{};
}

Status Lexer::LexOperator() {
  size_t bytes = 0;
  for (const std::string_view two : {"//", "**", "==", "!=", ">=", "<="}) {
    if (At(two)) bytes = 2;
  }
  const char c = text_[position_];
  if (bytes == 0 && std::string_view("+-/*%~[](){}><=.:|,").find(c) != std::string_view::npos) bytes = 1;
  if (bytes == 0) {
    const bool printable = c > ' ' && c < '\x7f';
    const auto byte = static_cast<unsigned char>(c);
    return SyntaxError(line_, printable ? fmt::format("unexpected character '{}'", c)
                                        : fmt::format("unexpected character (byte {:#04x})", byte));
  }
  if (c == '(') brackets_.push_back(')');
  if (c == '[') brackets_.push_back(']');
  if (c == '{') brackets_.push_back('}');
  if (c == ')' || c == ']' || c == '}') {
    if (brackets_.empty() || brackets_.back() != c) return SyntaxError(line_, fmt::format("unexpected '{}'", c));
    brackets_.pop_back();
  }
  RETURN_IF_ERROR(Add(TokenKind::kOperator, std::string(text_.substr(position_, bytes))));
  Advance(bytes);
  return Ok{};
}

}  // namespace

Error SyntaxError(int line, std::string_view reason) { return Invalid("chat template: line {}: {}", line, reason); }

Error NotSupported(int line, std::string_view what) {
  return Unsupported("chat template: line {}: {} is not supported", line, what);
}

Result<std::vector<Token>> Tokenize(std::string_view source) {
  if (source.size() > kMaxSourceBytes) {
    return Exhausted("chat template: the source has {} bytes; at most {} are allowed", source.size(), kMaxSourceBytes);
  }
  return Lexer(NormalizeNewlines(source)).Run();
}

Status TokenStream::ExpectOperator(std::string_view text) {
  if (!IsOperator(text)) {
    const Error error = Unexpected();
    return Invalid("{}, expected '{}'", error.message, text);
  }
  Next();
  return Ok{};
}

Status TokenStream::Expect(TokenKind kind, std::string_view description) {
  if (current().kind != kind) {
    const Error error = Unexpected();
    return Invalid("{}, expected {}", error.message, description);
  }
  Next();
  return Ok{};
}

Result<std::string> TokenStream::ExpectName() {
  std::string name = current().text;
  RETURN_IF_ERROR(Expect(TokenKind::kName, "a name"));
  return name;
}

Error TokenStream::Unexpected() const {
  const Token& token = current();
  switch (token.kind) {
    case TokenKind::kData:
      return SyntaxError(token.line, "unexpected text");
    case TokenKind::kPrintBegin:
      return SyntaxError(token.line, "unexpected '{{'");
    case TokenKind::kPrintEnd:
      return SyntaxError(token.line, "unexpected '}}'");
    case TokenKind::kBlockBegin:
      return SyntaxError(token.line, "unexpected '{%'");
    case TokenKind::kBlockEnd:
      return SyntaxError(token.line, "unexpected '%}'");
    case TokenKind::kString:
      return SyntaxError(token.line, "unexpected string");
    case TokenKind::kEnd:
      return SyntaxError(token.line, "unexpected end of template");
    default:
      return SyntaxError(token.line, fmt::format("unexpected '{}'", token.text));
  }
}

}  // namespace infinigen::jinja
