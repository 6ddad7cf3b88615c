// Reading JSON of unknown size and intent as a stream of events. nlohmann::json does the parsing; here are the guards:
// a string or number is at most 1 MiB long, nesting at most 64 deep, white space costs nothing, and nothing throws.
// Memory is what the sink keeps.
#pragma once

#include <cstdint>
#include <istream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/result.h"

namespace infinigen {

// Receives the events. Each returns false to stop, having called Fail().
class JsonSink {
 public:
  virtual ~JsonSink() = default;
  virtual bool Scalar(nlohmann::json value) = 0;  // null, boolean or number
  virtual bool String(std::string& value) = 0;
  virtual bool Key(std::string& key) = 0;
  virtual bool Open(bool object) = 0;
  virtual bool Close(bool object) = 0;

  const Error& failure() const { return failure_; }

 protected:
  bool Fail(Error error) {
    failure_ = std::move(error);
    return false;
  }

 private:
  Error failure_;
};

// `name` begins every message.
Status ParseJsonEvents(std::istream& in, const std::string& name, JsonSink& sink);

// Opens a regular file for reading from front to back; refused when longer than `limit_bytes`. `*size` is its length.
Result<std::unique_ptr<std::istream>> OpenForReading(const std::string& path, uint64_t limit_bytes, uint64_t* size);

// Builds a tree from events, with a limit on its nodes and on its text.
class LimitedJsonTree {
 public:
  LimitedJsonTree(size_t max_nodes, size_t max_text_bytes) : max_nodes_(max_nodes), max_text_bytes_(max_text_bytes) {}

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

  size_t max_nodes_;
  size_t max_text_bytes_;
  size_t nodes_ = 0;
  size_t text_bytes_ = 0;
  bool started_ = false;
  nlohmann::json root_;
  std::vector<nlohmann::json*> open_;
  std::string key_;
};

// A small file (at most 4 MiB, 300,000 values) as a tree.
Result<nlohmann::json> ReadSmallJson(const std::string& path);

}  // namespace infinigen
