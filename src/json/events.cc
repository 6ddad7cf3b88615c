#include "json/events.h"

#include <exception>
#include <iterator>

#include "base/utf8.h"

namespace infinigen {
namespace {

constexpr size_t kReasonBytes = 200;
constexpr int kNumberOverflow = 406;  // the parser's id of a number beyond any double

bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// Looks at the whole text before the parser does, so that a limit that is passed anywhere comes before anything is
// built. Malformed text passes here and is refused by the parser.
std::optional<JsonFault> CheckLimits(std::string_view text, const JsonLimits& limits) {
  using Kind = JsonFault::Kind;
  const auto fault = [](Kind kind, size_t byte, size_t limit) {
    return JsonFault{.kind = kind, .byte = byte, .limit = limit, .reason = {}};
  };
  bool in_string = false;
  bool escaped = false;  // by a backslash before this byte of a string
  size_t token_begin = 0;
  size_t depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\0') return fault(Kind::kZeroByte, i, 0);
    if (i - token_begin > limits.max_token_bytes)
      return fault(Kind::kTokenTooLong, token_begin, limits.max_token_bytes);
    if (in_string) {
      const bool ends = c == '"' && !escaped;
      escaped = c == '\\' && !escaped;
      if (!ends) continue;
      in_string = false;
      token_begin = i + 1;
    } else if (c == '"') {
      in_string = true;
      token_begin = i;
    } else if (c == '{' || c == '[') {
      token_begin = i + 1;
      if (++depth > limits.max_depth) return fault(Kind::kTooDeep, i, limits.max_depth);
    } else if (c == '}' || c == ']') {
      token_begin = i + 1;
      if (depth > 0) --depth;
    } else if (IsBlank(c) || c == ',' || c == ':') {
      token_begin = i + 1;
    }
  }
  return std::nullopt;
}

// The text without all but the first byte of each run of white space: the parser keeps a run in memory.
class WithoutBlankRuns {
 public:
  explicit WithoutBlankRuns(std::string_view text) : next_(text.data()), end_(text.data() + text.size()) {}

  bool at_end() const { return next_ == end_; }
  char current() const { return *next_; }
  // Bytes that the parser has not seen.
  size_t skipped() const { return skipped_; }

  void Advance() {
    const char passed = *next_++;
    if (in_string_) {
      if (passed == '"' && !escaped_) in_string_ = false;
      escaped_ = passed == '\\' && !escaped_;
    } else if (passed == '"') {
      in_string_ = true;
    } else if (IsBlank(passed)) {
      for (; next_ != end_ && IsBlank(*next_); ++next_) ++skipped_;
    }
  }

 private:
  const char* next_;
  const char* end_;
  size_t skipped_ = 0;
  bool in_string_ = false;
  bool escaped_ = false;
};

// The input iterator that the parser wants; null is the end.
class ByteIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = char;

  explicit ByteIterator(WithoutBlankRuns* bytes) : bytes_(bytes) {}
  char operator*() const { return bytes_->current(); }
  ByteIterator& operator++() {
    bytes_->Advance();
    return *this;
  }
  ByteIterator operator++(int) {
    ByteIterator old = *this;
    ++*this;
    return old;
  }
  // The parser compares with the end only.
  friend bool operator==(const ByteIterator& a, const ByteIterator& b) { return a.ended() == b.ended(); }
  friend bool operator!=(const ByteIterator& a, const ByteIterator& b) { return !(a == b); }

 private:
  bool ended() const { return bytes_ == nullptr || bytes_->at_end(); }
  WithoutBlankRuns* bytes_;
};

// The parser's reason without its tag and place: "[json.exception.parse_error.101] parse error at line 1, column 5: …".
std::string ReasonOf(const std::exception& exception) {
  std::string_view what = exception.what();
  if (const size_t tag = what.find("] "); tag != std::string_view::npos) what.remove_prefix(tag + 2);
  if (const size_t place = what.find(": "); what.starts_with("parse error at ") && place != std::string_view::npos)
    what.remove_prefix(place + 2);
  return Escaped(what, kReasonBytes);
}

