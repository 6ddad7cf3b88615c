// Copies between the device and pageable host memory, through pinned memory. Uploads use a ring, so that the source may
// change as soon as the call returns. Downloads use a bounce buffer and reach their destination when the host waits for
// them. Private to backend/cuda.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <deque>

#include "backend/cuda/tickets.h"

namespace infinigen {

class Transfers {
 public:
  explicit Transfers(Tickets& tickets) : tickets_(tickets) {}
  ~Transfers();
  Status Open();

  void Upload(Queue queue, cudaStream_t stream, const void* host, size_t bytes, void* device);
  Ticket Download(Queue queue, cudaStream_t stream, const void* device, size_t bytes, void* host);
  // Blocks the host; downloads up to the ticket have then reached their destination.
  void Synchronize(Ticket ticket);

 private:
  struct Upward {
    Ticket ticket;
    size_t begin, end;  // range of the ring
  };
  struct Downward {
    Ticket ticket;
    const std::byte* bounce;
    void* host;
    size_t bytes;
  };
  void Deliver(size_t count);

  Tickets& tickets_;
  std::byte* ring_ = nullptr;
  size_t ring_at_ = 0;
  std::deque<Upward> uploads_;  // oldest first
  std::byte* bounce_ = nullptr;
  size_t bounce_at_ = 0;
  std::deque<Downward> downloads_;
};

}  // namespace infinigen
