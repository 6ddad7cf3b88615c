// Matrix products as the engine calls them: loaded weights and biases, activations of the backend's type, outputs of
// that type or added to the residual stream. Bounds as in matmul_test.cc; a bias is added in the type of the output,
// which is one more rounding.
#include "backend/backends.h"
#include "backend/operands.h"

namespace infinigen {
namespace {

struct Shape {
  int64_t m, k, n;
};

void Check(CudaBackend& b, const Shape& shape, DType weight_type, DType out_type, Epilogue epilogue, bool with_bias,
           Random& random) {
  HostTensor x = HostTensor::Normal(random, b.activation(), shape.m, shape.k), wide = x.As(DType::kF32);
  HostTensor weight = HostTensor::Normal(random, weight_type, shape.n, shape.k);
  HostTensor bias = HostTensor::Normal(random, DType::kF32, 1, shape.n);
  HostTensor out = HostTensor::Normal(random, out_type, shape.m, shape.n), want = out.As(DType::kF32);
  const Result<WeightView> loaded = b.Load(weight.weight());
  const Result<ConstTensor> placed_bias = b.Load(bias.view());
  ASSERT_TRUE(loaded.ok() && placed_bias.ok());
  DeviceTensor dx(b, x), dout(b, out);
  const Projection mine{*loaded, with_bias ? *placed_bias : ConstTensor(), dout, epilogue};
  const Projection theirs{weight.weight(), with_bias ? ConstTensor(bias.view()) : ConstTensor(), want.view(), epilogue};
  b.MatMul(Queue::kCompute, dx, {&mine, 1});
  ReferenceBackend().MatMul(Queue::kCompute, wide.view(), {&theirs, 1});
  const HostTensor got = dout.Fetch();
  const double converted = x.type == weight_type ? 0 : CudaFactory::ProductRounding(weight_type);
  for (int64_t r = 0; r < shape.m; ++r) {
    for (int64_t n = 0; n < shape.n; ++n) {
      double sum = 0, squares = 0;
      for (int64_t k = 0; k < shape.k; ++k) {
        const double product = std::fabs(x.At(r, k) * weight.At(n, k));
        sum += product;
        squares += product * product;
      }
      const double added = with_bias ? std::fabs(bias.At(0, n)) : 0, size = std::fabs(want.At(r, n));
      const double before = epilogue == Epilogue::kAdd ? std::fabs(out.At(r, n)) : 0;
      const double bound = 0x1p-24 * (8 + 4 * std::sqrt(static_cast<double>(shape.k))) * (sum + added + size + before) +
                           ProductError(converted, sum, squares) + OutputRounding(out_type) * (size + added);
      ASSERT_NEAR(got.At(r, n), want.At(r, n), bound) << r << "," << n;
    }
  }
}

TEST(GpuProductTest, LoadedWeightsAndBiases) {
  if (!FindCudaDevice().ok()) GTEST_SKIP() << "no GPU";
  Random random(110);
  for (const DType activation : CudaFactory::kActivations) {
    const std::unique_ptr<CudaBackend> opened =
        CudaBackend::Open({.activation = activation, .pool_on_device = true}).value();
    CudaBackend& b = *opened;
    for (const DType weight : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (const Shape& shape : {Shape{1, 64, 96}, Shape{5, 768, 40}, Shape{33, 128, 130}, Shape{130, 72, 64}}) {
        for (const bool bias : {false, true}) {
          SCOPED_TRACE(::testing::Message() << Name(activation) << " through " << Name(weight) << " m " << shape.m
                                            << (bias ? " with a bias" : ""));
          Check(b, shape, weight, activation, Epilogue::kStore, bias, random);
          Check(b, shape, weight, activation, Epilogue::kRelu, bias, random);
          Check(b, shape, weight, DType::kF32, Epilogue::kStore, bias, random);
          Check(b, shape, weight, DType::kF32, Epilogue::kAdd, bias, random);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

// Prompts of a server have any number of tokens: what the library needs for each must not be kept for ever.
TEST(GpuProductTest, KeptPlansAreBounded) {
  if (!FindCudaDevice().ok()) GTEST_SKIP() << "no GPU";
  constexpr int64_t kRows = 2500, kInner = 64, kOutputs = 32;
  Random random(111);
  const std::unique_ptr<CudaBackend> b =
      CudaBackend::Open({.activation = DType::kBF16, .pool_on_device = true}).value();
  HostTensor x = HostTensor::Normal(random, DType::kBF16, kRows, kInner);
  HostTensor weight = HostTensor::Normal(random, DType::kBF16, kOutputs, kInner);
  HostTensor out = HostTensor::Normal(random, DType::kBF16, kRows, kOutputs);
  const Result<WeightView> loaded = b->Load(weight.weight());
  ASSERT_TRUE(loaded.ok());
  DeviceTensor dx(*b, x), dout(*b, out);
  size_t most = 0;
  for (int64_t rows = 1; rows <= kRows; ++rows) {
    const Tensor all_x = dx, all_out = dout;
    const Projection product{*loaded, ConstTensor(), all_out.Rows(0, rows), Epilogue::kStore};
    b->MatMul(Queue::kCompute, all_x.Rows(0, rows), {&product, 1});
    most = std::max(most, b->product_plans());
  }
  EXPECT_GT(most, 100u);
  EXPECT_LE(most, 1024u);
  // Right after plans were dropped and made again.
  Check(*b, {7, kInner, kOutputs}, DType::kBF16, DType::kBF16, Epilogue::kStore, false, random);
}

}  // namespace
}  // namespace infinigen
