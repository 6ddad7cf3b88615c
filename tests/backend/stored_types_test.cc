// Block-quantised weights: the reference multiplies by every stored type, with the numbers that DecodeRow gives; the
// CPU backend rejects, by name, the types it cannot multiply by.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/operands.h"
#include "backend/reference/reference_backend.h"

namespace infinigen {
namespace {

// A random Q8_0 matrix, and the same numbers as f32.
struct BlockMatrix {
  BlockMatrix(Random& random, int64_t rows, int64_t cols) : plain(DType::kF32, rows, cols) {
    bytes.resize(static_cast<size_t>(rows * cols / 32 * 34));
    for (size_t at = 0; at < bytes.size(); ++at) {
      if (at % 34 == 0) {
        const F16 scale = ToF16(random.Normal(0.01f));
        std::memcpy(&bytes[at++], &scale, 2);
      } else {
        bytes[at] = static_cast<std::byte>(random.Int(0, 255));
      }
    }
    view = WeightView(bytes.data(), WeightType::kQ8_0, rows, cols);
    for (int64_t r = 0; r < rows; ++r) DecodeRow(view, r, {plain.view().as<float>(r), static_cast<size_t>(cols)});
  }

  std::vector<std::byte> bytes;
  WeightView view;
  HostTensor plain;
};

void ExpectEqual(const HostTensor& a, const HostTensor& b) {
  for (int64_t r = 0; r < a.rows; ++r)
    for (int64_t c = 0; c < a.cols; ++c) ASSERT_EQ(a.At(r, c), b.At(r, c)) << r << "," << c;
}

TEST(StoredTypes, ReferenceProductsOfBlocksAreThoseOfTheirNumbers) {
  Random random(1);
  ReferenceBackend backend;
  BlockMatrix weight(random, 7, 96);
  HostTensor x = HostTensor::Normal(random, DType::kF32, 5, 96), bias = HostTensor::Normal(random, DType::kF32, 1, 7);
  for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kAdd, Epilogue::kRelu}) {
    HostTensor got = HostTensor::Normal(random, DType::kF32, 5, 7), want = got;
    const WeightView loaded = backend.Load(weight.view).value();
    const Projection blocks{loaded, bias.view(), got.view(), epilogue};
    const Projection plain{weight.plain.weight(), bias.view(), want.view(), epilogue};
    backend.MatMul(Queue::kCompute, x.view(), {&blocks, 1});
    backend.MatMul(Queue::kCompute, x.view(), {&plain, 1});
    ExpectEqual(got, want);
    if (epilogue != Epilogue::kRelu) {
      EXPECT_NE(got.At(0, 0), got.At(1, 0)) << "the product is not constant";
    }
  }
}

TEST(StoredTypes, ReferenceLooksUpRowsOfBlocks) {
  Random random(2);
  ReferenceBackend backend;
  BlockMatrix table(random, 9, 64);
  const std::vector<int32_t> ids = {8, 0, 3}, rows = {1, 6, 2};
  const TokenBatch batch{3, ids.data(), nullptr, rows.data()};
  HostTensor got(DType::kF32, 3, 64), want(DType::kF32, 3, 64);
  backend.Embed(Queue::kCompute, batch, table.view, got.view());
  backend.AddPositions(Queue::kCompute, batch, table.view, 2, got.view());
  for (int64_t t = 0; t < 3; ++t)
    for (int64_t c = 0; c < 64; ++c)
      want.Set(t, c,
               table.plain.At(ids[static_cast<size_t>(t)], c) + table.plain.At(rows[static_cast<size_t>(t)] + 2, c));
  ExpectEqual(got, want);
}

TEST(StoredTypes, TheCpuRefusesBlocksByName) {
  Random random(3);
  CpuBackend backend(1);
  BlockMatrix weight(random, 2, 32);
  const Result<WeightView> loaded = backend.Load(weight.view);
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().kind, ErrorKind::kUnsupported);
  EXPECT_THAT(loaded.error().message, testing::HasSubstr("q8_0"));
  for (const WeightType type : {WeightType::kF32, WeightType::kF16, WeightType::kBF16})
    EXPECT_TRUE(backend.Load(WeightView(weight.bytes.data(), type, 1, 8)).ok()) << Name(type);
}

}  // namespace
}  // namespace infinigen
