// Reading large foreign JSON as a stream of events, so that a header of many megabytes never becomes a tree many times
// its size. Used by the safetensors header and the shard index; small files (config.json) may build a tree.
//
// A handler derives from JsonHandler, overrides the events it expects and calls Fail for what it refuses; every event
// it does not override is refused with its name. Depth and the length of a single token are bounded here.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"

namespace infinigen {

// A foreign string for a message: in quotes, control characters escaped, cut when long, so that it stays one line.
std::string Quoted(std::string_view text);

class JsonHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit JsonHandler(std::string path) : path_(std::move(path)) {}

  const std::optional<Error>& error() const { return error_; }
  const std::string& path() const { return path_; }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_integer(number_integer_t) override { return Unexpected("a negative number"); }
  bool number_unsigned(number_unsigned_t) override { return Unexpected("a number"); }
  bool number_float(number_float_t, const string_t&) override { return Unexpected("a fraction"); }
  bool string(string_t&) override { return Unexpected("a string"); }
  bool binary(binary_t&) override { return Unexpected("binary data"); }
  bool start_object(size_t) override { return Unexpected("an object"); }
  bool key(string_t&) override { return Unexpected("a key"); }
  bool end_object() override { return Unexpected("the end of an object"); }
  bool start_array(size_t) override { return Unexpected("an array"); }
  bool end_array() override { return Unexpected("the end of an array"); }
  bool parse_error(size_t position, const std::string& last_token, const nlohmann::json::exception& reason) final;

 protected:
  // Keeps the first error; false stops the parser.
  bool Fail(Error error) {
    if (!error_) error_ = std::move(error);
    return false;
  }
  // Names what came and, by Place(), where.
  bool Unexpected(std::string_view what);
  // "tensor 'x', field 'shape'": where the parser stands, for messages.
  virtual std::string Place() const = 0;

 private:
  std::string path_;
  std::optional<Error> error_;
};

// Feeds all of `text` to the handler. `offset` is where the text begins in its file, for messages.
Status ParseJsonStream(std::string_view text, size_t offset, JsonHandler& handler);

}  // namespace infinigen
