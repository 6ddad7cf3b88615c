#include "text/json_events.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

#include "base/mmap_file.h"

namespace infinigen {
namespace {

constexpr size_t kMaxTokenBytes = 1 << 20;
constexpr size_t kMaxDepth = 64;
constexpr size_t kSmallFileBytes = 4 << 20;
constexpr size_t kSmallFileNodes = 300'000;

// The bytes of a stream, with white space between values shortened to one blank (the parser remembers it all) and an
// end of input where a single string or number grows too long.
class GuardedBytes {
 public:
  explicit GuardedBytes(std::istream& in) : in_(in) { Advance(); }

  bool at_end() const { return at_end_; }
  char current() const { return current_; }
  bool overlong() const { return overlong_; }
  uint64_t position() const { return position_; }

  void Advance() {
    bool more = Read();
    while (more && blank_ && IsBlank(current_) && !in_string_) more = Read();
    at_end_ = !more;
    if (at_end_) return;
    Track();
  }

 private:
  static bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

  bool Read() {
    if (next_ == filled_) {
      in_.read(buffer_.data(), static_cast<std::streamsize>(buffer_.size()));
      filled_ = static_cast<size_t>(in_.gcount());
      next_ = 0;
      if (filled_ == 0) return false;
    }
    current_ = buffer_[next_++];
    ++position_;
    return true;
  }

  void Track() {
    blank_ = !in_string_ && IsBlank(current_);
    if (in_string_) {
      const bool escaped = std::exchange(escape_, !escape_ && current_ == '\\');
      if (current_ == '"' && !escaped) in_string_ = false;
    } else if (current_ == '"') {
      in_string_ = true;
      token_bytes_ = 0;
    } else if (blank_ || current_ == ',' || current_ == ':' || current_ == '[' || current_ == '{' || current_ == ']' ||
               current_ == '}') {
      token_bytes_ = 0;
    }
    if (++token_bytes_ > kMaxTokenBytes) overlong_ = at_end_ = true;
  }

  std::istream& in_;
  std::array<char, 65536> buffer_;
  size_t next_ = 0;
  size_t filled_ = 0;
  uint64_t position_ = 0;
  char current_ = 0;
  bool at_end_ = false;
  bool overlong_ = false;
  bool in_string_ = false;
  bool escape_ = false;
  bool blank_ = false;
  size_t token_bytes_ = 0;
};

// What nlohmann::json wants to read from.
class ByteIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = char;

  explicit ByteIterator(GuardedBytes* bytes) : bytes_(bytes) {}
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
  // Only comparisons with the end occur.
  friend bool operator==(const ByteIterator& a, const ByteIterator& b) { return a.ended() == b.ended(); }
  friend bool operator!=(const ByteIterator& a, const ByteIterator& b) { return !(a == b); }

 private:
  bool ended() const { return bytes_ == nullptr || bytes_->at_end(); }
  GuardedBytes* bytes_;
};

// nlohmann's SAX interface, passed on.
class EventAdapter {
 public:
  explicit EventAdapter(JsonSink& sink) : sink_(sink) {}

  bool null() { return sink_.Scalar(nullptr); }
  bool boolean(bool value) { return sink_.Scalar(value); }
  bool number_integer(int64_t value) { return sink_.Scalar(value); }
  bool number_unsigned(uint64_t value) { return sink_.Scalar(value); }
  bool number_float(double value, const std::string&) { return sink_.Scalar(value); }
  bool string(std::string& value) { return sink_.String(value); }
  bool binary(nlohmann::json::binary_t&) { return false; }
  bool key(std::string& key) { return sink_.Key(key); }
  bool start_object(size_t) { return Start(true); }
  bool start_array(size_t) { return Start(false); }
  bool end_object() { return End(true); }
  bool end_array() { return End(false); }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) {
    malformed_ = true;
    return false;
  }

  bool malformed() const { return malformed_; }
  bool too_deep() const { return depth_ > kMaxDepth; }

