// What one rendering of a chat template may cost. A template is foreign code: each evaluated node, each 256 bytes of
// text read and each value made is counted, and a template that goes on for too long ends in an error. Used by one
// thread.
#pragma once

#include <cstdint>

#include "base/result.h"

namespace infinigen::jinja {

class Budget {
 public:
  Budget(uint64_t max_steps, uint64_t max_made_bytes) : steps_left_(max_steps), bytes_left_(max_made_bytes) {}

  Status Step(uint64_t count = 1) {
    if (count > steps_left_) return Exhausted("the template takes too many steps");
    steps_left_ -= count;
    return Ok{};
  }

  // Looking at `bytes` of text.
  Status Read(uint64_t bytes) { return Step(1 + bytes / kBytesPerStep); }

  // Making a value of `bytes`. What is freed again still counts, so this bounds the memory in use.
  Status Make(uint64_t bytes) {
    if (bytes > bytes_left_) return Exhausted("the template makes values that are too large");
    bytes_left_ -= bytes;
    return Read(bytes);
  }

 private:
  static constexpr uint64_t kBytesPerStep = 256;  // scanning that much costs about as much as evaluating a node

  uint64_t steps_left_;
  uint64_t bytes_left_;
};

}  // namespace infinigen::jinja
