// Block-quantised weights on the GPU, against the numbers that DecodeRow gives. Few rows are multiplied after their
// activations are quantised to 8 bits, and the test quantises them too; many rows are multiplied by expanded weights,
// rounded to f16.
#include <cmath>
#include <span>

#include "backend/backends.h"
#include "backend/block_matrix.h"

namespace infinigen {
namespace {

// The activations as the few-row kernels see them.
HostTensor Quantised(const HostTensor& x) {
  HostTensor rounded(DType::kF32, x.rows, x.cols);
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t first = 0; first < x.cols; first += 32) {
      float largest = 0;
      for (int64_t c = first; c < first + 32; ++c) largest = std::max(largest, std::fabs(x.At(r, c)));
      for (int64_t c = first; c < first + 32; ++c)
        rounded.Set(r, c, largest == 0 ? 0 : std::nearbyint(x.At(r, c) * (127.0f / largest)) * (largest / 127.0f));
    }
  }
  return rounded;
}

struct BlockCase {
  WeightType type;
  DType activation;
  int64_t m, n, k;
  Epilogue epilogue;
  bool bias;
  DType out;
};

void CheckProduct(CudaBackend& b, const BlockCase& c, Random& random) {
  BlockMatrix weight(random, c.type, c.n, c.k);
  HostTensor x = HostTensor::Normal(random, c.activation, c.m, c.k);
  const bool few = c.m <= 8;
  const HostTensor seen = few ? Quantised(x) : x.As(DType::kF16);
  HostTensor bias = HostTensor::Normal(random, DType::kF32, 1, c.n);
  HostTensor out = HostTensor::Normal(random, c.out, c.m, c.n);
  const WeightView loaded = b.Load(weight.view).value();
  const ConstTensor loaded_bias = b.Load(bias.view()).value();
  DeviceTensor dx(b, x), dout(b, out);
  const Projection mine{loaded, c.bias ? loaded_bias : ConstTensor(), dout, c.epilogue};
  b.MatMul(Queue::kCompute, dx, {&mine, 1});
  const HostTensor got = dout.Fetch();
  for (int64_t r = 0; r < c.m; ++r) {
    for (int64_t n = 0; n < c.n; ++n) {
      double sum = 0, size = 0;
      for (int64_t k = 0; k < c.k; ++k) {
        const double product = double{seen.At(r, k)} * weight.plain.At(n, k);
        sum += product, size += std::fabs(product);
      }
      if (c.bias) sum += bias.At(0, n);
      if (c.epilogue == Epilogue::kAdd) sum += out.At(r, n);
      if (c.epilogue == Epilogue::kRelu) sum = std::max(sum, 0.0);
      const double rounding = OutputRounding(c.out) * (std::fabs(sum) + 2 * std::fabs(bias.At(0, n)));
      // A format with offsets subtracts sums of the codes' size from each other: f32 rounds those.
      const double bound = (few ? 0x1p-18 : 0x1p-11) * (size + 4) + 2 * rounding;
      ASSERT_NEAR(got.At(r, n), sum, bound) << "row " << r << " output " << n;
    }
  }
}

class GpuBlocks : public ::testing::TestWithParam<WeightType> {
 protected:
  void SetUp() override {
    if (!FindCudaDevice().ok()) GTEST_SKIP() << "no GPU";
  }
};

