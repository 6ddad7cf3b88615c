// Matrix products by cuBLASLt; those of few rows with block-quantised weights are in block_product.cu. The library is
// column-major: the row-major product out = x · weightᵀ is outᵀ = weight · xᵀ to it, with nothing transposed in memory.
// The library's epilogues do bias, relu and the addition to the residual stream. Its heuristics choose one algorithm
// per shape, when the shape is first seen.
#include <algorithm>

#include "backend/cuda/block_product.h"
#include "backend/cuda/context.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/numbers.cuh"

namespace infinigen {

namespace {

cudaDataType_t LibraryType(DType type) {
  return type == DType::kF32 ? CUDA_R_32F : type == DType::kF16 ? CUDA_R_16F : CUDA_R_16BF;
}

template <class In, class Out>
__global__ void ConvertRows(const In* x, int64_t x_stride, Out* out, int64_t out_stride, int64_t cols) {
  const int64_t row = blockIdx.y, column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column < cols) out[row * out_stride + column] = FromFloat<Out>(AsFloat(x[row * x_stride + column]));
}

void Convert(cudaStream_t stream, const ConstTensor& x, const Tensor& out) {
  DispatchDevice(x.type, [&](auto in) {
    DispatchDevice(out.type, [&](auto to) {
      using In = decltype(in);
      using Out = decltype(to);
      for (int64_t first = 0; first < x.rows; first += 65535) {  // largest height of a grid
        const dim3 grid(static_cast<unsigned>((x.cols + 255) / 256),
                        static_cast<unsigned>(std::min<int64_t>(65535, x.rows - first)));
        ConvertRows<In, Out><<<grid, 256, 0, stream>>>(reinterpret_cast<const In*>(x.row(first)), x.stride,
                                                       reinterpret_cast<Out*>(out.row(first)), out.stride, x.cols);
        CUDA_CHECK_LAUNCH();
      }
    });
  });
}

// For shapes that the library does not support: rows without alignment.
template <class In, class Out>
__global__ void PlainProduct(const In* x, int64_t x_stride, const In* weight, int64_t weight_stride, const float* bias,
                             Out* out, int64_t out_stride, int64_t n, int64_t k, Epilogue epilogue) {
  const int64_t row = blockIdx.y, column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column >= n) return;
  float sum = 0;
  for (int64_t i = 0; i < k; ++i)
    sum = fmaf(AsFloat(x[row * x_stride + i]), AsFloat(weight[column * weight_stride + i]), sum);
  if (bias != nullptr) sum += bias[column];
  Out& target = out[row * out_stride + column];
  if (epilogue == Epilogue::kAdd) sum += AsFloat(target);
  if (epilogue == Epilogue::kRelu) sum = fmaxf(sum, 0.0f);
  target = FromFloat<Out>(sum);
}

// Elements from one row of a plain matrix to the next.
int64_t StrideOf(const WeightView& weight) { return weight.row_bytes / FormatOf(weight.type).block_bytes; }

void MultiplyPlainly(cudaStream_t stream, const ConstTensor& x, const Projection& p) {
  DispatchDevice(PlainTypeOf(p.weight.type), [&](auto in) {
    DispatchDevice(p.out.type, [&](auto to) {
      using In = decltype(in);
      using Out = decltype(to);
      const dim3 grid(static_cast<unsigned>((p.out.cols + 127) / 128), static_cast<unsigned>(p.out.rows));
      PlainProduct<In, Out><<<grid, 128, 0, stream>>>(
          reinterpret_cast<const In*>(x.data), x.stride, reinterpret_cast<const In*>(p.weight.data), StrideOf(p.weight),
          p.bias ? p.bias.as<float>() : nullptr, reinterpret_cast<Out*>(p.out.data), p.out.stride, p.out.cols, x.cols,
          p.epilogue);
      CUDA_CHECK_LAUNCH();
    });
  });
}

// The largest power of two, at most 16, that divides the address of every row.
uint32_t Alignment(const void* data, int64_t row_bytes) {
  const uint64_t bits = reinterpret_cast<uintptr_t>(data) | static_cast<uint64_t>(row_bytes) | 16;
  return static_cast<uint32_t>(bits & (~bits + 1));
}

