// Foreign JSON as a stream of events, for files that must not become a tree many times their size, and the guard that
// every JSON input of the program passes. nlohmann::json does the parsing; the guard bounds what it may hold: depth,
// the length of one token, runs of white space. Zero bytes (which the parser takes for the end) and malformed UTF-8 are
// refused. Nothing throws. Any thread; a handler belongs to one call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"

namespace infinigen {

struct JsonLimits {
  size_t max_depth = 64;                     // objects and arrays open at once
  size_t max_token_bytes = size_t{1} << 20;  // one string, key or number; the parser holds it twice while it grows
  // Trees only (json/tree.h).
  size_t max_values = SIZE_MAX;      // values and keys, each of which takes 16 to 100 bytes
  size_t max_text_bytes = SIZE_MAX;  // all strings and keys together
};

// Why a text is not accepted as JSON.
struct JsonFault {
  enum class Kind : uint8_t {
    kSyntax,        // `reason` is the parser's
    kNumber,        // a number beyond any double
    kZeroByte,      //
    kTooDeep,       // more than `limit` levels
    kTokenTooLong,  // a token of more than `limit` bytes; `byte` is its first
    kTooLarge,      // a tree beyond max_values or max_text_bytes; `byte` is not known
  };
  Kind kind = Kind::kSyntax;
  size_t byte = 0;  // from 0; of kSyntax and kNumber, where the parser stopped
  size_t limit = 0;
  std::string reason;

  // One line without the file's name. `offset`: where the text begins in its file.
  std::string Message(size_t offset = 0) const;
};

// Receives the events. Each returns false to stop, having called Fail. An event that a handler does not override is
// refused with its name.
class JsonHandler {
 public:
  // `path` begins the messages.
  explicit JsonHandler(std::string path) : path_(std::move(path)) {}
  virtual ~JsonHandler() = default;

  virtual bool Scalar(nlohmann::json value);  // null, boolean or number
  virtual bool String(std::string& value);    // may be moved from, as may the key
  virtual bool Key(std::string& key);
  virtual bool Open(bool object);  // false: an array
  virtual bool Close(bool object);

  const std::optional<Error>& error() const { return error_; }
  const std::string& path() const { return path_; }

 protected:
  // Keeps the first error; returns false.
  bool Fail(Error error);
  // Refuses `what`, with its place.
  bool Unexpected(std::string_view what);
  // Where the parser stands, for messages: "tensor 'x', field 'shape'".
  virtual std::string Place() const = 0;

 private:
  std::string path_;
  std::optional<Error> error_;
};

// Feeds all of `text` to the handler. Returns the fault that ended it; nullopt when the text is whole or the handler
// stopped, which handler.error() tells apart.
std::optional<JsonFault> ScanJson(std::string_view text, const JsonLimits& limits, JsonHandler& handler);

// The same with one error for both; its message begins with handler.path(). `offset` as in JsonFault::Message.
Status ParseJsonEvents(std::string_view text, const JsonLimits& limits, JsonHandler& handler, size_t offset = 0);

}  // namespace infinigen