TEST_P(GpuBlocks, ProductsAreThoseOfTheNumbers) {
  Random random(41);
  const int64_t unit = FormatOf(GetParam()).block_numbers;
  for (const DType activation : {DType::kF16, DType::kBF16, DType::kF32}) {
    const auto b = CudaBackend::Open({.activation = activation, .pool_on_device = true}).value();
    for (const int64_t m : {1, 2, 3, 5, 8, 9, 15, 64, 130}) {
      SCOPED_TRACE(::testing::Message() << Name(activation) << ", " << m << " rows");
      const int64_t k = unit * (m % 2 == 0 ? 4 : unit == 32 ? 37 : 5), n = m > 8 ? 33 : 70;
      CheckProduct(*b, {GetParam(), activation, m, n, k, Epilogue::kStore, false, activation}, random);
      CheckProduct(*b, {GetParam(), activation, m, n, k, Epilogue::kAdd, true, DType::kF32}, random);
      CheckProduct(*b, {GetParam(), activation, m, n, k, Epilogue::kRelu, true, activation}, random);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

// One row: more outputs than warps of the device, and rows of activations of many pieces, up to the longest and beyond.
TEST_P(GpuBlocks, ManyOutputsAndLongRows) {
  Random random(44);
  const auto b = CudaBackend::Open({.activation = DType::kF32, .pool_on_device = true}).value();
  const int64_t unit = FormatOf(GetParam()).block_numbers;
  const auto check = [&](int64_t n, int64_t k) {
    SCOPED_TRACE(::testing::Message() << n << " outputs of " << k);
    CheckProduct(*b, {GetParam(), DType::kF32, 1, n, k, Epilogue::kStore, false, DType::kF32}, random);
  };
  check(9001, unit * (unit == 32 ? 5 : 1));
  check(3000, 1024);
  for (const int64_t k : {4096, 14592, 32768, 33024}) check(20, k);
}

// A row has the same bits alone, where it has a kernel of its own, and among others.
TEST_P(GpuBlocks, BitsOfARowDoNotDependOnItsNeighbours) {
  Random random(45);
  const auto b = CudaBackend::Open({.activation = DType::kF32, .pool_on_device = true}).value();
  BlockMatrix weight(random, GetParam(), 150, 4864);
  HostTensor x = HostTensor::Normal(random, DType::kF32, 7, 4864), out(DType::kF32, 7, 150);
  const WeightView loaded = b->Load(weight.view).value();
  DeviceTensor dx(*b, x), together(*b, out), alone(*b, out);
  const Projection all{loaded, {}, together, Epilogue::kStore};
  b->MatMul(Queue::kCompute, dx, {&all, 1});
  for (int64_t r = 0; r < 7; ++r) {
    const Projection one{loaded, {}, alone.view().Rows(r, 1), Epilogue::kStore};
    b->MatMul(Queue::kCompute, dx.view().Rows(r, 1), {&one, 1});
  }
  EXPECT_EQ(together.Fetch().bytes, alone.Fetch().bytes);
}

// Kernels of one row start while their predecessors run: each must still see all that those wrote.
TEST_P(GpuBlocks, ProductsThatFollowEachOther) {
  constexpr int64_t kSize = 1024;
  constexpr int kProducts = 40;
  Random random(46);
  const auto b = CudaBackend::Open({.activation = DType::kF32, .pool_on_device = true}).value();
  BlockMatrix weight(random, GetParam(), kSize, kSize);
  HostTensor x = HostTensor::Normal(random, DType::kF32, 1, kSize);
  const WeightView loaded = b->Load(weight.view).value();
  HostTensor ones(DType::kF32, 1, kSize);
  for (int64_t i = 0; i < kSize; ++i) ones.Set(0, i, 1.0f);
  const ConstTensor scale = b->Load(ones.view()).value();
  const auto chain = [&](bool wait, bool norms) {
    DeviceTensor first(*b, x), second(*b, x);
    for (int i = 0; i < kProducts; ++i) {
      const Tensor from = i % 2 == 0 ? first.view() : second.view(), to = i % 2 == 0 ? second.view() : first.view();
      const Projection product{loaded, {}, to, Epilogue::kStore};
      b->MatMul(Queue::kCompute, from, {&product, 1});
      if (norms || i % 4 == 3) b->RmsNorm(Queue::kCompute, to, scale, 1e-5f, to);  // keeps numbers of ordinary size
      if (wait) first.Fetch();
    }
    const HostTensor last = first.Fetch();
    EXPECT_TRUE(std::isfinite(last.At(0, 0)));
    return last.bytes;
  };
  for (const bool norms : {false, true}) {
    const std::vector<std::byte> want = chain(true, norms);
    for (int round = 0; round < 5; ++round) ASSERT_EQ(chain(false, norms), want) << "round " << round;
  }
}

TEST_P(GpuBlocks, RowsOfAnEmbedding) {
  Random random(42);
  const auto b = CudaBackend::Open({.activation = DType::kF32, .pool_on_device = true}).value();
  BlockMatrix table(random, GetParam(), 9, FormatOf(GetParam()).block_numbers * 3);
  const std::vector<int32_t> ids = {8, 0, 3, 3, 7};
  DeviceInts device_ids(*b, ids);
  HostTensor empty(DType::kF32, 5, table.view.cols);
  DeviceTensor out(*b, empty);
  TokenBatch batch;
  batch.count = 5;
  batch.ids = device_ids;
  b->Embed(Queue::kCompute, batch, b->Load(table.view).value(), out);
  const HostTensor got = out.Fetch();
  for (int64_t t = 0; t < 5; ++t)
    for (int64_t c = 0; c < table.view.cols; ++c) {
      const float want = table.plain.At(ids[static_cast<size_t>(t)], c);
      ASSERT_NEAR(got.At(t, c), want, 0x1p-20 * (std::fabs(want) + 1)) << t << "," << c;
    }
}

// Projections of one call, of several types, with more than one launch takes.
void CheckProjections(WeightType tested, int64_t rows) {
  Random random(43);
  const auto b = CudaBackend::Open({.activation = DType::kF16, .pool_on_device = true}).value();
  HostTensor x = HostTensor::Normal(random, DType::kF16, rows, 256);
  const HostTensor seen = Quantised(x);
  std::vector<BlockMatrix> weights;
  std::vector<HostTensor> hosts;
  for (const WeightType type : {tested, tested, tested, tested, tested, WeightType::kQ6_K, tested}) {
    weights.emplace_back(random, type, 5 + static_cast<int64_t>(weights.size()), 256);
    hosts.emplace_back(DType::kF32, rows, weights.back().view.rows);
  }
  DeviceTensor dx(*b, x);
  std::vector<DeviceTensor<CudaBackend>> outs;
  outs.reserve(hosts.size());
  std::vector<Projection> projections;
  for (size_t i = 0; i < weights.size(); ++i) {
    outs.emplace_back(*b, hosts[i]);
    const WeightView placed =
        b->Load(WeightView(weights[i].bytes.data(), weights[i].view.type, weights[i].view.rows, 256)).value();
    projections.push_back({placed, {}, outs.back(), Epilogue::kStore});
  }
  b->MatMul(Queue::kCompute, dx, projections);
  for (size_t i = 0; i < weights.size(); ++i) {
    const HostTensor got = outs[i].Fetch();
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t n = 0; n < got.cols; ++n) {
        double sum = 0, size = 0;
        for (int64_t k = 0; k < 256; ++k) {
          const double product = double{seen.At(r, k)} * weights[i].plain.At(n, k);
          sum += product, size += std::fabs(product);
        }
        ASSERT_NEAR(got.At(r, n), sum, 0x1p-18 * (size + 4)) << "projection " << i << ": " << r << "," << n;
      }
  }
}
TEST_P(GpuBlocks, ProjectionsOfOneCall) {
  for (const int64_t rows : {1, 3}) {
    SCOPED_TRACE(rows);
    CheckProjections(GetParam(), rows);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, GpuBlocks, ::testing::ValuesIn(BlockTypes()),
                         [](const auto& tested) { return std::string(Name(tested.param)); });

}  // namespace
}  // namespace infinigen
