// GgufWriter: writes a GGUF file (version 3). First the metadata and the table of tensors are stated, then Begin writes
// the header, then the data of the tensors follows in the order of the table. The file appears under its name when
// Finish succeeds (base/new_file.h). One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/new_file.h"
#include "base/result.h"
#include "loader/gguf.h"

namespace infinigen {

class GgufWriter {
 public:
  explicit GgufWriter(std::string path) : file_(std::move(path)) {}

  // ---- metadata; a key is given once ----
  void AddUint32(std::string_view key, uint32_t value);
  void AddFloat(std::string_view key, float value);
  void AddBool(std::string_view key, bool value);
  void AddString(std::string_view key, std::string_view value);
  void AddStrings(std::string_view key, std::span<const std::string> values);
  void AddFloats(std::string_view key, std::span<const float> values);
  void AddInt32s(std::string_view key, std::span<const int32_t> values);
  void AddCopy(const GgufEntry& entry);  // as another file has it

  // Shape: outermost dimension first. Precondition: rows are whole blocks of the type.
  void AddTensor(std::string_view name, std::span<const int64_t> shape, WeightType type);

  // Bytes of the whole file; valid after the last AddTensor.
  uint64_t file_bytes() const;

  // Reserves the space and writes the header.
  Status Begin();
  // Appends data of the next tensor, in any portions. CHECK: no more than the tensor has.
  Status Write(std::span<const std::byte> bytes);
  // Gives the file its name. CHECK: all data is written.
  Status Finish();

 private:
  struct Tensor {
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };

  void AddKey(std::string_view key, GgufValueType type);

  NewFile file_;
  std::string metadata_;  // the entries, as in the file
  std::string table_;     // the table of tensors, as in the file
  uint64_t entries_ = 0;
  std::vector<Tensor> tensors_;
  uint64_t data_bytes_ = 0;     // of the data section, without padding after the last tensor
  size_t current_ = 0;          // the tensor whose data is written next
  uint64_t current_bytes_ = 0;  // how much of it is written
};

}  // namespace infinigen
