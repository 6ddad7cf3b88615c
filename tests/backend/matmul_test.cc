// MatMul against the reference. Bound per output: both sum k products in some order, so they differ by at most 2^-24 ·
// (8 + 4√k) · Σ|x·w| (a random walk of rounding errors, four deviations), plus one rounding of the epilogue, plus the
// backend's rounding before multiplication and the rounding of the output (arithmetic.h).
#include <array>

#include "backend/backends.h"
#include "backend/operands.h"

namespace infinigen {
namespace {

template <class Factory>
class MatMulTest : public OpTest<Factory> {};
TYPED_TEST_SUITE(MatMulTest, TestedBackends, BackendName);

struct Case {
  int64_t m, k;
  std::vector<int64_t> outs;
  DType x = DType::kF32;
};

// Allowed difference of output (r, n) of `x` and `weight` from the oracle's, apart from the rounding of the output.
template <class Factory>
double Bound(const HostTensor& x, int64_t r, const HostTensor& weight, int64_t n, double added) {
  double sum = 0, squares = 0;
  for (int64_t k = 0; k < x.cols; ++k) {
    const double product = std::fabs(x.At(r, k) * weight.At(n, k));
    sum += product;
    squares += product * product;
  }
  const double converted = x.type == weight.type ? 0 : Factory::ProductRounding(weight.type);
  return 0x1p-24 * (8 + 4 * std::sqrt(static_cast<double>(x.cols))) * (1e-6 + sum + added) +
         ProductError(converted, sum, squares);
}

template <class Factory>
void Check(typename Factory::B& backend, ReferenceBackend& reference, const Case& shape, Random& random) {
  using Test = typename Factory::B;
  SCOPED_TRACE(::testing::Message() << Name(shape.x) << " m " << shape.m << " k " << shape.k << " n " << shape.outs[0]);
  constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
  constexpr Epilogue kEpilogues[] = {Epilogue::kStore, Epilogue::kAdd, Epilogue::kRelu};
  HostTensor x = HostTensor::Normal(random, shape.x, shape.m, shape.k, 1.0f, random.Int(0, 9));
  HostTensor wide = x.As(DType::kF32);
  DeviceTensor dx(backend, x);
  const size_t count = shape.outs.size();
  std::vector<HostTensor> weights(count), biases(count), outs(count), wants(count);
  std::vector<std::array<DeviceTensor<Test>, 3>> device;
  device.reserve(count);
  std::vector<Projection> mine, theirs;
  for (size_t i = 0; i < count; ++i) {
    const int64_t n = shape.outs[i];
    const DType type = kTypes[random.Int(0, 2)];
    weights[i] = HostTensor::Normal(random, type, n, shape.k, 1.0f, random.Int(0, 1) * 3);
    biases[i] = HostTensor::Normal(random, DType::kF32, 1, n);
    const bool narrow = shape.x != DType::kF32 && random.Int(0, 1) == 1;
    outs[i] = HostTensor::Normal(random, narrow ? shape.x : DType::kF32, shape.m, n, 1.0f, random.Int(0, 5));
    wants[i] = outs[i].As(DType::kF32);
    device.push_back(
        {DeviceTensor(backend, weights[i]), DeviceTensor(backend, biases[i]), DeviceTensor(backend, outs[i])});
    const bool bias = random.Int(0, 1) == 1;
    Epilogue epilogue = kEpilogues[random.Int(0, 2)];
    if (narrow && epilogue == Epilogue::kAdd) epilogue = Epilogue::kRelu;  // kAdd is for f32 outputs only
    mine.push_back({device[i][0], bias ? ConstTensor(device[i][1]) : ConstTensor(), device[i][2], epilogue});
    theirs.push_back(
        {weights[i].weight(), bias ? ConstTensor(biases[i].view()) : ConstTensor(), wants[i].view(), epilogue});
  }
  backend.MatMul(Queue::kCompute, dx, mine);
  reference.MatMul(Queue::kCompute, wide.view(), theirs);
  for (size_t i = 0; i < count; ++i) {
    const HostTensor got = device[i][2].Fetch();
    for (int64_t r = 0; r < shape.m; ++r) {
      for (int64_t n = 0; n < shape.outs[i]; ++n) {
        const float want = wants[i].At(r, n);
        const double added = std::fabs(want) + std::fabs(outs[i].At(r, n)) + std::fabs(biases[i].At(0, n));
        ASSERT_NEAR(got.At(r, n), want,
                    Bound<Factory>(x, r, weights[i], n, added) + OutputRounding(got.type) * std::fabs(want))
            << "projection " << i << " " << Name(weights[i].type) << " at " << r << "," << n;
      }
      for (int64_t c = got.cols; c < got.stride; ++c) ASSERT_TRUE(std::isnan(got.At(r, c))) << "gap written";
    }
  }
}

TYPED_TEST(MatMulTest, FewRows) {
  Random random(10);
  for (const int64_t m : {1, 2, 3, 4, 5, 7, 16})
    for (const int64_t k : {1, 8, 16, 40, 511, 512, 513, 1100})
      Check<TypeParam>(this->backend(), this->reference(), {m, k, {random.Int(1, 70)}}, random);
  // A single row takes another path if it is long.
  for (const int64_t k : {2047, 2048, 4096, 4097, 8192 + 31})
    for (int round = 0; round < 3; ++round)
      Check<TypeParam>(this->backend(), this->reference(), {1, k, {random.Int(1, 11)}}, random);
}

TYPED_TEST(MatMulTest, ManyRows) {
  Random random(11);
  for (const int64_t m : {17, 18, 31, 64, 129, 520, 530})
    for (const int64_t k : {20, 64, 513})
      Check<TypeParam>(this->backend(), this->reference(), {m, k, {random.Int(1, 30)}}, random);
  Check<TypeParam>(this->backend(), this->reference(), {33, 96, {131}}, random);
}

TYPED_TEST(MatMulTest, SeveralProjectionsOfDifferentTypes) {
  Random random(12);
  for (int round = 0; round < 12; ++round) {
    const int64_t m = random.Int(1, 40), k = random.Int(1, 200);
    Check<TypeParam>(this->backend(), this->reference(), {m, k, {random.Int(1, 130), random.Int(1, 40), 1}}, random);
  }
}

// Several tokens and projections, as a layer calls MatMul for any activation type.
TYPED_TEST(MatMulTest, ActivationsOfEveryType) {
  Random random(13);
  for (const DType type : TypeParam::kActivations)
    for (const int64_t m : {1, 3, 16, 70})
      for (const int64_t k : {40, 64, 513})
        Check<TypeParam>(this->backend(), this->reference(), {m, k, {64, random.Int(1, 150), 8}, type}, random);
}

TYPED_TEST(MatMulTest, SubnormalHalvesAndInfinities) {
  auto& b = this->backend();
  HostTensor x(DType::kF32, 1, 16), weight(DType::kF16, 2, 16), out(DType::kF32, 1, 2);
  for (int64_t i = 0; i < 16; ++i) {
    x.Set(0, i, 1.0f);
    weight.Set(0, i, 0x1p-24f);  // the smallest half
    weight.Set(1, i, i == 5 ? 65504.0f : 0.0f);
  }
  DeviceTensor dx(b, x), dw(b, weight), dout(b, out);
  const Projection projection{dw, {}, dout};
  b.MatMul(Queue::kCompute, dx, {&projection, 1});
  EXPECT_EQ(dout.Fetch().At(0, 0), 0x1p-20f);
  EXPECT_EQ(dout.Fetch().At(0, 1), 65504.0f);
}

}  // namespace
}  // namespace infinigen
