// Common base of the two host backends. All memory is host memory, parameters are used where they are, and every
// operation is done when its call returns, so tickets are always complete.
#pragma once

#include <chrono>
#include <cstring>

#include "backend/backend.h"

namespace infinigen {

class HostBackend {
 public:
  static constexpr DType activation() { return DType::kF32; }

  Allocator& compute_memory() { return memory_; }
  Allocator& pool_memory() { return memory_; }
  Allocator& host_memory() { return memory_; }
  static constexpr bool pool_is_remote() { return false; }
  Result<ConstTensor> Load(const ConstTensor& vector) { return vector; }
  void Upload(Queue, const void* host, size_t bytes, void* device) {
    if (bytes > 0) std::memcpy(device, host, bytes);  // memcpy of zero bytes may not be given null pointers
  }
  Ticket Download(Queue, const void* device, size_t bytes, void* host) {
    if (bytes > 0) std::memcpy(host, device, bytes);
    return {};
  }
  void AwaitPool() {}
  void Move(Queue, std::span<const ByteMove> moves) {
    for (const ByteMove& move : moves)
      for (size_t i = 0; i < move.pieces; ++i)
        std::memcpy(move.to + i * move.stride, move.from + i * move.stride, move.bytes);
  }
  void Copy(Queue, const ConstTensor& x, const Tensor& out) {
    CHECK(x.type == out.type && x.rows == out.rows && x.cols == out.cols);
    for (int64_t r = 0; r < x.rows; ++r)
      std::memcpy(out.row(r), x.row(r), static_cast<size_t>(x.cols) * SizeOf(x.type));
  }
  Ticket Record(Queue) { return {}; }
  void Wait(Queue, Ticket) {}
  void Synchronize(Ticket) {}
  void NoteArrived(Queue, FetchClock* clock) { clock->arrived_ns = Now(); }
  void NoteReady(Queue, FetchClock* clock) { clock->ready_ns = Now(); }
  void CountWaits(Queue, FetchClock* clocks, int64_t count) {
    for (int64_t i = 0; i < count; ++i) clocks[i].waited_ns += clocks[i].wait_ns();
  }

 private:
  static uint64_t Now() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
  }

  HostAllocator memory_;
};

}  // namespace infinigen
