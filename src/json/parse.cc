#include "json/parse.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include "base/mmap_file.h"
#include "base/utf8.h"

namespace infinigen {
namespace {

constexpr size_t kReasonBytes = 200;
constexpr int kNumberOverflow = 406;  // nlohmann's error id for a number outside the range of double

bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// Checks the limits over the whole text before the parser starts, so that no memory is spent on a text that exceeds
// them. Syntax is left to the parser.
std::optional<JsonFault> CheckLimits(std::string_view text, const JsonLimits& limits) {
  using Kind = JsonFault::Kind;
  const auto fault = [](Kind kind, size_t byte, size_t limit) {
    return JsonFault{.kind = kind, .byte = byte, .limit = limit, .reason = {}};
  };
  bool in_string = false;
  bool escaped = false;  // this byte of a string follows a backslash
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

// Iterates over the text with each run of white space reduced to its first byte, because the parser stores whole runs.
class WithoutBlankRuns {
 public:
  explicit WithoutBlankRuns(std::string_view text) : next_(text.data()), end_(text.data() + text.size()) {}

  bool at_end() const { return next_ == end_; }
  char current() const { return *next_; }
  // Number of bytes left out so far.
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

// Input iterator for the parser; null marks the end.
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
  // The parser compares only with the end.
  friend bool operator==(const ByteIterator& a, const ByteIterator& b) { return a.ended() == b.ended(); }
  friend bool operator!=(const ByteIterator& a, const ByteIterator& b) { return !(a == b); }

 private:
  bool ended() const { return bytes_ == nullptr || bytes_->at_end(); }
  WithoutBlankRuns* bytes_;
};

// The parser's message without its tag and position: "[json.exception.parse_error.101] parse error at line 1, column 5:
// …".
std::string ReasonOf(const std::exception& exception) {
  std::string_view what = exception.what();
  if (const size_t tag = what.find("] "); tag != std::string_view::npos) what.remove_prefix(tag + 2);
  if (const size_t place = what.find(": "); what.starts_with("parse error at ") && place != std::string_view::npos)
    what.remove_prefix(place + 2);
  return Escaped(what, kReasonBytes);
}

// Forwards nlohmann's SAX events to a handler.
class EventAdapter {
 public:
  EventAdapter(JsonHandler& handler, const WithoutBlankRuns& bytes) : handler_(handler), bytes_(bytes) {}

  bool null() { return handler_.Scalar(nullptr); }
  bool boolean(bool value) { return handler_.Scalar(value); }
  bool number_integer(int64_t value) { return handler_.Scalar(value); }
  bool number_unsigned(uint64_t value) { return handler_.Scalar(value); }
  bool number_float(double value, const std::string&) { return handler_.Scalar(value); }
  bool string(std::string& value) { return handler_.String(value); }
  bool binary(nlohmann::json::binary_t&) { return false; }  // JSON text has no binary values
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
  if (scalar.is_boolean()) return "boolean";
  if (scalar.is_number_float()) return "fraction";
  return scalar.is_number_unsigned() ? "number" : "negative number";
}

class TreeHandler final : public JsonHandler {
 public:
  explicit TreeHandler(const JsonLimits& limits) : JsonHandler(""), tree(limits) {}
  bool Scalar(nlohmann::json value) override { return tree.Add(std::move(value)) || TooLarge(); }
  bool String(std::string& value) override { return tree.Add(std::move(value)) || TooLarge(); }
  bool Key(std::string& key) override { return tree.Key(std::move(key)) || TooLarge(); }
  bool Open(bool object) override { return tree.Open(object) || TooLarge(); }
  bool Close(bool) override {
    tree.Close();
    return true;
  }

  JsonTreeBuilder tree;

 protected:
  std::string Place() const override { return {}; }

 private:
  bool TooLarge() { return Fail({}); }
};

}  // namespace

std::string JsonFault::Message(size_t offset) const {
  switch (kind) {
    case Kind::kSyntax:
    case Kind::kNumber:
      return fmt::format("invalid JSON near byte {}: {}", offset + byte, reason);
    case Kind::kZeroByte:
      return fmt::format("invalid JSON: zero byte at byte {}", offset + byte);
    case Kind::kTooDeep:
      return fmt::format("JSON nested deeper than {} levels at byte {}", limit, offset + byte);
    case Kind::kTokenTooLong:
      return fmt::format("JSON token at byte {} is longer than {} bytes", offset + byte, limit);
    case Kind::kTooLarge:
      break;
  }
  return "more JSON values or text than this kind of file may have";
}

bool JsonHandler::Scalar(nlohmann::json value) { return Unexpected(NameOf(value)); }
bool JsonHandler::String(std::string&) { return Unexpected("string"); }
bool JsonHandler::Key(std::string&) { return Unexpected("key"); }
bool JsonHandler::Open(bool object) { return Unexpected(object ? "object" : "array"); }
bool JsonHandler::Close(bool object) { return Unexpected(object ? "end of object" : "end of array"); }

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
  } catch (const std::bad_alloc&) {  // not a fault of the text
    throw;
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

bool JsonTreeBuilder::Count(size_t text_bytes) {
  text_bytes_ += text_bytes;
  return ++values_ <= limits_.max_values && text_bytes_ <= limits_.max_text_bytes;
}

nlohmann::json* JsonTreeBuilder::Insert(nlohmann::json value) {
  if (open_.empty()) {
    root_ = std::move(value);
    started_ = true;
    return &root_;
  }
  nlohmann::json& parent = *open_.back();
  if (parent.is_object()) return &(parent[key_] = std::move(value));
  parent.push_back(std::move(value));
  return &parent.back();
}

bool JsonTreeBuilder::Add(nlohmann::json value) {
  const auto* text = value.get_ptr<const std::string*>();
  if (!Count(text == nullptr ? 0 : text->size())) return false;
  Insert(std::move(value));
  return true;
}

bool JsonTreeBuilder::Key(std::string key) {
  key_ = std::move(key);
  return Count(key_.size());
}

bool JsonTreeBuilder::Open(bool object) {
  if (!Count(0)) return false;
  open_.push_back(Insert(object ? nlohmann::json::object() : nlohmann::json::array()));
  return true;
}

nlohmann::json JsonTreeBuilder::Take() {
  started_ = false;
  values_ = text_bytes_ = 0;
  return std::exchange(root_, nullptr);
}

std::optional<JsonFault> BuildJson(std::string_view text, const JsonLimits& limits, nlohmann::json* tree) {
  TreeHandler handler(limits);
  std::optional<JsonFault> fault = ScanJson(text, limits, handler);
  if (handler.error()) return JsonFault{.kind = JsonFault::Kind::kTooLarge};
  if (!fault) *tree = handler.tree.Take();
  return fault;
}

uint64_t JsonTreeBytes(std::string_view text) {
  // Sizes of glibc's blocks and of libstdc++'s map node. An array that grows has up to three times its values: a new
  // block of twice the size beside the old one.
  constexpr uint64_t kBlock = 16;                                // a block's head and its rounding
  constexpr uint64_t kValue = sizeof(nlohmann::json);            // 16
  constexpr uint64_t kText = sizeof(std::string) + kBlock;       // a string is allocated apart from its value
  constexpr uint64_t kLongText = 2 * kBlock;                     // and its bytes, where they are more than 15
  constexpr uint64_t kNode = 32 + sizeof(std::string) + kBlock;  // of an object, beside its value
  constexpr uint64_t kOpen = 48 + kBlock;                        // an array or object
  uint64_t bytes = kValue, longest = 0;
  bool in_scalar = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool structural = IsBlank(c) || c == ',' || c == ':' || c == ']' || c == '}';
    if (c == '"') {
      const size_t begin = i + 1;
      for (++i; i < text.size() && text[i] != '"'; ++i) i += text[i] == '\\';
      const uint64_t length = std::min(i, text.size()) - begin;
      bytes += 3 * kValue + kText + (length > 15 ? length + kLongText : 0);
      longest = std::max(longest, length);
    } else if (c == ':') {
      bytes += kNode;  // the key is counted as a value of its own, which is more than it takes
    } else if (c == '[' || c == '{') {
      bytes += 3 * kValue + kOpen;
    } else if (!structural && !in_scalar) {
      bytes += 3 * kValue;
    }
    in_scalar = !structural && c != '"' && c != '[' && c != '{';
  }
  return bytes + 4 * longest;  // the parser's buffers of one token
}

Result<nlohmann::json> ParseJson(std::string_view text, const std::string& path, const JsonLimits& limits) {
  nlohmann::json tree;
  if (const std::optional<JsonFault> fault = BuildJson(text, limits, &tree))
    return Invalid("{}: {}", path, fault->Message());
  return tree;
}

Result<nlohmann::json> ReadJsonFile(const std::string& path, size_t max_bytes, const JsonLimits& limits) {
  ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path, max_bytes));
  return ParseJson(text, path, limits);
}

std::optional<JsonLines::Line> JsonLines::Next() {
  while (!rest_.empty()) {
    const size_t end = std::min(rest_.find('\n'), rest_.size());
    std::string_view line = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    ++number_;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) return Line{line, number_};
  }
  return std::nullopt;
}

}  // namespace infinigen
