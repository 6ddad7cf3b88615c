// Allocators for the two memories of a GPU: its own, under a limit, and pinned host memory, which kernels and copy
// engines reach over the link.
//
// Pinning takes a fifth of a second per GiB, so a background thread does it, piece by piece in the order of addresses.
// AwaitPinned waits for the pieces that are needed. Called from the engine's thread.
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
  // `stream`, a cudaStream_t, orders allocation and reuse. Memory that other queues use may be freed only after they
  // are done with it.
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

  // Returns immediately; pinning starts in the background.
  Result<std::byte*> Allocate(size_t bytes) override;
  void Free(std::byte* data, size_t bytes) override;

  // Waits until [data, data + bytes) is pinned. Does nothing for memory that this allocator does not own.
  void AwaitPinned(const std::byte* data, size_t bytes);
  void AwaitAll();
  // Bytes from `data` on that were pinned in one piece: a copy must not cross the end of a piece. Unlimited for memory
  // that this allocator does not own.
  size_t Together(const std::byte* data);
  // Total time spent pinning.
  double pinning_s();

 private:
  struct Block {
    size_t bytes = 0;
    size_t pinned = 0;     // pinned bytes, from the start
    bool at_work = false;  // a piece is being pinned
    bool given_back = false;
  };
  void PinInBackground();

  std::mutex mutex_;
  std::condition_variable wake_;    // wakes the pinning thread: work, or shutdown
  std::condition_variable pinned_;  // signals that a piece has been pinned
  std::map<std::byte*, Block> blocks_;
  std::deque<std::byte*> unpinned_;  // blocks still to be pinned, in order
  double pinning_s_ = 0;
  bool ending_ = false;
  std::thread thread_;  // last member: it uses all the others
};

}  // namespace infinigen
