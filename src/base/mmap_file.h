// MmapFile: a whole file, mapped read-only. Move-only; the bytes live as long as the object. Weights are read directly
// from the mapping, so a model occupies page cache and is not copied unless ReadIntoMemory is called.
//
// The length is read once, at Open. If another process truncates the file later, access raises SIGBUS: a program that
// calls ExplainTruncatedFiles then ends with a message that names the file.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/result.h"
#include "base/thread_pool.h"

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

  // Replaces the mapping by a copy in anonymous memory, at the same addresses and in huge pages where the kernel gives
  // them. The kernel maps a file's page cache in pages of 4 KiB, and a processor that streams over those misses its TLB
  // often: decoding a 1B model in Q4_K takes a quarter longer. The page cache can drop the file afterwards. Const,
  // because neither addresses nor contents change, but no other thread may read the bytes meanwhile. Where memory
  // cannot be had, the rest of the file stays mapped.
  void ReadIntoMemory(ThreadPool& threads) const;

 private:
  MmapFile(std::string path, const std::byte* data, size_t size);

  std::string path_;
  const std::byte* data_ = nullptr;  // null when the file is empty
  size_t size_ = 0;
};

// Installs a handler of SIGBUS. Where the address belongs to a mapped file, it prints "infinigen: FILE: …" and ends the
// process with exit code 1; otherwise the signal has its default action. For programs, not for libraries.
void ExplainTruncatedFiles();

// Reads a whole file into memory. Fails when it is longer than `limit_bytes`, so a hostile file cannot exhaust memory.
Result<std::string> ReadSmallFile(const std::string& path, size_t limit_bytes);

}  // namespace infinigen
