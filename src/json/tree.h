// Foreign JSON as a tree: of a text, of a small file, or of parts of an event stream. The guard of json/events.h and
// the limits of JsonLimits hold while the tree is built. Of equal keys in one object the last one counts. Any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "json/events.h"

namespace infinigen {

// `*tree` is the whole text, or unspecified when a fault is returned. For callers with messages of their own.
std::optional<JsonFault> BuildJson(std::string_view text, const JsonLimits& limits, nlohmann::json* tree);

// The message of an error begins with `path`.
Result<nlohmann::json> ParseJson(std::string_view text, const std::string& path, const JsonLimits& limits = {});

// A file of at most `max_bytes`.
Result<nlohmann::json> ReadJsonFile(const std::string& path, size_t max_bytes, const JsonLimits& limits = {});

// Builds a tree from events; a handler uses it for the parts that it keeps. One value after another.
class JsonTreeBuilder {
 public:
  // Honours max_values and max_text_bytes, for each value anew.
  explicit JsonTreeBuilder(const JsonLimits& limits) : limits_(limits) {}

  // False when a limit is passed.
  bool Add(nlohmann::json value);
  bool Key(std::string key);
  bool Open(bool object);
  void Close() { open_.pop_back(); }

  // A whole value has been read.
  bool complete() const { return started_ && open_.empty(); }
  nlohmann::json Take();

 private:
  nlohmann::json* Place(nlohmann::json value);
  bool Count(size_t text_bytes);

  JsonLimits limits_;
  size_t values_ = 0;
  size_t text_bytes_ = 0;
  bool started_ = false;
  nlohmann::json root_;
  std::vector<nlohmann::json*> open_;  // objects and arrays that have not ended, innermost last
  std::string key_;                    // of the next value
};

// The lines of a text that are not blank, with their numbers from 1: files of one JSON value a line.
class JsonLines {
 public:
  struct Line {
    std::string_view text;  // without its line end
    int64_t number = 0;
  };

  explicit JsonLines(std::string_view text) : rest_(text) {}
  std::optional<Line> Next();

 private:
  std::string_view rest_;
  int64_t number_ = 0;
};

}  // namespace infinigen
