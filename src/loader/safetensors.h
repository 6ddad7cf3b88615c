// SafetensorsFile: one mapped .safetensors file whose header has been checked in full. Move-only; spans and names live
// as long as the object. Read-only after Open, so any number of threads may use it.
//
// The format: 8 bytes little-endian header length N, N bytes of JSON ({"name": {"dtype","shape","data_offsets"}, …,
// "__metadata__": {string: string}}), then the data. Like the format's own reader we require the tensors to tile the
// data section exactly: no hole, no overlap, nothing behind the last one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mmap_file.h"
#include "base/result.h"
#include "tensor/weight_view.h"

namespace infinigen {

inline constexpr size_t kMaxTensorRank = 8;

struct TensorEntry {
  std::string name;
  std::string_view dtype;  // as the file spells it; points to static text
  uint32_t element_bits = 0;
  uint32_t rank = 0;
  std::array<int64_t, kMaxTensorRank> extents{};
  uint64_t begin = 0;  // bytes from the start of the data section
  uint64_t end = 0;

  std::span<const int64_t> shape() const { return {extents.data(), rank}; }
  // None for the types that the engine does not compute with (integers, F64, F8, …).
  std::optional<WeightType> type() const;
};

// The header alone, for files that are in memory already. Sorted by name; `path` is used in messages only.
// `file` is the whole file; `data_begin` receives the offset of the data section.
Result<std::vector<TensorEntry>> ParseSafetensorsHeader(std::span<const std::byte> file, const std::string& path,
                                                        size_t* data_begin);

class SafetensorsFile {
 public:
  static Result<SafetensorsFile> Open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  std::span<const TensorEntry> tensors() const { return tensors_; }  // ascending by name
  const TensorEntry* Find(std::string_view name) const;              // null when there is none
  std::span<const std::byte> Data(const TensorEntry& tensor) const;

 private:
  SafetensorsFile(MmapFile file, std::vector<TensorEntry> tensors, size_t data_begin)
      : file_(std::move(file)), tensors_(std::move(tensors)), data_begin_(data_begin) {}

  MmapFile file_;
  std::vector<TensorEntry> tensors_;
  size_t data_begin_ = 0;
};

}  // namespace infinigen