 private:
  bool Start(bool object) { return ++depth_ <= kMaxDepth && sink_.Open(object); }
  bool End(bool object) {
    --depth_;
    return sink_.Close(object);
  }

  JsonSink& sink_;
  size_t depth_ = 0;
  bool malformed_ = false;
};

class TreeSink final : public JsonSink {
 public:
  TreeSink(const std::string& name, size_t max_nodes) : name_(name), tree(max_nodes, kSmallFileBytes) {}
  bool Scalar(nlohmann::json value) override { return tree.Add(std::move(value)) || TooLarge(); }
  bool String(std::string& value) override { return tree.Add(std::move(value)) || TooLarge(); }
  bool Key(std::string& key) override { return tree.Key(std::move(key)) || TooLarge(); }
  bool Open(bool object) override { return tree.Open(object) || TooLarge(); }
  bool Close(bool) override {
    tree.Close();
    return true;
  }

 private:
  bool TooLarge() { return Fail(Invalid("{}: more values than are accepted in this kind of file", name_)); }
  const std::string& name_;

 public:
  LimitedJsonTree tree;
};

}  // namespace

Status ParseJsonEvents(std::istream& in, const std::string& name, JsonSink& sink) {
  auto bytes = std::make_unique<GuardedBytes>(in);
  EventAdapter adapter(sink);
  const bool parsed = nlohmann::json::sax_parse(ByteIterator(bytes.get()), ByteIterator(nullptr), &adapter);
  if (parsed) return Ok{};
  if (bytes->overlong())
    return Invalid("{}: a string or number before byte {} is longer than {} bytes", name, bytes->position(),
                   kMaxTokenBytes);
  if (adapter.too_deep())
    return Invalid("{}: nested deeper than {} before byte {}", name, kMaxDepth, bytes->position());
  if (adapter.malformed()) return Invalid("{}: not valid JSON near byte {}", name, bytes->position());
  return sink.failure();
}

Result<std::unique_ptr<std::istream>> OpenForReading(const std::string& path, uint64_t limit_bytes, uint64_t* size) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return IoError("{}: not a regular file", path);
  *size = std::filesystem::file_size(path, error);
  if (error) return IoError("{}: cannot read its size: {}", path, error.message());
  if (*size > limit_bytes)
    return Invalid("{}: {} bytes long, at most {} are accepted for this kind of file", path, *size, limit_bytes);
  auto file = std::make_unique<std::ifstream>(path, std::ios::binary);
  if (!file->is_open()) return IoError("{}: cannot open", path);
  return std::unique_ptr<std::istream>(std::move(file));
}

bool LimitedJsonTree::Count(size_t text_bytes) {
  text_bytes_ += text_bytes;
  return ++nodes_ <= max_nodes_ && text_bytes_ <= max_text_bytes_;
}

nlohmann::json* LimitedJsonTree::Place(nlohmann::json value) {
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

bool LimitedJsonTree::Add(nlohmann::json value) {
  const auto* text = value.get_ptr<const std::string*>();
  if (!Count(text == nullptr ? 0 : text->size())) return false;
  Place(std::move(value));
  return true;
}

bool LimitedJsonTree::Key(std::string key) {
  key_ = std::move(key);
  return Count(key_.size());
}

bool LimitedJsonTree::Open(bool object) {
  if (!Count(0)) return false;
  open_.push_back(Place(object ? nlohmann::json::object() : nlohmann::json::array()));
  return true;
}

nlohmann::json LimitedJsonTree::Take() {
  started_ = false;
  nodes_ = text_bytes_ = 0;
  return std::exchange(root_, nullptr);
}

Result<nlohmann::json> ReadSmallJson(const std::string& path) {
  ASSIGN_OR_RETURN(std::string text, ReadSmallFile(path, kSmallFileBytes));
  std::istringstream in(std::move(text));
  TreeSink sink(path, kSmallFileNodes);
  RETURN_IF_ERROR(ParseJsonEvents(in, path, sink));
  return sink.tree.Take();
}

}  // namespace infinigen
