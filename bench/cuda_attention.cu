// GPU attention against its limits, at the shapes of OPT-13B and Llama-3.1-8B: decode in GB/s of entries, compared with
// a copy on the device, and prefill in TFLOP/s. Some outputs of every run are compared with a simple f32 kernel. Prints
// one table; takes about a minute and 8 GiB of device memory.
//   build: part of the `cuda_attention` target; run: build/release/cuda_attention
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "backend/cuda/check.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/numbers.cuh"
#include "cuda_bench.cuh"
#include "kv/view.h"

namespace infinigen {
namespace {

constexpr int64_t kDim = 128;

struct Model {
  const char* name;
  int64_t heads, kv_heads;
};
constexpr Model kOpt{"OPT-13B", 40, 40}, kLlama{"Llama-3.1-8B", 32, 8};

// ---- Random operands

__device__ uint32_t Hash(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return static_cast<uint32_t>((x ^ (x >> 31)) >> 16);
}
// About unit variance, within ±3.
__device__ float RandomNumber(uint64_t seed) {
  float sum = 0;
  for (uint64_t i = 0; i < 3; ++i) sum += static_cast<float>(Hash(seed * 3 + i)) * 0x1p-31f - 1.0f;
  return sum;
}
__global__ void FillNumbers(__nv_bfloat16* to, size_t count, uint64_t seed) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count; i += size_t{gridDim.x} * blockDim.x)
    to[i] = __float2bfloat16_rn(RandomNumber(seed + i));
}
// Quantised keys and values: random codes, with headers that spread them over about ±2.
__global__ void FillCodes(std::byte* to, size_t entries, EntryLayout layout) {
  const size_t entry = blockIdx.x * size_t{blockDim.x} + threadIdx.x;
  if (entry >= entries) return;
  const auto fill = [&](StoreType type, size_t first) {
    const float scale = 4.0f / static_cast<float>(LargestCode(type));
    for (size_t i = 0; i < StoredBytes(type, layout.head_dim); i += 4) {
      uint32_t word = Hash(first + i);
      if (i < static_cast<size_t>(StoreHeaderBytes(layout.head_dim)))
        word = __half_as_ushort(__float2half_rn(scale)) | uint32_t{__half_as_ushort(__float2half_rn(-2.0f))} << 16;
      *reinterpret_cast<uint32_t*>(to + first + i) = word;
    }
  };
  fill(layout.key_type(), entry * layout.entry_bytes());
  fill(layout.value_type(), entry * layout.entry_bytes() + layout.key_bytes());
}

// Number i of a key or value of `dim` numbers.
__device__ float StoredNumber(StoreType type, int64_t dim, const std::byte* row, int64_t i) {
  if (type == StoreType::kBF16) return AsFloat(reinterpret_cast<const __nv_bfloat16*>(row)[i]);
  const __half2 header = reinterpret_cast<const __half2*>(row)[i / kStoreGroup];
  const uint8_t* codes = reinterpret_cast<const uint8_t*>(row + StoreHeaderBytes(dim));
  int code = type == StoreType::kInt8 ? codes[i] : codes[i / 2] >> (i % 2 * 4) & 15;
  if (type == StoreType::kInt6) code |= (codes[LowBytes(dim) + HighByte(i)] >> (i % 4 * 2) & 3) << 4;
  return fmaf(static_cast<float>(code), __low2float(header), __high2float(header));
}

