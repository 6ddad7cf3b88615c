// Operations without sums: embeddings, positions, rotation, gates, copies. Each thread computes one number or one pair.
// All are bound by memory bandwidth and small compared with the products around them.
#include <algorithm>

#include "backend/cuda/block_product.h"
#include "backend/cuda/context.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/numbers.cuh"

namespace infinigen {
namespace {

constexpr int kElementwiseThreads = 256;

// If there are more rows than the grid may be high, its blocks loop over them.
dim3 GridOver(int64_t rows, int64_t cols) {
  return dim3(static_cast<unsigned>((cols + kElementwiseThreads - 1) / kElementwiseThreads),
              static_cast<unsigned>(std::min<int64_t>(rows, 32768)));
}

// Calls f(row, column) for all numbers of [rows][cols].
template <class F>
__global__ void ForEach(int64_t rows, int64_t cols, F f) {
  const int64_t column = int64_t{blockIdx.x} * kElementwiseThreads + threadIdx.x;
  if (column >= cols) return;
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) f(row, column);
}

template <class F>
void Launch(cudaStream_t stream, int64_t rows, int64_t cols, const F& f) {
  if (rows == 0 || cols == 0) return;
  ForEach<<<GridOver(rows, cols), kElementwiseThreads, 0, stream>>>(rows, cols, f);
  CUDA_CHECK_LAUNCH();
}

// A matrix as kernels use it.
template <class T>
struct View {
  T* data;
  int64_t stride;
  explicit View(const Tensor& t) : data(reinterpret_cast<T*>(t.data)), stride(t.stride) {}
  __device__ T& operator()(int64_t row, int64_t column) const { return data[row * stride + column]; }
};
template <class T>
struct ConstView {
  const T* data;
  int64_t stride;
  explicit ConstView(const ConstTensor& t) : data(reinterpret_cast<const T*>(t.data)), stride(t.stride) {}
  explicit ConstView(const WeightView& w)
      : data(reinterpret_cast<const T*>(w.data)), stride(w.row_bytes / static_cast<int64_t>(sizeof(T))) {}
  __device__ const T& operator()(int64_t row, int64_t column) const { return data[row * stride + column]; }
};

template <class In, class Out>
struct EmbedOne {
  const int32_t* ids;
  ConstView<In> table;
  View<Out> out;
  __device__ void operator()(int64_t row, int64_t column) const {
    out(row, column) = FromFloat<Out>(AsFloat(table(ids[row], column)));
  }
};

template <class In, class Out>
struct AddPositionOne {
  TokenBatch batch;
  ConstView<In> table;
  int64_t offset;
  View<Out> x;
  __device__ void operator()(int64_t row, int64_t column) const {
    x(row, column) = FromFloat<Out>(AsFloat(x(row, column)) + AsFloat(table(batch.Position(row) + offset, column)));
  }
};

struct RopeAngle {
  TokenBatch batch;
  const float* frequencies;
  View<float> table;
  int64_t half;
  float factor;
  __device__ void operator()(int64_t row, int64_t pair) const {
    const float angle = static_cast<float>(batch.Position(row)) * frequencies[pair];
    table(row, pair) = cosf(angle) * factor;
    table(row, half + pair) = sinf(angle) * factor;
  }
};

template <class T>
struct RotatePair {
  ConstView<float> table;
  View<T> x;
  int64_t planes;
  RopeShape shape;
  __device__ void operator()(int64_t row, int64_t index) const {
    const int64_t head = index / planes, plane = index % planes, begin = head * shape.head_dim;
    T& low = x(row, begin + (shape.adjacent ? 2 * plane : plane));
    T& high = x(row, begin + (shape.adjacent ? 2 * plane + 1 : planes + plane));
    const float a = AsFloat(low), b = AsFloat(high), cosine = table(row, plane), sine = table(row, planes + plane);
    low = FromFloat<T>(a * cosine - b * sine);
    high = FromFloat<T>(b * cosine + a * sine);
  }
};

// kGelu: GELU in its tanh form, 0.5 · g · (1 + tanh u) = g / (1 + e^(−2u)); otherwise SiLU.
template <class T, bool kGelu>
struct GateOne {
  View<T> gate;
  View<T> up;
  __device__ void operator()(int64_t row, int64_t column) const {
    const float g = AsFloat(gate(row, column));
    const float exponent = kGelu ? -2.0f * 0.79788456f * (g + 0.044715f * g * g * g) : -g;
    gate(row, column) = FromFloat<T>(g / (1.0f + expf(exponent)) * AsFloat(up(row, column)));
  }
};

struct AddOne {
  ConstView<float> y;
  View<float> x;
  __device__ void operator()(int64_t row, int64_t column) const { x(row, column) += y(row, column); }
};
struct ScaleOne {
  float factor;
  View<float> x;
  __device__ void operator()(int64_t row, int64_t column) const { x(row, column) *= factor; }
};
struct SoftCapOne {
  float cap;
  View<float> x;
  __device__ void operator()(int64_t row, int64_t column) const { x(row, column) = SoftCapped(x(row, column), cap); }
};

}  // namespace