// nlohmann's SAX interface, passed on to a handler.
class EventAdapter {
 public:
  EventAdapter(JsonHandler& handler, const WithoutBlankRuns& bytes) : handler_(handler), bytes_(bytes) {}

  bool null() { return handler_.Scalar(nullptr); }
  bool boolean(bool value) { return handler_.Scalar(value); }
  bool number_integer(int64_t value) { return handler_.Scalar(value); }
  bool number_unsigned(uint64_t value) { return handler_.Scalar(value); }
  bool number_float(double value, const std::string&) { return handler_.Scalar(value); }
  bool string(std::string& value) { return handler_.String(value); }
  bool binary(nlohmann::json::binary_t&) { return false; }  // text has none
  bool key(std::string& key) { return handler_.Key(key); }
  bool start_object(size_t) { return handler_.Open(true); }
  bool start_array(size_t) { return handler_.Open(false); }
  bool end_object() { return handler_.Close(true); }
  bool end_array() { return handler_.Close(false); }
  // `position` counts the bytes that the parser has read.
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& exception) {
    const size_t byte = position + bytes_.skipped();
    fault_ = JsonFault{.kind = exception.id == kNumberOverflow ? JsonFault::Kind::kNumber : JsonFault::Kind::kSyntax,
                       .byte = byte == 0 ? 0 : byte - 1,
                       .reason = ReasonOf(exception)};
    return false;
  }

  const std::optional<JsonFault>& fault() const { return fault_; }

 private:
  JsonHandler& handler_;
  const WithoutBlankRuns& bytes_;
  std::optional<JsonFault> fault_;
};

std::string_view NameOf(const nlohmann::json& scalar) {
  if (scalar.is_null()) return "null";
  if (scalar.is_boolean()) return "a boolean";
  if (scalar.is_number_float()) return "a fraction";
  return scalar.is_number_unsigned() ? "a number" : "a negative number";
}

}  // namespace

std::string JsonFault::Message(size_t offset) const {
  switch (kind) {
    case Kind::kSyntax:
    case Kind::kNumber:
      return fmt::format("invalid JSON near byte {}: {}", offset + byte, reason);
    case Kind::kZeroByte:
      return fmt::format("invalid JSON: zero byte at byte {}", offset + byte);
    case Kind::kTooDeep:
      return fmt::format("JSON nested deeper than {} at byte {}", limit, offset + byte);
    case Kind::kTokenTooLong:
      return fmt::format("JSON token at byte {} is longer than {} bytes", offset + byte, limit);
    case Kind::kTooLarge:
      break;
  }
  return "more values than are accepted in this kind of file";
}

bool JsonHandler::Scalar(nlohmann::json value) { return Unexpected(NameOf(value)); }
bool JsonHandler::String(std::string&) { return Unexpected("a string"); }
bool JsonHandler::Key(std::string&) { return Unexpected("a key"); }
bool JsonHandler::Open(bool object) { return Unexpected(object ? "an object" : "an array"); }
bool JsonHandler::Close(bool object) { return Unexpected(object ? "the end of an object" : "the end of an array"); }

bool JsonHandler::Fail(Error error) {
  if (!error_) error_ = std::move(error);
  return false;
}

bool JsonHandler::Unexpected(std::string_view what) {
  return Fail(Invalid("{}: {}: unexpected {}", path_, Place(), what));
}

std::optional<JsonFault> ScanJson(std::string_view text, const JsonLimits& limits, JsonHandler& handler) {
  if (std::optional<JsonFault> fault = CheckLimits(text, limits)) return fault;
  WithoutBlankRuns bytes(text);
  EventAdapter adapter(handler, bytes);
  try {
    nlohmann::json::sax_parse(ByteIterator(&bytes), ByteIterator(nullptr), &adapter);
  } catch (const std::exception& exception) {
    return JsonFault{.reason = ReasonOf(exception)};
  }
  return adapter.fault();
}

Status ParseJsonEvents(std::string_view text, const JsonLimits& limits, JsonHandler& handler, size_t offset) {
  const std::optional<JsonFault> fault = ScanJson(text, limits, handler);
  if (handler.error()) return *handler.error();
  if (fault) return Invalid("{}: {}", handler.path(), fault->Message(offset));
  return Ok{};
}

}  // namespace infinigen
