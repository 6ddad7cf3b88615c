// Transfers between host and compute device: the tokens of a batch, and activations as f32 for observers, calibration
// and synthetic entries. Called by the decoder only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "base/split_mix.h"
#include "kv/pool.h"
#include "model/workspace.h"
#include "tensor/dtype.h"

namespace infinigen {

// The tokens of a step or prefill unit, assembled on the host and uploaded together.
template <Backend B>
class BatchUpload {
 public:
  // All arguments outlive the object.
  BatchUpload(B& backend, const Workspace& work, const Pool& pool) : backend_(backend), work_(work), pool_(pool) {}

  // Allocates memory for batches of up to `tokens` tokens.
  void Start(int64_t tokens) {
    for (std::vector<int32_t>* array : {&ids_, &slots_, &rows_, &retained_rows_})
      array->resize(static_cast<size_t>(tokens));
  }

  void Set(int64_t i, int32_t id, SeqSlot slot, int64_t row) {
    ids_[static_cast<size_t>(i)] = id;
    slots_[static_cast<size_t>(i)] = slot.value();
    rows_[static_cast<size_t>(i)] = static_cast<int32_t>(row);
    retained_rows_[static_cast<size_t>(i)] = static_cast<int32_t>(std::min(row, pool_.quota(slot).retained - 1));
  }
  int32_t slot(int64_t i) const { return slots_[static_cast<size_t>(i)]; }

  // Uploads tokens [0, count) to the workspace.
  TokenBatch Upload(int64_t count) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(int32_t);
    backend_.Upload(Queue::kCompute, ids_.data(), bytes, work_.ids);
    backend_.Upload(Queue::kCompute, slots_.data(), bytes, work_.slots);
    backend_.Upload(Queue::kCompute, rows_.data(), bytes, work_.rows);
    if (work_.retained_rows != nullptr)
      backend_.Upload(Queue::kCompute, retained_rows_.data(), bytes, work_.retained_rows);
    return {.count = count, .ids = work_.ids, .slots = work_.slots, .rows = work_.rows};
  }

 private:
  B& backend_;
  const Workspace& work_;
  const Pool& pool_;
  std::vector<int32_t> ids_, slots_, rows_;  // [tokens]
  std::vector<int32_t> retained_rows_;       // [tokens] the last row of each token's cache in layers that evict
};

// The numbers of x as f32. The host waits for the compute queue.
template <Backend B>
std::vector<float> ToHost(B& backend, const Tensor& x) {
  std::vector<std::byte> stored(static_cast<size_t>(x.rows * x.cols) * SizeOf(x.type));
  backend.Synchronize(backend.Download(Queue::kCompute, x.data, stored.size(), stored.data()));
  std::vector<float> host(static_cast<size_t>(x.rows * x.cols));
  Dispatch(x.type, [&](auto tag) {
    const auto* numbers = reinterpret_cast<const decltype(tag)*>(stored.data());
    for (size_t i = 0; i < host.size(); ++i) host[i] = ToFloat(numbers[i]);
  });
  return host;
}

// Uploads `host` to x, rounded to the type of x.
template <Backend B>
void FromHost(B& backend, std::span<const float> host, const Tensor& x) {
  CHECK(host.size() == static_cast<size_t>(x.rows * x.cols));
  if (x.type == DType::kF32) return backend.Upload(Queue::kCompute, host.data(), host.size_bytes(), x.data);
  std::vector<uint16_t> stored(host.size());
  for (size_t i = 0; i < host.size(); ++i)
    stored[i] = x.type == DType::kBF16 ? ToBF16(host[i]).bits : ToF16(host[i]).bits;
  backend.Upload(Queue::kCompute, stored.data(), stored.size() * sizeof(uint16_t), x.data);
}

// A random number of mean 0 and variance 1, roughly normal: the sum of four uniform numbers from one draw.
inline float AboutNormal(SplitMix& random) {
  const uint64_t bits = random.Next();
  const uint64_t sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
  return (static_cast<float>(sum) * (1.0f / 65536) - 2.0f) * 1.7320508f;
}

}  // namespace infinigen
