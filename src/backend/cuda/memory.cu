#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "backend/cuda/check.h"
#include "backend/cuda/memory.h"
#include "base/size.h"

namespace infinigen {
namespace {

// Bytes pinned per call: small enough that a wait for the first rows of a slab is short, large enough that the cost of
// the calls is negligible.
constexpr size_t kPieceBytes = size_t{256} << 20;

size_t Rounded(size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

Result<std::byte*> DeviceAllocator::Allocate(size_t bytes) {
  const uint64_t wanted = Rounded(bytes);
  if (wanted > limit_bytes_ - used_bytes_)
    return Exhausted("GPU memory: {} asked for, {} of {} are free", FormatSize(bytes),
                     FormatSize(limit_bytes_ - used_bytes_), FormatSize(limit_bytes_));
  void* data = nullptr;
  const cudaError_t status = cudaMallocAsync(&data, wanted, static_cast<cudaStream_t>(stream_));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // clears the error, which has been handled
    size_t free_bytes = 0, total_bytes = 0;
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    return Exhausted("GPU memory: {} asked for, {} of {} are free on the device", FormatSize(bytes),
                     FormatSize(free_bytes), FormatSize(total_bytes));
  }
  CUDA_CHECK(status);
  used_bytes_ += wanted;
  peak_bytes_ = std::max(peak_bytes_, used_bytes_);
  return static_cast<std::byte*>(data);
}

void DeviceAllocator::Free(std::byte* data, size_t bytes) {
  CUDA_CHECK(cudaFreeAsync(data, static_cast<cudaStream_t>(stream_)));
  used_bytes_ -= Rounded(bytes);
}

PinnedAllocator::PinnedAllocator() : thread_([this] { PinInBackground(); }) {}

PinnedAllocator::~PinnedAllocator() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

Result<std::byte*> PinnedAllocator::Allocate(size_t bytes) {
  void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED)
    return Exhausted("cannot allocate {} of host memory: {}", FormatSize(bytes), std::strerror(errno));
  ::madvise(mapped, bytes, MADV_HUGEPAGE);
  auto* data = static_cast<std::byte*>(mapped);
  {
    const std::lock_guard lock(mutex_);
    blocks_[data] = {.bytes = bytes};
    unpinned_.push_back(data);
  }
  wake_.notify_all();
  return data;
}

void PinnedAllocator::Free(std::byte* data, size_t bytes) {
  size_t pinned = 0;
  {
    std::unique_lock lock(mutex_);
    Block& block = blocks_.at(data);
    block.given_back = true;
    pinned_.wait(lock, [&] { return !block.at_work; });
    pinned = block.pinned;
    std::erase(unpinned_, data);
    blocks_.erase(data);
  }
  for (size_t at = 0; at < pinned; at += kPieceBytes) CUDA_CHECK(cudaHostUnregister(data + at));
  ::munmap(data, bytes);
}

void PinnedAllocator::PinInBackground() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return ending_ || !unpinned_.empty(); });
    if (ending_) return;
    std::byte* const data = unpinned_.front();
    Block& block = blocks_.at(data);  // stays valid: Free waits until pinning has finished
    block.at_work = true;
    std::byte* const piece = data + block.pinned;
    const size_t bytes = std::min(kPieceBytes, block.bytes - block.pinned);
    lock.unlock();
    const auto start = std::chrono::steady_clock::now();
    ::madvise(piece, bytes, MADV_POPULATE_WRITE);  // a hint: faulting pages in bulk is quicker than one by one
    if (const cudaError_t status = cudaHostRegister(piece, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
        status != cudaSuccess) {
      // The waiting thread cannot continue without the memory: end the program with the reason.
      std::fprintf(stderr, "infinigen: cannot pin %s of host memory: %s; a smaller --kv-limit or context needs less\n",
                   FormatSize(bytes).c_str(), cudaGetErrorString(status));
      std::_Exit(1);
    }
    const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    lock.lock();
    pinning_s_ += took;
    block.pinned += bytes;
    block.at_work = false;
    if (block.pinned == block.bytes || block.given_back) std::erase(unpinned_, data);
    pinned_.notify_all();
  }
}

void PinnedAllocator::AwaitPinned(const std::byte* data, size_t bytes) {
  std::unique_lock lock(mutex_);
  auto found = blocks_.upper_bound(const_cast<std::byte*>(data));
  if (found == blocks_.begin()) return;
  --found;
  if (data >= found->first + found->second.bytes) return;
  const Block& block = found->second;
  const size_t needed = std::min(static_cast<size_t>(data - found->first) + bytes, block.bytes);
  pinned_.wait(lock, [&] { return block.pinned >= needed; });
}

size_t PinnedAllocator::Together(const std::byte* data) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.upper_bound(const_cast<std::byte*>(data));
  if (found == blocks_.begin()) return SIZE_MAX;
  const auto& [start, block] = *std::prev(found);
  const auto at = static_cast<size_t>(data - start);
  if (at >= block.bytes) return SIZE_MAX;
  return std::min((at / kPieceBytes + 1) * kPieceBytes, block.bytes) - at;
}

void PinnedAllocator::AwaitAll() {
  std::unique_lock lock(mutex_);
  pinned_.wait(lock, [&] { return unpinned_.empty(); });
}

double PinnedAllocator::pinning_s() {
  const std::lock_guard lock(mutex_);
  return pinning_s_;
}

}  // namespace infinigen
