// Block-quantised weights. The arithmetic of block_arithmetic.h is the same bit for bit in the reference and in the CPU
// backend with every instruction set, number of rows and number of threads; its error against the float product of the
// decoded numbers is bounded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "backend/backends.h"
#include "backend/block_matrix.h"
#include "backend/cpu/block_product.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/operands.h"
#include "backend/reference/reference_backend.h"
#include "tensor/block_formats.h"

namespace infinigen {
namespace {

void ExpectSameBits(const HostTensor& a, const HostTensor& b) {
  for (int64_t r = 0; r < a.rows; ++r)
    for (int64_t c = 0; c < a.cols; ++c)
      ASSERT_EQ(std::bit_cast<uint32_t>(a.At(r, c)), std::bit_cast<uint32_t>(b.At(r, c)))
          << r << "," << c << ": " << a.At(r, c) << " and " << b.At(r, c);
}

// Quantising x to codes of at most 2032 in groups of 32 moves each number by at most half a step; the errors are
// independent, so a product moves by about the root of the sum of their squares.
TEST(BlockProducts, TheReferenceIsCloseToTheFloatProduct) {
  Random random(1);
  ReferenceBackend backend;
  for (const WeightType type : BlockTypes()) {
    SCOPED_TRACE(Name(type));
    const int64_t k = 512, n = 24, m = 6;
    BlockMatrix weight(random, type, n, k);
    HostTensor x = HostTensor::Normal(random, DType::kF32, m, k), got(DType::kF32, m, n);
    const Projection projection{weight.view, {}, got.view()};
    backend.MatMul(Queue::kCompute, x.view(), {&projection, 1});
    double errors = 0, expected = 0;
    for (int64_t r = 0; r < m; ++r) {
      for (int64_t o = 0; o < n; ++o) {
        double want = 0, variance = 0, size = 0;
        for (int64_t first = 0; first < k; first += 32) {
          double largest = 0, squares = 0;
          for (int64_t i = first; i < first + 32; ++i) {
            const double w = weight.plain.At(o, i);
            want += x.At(r, i) * w;
            size += std::fabs(x.At(r, i) * w);
            squares += w * w;
            largest = std::max(largest, std::fabs(static_cast<double>(x.At(r, i))));
          }
          const double step = largest / 2032;
          variance += squares * step * step / 12;  // of a uniform error of one step
        }
        const double error = got.At(r, o) - want;
        EXPECT_LT(std::fabs(error), 5 * std::sqrt(variance) + 1e-6 * size) << r << "," << o;
        errors += error * error;
        expected += variance;
      }
    }
    EXPECT_LT(errors, 2 * expected);
    EXPECT_GT(errors, 0.3 * expected) << "the activations were not quantised as described";
  }
}

template <class Factory>
class BlockProductTest : public OpTest<Factory> {};
TYPED_TEST_SUITE(BlockProductTest, CpuBackends, BackendName);

TYPED_TEST(BlockProductTest, EqualTheReferenceBitForBit) {
  Random random(2);
  constexpr Epilogue kEpilogues[] = {Epilogue::kStore, Epilogue::kAdd, Epilogue::kRelu};
  for (const WeightType type : BlockTypes()) {
    const bool wide = FormatOf(type).block_numbers == 256;
    for (const int64_t m : {1, 2, 3, 4, 5, 7, 8, 9, 13, 21}) {
      const std::vector<int64_t> lengths =
          wide ? std::vector<int64_t>{256, 768, 2560} : std::vector<int64_t>{32, 96, 256, 288, 576, 2080};
      for (const int64_t k : lengths) {
        const int64_t n = random.Int(1, 50);
        SCOPED_TRACE(::testing::Message() << Name(type) << " m " << m << " k " << k << " n " << n);
        BlockMatrix weight(random, type, n, k);
        HostTensor x = HostTensor::Normal(random, DType::kF32, m, k, 1.0f, random.Int(0, 5));
        for (int64_t i = 0; i < 32; ++i) x.Set(0, i, 0.0f);  // a group of zeros
        HostTensor bias = HostTensor::Normal(random, DType::kF32, 1, n);
        HostTensor got = HostTensor::Normal(random, DType::kF32, m, n, 1.0f, random.Int(0, 3)), want = got;
        const ConstTensor added = random.Int(0, 1) == 1 ? ConstTensor(bias.view()) : ConstTensor();
        const Epilogue epilogue = kEpilogues[random.Int(0, 2)];
        const Projection mine{this->backend().Load(weight.view).value(), added, got.view(), epilogue};
        const Projection theirs{weight.view, added, want.view(), epilogue};
        this->backend().MatMul(Queue::kCompute, x.view(), {&mine, 1});
        this->reference().MatMul(Queue::kCompute, x.view(), {&theirs, 1});
        ExpectSameBits(got, want);
        if (this->HasFatalFailure()) return;
      }
    }
  }
}

// Extreme codes: every byte of the codes at its largest or smallest value, so that no sum may saturate.
TYPED_TEST(BlockProductTest, ExtremeCodesDoNotSaturate) {
  Random random(3);
  for (const WeightType type : BlockTypes()) {
    for (const int pattern : {0x00, 0x80, 0x7f, 0xff}) {
      SCOPED_TRACE(::testing::Message() << Name(type) << " bytes " << pattern);
      BlockMatrix weight(random, type, 20, 512);
      const auto size = static_cast<size_t>(FormatOf(type).block_bytes);
      for (size_t at = 0; at < weight.bytes.size(); ++at) {
        bool header = type == WeightType::kMxfp4 && at % size == 0;
        for (const size_t field : HalfFields(type)) header = header || (at % size >= field && at % size < field + 2);
        if (!header) weight.bytes[at] = static_cast<std::byte>(pattern);
      }
      for (const float sign : {1.0f, -1.0f}) {
        for (const int64_t m : {1, 6}) {
          HostTensor x(DType::kF32, m, 512), got(DType::kF32, m, 20), want = got;
          for (int64_t r = 0; r < m; ++r)
            for (int64_t i = 0; i < 512; ++i) x.Set(r, i, sign);
          const Projection mine{weight.view, {}, got.view()}, theirs{weight.view, {}, want.view()};
          this->backend().MatMul(Queue::kCompute, x.view(), {&mine, 1});
          this->reference().MatMul(Queue::kCompute, x.view(), {&theirs, 1});
          ExpectSameBits(got, want);
          if (this->HasFatalFailure()) return;
        }
      }
    }
  }
}

TYPED_TEST(BlockProductTest, RowsDoNotDependOnTheCall) {
  Random random(4);
  CpuBackend one(1), two(2);
  for (const WeightType type : {WeightType::kQ4_1, WeightType::kQ6_K, WeightType::kQ8_0}) {
    const int64_t m = 75, n = 200, k = 768;
    BlockMatrix weight(random, type, n, k);
    HostTensor x = HostTensor::Normal(random, DType::kF32, m, k);
    const auto product = [&](CpuBackend& backend, int64_t first, int64_t count) {
      HostTensor out(DType::kF32, count, n);
      const Projection projection{weight.view, {}, out.view()};
      backend.MatMul(Queue::kCompute, x.view().Rows(first, count), {&projection, 1});
      return out;
    };
    const HostTensor all = product(this->backend(), 0, m);
    for (CpuBackend* backend : {&one, &two, &this->backend()}) {
      for (const int64_t count : {1, 2, 4, 5, 8, 30}) {
        const int64_t first = random.Int(0, m - count);
        const HostTensor part = product(*backend, first, count);
        for (int64_t r = 0; r < count; ++r)
          for (int64_t c = 0; c < n; ++c) ASSERT_EQ(part.At(r, c), all.At(first + r, c)) << Name(type);
      }
    }
  }
}

// One call with plain and quantised projections of the same x.
TYPED_TEST(BlockProductTest, TypesMixInACall) {
  Random random(5);
  for (const int64_t m : {1, 3, 20}) {
    BlockMatrix q4(random, WeightType::kQ4_K, 70, 512), q6(random, WeightType::kQ6_K, 33, 512);
    HostTensor plain = HostTensor::Normal(random, DType::kF16, 21, 512);
    HostTensor x = HostTensor::Normal(random, DType::kF32, m, 512);
    HostTensor together[3] = {{DType::kF32, m, 70}, {DType::kF32, m, 21}, {DType::kF32, m, 33}};
    HostTensor alone[3] = {{DType::kF32, m, 70}, {DType::kF32, m, 21}, {DType::kF32, m, 33}};
    const WeightView weights[3] = {q4.view, plain.weight(), q6.view};
    std::vector<Projection> call;
    for (size_t i = 0; i < 3; ++i) call.push_back({weights[i], {}, together[i].view()});
    this->backend().MatMul(Queue::kCompute, x.view(), call);
    for (size_t i = 0; i < 3; ++i) {
      const Projection projection{weights[i], {}, alone[i].view()};
      this->backend().MatMul(Queue::kCompute, x.view(), {&projection, 1});
      ExpectSameBits(together[i], alone[i]);
    }
  }
}

TYPED_TEST(BlockProductTest, NanStaysInItsRow) {
  Random random(6);
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const WeightType type : {WeightType::kQ8_0, WeightType::kQ4_1, WeightType::kQ2_K}) {
    for (const float bad : {inf, -inf, nan}) {
      BlockMatrix weight(random, type, 20, 512);
      HostTensor x = HostTensor::Normal(random, DType::kF32, 6, 512), out(DType::kF32, 6, 20);
      x.Set(3, 100, bad);
      const Projection projection{weight.view, {}, out.view()};
      this->backend().MatMul(Queue::kCompute, x.view(), {&projection, 1});
      for (int64_t r = 0; r < 6; ++r)
        for (int64_t n = 0; n < 20; ++n) ASSERT_EQ(std::isnan(out.At(r, n)), r == 3) << Name(type) << " " << bad;
    }
  }
}

TYPED_TEST(BlockProductTest, RowsOfTablesAreTheDecodedNumbers) {
  Random random(7);
  for (const WeightType type : BlockTypes()) {
    BlockMatrix table(random, type, 9, 512);
    const std::vector<int32_t> ids = {8, 0, 3}, rows = {1, 6, 2};
    const TokenBatch batch{3, ids.data(), nullptr, rows.data()};
    HostTensor got(DType::kF32, 3, 512), want(DType::kF32, 3, 512), reference(DType::kF32, 3, 512);
    this->backend().Embed(Queue::kCompute, batch, table.view, got.view());
    this->backend().AddPositions(Queue::kCompute, batch, table.view, 2, got.view());
    this->reference().Embed(Queue::kCompute, batch, table.view, reference.view());
    this->reference().AddPositions(Queue::kCompute, batch, table.view, 2, reference.view());
    for (int64_t t = 0; t < 3; ++t)
      for (int64_t c = 0; c < 512; ++c)
        want.Set(t, c,
                 table.plain.At(ids[static_cast<size_t>(t)], c) + table.plain.At(rows[static_cast<size_t>(t)] + 2, c));
    ExpectSameBits(got, want);
    ExpectSameBits(reference, want);
  }
}

TEST(BlockKernels, TheBestInstructionSetIsChosen) {
#if HWY_ARCH_X86 && !defined(INFINIGEN_SANITIZED)
  hwy::SetSupportedTargetsForTest(0);
  if ((hwy::SupportedTargets() & HWY_AVX3_DL) == 0) GTEST_SKIP() << "this machine lacks AVX-512 VNNI";
  EXPECT_STREQ(ChooseBlockKernels().name, "block_avx512vnni");
  hwy::SetSupportedTargetsForTest(HWY_AVX2);
  EXPECT_THAT(ChooseBlockKernels().name, testing::AnyOf(testing::StrEq("block_avx2"), testing::StrEq("block_avxvnni")));
  hwy::SetSupportedTargetsForTest(HWY_EMU128);
  EXPECT_STREQ(ChooseBlockKernels().name, "portable");
  hwy::SetSupportedTargetsForTest(0);
#else
  GTEST_SKIP() << "one instruction set";
#endif
}

}  // namespace
}  // namespace infinigen