// Computes one query head in f32; `list` null: rows [0, count). One block; weights [count] is its scratch. error: the
// largest difference from `got`.
__global__ void CompareHead(const __nv_bfloat16* query, LayerEntries entries, int64_t slot, int64_t kv_head,
                            const int32_t* list, int64_t count, float scale, float* weights, const __nv_bfloat16* got,
                            float* error) {
  __shared__ float shared[1024];
  const int64_t dim = entries.layout.head_dim;
  const auto row_of = [&](int64_t j) { return list == nullptr ? j : list[j]; };
  const auto reduce = [&](float x, auto f) {
    shared[threadIdx.x] = x;
    for (int n = 512; n > 0; n /= 2) {
      __syncthreads();
      if (threadIdx.x < n) shared[threadIdx.x] = f(shared[threadIdx.x], shared[threadIdx.x + n]);
    }
    __syncthreads();
    const float result = shared[0];
    __syncthreads();
    return result;
  };
  float top = -INFINITY, sum = 0;
  for (int64_t j = threadIdx.x; j < count; j += 1024) {
    const std::byte* key = entries.Entry(slot, kv_head, row_of(j));
    float score = 0;
    for (int64_t i = 0; i < dim; ++i)
      score = fmaf(AsFloat(query[i]), StoredNumber(entries.layout.key_type(), dim, key, i), score);
    weights[j] = score * scale;
    top = fmaxf(top, weights[j]);
  }
  top = reduce(top, [](float a, float b) { return fmaxf(a, b); });
  for (int64_t j = threadIdx.x; j < count; j += 1024) sum += weights[j] = expf(weights[j] - top);
  sum = reduce(sum, [](float a, float b) { return a + b; });
  for (int64_t i = 0; i < dim; ++i) {
    float value = 0;
    for (int64_t j = threadIdx.x; j < count; j += 1024)
      value += weights[j] * StoredNumber(entries.layout.value_type(), dim,
                                         entries.Entry(slot, kv_head, row_of(j)) + entries.layout.key_bytes(), i);
    value = reduce(value, [](float a, float b) { return a + b; }) / sum;
    const float difference = fabsf(value - AsFloat(got[i]));
    if (threadIdx.x == 0 && !(difference <= *error)) *error = difference;  // NaN stays
  }
}

// `slots` sequences of `rows` rows in one layer, extents in random order.
class Cache {
 public:
  Cache(CudaBackend& backend, StoreType type, int64_t kv_heads, int64_t slots, int64_t rows)
      : layout_{type, kv_heads, kDim},
        per_slot_((rows + kExtentTokens - 1) / kExtentTokens),
        data_(backend, static_cast<size_t>(slots * per_slot_) * layout_.extent_bytes()),
        table_(backend, Table(slots)),
        quotas_(backend, std::vector<int32_t>(static_cast<size_t>(slots), static_cast<int32_t>(rows))) {
    const size_t bytes = static_cast<size_t>(slots * per_slot_) * layout_.extent_bytes();
    CUDA_CHECK(cudaDeviceSynchronize());
    if (type == StoreType::kBF16) {
      FillNumbers<<<2048, 256>>>(reinterpret_cast<__nv_bfloat16*>(data_.get()), bytes / 2, 1);
    } else {
      const size_t entries = bytes / layout_.entry_bytes();
      FillCodes<<<static_cast<unsigned>((entries + 255) / 256), 256>>>(data_.get(), entries, layout_);
    }
    CUDA_CHECK_LAUNCH();
    CUDA_CHECK(cudaDeviceSynchronize());
  }
  LayerEntries view() const { return {layout_, table_.get(), per_slot_, quotas_.get()}; }

 private:
  std::vector<std::byte*> Table(int64_t slots) const {
    std::vector<std::byte*> table(static_cast<size_t>(slots * per_slot_));
    for (size_t i = 0; i < table.size(); ++i) table[i] = data_.get() + i * layout_.extent_bytes();
    std::shuffle(table.begin(), table.end(), std::mt19937(1));
    return table;
  }

  EntryLayout layout_;
  int64_t per_slot_;
  Device<std::byte> data_;
  Device<std::byte*> table_;
  Device<int32_t> quotas_;
};

// ---- Runs

double CopyBytesPerS(CudaBackend& backend) {
  const size_t bytes = size_t{2} << 30;
  const Device<std::byte> from(backend, bytes), to(backend, bytes);
  const ByteMove move{from.get(), to.get(), bytes};
  return 2.0 * static_cast<double>(bytes) /
         Time(
             backend,
             [&] {
               backend.Move(Queue::kCompute, {&move, 1});
             },
             1e-3);
}