template <class T>
void Set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof(value)));
}
template <class T>
void Set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
  CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)));
}

std::unique_ptr<LtMatMulPlan> MakePlan(CudaContext& context, const MatMulKey& key) {
  auto plan = std::make_unique<LtMatMulPlan>();
  const cudaDataType_t in = LibraryType(key.in), out = LibraryType(key.out);
  CUBLAS_CHECK(cublasLtMatmulDescCreate(&plan->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  Set(plan->operation, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  const bool relu = key.epilogue == Epilogue::kRelu;
  Set(plan->operation, CUBLASLT_MATMUL_DESC_EPILOGUE,
      key.bias ? (relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS)
               : (relu ? CUBLASLT_EPILOGUE_RELU : CUBLASLT_EPILOGUE_DEFAULT));
  if (key.bias) Set(plan->operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, out);
  const auto u = [](int64_t value) { return static_cast<uint64_t>(value); };
  CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&plan->weight, in, u(key.k), u(key.n), key.weight_stride));
  CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&plan->x, in, u(key.k), u(key.m), key.x_stride));
  CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&plan->out, out, u(key.n), u(key.m), key.out_stride));
  cublasLtMatmulPreference_t preference = nullptr;
  CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
  const uint64_t workspace = context.lt_workspace.bytes();
  Set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
  Set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.weight_alignment);
  Set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.x_alignment);
  Set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.out_alignment);
  Set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.out_alignment);
  cublasLtMatmulHeuristicResult_t result{};
  int results = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(context.lt, plan->operation, plan->weight, plan->x,
                                                               plan->out, plan->out, preference, 1, &result, &results);
  CUBLAS_CHECK(cublasLtMatmulPreferenceDestroy(preference));
  plan->found = status == CUBLAS_STATUS_SUCCESS && results == 1;
  plan->algorithm = result.algo;
  return plan;
}

// Converts as many rows of x at a time to `type` as fit `buffer`, and calls f(rows, first row).
template <class F>
void InType(cudaStream_t stream, const Tensor& x, DType type, std::span<std::byte> buffer, F&& f) {
  if (type == x.type) return f(x, 0);
  const int64_t stride = (x.cols + 7) / 8 * 8;
  const auto together = static_cast<int64_t>(buffer.size() / (static_cast<size_t>(stride) * SizeOf(type)));
  CHECK(together > 0);  // fails for rows of millions of numbers
  for (int64_t first = 0; first < x.rows; first += together) {
    const int64_t count = std::min(together, x.rows - first);
    const Tensor converted{buffer.data(), type, count, x.cols, stride};
    Convert(stream, x.Rows(first, count), converted);
    f(converted, first);
  }
}

}  // namespace

uint32_t Alignment(const ConstTensor& x) { return Alignment(x.data, x.stride * static_cast<int64_t>(SizeOf(x.type))); }

