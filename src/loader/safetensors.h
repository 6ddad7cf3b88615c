// SafetensorsFile: one mapped .safetensors file with a fully checked header. Move-only; spans and names are valid as
// long as the object lives. Read-only after Open, so any thread may use it.
//
// The format: header length N (8 bytes, little-endian), N bytes of JSON ({"name": {"dtype","shape","data_offsets"}, …,
// "__metadata__": {string: string}}), then the data section. As in the format's own reader, the tensors must cover the
// data section exactly: no gap, no overlap, no bytes after the last tensor.
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
  std::string_view dtype;  // the file's spelling; points to static text
  uint32_t element_bits = 0;
  uint32_t rank = 0;
  std::array<int64_t, kMaxTensorRank> extents{};
  uint64_t begin = 0;  // bytes from the start of the data section
  uint64_t end = 0;

  std::span<const int64_t> shape() const { return {extents.data(), rank}; }
  // nullopt for types the engine cannot compute with (integers, F64, F8, …).
  std::optional<WeightType> type() const;
};

// Parses and checks the header of a file in memory; returns its tensors sorted by name. `file` is the whole file,
// `path` its name in messages; `data_begin` receives the offset of the data section.
Result<std::vector<TensorEntry>> ParseSafetensorsHeader(std::span<const std::byte> file, const std::string& path,
                                                        size_t* data_begin);

class SafetensorsFile {
 public:
  static Result<SafetensorsFile> Open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  std::span<const TensorEntry> tensors() const { return tensors_; }  // sorted by name
  const TensorEntry* Find(std::string_view name) const;              // null when not found
  std::span<const std::byte> Data(const TensorEntry& tensor) const;
  void ReadIntoMemory(ThreadPool& threads) const { file_.ReadIntoMemory(threads); }  // see MmapFile

 private:
  SafetensorsFile(MmapFile file, std::vector<TensorEntry> tensors, size_t data_begin)
      : file_(std::move(file)), tensors_(std::move(tensors)), data_begin_(data_begin) {}

  MmapFile file_;
  std::vector<TensorEntry> tensors_;
  size_t data_begin_ = 0;
};

}  // namespace infinigen
