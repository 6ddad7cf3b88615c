// Operands for op tests: host data with a shape, and its copy in the memory of the backend under test. Every row is
// followed by a gap of poison (NaN), which reveals kernels that read or write past a row.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "base/check.h"
#include "kv/store.h"

namespace infinigen {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  // Box-Muller, one number of the pair. The library's distribution computes a logarithm in long double for every
  // number, which took a fifth of the op tests' time in unoptimised builds.
  float Normal(float scale = 1.0f) {
    const uint64_t bits = engine_();
    const float radius = std::sqrt(-2.0f * std::log(static_cast<float>((bits >> 40) + 1) * 0x1p-24f));
    return scale * radius * std::cos(static_cast<float>(bits & 0xffffff) * (0x1p-24f * 6.2831853f));
  }
  int64_t Int(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(engine_); }
  std::mt19937_64& engine() { return engine_; }

 private:
  std::mt19937_64 engine_;
};

// A host matrix in its stored type.
struct HostTensor {
  std::vector<std::byte> bytes;
  DType type = DType::kF32;
  int64_t rows = 0, cols = 0, stride = 0;

  HostTensor() = default;
  HostTensor(DType t, int64_t r, int64_t c, int64_t gap = 0) : type(t), rows(r), cols(c), stride(c + gap) {
    bytes.resize(static_cast<size_t>(rows * stride) * SizeOf(type), std::byte{0xff});  // NaN in all three types
  }
  static HostTensor Normal(Random& random, DType t, int64_t r, int64_t c, float scale = 1.0f, int64_t gap = 0) {
    HostTensor tensor(t, r, c, gap);
    for (int64_t i = 0; i < r; ++i)
      for (int64_t j = 0; j < c; ++j) tensor.Set(i, j, random.Normal(scale));
    return tensor;
  }

  // The same numbers in another type, rounded if it is narrower.
  HostTensor As(DType t) const {
    HostTensor copy(t, rows, cols, stride - cols);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j) copy.Set(i, j, At(i, j));
    return copy;
  }

  Tensor view() { return {bytes.data(), type, rows, cols, stride}; }
  WeightView weight() { return WeightView(view()); }
  void Set(int64_t r, int64_t c, float value) {
    std::byte* p = bytes.data() + static_cast<size_t>(r * stride + c) * SizeOf(type);
    if (type == DType::kF32) std::memcpy(p, &value, 4);
    if (type == DType::kBF16) *reinterpret_cast<BF16*>(p) = ToBF16(value);
    if (type == DType::kF16) *reinterpret_cast<F16*>(p) = ToF16(value);
  }
  float At(int64_t r, int64_t c) const {
    const std::byte* p = bytes.data() + static_cast<size_t>(r * stride + c) * SizeOf(type);
    return Dispatch(type, [&](auto tag) { return ToFloat(*reinterpret_cast<const decltype(tag)*>(p)); });
  }
  const float* row(int64_t r) const { return reinterpret_cast<const float*>(bytes.data()) + r * stride; }
};

// A copy in memory of `backend`, read back with Fetch.
template <class B>
class DeviceTensor {
 public:
  DeviceTensor(B& backend, HostTensor& host) : backend_(backend), host_(&host) {
    Result<Buffer> buffer = Buffer::Make(backend.compute_memory(), std::max<size_t>(1, host.bytes.size()));
    CHECK(buffer.ok());
    buffer_ = std::move(*buffer);
    backend.Upload(Queue::kCompute, host.bytes.data(), host.bytes.size(), buffer_.data());
  }
  Tensor view() const { return {buffer_.data(), host_->type, host_->rows, host_->cols, host_->stride}; }
  operator Tensor() const { return view(); }                  // NOLINT: reads as the operand it is
  operator ConstTensor() const { return view(); }             // NOLINT
  operator WeightView() const { return WeightView(view()); }  // NOLINT
  HostTensor Fetch() {
    HostTensor copy = *host_;
    backend_.Synchronize(backend_.Download(Queue::kCompute, buffer_.data(), copy.bytes.size(), copy.bytes.data()));
    return copy;
  }

 private:
  B& backend_;
  HostTensor* host_;
  Buffer buffer_;
};

template <class B>
class DeviceInts {
 public:
  DeviceInts(B& backend, const std::vector<int32_t>& values) {
    Result<Buffer> buffer = Buffer::Make(backend.compute_memory(), values.size() * 4 + 1);
    CHECK(buffer.ok());
    buffer_ = std::move(*buffer);
    backend.Upload(Queue::kCompute, values.data(), values.size() * 4, buffer_.data());
  }
  operator const int32_t*() const { return reinterpret_cast<const int32_t*>(buffer_.data()); }  // NOLINT

 private:
  Buffer buffer_;
};

// The entries of one layer for several sequences, in extents scattered over pool memory and filled with poison. Each
// slot has a quota of `tokens` rows, so its last extent is shorter than the others.
template <class B>
class TestEntries {
 public:
  TestEntries(B& backend, const EntryLayout& layout, int64_t slots, int64_t tokens, Random& random)
      : backend_(backend),
        layout_(layout),
        per_slot_((tokens + kExtentTokens - 1) / kExtentTokens),
        quotas_(static_cast<size_t>(slots), static_cast<int32_t>(tokens)),
        device_quotas_(backend, quotas_) {
    const size_t extents = static_cast<size_t>(slots * per_slot_), step = layout.extent_bytes() + 192;
    Result<Buffer> pool = Buffer::Make(backend.pool_memory(), extents * step);
    Result<Buffer> table = Buffer::Make(backend.compute_memory(), extents * sizeof(std::byte*));
    CHECK(pool.ok() && table.ok());
    pool_ = std::move(*pool);
    table_ = std::move(*table);
    backend.AwaitPool();
    const std::vector<std::byte> poison(extents * step, std::byte{0xff});
    backend.Upload(Queue::kCompute, poison.data(), poison.size(), pool_.data());
    for (size_t i = 0; i < extents; ++i) places_.push_back(pool_.data() + i * step);
    std::shuffle(places_.begin(), places_.end(), random.engine());
    backend.Upload(Queue::kCompute, places_.data(), extents * sizeof(std::byte*), table_.data());
  }
  LayerEntries view() const {
    return {layout_, reinterpret_cast<std::byte* const*>(table_.data()), per_slot_, device_quotas_};
  }
  // The stored bytes of one entry.
  std::vector<std::byte> Bytes(int64_t slot, int64_t head, int64_t row) {
    std::vector<std::byte> raw(layout_.entry_bytes());
    const LayerEntries host{layout_, places_.data(), per_slot_, quotas_.data()};
    backend_.Synchronize(backend_.Download(Queue::kCompute, host.Entry(slot, head, row), raw.size(), raw.data()));
    return raw;
  }
  // Key and value of one entry as f32, concatenated.
  std::vector<float> Read(int64_t slot, int64_t head, int64_t row) {
    const std::vector<std::byte> raw = Bytes(slot, head, row);
    std::vector<float> values(static_cast<size_t>(2 * layout_.head_dim));
    const std::span key(values.begin(), values.begin() + layout_.head_dim);
    const std::span value(values.begin() + layout_.head_dim, values.end());
    LoadRow(layout_.key_type(), raw.data(), key);
    LoadRow(layout_.value_type(), raw.data() + layout_.key_bytes(), value);
    return values;
  }

 private:
  B& backend_;
  EntryLayout layout_;
  int64_t per_slot_;
  std::vector<int32_t> quotas_;
  DeviceInts<B> device_quotas_;
  Buffer pool_, table_;
  std::vector<std::byte*> places_;
};

}  // namespace infinigen
