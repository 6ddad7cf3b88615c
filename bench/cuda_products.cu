// Products of one row of activations with block-quantised weights, as in decode: the seven matrices of a layer of
// Llama-3.1-8B, in four calls, against a plain read of device memory in the same run. 16 layers follow each other in a
// graph, so that no weight is in the cache. Every 61st output of the first layer is compared with one from the host.
// Prints one table; takes some seconds a format and 4 GiB of device memory.
//   build: part of the `cuda_products` target; run: build/release/cuda_products [FORMAT...]
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include "backend/cuda/block_product.h"
#include "backend/cuda/check.h"
#include "backend/cuda/context.h"
#include "tensor/block_formats.h"
#include "tensor/random_blocks.h"
#include "tensor/weight_view.h"

namespace infinigen {
namespace {

constexpr int kLayers = 16, kReplays = 41;
constexpr int64_t kHidden = 4096, kKv = 1024, kFfn = 14336;
constexpr size_t kReadBytes = size_t{4} << 30;

struct Matrix {
  int64_t outputs, cols;
};
// Calls of a layer, with matrices that share their activations.
const std::vector<std::vector<Matrix>> kCalls = {{{kHidden, kHidden}, {kKv, kHidden}, {kKv, kHidden}},
                                                 {{kHidden, kHidden}},
                                                 {{kFfn, kHidden}, {kFfn, kHidden}},
                                                 {{kHidden, kFfn}}};
constexpr int64_t kOutputs = kHidden + 2 * kKv + kHidden + 2 * kFfn + kHidden;

size_t BytesOf(const Matrix& matrix, WeightType type) {
  const WeightFormat& format = FormatOf(type);
  return static_cast<size_t>(matrix.outputs * (matrix.cols / format.block_numbers) * format.block_bytes);
}
size_t LayerBytes(WeightType type) {
  size_t bytes = 0;
  for (const auto& call : kCalls)
    for (const Matrix& matrix : call) bytes += BytesOf(matrix, type);
  return bytes;
}

__global__ void ReadAll(const uint4* from, size_t count, uint32_t* out) {
  uint32_t sum = 0;
  const size_t step = size_t{gridDim.x} * blockDim.x;
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i + 3 * step < count; i += 4 * step) {
    uint4 v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = __ldcs(from + i + j * step);
#pragma unroll
    for (int j = 0; j < 4; ++j) sum ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  if (sum == 0x12345678u) *out = sum;
}

std::vector<std::byte> RandomBytes(size_t count) {
  std::vector<std::byte> bytes(count);
  std::mt19937_64 random(7);
  for (size_t i = 0; i + 8 <= count; i += 8) {
    const uint64_t bits = random();
    std::memcpy(bytes.data() + i, &bits, sizeof(bits));
  }
  return bytes;
}

template <class T>
T* Allocate(size_t count) {
  void* memory = nullptr;
  CUDA_CHECK(cudaMalloc(&memory, count * sizeof(T)));
  return static_cast<T*>(memory);
}

class Bench {
 public:
  explicit Bench(CudaContext& context)
      : context_(context),
        stream_(context.stream(Queue::kCompute)),
        weights_(Allocate<std::byte>(kReadBytes)),
        scratch_(Allocate<std::byte>(QuantisedBytes(1, kFfn))),
        x_(Allocate<float>(kFfn)),
        out_(Allocate<float>(kOutputs)),
        x_host_(kFfn) {
    for (size_t i = 0; i < x_host_.size(); ++i)
      x_host_[i] = std::sin(0.37f * static_cast<float>(i)) * static_cast<float>(1 + i % 7);
    CUDA_CHECK(cudaMemcpy(x_, x_host_.data(), x_host_.size() * sizeof(float), cudaMemcpyHostToDevice));
    const std::vector<std::byte> piece = RandomBytes(kReadBytes / 64);
    for (size_t at = 0; at < kReadBytes; at += piece.size())
      CUDA_CHECK(cudaMemcpy(weights_ + at, piece.data(), piece.size(), cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaDeviceSynchronize());  // the queue does not wait for such copies
  }
  ~Bench() {
    for (void* memory :
         {static_cast<void*>(weights_), static_cast<void*>(scratch_), static_cast<void*>(x_), static_cast<void*>(out_)})
      cudaFree(memory);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  void MeasureRead() {
    const auto read = [&] {
      ReadAll<<<static_cast<unsigned>(2 * context_.sms()), 1024, 0, stream_>>>(
          reinterpret_cast<const uint4*>(weights_), kReadBytes / 16, reinterpret_cast<uint32_t*>(scratch_));
    };
    read_rate_ = kReadBytes / Time(read) * 1e-12;
    std::printf("plain read: %.2f TB/s\n\n", read_rate_);
    std::printf(
        "| format | MB a layer | µs a layer | TB/s | share of a plain read | µs: q, k, v | o | gate, up | down | check "
        "|\n|---|--:|--:|--:|--:|--:|--:|--:|--:|---|\n");
  }

  // True if the outputs are right.
  bool Run(WeightType type) {
    const std::vector<std::byte> layer = FillLayers(type);
    const double error = WorstError(type, layer, Outputs(type));
    const bool right = error < 0x1p-18;
    const auto time = [&](int only) {
      return Time([&] {
               for (int i = 0; i < kLayers; ++i) Enqueue(type, i, only);
             }) /
             kLayers * 1e6;
    };
    const double all = time(kEvery), megabytes = static_cast<double>(layer.size()) * 1e-6, rate = megabytes / all;
    std::printf("| %s | %.1f | %.2f | %.2f | %.2f |", Name(type).data(), megabytes, all, rate, rate / read_rate_);
    for (int call = 0; call < static_cast<int>(kCalls.size()); ++call) std::printf(" %.2f |", time(call));
    std::printf(" %s (%.1e) |\n", right ? "right" : "WRONG", error);
    std::fflush(stdout);
    return right;
  }

 private:
  static constexpr int kEvery = -1;

  // Random weights of about the size of a model's; all layers are the same.
  std::vector<std::byte> FillLayers(WeightType type) {
    std::vector<std::byte> layer = RandomBytes(LayerBytes(type));
    CHECK(layer.size() * kLayers <= kReadBytes);
    const auto block = static_cast<size_t>(FormatOf(type).block_bytes);
    for (size_t i = 0; i < layer.size(); i += block) SetBlockScales(type, 0.02f, layer.data() + i);
    for (size_t i = 0; i < kLayers; ++i)
      CUDA_CHECK(cudaMemcpy(weights_ + i * layer.size(), layer.data(), layer.size(), cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaDeviceSynchronize());
    return layer;
  }

  // The products of a layer, or one of its calls.
  void Enqueue(WeightType type, int layer, int only) {
    const std::byte* weight = weights_ + static_cast<size_t>(layer) * LayerBytes(type);
    float* out = out_;
    for (size_t call = 0; call < kCalls.size(); ++call) {
      std::vector<Projection> projections;
      for (const Matrix& matrix : kCalls[call]) {
        Projection& projection = projections.emplace_back();
        projection.weight = WeightView(weight, type, matrix.outputs, matrix.cols);
        projection.out = {reinterpret_cast<std::byte*>(out), DType::kF32, 1, matrix.outputs, matrix.outputs};
        weight += BytesOf(matrix, type);
        out += matrix.outputs;
      }
      if (only != kEvery && only != static_cast<int>(call)) continue;
      const ConstTensor x(reinterpret_cast<const std::byte*>(x_), DType::kF32, 1, kCalls[call][0].cols);
      MultiplyBlocks(context_, stream_, x, projections, scratch_);
    }
  }

  std::vector<float> Outputs(WeightType type) {
    CUDA_CHECK(cudaMemsetAsync(out_, 0xff, kOutputs * sizeof(float), stream_));
    Enqueue(type, 0, kEvery);
    std::vector<float> out(kOutputs);
    CUDA_CHECK(cudaMemcpyAsync(out.data(), out_, out.size() * sizeof(float), cudaMemcpyDeviceToHost, stream_));
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    return out;
  }

  // Activations as the kernel rounds them: to 8 bits, in groups of 32.
  std::vector<double> Rounded(int64_t cols) const {
    std::vector<double> x(static_cast<size_t>(cols));
    for (size_t first = 0; first < x.size(); first += 32) {
      float largest = 0;
      for (size_t i = first; i < first + 32; ++i) largest = std::max(largest, std::fabs(x_host_[i]));
      for (size_t i = first; i < first + 32; ++i)
        x[i] = double{std::nearbyint(x_host_[i] * (127.0f / largest)) * (largest / 127.0f)};
    }
    return x;
  }

  // The largest error of every 61st output, relative to the sum of the magnitudes of its terms; NaN if one is NaN.
  double WorstError(WeightType type, const std::vector<std::byte>& layer, const std::vector<float>& got) const {
    constexpr int64_t kStep = 61;
    double worst = 0;
    const std::byte* weight = layer.data();
    const float* out = got.data();
    for (const auto& call : kCalls) {
      const std::vector<double> x = Rounded(call[0].cols);
      std::vector<float> row(x.size());
      for (const Matrix& matrix : call) {
        const WeightView view(weight, type, matrix.outputs, matrix.cols);
        for (int64_t n = 0; n < matrix.outputs; n += kStep) {
          DecodeRow(view, n, row);
          double sum = 0, size = 4;
          for (size_t k = 0; k < x.size(); ++k) sum += x[k] * row[k], size += std::fabs(x[k] * row[k]);
          const double error = std::fabs(out[n] - sum) / size;
          if (!(error <= worst)) worst = error;
        }
        weight += BytesOf(matrix, type);
        out += matrix.outputs;
      }
    }
    return worst;
  }

  // Seconds of the work as a graph: the median of kReplays.
  double Time(const std::function<void()>& enqueue) const {
    cudaGraph_t graph;
    cudaGraphExec_t recorded;
    CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    enqueue();
    CUDA_CHECK(cudaStreamEndCapture(stream_, &graph));
    CUDA_CHECK(cudaGraphInstantiate(&recorded, graph, 0));
    cudaEvent_t begin, end;
    CUDA_CHECK(cudaEventCreate(&begin));
    CUDA_CHECK(cudaEventCreate(&end));
    for (int i = 0; i < 3; ++i) CUDA_CHECK(cudaGraphLaunch(recorded, stream_));  // warms up
    std::vector<float> times(kReplays);
    for (float& ms : times) {
      CUDA_CHECK(cudaEventRecord(begin, stream_));
      CUDA_CHECK(cudaGraphLaunch(recorded, stream_));
      CUDA_CHECK(cudaEventRecord(end, stream_));
      CUDA_CHECK(cudaEventSynchronize(end));
      CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
    }
    std::nth_element(times.begin(), times.begin() + kReplays / 2, times.end());
    CUDA_CHECK(cudaEventDestroy(begin));
    CUDA_CHECK(cudaEventDestroy(end));
    CUDA_CHECK(cudaGraphExecDestroy(recorded));
    CUDA_CHECK(cudaGraphDestroy(graph));
    return double{times[kReplays / 2]} * 1e-3;
  }

  CudaContext& context_;
  cudaStream_t stream_;
  std::byte *weights_, *scratch_;  // weights: [kLayers] layers
  float *x_, *out_;                // [kFfn], [kOutputs]
  std::vector<float> x_host_;
  double read_rate_ = 0;  // TB/s
};

int Main(std::span<char*> names) {
  std::vector<WeightType> types = {WeightType::kQ4_K, WeightType::kQ8_0, WeightType::kQ6_K, WeightType::kQ4_0};
  if (!names.empty()) types.clear();
  for (const std::string_view name : names) {
    const size_t before = types.size();
    for (size_t t = 0; t < kWeightFormats.size(); ++t)
      if (const auto type = static_cast<WeightType>(t); !IsPlain(type) && Name(type) == name) types.push_back(type);
    if (types.size() > before) continue;
    std::fprintf(stderr, "%s: not a block format\n", name.data());
    return 2;
  }
  const Result<std::unique_ptr<CudaContext>> context = CudaContext::Open(UINT64_MAX);
  if (!context.ok()) {
    std::fprintf(stderr, "%s\n", context.error().message.c_str());
    return 1;
  }
  Bench bench(**context);
  bench.MeasureRead();
  bool right = true;
  for (const WeightType type : types) right = bench.Run(type) && right;
  return right ? 0 : 1;
}

}  // namespace
}  // namespace infinigen

int main(int count, char** arguments) { return infinigen::Main({arguments + 1, arguments + count}); }
