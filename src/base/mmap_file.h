// MmapFile: a whole file, read-only, mapped. Move-only; the bytes live as long as the object. Weights are used straight
// from here, so a model costs page cache and no second copy.
//
// The length is taken once, at Open. A file that another process truncates afterwards raises SIGBUS on access: that is
// the contract of mmap and the price of not copying.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/result.h"

namespace infinigen {

class MmapFile {
 public:
  static Result<MmapFile> Open(const std::string& path);

  MmapFile(MmapFile&& other) noexcept;
  MmapFile& operator=(MmapFile&& other) noexcept;
  MmapFile(const MmapFile&) = delete;
  MmapFile& operator=(const MmapFile&) = delete;
  ~MmapFile();

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  MmapFile(std::string path, const std::byte* data, size_t size);

  std::string path_;
  const std::byte* data_ = nullptr;  // null when the file is empty
  size_t size_ = 0;
};

// Reads a small file whole. Refused when longer than `limit_bytes`, so that a hostile file cannot take memory.
Result<std::string> ReadSmallFile(const std::string& path, size_t limit_bytes);

}  // namespace infinigen
