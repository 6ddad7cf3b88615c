// The two memories of a GPU: its own, under a limit, and pinned host memory, which kernels and copy engines reach over
// the link.
//
// Pinning takes a fifth of a second per GiB, so it happens in the background, piece by piece in the order of addresses;
// whoever needs a piece waits for it (AwaitPinned). Called from the engine's thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "tensor/buffer.h"

namespace infinigen {

class DeviceAllocator final : public Allocator {
 public:
  // `stream` orders allocation and reuse: a cudaStream_t. Memory that other queues use is given back after they are
  // done with it.
  DeviceAllocator(void* stream, uint64_t limit_bytes) : stream_(stream), limit_bytes_(limit_bytes) {}

  Result<std::byte*> Allocate(size_t bytes) override;
  void Free(std::byte* data, size_t bytes) override;

  uint64_t used_bytes() const { return used_bytes_; }
  uint64_t peak_bytes() const { return peak_bytes_; }

 private:
  void* stream_;
  uint64_t limit_bytes_;
  uint64_t used_bytes_ = 0;
  uint64_t peak_bytes_ = 0;
};

class PinnedAllocator final : public Allocator {
 public:
  PinnedAllocator();
  ~PinnedAllocator() override;

  // Returns at once; pinning begins.
  Result<std::byte*> Allocate(size_t bytes) override;
  void Free(std::byte* data, size_t bytes) override;

  // Waits until [data, data + bytes) of a block is pinned. Bytes of nobody's block are left alone.
  void AwaitPinned(const std::byte* data, size_t bytes);
  void AwaitAll();
  // Bytes from `data` on that were pinned together: a copy may not reach beyond. Of nobody's block: any number.
  size_t Together(const std::byte* data);
  // Time spent pinning so far.
  double pinning_s();

 private:
  struct Block {
    size_t bytes = 0;
    size_t pinned = 0;     // from the start on
    bool at_work = false;  // a piece is being pinned
    bool given_back = false;
  };
  void PinInBackground();

  std::mutex mutex_;
  std::condition_variable wake_;    // for the thread: there is work, or an end
  std::condition_variable pinned_;  // for those who wait
  std::map<std::byte*, Block> blocks_;
  std::deque<std::byte*> unpinned_;  // blocks still to be pinned, in order
  double pinning_s_ = 0;
  bool ending_ = false;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace infinigen