class Operands {
 public:
  Operands(CudaBackend& backend, int64_t tokens, int64_t heads)
      : width_(heads * kDim),
        tokens_(tokens),
        queries_(backend, static_cast<size_t>(tokens * width_)),
        out_(backend, static_cast<size_t>(tokens * width_)),
        error_(backend, std::vector<float>{0.0f}) {
    FillNumbers<<<2048, 256>>>(queries_.get(), static_cast<size_t>(tokens * width_), 77);
    CUDA_CHECK_LAUNCH();
    CUDA_CHECK(cudaDeviceSynchronize());
  }
  Tensor queries() const { return View(queries_); }
  Tensor out() const { return View(out_); }

  // Compares head `head` of token `token` and updates error().
  void Compare(const LayerEntries& entries, int64_t token, int64_t head, int64_t group, int64_t slot,
               const int32_t* list, int64_t count, float* weights) {
    CUDA_CHECK(cudaDeviceSynchronize());
    const int64_t at = token * width_ + head * kDim;
    CompareHead<<<1, 1024>>>(queries_.get() + at, entries, slot, head / group, list, count, Scale(), weights,
                             out_.get() + at, error_.get());
    CUDA_CHECK_LAUNCH();
  }
  float error() const {
    float error = 0;
    CUDA_CHECK(cudaMemcpy(&error, error_.get(), sizeof(error), cudaMemcpyDeviceToHost));
    return error;
  }
  static float Scale() { return 1.0f / std::sqrt(static_cast<float>(kDim)); }

 private:
  Tensor View(const Device<__nv_bfloat16>& data) const {
    return {reinterpret_cast<std::byte*>(data.get()), DType::kBF16, tokens_, width_, width_};
  }

  int64_t width_, tokens_;
  Device<__nv_bfloat16> queries_, out_;
  Device<float> error_;
};

void Row(const std::string& name, StoreType type, double seconds, const std::string& rate, double share, float error) {
  std::printf("%-46s %-5s %10.1f %14s %7.0f%%   %.5f\n", name.c_str(), std::string(Name(type)).c_str(), seconds * 1e6,
              rate.c_str(), 100 * share, error);
  std::fflush(stdout);
}
std::string Text(const char* format, double a) {
  char text[64];
  std::snprintf(text, sizeof(text), format, a);
  return text;
}

// percent < 100: every (token, KV head) has its own random list of that share of the rows, ascending.
void Decode(CudaBackend& backend, const Model& model, StoreType type, int64_t batch, int64_t rows, int percent,
            double copy) {
  const Cache cache(backend, type, model.kv_heads, batch, rows);
  Operands operands(backend, batch, model.heads);
  const AttentionShape shape{model.heads, Operands::Scale()};
  const int64_t group = model.heads / model.kv_heads, count = rows * percent / 100;
  std::vector<int32_t> slots(static_cast<size_t>(batch));
  std::iota(slots.begin(), slots.end(), 0);
  const Device<int32_t> device_slots(backend, slots);
  const Device<int32_t> device_rows(backend,
                                    std::vector<int32_t>(static_cast<size_t>(batch), static_cast<int32_t>(rows - 1)));
  TokenBatch tokens{.count = batch, .slots = device_slots.get(), .rows = device_rows.get()};

  // Rotates between several lists, so that no call finds its entries in the L2 cache.
  constexpr int64_t kVariants = 4;
  const int64_t per_variant = percent < 100 ? batch * model.kv_heads * rows : 0;
  std::vector<int32_t> lists(static_cast<size_t>(kVariants * per_variant) + 1);
  std::mt19937 random(5);
  std::vector<int32_t> all(static_cast<size_t>(rows));
  std::iota(all.begin(), all.end(), 0);
  for (int64_t at = 0; at < kVariants * per_variant; at += rows)
    std::sample(all.begin(), all.end(), lists.begin() + at, count, random);
  const Device<int32_t> device_lists(backend, lists);
  const Device<int32_t> counts(
      backend, std::vector<int32_t>(static_cast<size_t>(batch * model.kv_heads), static_cast<int32_t>(count)));
  Selection selection{device_lists.get(), counts.get(), rows, model.kv_heads};
  int64_t calls = 0;

  const double bytes = static_cast<double>(batch * count) * static_cast<double>(cache.view().layout.row_bytes());
  const double seconds = Time(
      backend,
      [&] {
        selection.rows = device_lists.get() + calls++ % kVariants * per_variant;
        if (percent < 100)
          backend.AttendSelected(Queue::kCompute, operands.queries(), tokens, selection, {}, shape, cache.view(),
                                 operands.out());
        else
          backend.AttendDecode(Queue::kCompute, operands.queries(), tokens, rows, shape, cache.view(), operands.out());
      },
      bytes / 3e12);
  const Device<float> weights(backend, static_cast<size_t>(rows));
  for (const int64_t token : {int64_t{0}, batch - 1})
    for (const int64_t head : {int64_t{0}, model.heads - 1})
      operands.Compare(cache.view(), token, head, group, token,
                       percent < 100 ? selection.Rows(token, head / group) : nullptr, count, weights.get());
  const std::string name = std::string(model.name) + (percent < 100 ? " selected 5% of " : " decode ") +
                           std::to_string(batch) + " x " + std::to_string(rows);
  Row(name, type, seconds, Text("%.0f GB/s", bytes / seconds * 1e-9), bytes / seconds / copy, operands.error());
}

