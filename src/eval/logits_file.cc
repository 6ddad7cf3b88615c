#include "eval/logits_file.h"

#include <fmt/format.h>

#include <string_view>

namespace infinigen {

Status LogitsFile::Begin(int64_t tokens, int64_t vocab) {
  // Magic, version 1.0, length of the rest; then a Python dict, padded so that the data begins at a multiple of 64.
  constexpr size_t kFixed = 10;
  std::string description =
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", tokens, vocab);
  description.append(63 - (kFixed + description.size()) % 64, ' ');
  description += '\n';
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(description.size() & 0xff);
  header += static_cast<char>(description.size() >> 8);
  header += description;
  const auto rows = static_cast<uint64_t>(tokens) * static_cast<uint64_t>(vocab) * sizeof(float);
  RETURN_IF_ERROR(file_.Begin(header.size() + rows));
  return file_.Append(header);
}

void LogitsFile::Add(std::span<const float> logits) {
  if (!failure_.ok()) return;
  failure_ = file_.Append({reinterpret_cast<const char*>(logits.data()), logits.size_bytes()});
}

Status LogitsFile::Finish() {
  RETURN_IF_ERROR(failure_);
  return file_.Finish();
}

}  // namespace infinigen
