// Activations as f32 in host memory, and back: for observers, calibration and synthetic entries. The host waits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "base/split_mix.h"
#include "tensor/dtype.h"

namespace infinigen {

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

template <Backend B>
void FromHost(B& backend, std::span<const float> host, const Tensor& x) {
  CHECK(host.size() == static_cast<size_t>(x.rows * x.cols));
  if (x.type == DType::kF32) return backend.Upload(Queue::kCompute, host.data(), host.size_bytes(), x.data);
  std::vector<uint16_t> stored(host.size());
  for (size_t i = 0; i < host.size(); ++i)
    stored[i] = x.type == DType::kBF16 ? ToBF16(host[i]).bits : ToF16(host[i]).bits;
  backend.Upload(Queue::kCompute, stored.data(), stored.size() * sizeof(uint16_t), x.data);
}

// Mean 0, variance 1, near enough to normal: four uniform numbers out of one draw.
inline float AboutNormal(SplitMix& random) {
  const uint64_t bits = random.Next();
  const uint64_t sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
  return (static_cast<float>(sum) * (1.0f / 65536) - 2.0f) * 1.7320508f;
}

}  // namespace infinigen
