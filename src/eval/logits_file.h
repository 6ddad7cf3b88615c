// LogitsFile: the logits of scored tokens as a NumPy file, so that a script can compare them with another program's.
// Float32, shape [tokens][vocab]. The file appears when it is complete. One thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/new_file.h"
#include "base/result.h"

namespace infinigen {

class LogitsFile {
 public:
  explicit LogitsFile(const std::string& path) : file_(path) {}

  // Writes the header and reserves the space for all rows.
  Status Begin(int64_t tokens, int64_t vocab);
  // Adds a row. The first failure is kept for Finish.
  void Add(std::span<const float> logits);
  // Precondition: every row was added.
  Status Finish();

 private:
  NewFile file_;
  Status failure_ = Ok{};
};

}  // namespace infinigen