void Prefill(CudaBackend& backend, const Model& model, StoreType type, int64_t count, int64_t rows) {
  const Cache cache(backend, type, model.kv_heads, 1, rows);
  Operands operands(backend, count, model.heads);
  const TokenRun run{SeqSlot(0), rows - count, count};
  const double seen = static_cast<double>(count * run.first_row + count * (count + 1) / 2);
  const double work = 4.0 * static_cast<double>(model.heads * kDim) * seen;
  const double seconds = Time(
      backend,
      [&] {
        backend.AttendPrefill(Queue::kCompute, operands.queries(), run, {model.heads, Operands::Scale()}, cache.view(),
                              operands.out());
      },
      work / 3e14);
  const Device<float> weights(backend, static_cast<size_t>(rows));
  for (const int64_t token : {int64_t{0}, count / 2 + 1, count - 1})
    for (const int64_t head : {int64_t{0}, model.heads - 1})
      operands.Compare(cache.view(), token, head, model.heads / model.kv_heads, 0, nullptr, run.first_row + token + 1,
                       weights.get());
  const std::string name =
      std::string(model.name) + " prefill " + std::to_string(count) + " over " + std::to_string(rows);
  Row(name, type, seconds, Text("%.0f TFLOP/s", work / seconds * 1e-12), work / seconds / 790e12, operands.error());
}

int Main() {
  if (const Result<GpuInfo> device = FindCudaDevice(); !device.ok()) {
    std::fprintf(stderr, "%s\n", device.error().message.c_str());
    return 1;
  }
  const std::unique_ptr<CudaBackend> opened =
      CudaBackend::Open({.activation = DType::kBF16, .pool_on_device = true}).value();
  CudaBackend& backend = *opened;
  const double copy = CopyBytesPerS(backend);
  std::printf("copy on the device: %.0f GB/s, read and written; shares are of it, those of prefill of 790 TFLOP/s\n",
              copy * 1e-9);
  std::printf("%-46s %-5s %10s %14s %8s   %s\n", "", "type", "us", "", "share", "error");
  for (const StoreType type : {StoreType::kBF16, StoreType::kInt8, StoreType::kInt4}) {
    Decode(backend, kOpt, type, 20, 2048, 100, copy);
    Decode(backend, kLlama, type, 8, 32768, 100, copy);
    Decode(backend, kLlama, type, 1, 131072, 100, copy);
    Decode(backend, kOpt, type, 20, 2048, 5, copy);
    Decode(backend, kLlama, type, 8, 32768, 5, copy);
    Decode(backend, kLlama, type, 1, 131072, 5, copy);
  }
  for (const StoreType type : {StoreType::kBF16, StoreType::kInt8, StoreType::kInt4}) {
    Prefill(backend, kOpt, type, 1920, 1920);
    for (const int64_t rows : {2048, 32768, 131072}) Prefill(backend, kLlama, type, 2048, rows);
  }
  return 0;
}

}  // namespace
}  // namespace infinigen

int main() { return infinigen::Main(); }
