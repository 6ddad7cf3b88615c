#include <algorithm>
#include <cstring>

#include "backend/cuda/transfers.h"

namespace infinigen {
namespace {

constexpr size_t kRingBytes = size_t{16} << 20;
constexpr size_t kUploadPieceBytes = kRingBytes / 4;
constexpr size_t kBounceBytes = size_t{32} << 20;

}  // namespace

Transfers::~Transfers() {
  if (ring_ != nullptr) CUDA_CHECK(cudaFreeHost(ring_));
  if (bounce_ != nullptr) CUDA_CHECK(cudaFreeHost(bounce_));
}

Status Transfers::Open() {
  void *ring = nullptr, *bounce = nullptr;
  RETURN_IF_ERROR(Asked(cudaHostAlloc(&ring, kRingBytes, cudaHostAllocDefault), "pinned host memory"));
  ring_ = static_cast<std::byte*>(ring);
  RETURN_IF_ERROR(Asked(cudaHostAlloc(&bounce, kBounceBytes, cudaHostAllocDefault), "pinned host memory"));
  bounce_ = static_cast<std::byte*>(bounce);
  return Ok();
}

void Transfers::Upload(Queue queue, cudaStream_t stream, const void* host, size_t bytes, void* device) {
  const auto* from = static_cast<const std::byte*>(host);
  auto* to = static_cast<std::byte*>(device);
  // Uploads are in the order of the ring, so those that overlap the new range are at the front.
  const auto drop_front_while = [&](auto&& in_the_way) {
    for (; !uploads_.empty() && in_the_way(uploads_.front()); uploads_.pop_front())
      tickets_.Synchronize(uploads_.front().ticket);
  };
  while (bytes > 0) {
    const size_t piece = std::min(bytes, kUploadPieceBytes);
    if (ring_at_ + piece > kRingBytes) {
      drop_front_while([&](const Upward& upload) { return upload.begin >= ring_at_; });
      ring_at_ = 0;
    }
    const size_t begin = ring_at_, end = begin + piece;
    drop_front_while([&](const Upward& upload) { return upload.begin < end && begin < upload.end; });
    std::memcpy(ring_ + begin, from, piece);
    CUDA_CHECK(cudaMemcpyAsync(to, ring_ + begin, piece, cudaMemcpyDefault, stream));
    uploads_.push_back({tickets_.Record(queue, stream), begin, end});
    ring_at_ = (end + 63) / 64 * 64;
    from += piece, to += piece, bytes -= piece;
  }
}

Ticket Transfers::Download(Queue queue, cudaStream_t stream, const void* device, size_t bytes, void* host) {
  const auto* from = static_cast<const std::byte*>(device);
  auto* to = static_cast<std::byte*>(host);
  Ticket ticket;
  while (bytes > 0) {
    const size_t piece = std::min(bytes, kBounceBytes);
    if (bounce_at_ + piece > kBounceBytes) Deliver(downloads_.size());
    std::byte* bounce = bounce_ + bounce_at_;
    CUDA_CHECK(cudaMemcpyAsync(bounce, from, piece, cudaMemcpyDefault, stream));
    ticket = tickets_.Record(queue, stream);
    downloads_.push_back({ticket, bounce, to, piece});
    bounce_at_ += piece;
    from += piece, to += piece, bytes -= piece;
  }
  return ticket;
}

void Transfers::Synchronize(Ticket ticket) {
  tickets_.Synchronize(ticket);
  while (!uploads_.empty() && Tickets::Covers(ticket, uploads_.front().ticket)) uploads_.pop_front();
  const auto last = std::find_if(downloads_.rbegin(), downloads_.rend(),
                                 [&](const Downward& download) { return Tickets::Covers(ticket, download.ticket); });
  Deliver(static_cast<size_t>(downloads_.rend() - last));
}

// Copies the oldest `count` downloads to their destinations, in the order in which buffer space was given out.
void Transfers::Deliver(size_t count) {
  for (; count > 0; --count) {
    const Downward& next = downloads_.front();
    tickets_.Synchronize(next.ticket);
    std::memcpy(next.host, next.bounce, next.bytes);
    downloads_.pop_front();
  }
  if (downloads_.empty()) bounce_at_ = 0;
}

}  // namespace infinigen