// x and weight have one type; `bias` has the type of the output.
void CudaContext::Multiply(cudaStream_t stream, const ConstTensor& x, const Projection& p, const std::byte* bias) {
  const MatMulKey key{.m = x.rows,
                      .n = p.out.cols,
                      .k = x.cols,
                      .x_stride = x.stride,
                      .weight_stride = StrideOf(p.weight),
                      .out_stride = p.out.stride,
                      .in = PlainTypeOf(p.weight.type),
                      .out = p.out.type,
                      .epilogue = p.epilogue,
                      .bias = bias != nullptr,
                      .x_alignment = Alignment(x),
                      .weight_alignment = Alignment(p.weight.data, p.weight.row_bytes),
                      .out_alignment = Alignment(p.out)};
  // The library has read a plan when its call returns, also where a graph records the call: it may be dropped then.
  if (plans.size() >= kMostPlans && !plans.contains(key)) plans.clear();
  std::unique_ptr<LtMatMulPlan>& plan = plans[key];
  if (plan == nullptr) plan = MakePlan(*this, key);
  if (!plan->found) return MultiplyPlainly(stream, x, p);
  if (bias != nullptr) Set(plan->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  const float one = 1.0f, beta = p.epilogue == Epilogue::kAdd ? 1.0f : 0.0f;
  CUBLAS_CHECK(cublasLtMatmul(lt, plan->operation, &one, p.weight.data, plan->weight, x.data, plan->x, &beta,
                              p.out.data, plan->out, p.out.data, plan->out, &plan->algorithm, lt_workspace.data(),
                              lt_workspace.bytes(), stream));
}

void CudaContext::MultiplyBy(cudaStream_t stream, const Tensor& x, const Projection& p) {
  CHECK(p.weight.cols == x.cols && p.out.rows == x.rows && p.out.cols == p.weight.rows);
  const std::byte* bias = p.bias.data;
  if (p.bias && p.out.type != DType::kF32) {
    const auto found = converted_biases.find(p.bias.data);
    bias = found == converted_biases.end() ? nullptr : found->second;
  }
  const bool plain = p.bias && bias == nullptr;  // a bias that was not loaded as a parameter
  const DType type = PlainTypeOf(p.weight.type);
  const std::span<std::byte> buffer(converted.data(), converted.bytes());
  const auto multiply = [&](const ConstTensor& rows, const Projection& of, const std::byte* of_bias) {
    plain ? MultiplyPlainly(stream, rows, of) : Multiply(stream, rows, of, of_bias);
  };
  if (IsPlain(p.weight.type))
    return InType(stream, x, type, buffer, [&](const Tensor& rows, int64_t first) {
      Projection of = p;
      of.out = p.out.Rows(first, rows.rows);
      multiply(rows, of, bias);
    });
  // Expands some outputs' weights at a time, in the second half of the buffer: whole tiles of the library's kernels.
  constexpr int64_t kTile = 256;
  const size_t half = buffer.size() / 2;
  const auto fit = static_cast<int64_t>(half / (static_cast<size_t>(x.cols) * SizeOf(type)));
  const int64_t outputs = fit > kTile ? fit / kTile * kTile : fit;
  CHECK(outputs > 0);
  for (int64_t n = 0; n < p.weight.rows; n += outputs) {
    const int64_t count = std::min(outputs, p.weight.rows - n);
    const Tensor expanded{buffer.data() + half, type, count, x.cols, x.cols};
    WeightView part = p.weight;
    part.data = p.weight.row(n);
    part.rows = count;
    ExpandBlocks(stream, part, nullptr, expanded);
    InType(stream, x, type, buffer.first(half), [&](const Tensor& rows, int64_t first) {
      Projection of = p;
      of.weight = WeightView(ConstTensor(expanded));
      const Tensor of_rows = p.out.Rows(first, rows.rows);
      of.out = {of_rows.data + n * static_cast<int64_t>(SizeOf(p.out.type)), p.out.type, rows.rows, count,
                p.out.stride};
      if (p.bias) of.bias = ConstTensor(p.bias.data + n * 4, DType::kF32, 1, count);
      multiply(rows, of, bias == nullptr ? nullptr : bias + n * static_cast<int64_t>(SizeOf(p.out.type)));
    });
  }
}

void CudaBackend::MatMul(Queue queue, const Tensor& x, std::span<const Projection> projections) {
  if (skipped_.compute) return;
  CudaContext& context = *context_;
  const cudaStream_t stream = context.stream(queue);
  const ZoneClock::Scope timed(context.zones, CudaZone::kProducts, stream);
  if (context.converted.bytes() == 0) CHECK(Reserve(1, 1, 1, 1, 64).ok());
  for (size_t i = 0; i < projections.size();) {
    const auto rest = projections.subspan(i);
    const auto blocks = std::ranges::find_if(rest, [](const Projection& p) { return IsPlain(p.weight.type); });
    if (x.rows <= kMostBlockRows && blocks != rest.begin()) {
      const auto count = static_cast<size_t>(blocks - rest.begin());
      CHECK(QuantisedBytes(x.rows, x.cols) <= context.converted.bytes());
      MultiplyBlocks(context, stream, x, rest.first(count), context.converted.data());
      i += count;
      continue;
    }
    context.MultiplyBy(stream, x, projections[i++]);
  }
}

}  // namespace infinigen
