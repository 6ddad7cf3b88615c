// Parsing JSON from untrusted sources, as a stream of events (JsonHandler) or as a tree (ParseJson). Large files use
// events, because a tree takes many times the size of its text. nlohmann::json does the parsing; the checks here limit
// nesting depth, token length and the size of a tree, skip runs of white space, and reject zero bytes (which the parser
// would take for the end of the text) and malformed UTF-8. No function throws. Any thread; a handler serves one call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace infinigen {

struct JsonLimits {
  size_t max_depth = 64;                     // nested objects and arrays
  size_t max_token_bytes = size_t{1} << 20;  // one string, key or number; the parser may hold two copies of it
  // For trees only.
  size_t max_values = SIZE_MAX;      // values and keys; each takes 16 to 100 bytes
  size_t max_text_bytes = SIZE_MAX;  // all strings and keys together
};

// Why a text was rejected.
struct JsonFault {
  enum class Kind : uint8_t {
    kSyntax,  // `reason` is the parser's message
    kNumber,  // a number outside the range of double
    kZeroByte,
    kTooDeep,       // more than `limit` levels
    kTokenTooLong,  // a token of more than `limit` bytes, which starts at `byte`
    kTooLarge,      // a tree that exceeds max_values or max_text_bytes; `byte` is not set
  };
  Kind kind = Kind::kSyntax;
  size_t byte = 0;  // offset of the fault; for kSyntax and kNumber, where the parser stopped
  size_t limit = 0;
  std::string reason;

  // One line, without the file's name. `offset`: position of the text in its file.
  std::string Message(size_t offset = 0) const;
};

// Receives the events. A method stops the parser by returning false, after a call of Fail. The default implementations
// reject the event with "unexpected …".
class JsonHandler {
 public:
  // `path`: the file's name, with which messages begin.
  explicit JsonHandler(std::string path) : path_(std::move(path)) {}
  virtual ~JsonHandler() = default;

  virtual bool Scalar(nlohmann::json value);  // null, boolean or number
  virtual bool String(std::string& value);    // value and key may be moved from
  virtual bool Key(std::string& key);
  virtual bool Open(bool object);  // false: an array
  virtual bool Close(bool object);

  const std::optional<Error>& error() const { return error_; }
  const std::string& path() const { return path_; }

 protected:
  // Records the error if it is the first; returns false.
  bool Fail(Error error);
  // Fails with "<path>: <place>: unexpected <what>".
  bool Unexpected(std::string_view what);
  // The parser's current position, for messages: "tensor 'x', field 'shape'".
  virtual std::string Place() const = 0;

 private:
  std::string path_;
  std::optional<Error> error_;
};

// Sends all of `text` to the handler. Returns the fault in the text, if any. nullopt also when the handler stopped the
// parser; handler.error() is set then.
std::optional<JsonFault> ScanJson(std::string_view text, const JsonLimits& limits, JsonHandler& handler);

// ScanJson with one error for both cases; the message begins with handler.path(). `offset` as in JsonFault::Message.
Status ParseJsonEvents(std::string_view text, const JsonLimits& limits, JsonHandler& handler, size_t offset = 0);

// Frees what a tree (nlohmann::json or ordered_json) holds, without allocating. The tree's destructor allocates memory
// in proportion to the tree, and a failure there ends the process; so parsed trees are freed by this function.
template <class Tree>
void FreeJson(Tree& tree) noexcept {
  if (tree.is_array()) {
    auto& items = tree.template get_ref<typename Tree::array_t&>();
    for (Tree& item : items) FreeJson(item);
    items.clear();
  } else if (tree.is_object()) {
    auto& members = tree.template get_ref<typename Tree::object_t&>();
    for (auto& [key, value] : members) FreeJson(value);
    members.clear();
  }
}

// Calls FreeJson at the end of a scope. The tree outlives it.
template <class Tree>
class FreeJsonAtEnd {
 public:
  explicit FreeJsonAtEnd(Tree& tree) : tree_(tree) {}
  ~FreeJsonAtEnd() { FreeJson(tree_); }
  FreeJsonAtEnd(const FreeJsonAtEnd&) = delete;
  FreeJsonAtEnd& operator=(const FreeJsonAtEnd&) = delete;

 private:
  Tree& tree_;
};

// ---- trees; for duplicate keys in an object, the last one counts ----

// Parses `text` into `*tree`, which is unspecified when a fault is returned. For callers that write their own messages.
std::optional<JsonFault> BuildJson(std::string_view text, const JsonLimits& limits, nlohmann::json* tree);

// Upper bound of the memory that BuildJson takes for `text`, its result included. One pass, which allocates nothing.
// For well-formed text; the parser stops at the first fault of any other.
uint64_t JsonTreeBytes(std::string_view text);

// Error messages begin with `path`.
Result<nlohmann::json> ParseJson(std::string_view text, const std::string& path, const JsonLimits& limits = {});

// Reads and parses a file of at most `max_bytes`.
Result<nlohmann::json> ReadJsonFile(const std::string& path, size_t max_bytes, const JsonLimits& limits = {});

// Builds trees from events, one after the other: for handlers that keep parts of a stream as trees.
class JsonTreeBuilder {
 public:
  // max_values and max_text_bytes apply to each tree.
  explicit JsonTreeBuilder(const JsonLimits& limits) : limits_(limits) {}
  ~JsonTreeBuilder() { FreeJson(root_); }
  JsonTreeBuilder(const JsonTreeBuilder&) = delete;
  JsonTreeBuilder& operator=(const JsonTreeBuilder&) = delete;

  // False when a limit is exceeded.
  bool Add(nlohmann::json value);
  bool Key(std::string key);
  bool Open(bool object);
  void Close() { open_.pop_back(); }

  // True when the current tree is complete.
  bool complete() const { return started_ && open_.empty(); }
  nlohmann::json Take();

 private:
  nlohmann::json* Insert(nlohmann::json value);
  bool Count(size_t text_bytes);

  JsonLimits limits_;
  size_t values_ = 0;
  size_t text_bytes_ = 0;
  bool started_ = false;
  nlohmann::json root_;
  std::vector<nlohmann::json*> open_;  // objects and arrays without their end so far, innermost last
  std::string key_;                    // key of the next value
};

// Iterates over the non-blank lines of a text, for files with one JSON value per line.
class JsonLines {
 public:
  struct Line {
    std::string_view text;  // without line end
    int64_t number = 0;     // from 1
  };

  // A byte order mark at the beginning, which some editors write, is skipped.
  explicit JsonLines(std::string_view text) : rest_(text) {
    if (rest_.starts_with("\xEF\xBB\xBF")) rest_.remove_prefix(3);
  }
  std::optional<Line> Next();

 private:
  std::string_view rest_;
  int64_t number_ = 0;
};

}  // namespace infinigen