void CudaBackend::Embed(Queue queue, const TokenBatch& batch, const WeightView& table, const Tensor& out) {
  const ZoneClock::Scope timed(context_->zones, CudaZone::kRowwise, context_->stream(queue));
  CHECK(table.cols == out.cols && batch.count == out.rows);
  if (!IsPlain(table.type)) return ExpandBlocks(context_->stream(queue), table, batch.ids, out);
  DispatchDevice(PlainTypeOf(table.type), [&](auto in) {
    DispatchDevice(out.type, [&](auto to) {
      using In = decltype(in);
      using Out = decltype(to);
      Launch(context_->stream(queue), out.rows, out.cols,
             EmbedOne<In, Out>{batch.ids, ConstView<In>(table), View<Out>(out)});
    });
  });
}

void CudaBackend::AddPositions(Queue queue, const TokenBatch& batch, const WeightView& table, int64_t offset,
                               const Tensor& x) {
  const ZoneClock::Scope timed(context_->zones, CudaZone::kRowwise, context_->stream(queue));
  CHECK(table.cols == x.cols && batch.count == x.rows);
  CHECK(IsPlain(table.type));  // families with learned positions are stored so
  DispatchDevice(PlainTypeOf(table.type), [&](auto in) {
    DispatchDevice(x.type, [&](auto to) {
      using In = decltype(in);
      using Out = decltype(to);
      Launch(context_->stream(queue), x.rows, x.cols,
             AddPositionOne<In, Out>{batch, ConstView<In>(table), offset, View<Out>(x)});
    });
  });
}

void CudaBackend::RopeTable(Queue queue, const TokenBatch& batch, const ConstTensor& frequencies, float factor,
                            const Tensor& table) {
  const ZoneClock::Scope timed(context_->zones, CudaZone::kRowwise, context_->stream(queue));
  CHECK(table.type == DType::kF32 && table.cols == 2 * frequencies.cols && table.rows == batch.count);
  Launch(context_->stream(queue), table.rows, frequencies.cols,
         RopeAngle{batch, frequencies.as<float>(), View<float>(table), frequencies.cols, factor});
}

void CudaBackend::Rope(Queue queue, const ConstTensor& table, const RopeShape& shape, const Tensor& x) {
  if (skipped_.compute) return;
  const ZoneClock::Scope timed(context_->zones, CudaZone::kRowwise, context_->stream(queue));
  CHECK(table.rows == x.rows && table.cols <= shape.head_dim && x.cols % shape.head_dim == 0);
  DispatchDevice(x.type, [&](auto of) {
    using T = decltype(of);
    const int64_t planes = table.cols / 2;
    Launch(context_->stream(queue), x.rows, x.cols / shape.head_dim * planes,
           RotatePair<T>{ConstView<float>(table), View<T>(x), planes, shape});
  });
}

void CudaBackend::Copy(Queue queue, const ConstTensor& x, const Tensor& out) {
  const ZoneClock::Scope timed(context_->zones, CudaZone::kRowwise, context_->stream(queue));
  CHECK(x.type == out.type && x.rows == out.rows && x.cols == out.cols);
  const size_t item = SizeOf(x.type);
  CUDA_CHECK(cudaMemcpy2DAsync(out.data, static_cast<size_t>(out.stride) * item, x.data,
                               static_cast<size_t>(x.stride) * item, static_cast<size_t>(x.cols) * item,
                               static_cast<size_t>(x.rows), cudaMemcpyDeviceToDevice, context_->stream(queue)));
}

void CudaBackend::SiluMul(Queue queue, const Tensor& gate, const Tensor& up) {
  if (skipped_.compute) return;
  const ZoneClock::Scope timed(context_->zones, CudaZone::kRowwise, context_->stream(queue));
  CHECK(gate.type == up.type && gate.rows == up.rows && gate.cols == up.cols);
  DispatchDevice(gate.type, [&](auto of) {
    using T = decltype(of);
    Launch(context_->stream(queue), gate.rows, gate.cols, GateOne<T, false>{View<T>(gate), View<T>(up)});
  });
}

void CudaBackend::GeluMul(Queue queue, const Tensor& gate, const Tensor& up) {
  if (skipped_.compute) return;
  const ZoneClock::Scope timed(context_->zones, CudaZone::kRowwise, context_->stream(queue));
  CHECK(gate.type == up.type && gate.rows == up.rows && gate.cols == up.cols);
  DispatchDevice(gate.type, [&](auto of) {
    using T = decltype(of);
    Launch(context_->stream(queue), gate.rows, gate.cols, GateOne<T, true>{View<T>(gate), View<T>(up)});
  });
}

void CudaBackend::Add(Queue queue, const ConstTensor& y, const Tensor& x) {
  if (skipped_.compute) return;
  const ZoneClock::Scope timed(context_->zones, CudaZone::kRowwise, context_->stream(queue));
  CHECK(x.type == DType::kF32 && y.type == DType::kF32 && x.rows == y.rows && x.cols == y.cols);
  Launch(context_->stream(queue), x.rows, x.cols, AddOne{ConstView<float>(y), View<float>(x)});
}

void CudaBackend::Scale(Queue queue, float factor, const Tensor& x) {
  const ZoneClock::Scope timed(context_->zones, CudaZone::kRowwise, context_->stream(queue));
  CHECK(x.type == DType::kF32);
  Launch(context_->stream(queue), x.rows, x.cols, ScaleOne{factor, View<float>(x)});
}

void CudaBackend::SoftCap(Queue queue, float cap, const Tensor& x) {
  const ZoneClock::Scope timed(context_->zones, CudaZone::kRowwise, context_->stream(queue));
  CHECK(x.type == DType::kF32 && cap > 0);
  Launch(context_->stream(queue), x.rows, x.cols, SoftCapOne{cap, View<float>(x)});
}

}  // namespace infinigen
