#include "kv/skew.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <random>
#include <string>

#include "kv/eigen.h"

namespace infinigen {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

size_t At(int64_t row, int64_t column, int64_t width) { return static_cast<size_t>(row * width + column); }

// ---- eigenvalues ----

std::vector<double> RandomSymmetric(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<double> matrix(static_cast<size_t>(n * n));
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = i; j < n; ++j) matrix[At(i, j, n)] = matrix[At(j, i, n)] = normal(random);
  return matrix;
}

void ExpectDecomposition(const std::vector<double>& matrix, int64_t n) {
  const SymmetricEigen eigen = DecomposeSymmetric(matrix, n);
  double norm = 0;
  for (const double value : matrix) norm = std::max(norm, std::fabs(value));
  const double bound = 1e-13 * static_cast<double>(n) * std::max(norm, 1e-300);
  for (int64_t v = 0; v < n; ++v) {
    EXPECT_GE(eigen.values[static_cast<size_t>(std::max<int64_t>(v - 1, 0))], eigen.values[static_cast<size_t>(v)]);
    const double* vector = &eigen.vectors[At(v, 0, n)];
    for (int64_t i = 0; i < n; ++i) {
      double product = 0;
      for (int64_t j = 0; j < n; ++j) product += matrix[At(i, j, n)] * vector[j];
      EXPECT_NEAR(product, eigen.values[static_cast<size_t>(v)] * vector[i], bound);
    }
    for (int64_t w = 0; w <= v; ++w) {
      double product = 0;
      for (int64_t j = 0; j < n; ++j) product += vector[j] * eigen.vectors[At(w, j, n)];
      EXPECT_NEAR(product, v == w ? 1 : 0, 1e-12);
    }
    double largest = 0;
    for (int64_t j = 0; j < n; ++j)
      if (std::fabs(vector[j]) > std::fabs(largest)) largest = vector[j];
    EXPECT_GT(largest, 0);
  }
}

TEST(Eigen, KnownMatrices) {
  const SymmetricEigen two = DecomposeSymmetric(std::vector<double>{2, 1, 1, 2}, 2);
  EXPECT_NEAR(two.values[0], 3, 1e-15);
  EXPECT_NEAR(two.values[1], 1, 1e-15);
  EXPECT_NEAR(two.vectors[0], std::sqrt(0.5), 1e-15);
  EXPECT_NEAR(two.vectors[1], std::sqrt(0.5), 1e-15);

  const SymmetricEigen one = DecomposeSymmetric(std::vector<double>{-7}, 1);
  EXPECT_THAT(one.values, ElementsAre(-7));
  EXPECT_THAT(one.vectors, ElementsAre(1));

  // The path graph's Laplacian on n points has the eigenvalues 2 − 2·cos(π·k/n).
  constexpr int64_t n = 24;
  std::vector<double> laplacian(n * n);
  for (int64_t i = 0; i < n; ++i) {
    laplacian[At(i, i, n)] = i == 0 || i == n - 1 ? 1 : 2;
    if (i > 0) laplacian[At(i, i - 1, n)] = laplacian[At(i - 1, i, n)] = -1;
  }
  const SymmetricEigen path = DecomposeSymmetric(laplacian, n);
  for (int64_t k = 0; k < n; ++k)
    EXPECT_NEAR(path.values[static_cast<size_t>(n - 1 - k)],
                2 - 2 * std::cos(M_PI * static_cast<double>(k) / static_cast<double>(n)), 1e-13);
}

TEST(Eigen, EqualAndZeroValues) {
  for (const double value : {0.0, 1.0, 1e-150, 1e150}) {
    std::vector<double> matrix(36);
    for (int64_t i = 0; i < 6; ++i) matrix[At(i, i, 6)] = value;
    ExpectDecomposition(matrix, 6);
  }
  ExpectDecomposition(std::vector<double>(64, 1.0), 8);  // rank 1
  std::vector<double> block(64);                         // two rank-1 blocks and zero rows
  for (int64_t i = 0; i < 3; ++i)
    for (int64_t j = 0; j < 3; ++j) block[At(i, j, 8)] = block[At(i + 4, j + 4, 8)] = 2;
  ExpectDecomposition(block, 8);
}

TEST(Eigen, RandomMatrices) {
  for (const int64_t n : {1, 2, 3, 4, 5, 8, 17, 32, 64, 100}) ExpectDecomposition(RandomSymmetric(n, 7), n);
  // Eigenvalues over sixteen orders of magnitude, as in covariances.
  std::vector<double> graded = RandomSymmetric(32, 3);
  for (int64_t i = 0; i < 32; ++i)
    for (int64_t j = 0; j < 32; ++j) graded[At(i, j, 32)] *= std::pow(10.0, -0.25 * static_cast<double>(i + j));
  ExpectDecomposition(graded, 32);
}

TEST(Eigen, IsReproducibleAndQuick) {
  const std::vector<double> matrix = RandomSymmetric(128, 11);
  const auto start = std::chrono::steady_clock::now();
  const SymmetricEigen first = DecomposeSymmetric(matrix, 128);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const SymmetricEigen second = DecomposeSymmetric(matrix, 128);
  EXPECT_EQ(first.values, second.values);
  EXPECT_EQ(first.vectors, second.vectors);
  // Takes about 10 ms; the bound allows for a loaded machine and sanitizers, and detects only a worse complexity.
  EXPECT_LT(seconds, 2.0);
}

// ---- moments and skew ----

constexpr int64_t kHeads = 6, kKvHeads = 2, kDim = 32, kGroup = kHeads / kKvHeads;

// Queries and keys whose energy lies in few directions, which differ between them and between KV heads; keys have a
// mean.
struct Text {
  std::vector<float> queries;  // [rows][kHeads · kDim]
  std::vector<float> keys;     // [rows][kKvHeads · kDim]
  int64_t rows = 0;

  ConstTensor Queries(int64_t first, int64_t count) const {
    return {reinterpret_cast<const std::byte*>(queries.data() + first * kHeads * kDim), DType::kF32, count,
            kHeads * kDim};
  }
  ConstTensor Keys(int64_t first, int64_t count) const {
    return {reinterpret_cast<const std::byte*>(keys.data() + first * kKvHeads * kDim), DType::kF32, count,
            kKvHeads * kDim};
  }
  const float* Query(int64_t row, int64_t head) const { return queries.data() + (row * kHeads + head) * kDim; }
  const float* Key(int64_t row, int64_t head) const { return keys.data() + (row * kKvHeads + head) * kDim; }
};

// Rows of `mixing` are random orthonormal directions; the i-th has the standard deviation size · decay^i.
class Source {
 public:
  Source(double size, double decay, double mean, uint64_t seed) : random_(seed), mean_(kDim) {
    mixing_ = DecomposeSymmetric(RandomSymmetric(kDim, seed), kDim).vectors;
    for (int64_t i = 0; i < kDim; ++i)
      for (int64_t j = 0; j < kDim; ++j) mixing_[At(i, j, kDim)] *= size * std::pow(decay, static_cast<double>(i));
    for (double& value : mean_) value = mean * normal_(random_);
  }
  void Draw(float* to) {
    std::vector<double> row = mean_;
    for (int64_t i = 0; i < kDim; ++i) {
      const double amount = normal_(random_);
      for (int64_t j = 0; j < kDim; ++j) row[static_cast<size_t>(j)] += amount * mixing_[At(i, j, kDim)];
    }
    std::copy(row.begin(), row.end(), to);
  }

 private:
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  std::vector<double> mixing_;  // [direction][kDim]
  std::vector<double> mean_;
};

Text MakeText(int64_t rows, uint64_t seed = 1) {
  Text text{.rows = rows};
  text.queries.resize(static_cast<size_t>(rows * kHeads * kDim));
  text.keys.resize(static_cast<size_t>(rows * kKvHeads * kDim));
  std::vector<Source> query, key;
  for (uint64_t head = 0; head < kKvHeads; ++head) {
    query.emplace_back(3.0, 0.88, 0.5, 100 * seed + head);
    key.emplace_back(2.0, 0.85, 4.0, 100 * seed + 50 + head);
  }
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t head = 0; head < kHeads; ++head)
      query[static_cast<size_t>(head / kGroup)].Draw(text.queries.data() + (row * kHeads + head) * kDim);
    for (int64_t head = 0; head < kKvHeads; ++head)
      key[static_cast<size_t>(head)].Draw(text.keys.data() + (row * kKvHeads + head) * kDim);
  }
  return text;
}

SkewMoments MomentsOf(const Text& text, int threads = 1, int64_t chunk = 200) {
  ThreadPool pool(threads);
  SkewMoments moments(kHeads, kKvHeads, kDim);
  for (int64_t first = 0; first < text.rows; first += chunk) {
    const int64_t count = std::min(chunk, text.rows - first);
    moments.Add(first, text.Queries(first, count), text.Keys(first, count), pool);
  }
  return moments;
}

Skew SkewOf(const Text& text, int64_t layers = 1) {
  ThreadPool pool(2);
  Skew skew(
      {.layers = layers, .kv_heads = kKvHeads, .head_dim = kDim},
      {.model = {0x0123456789abcdef, 0xfedcba9876543210}, .tokens = text.rows, .positions = 8192, .text = "made up"});
  for (LayerId layer : IdRange<LayerId>(layers)) EXPECT_TRUE(skew.FitLayer(layer, MomentsOf(text), pool).ok());
  return skew;
}

std::vector<double> Sketch(const float* row, const std::vector<float>& matrix, int64_t head, int64_t dims) {
  std::vector<double> sketch(static_cast<size_t>(dims));
  for (int64_t i = 0; i < kDim; ++i)
    for (int64_t c = 0; c < dims; ++c)
      sketch[static_cast<size_t>(c)] +=
          static_cast<double>(row[i]) * static_cast<double>(matrix[At(head * kDim + i, c, dims)]);
  return sketch;
}

double Dot(const float* a, const float* b) {
  double sum = 0;
  for (int64_t i = 0; i < kDim; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

// Mean square error of a guess of q·k, up to a constant for each query, over all keys but the sinks; relative to that
// of a guess of zero.
double SketchError(const Text& text, const SketchMatrices& basis, int64_t dims) {
  double error = 0, whole = 0;
  for (int64_t head = 0; head < kHeads; ++head) {
    const int64_t kv = head / kGroup;
    for (int64_t row = 0; row < text.rows; row += 17) {
      const std::vector<double> query = Sketch(text.Query(row, head), basis.query, kv, dims);
      double sum = 0, square = 0, true_sum = 0, true_square = 0, count = 0;
      for (int64_t j = kCalibrationSinks; j < text.rows; j += 5) {
        const std::vector<double> key = Sketch(text.Key(j, kv), basis.key, kv, dims);
        const double score = Dot(text.Query(row, head), text.Key(j, kv));
        const double off = score - std::inner_product(query.begin(), query.end(), key.begin(), 0.0);
        sum += off, square += off * off, true_sum += score, true_square += score * score, count += 1;
      }
      error += square - sum * sum / count;
      whole += true_square - true_sum * true_sum / count;
    }
  }
  return error / whole;
}

TEST(SkewMoments, EqualThePlainSums) {
  const Text text = MakeText(300);
  const SkewMoments moments = MomentsOf(text);
  for (KvHead head : IdRange<KvHead>(kKvHeads)) {
    std::vector<double> product(kDim * kDim), mean(kDim), covariance(kDim * kDim);
    for (int64_t row = 0; row < text.rows; ++row)
      for (int64_t g = 0; g < kGroup; ++g)
        for (int64_t i = 0; i < kDim; ++i)
          for (int64_t j = 0; j < kDim; ++j)
            product[At(i, j, kDim)] += static_cast<double>(text.Query(row, head.value() * kGroup + g)[i]) *
                                       static_cast<double>(text.Query(row, head.value() * kGroup + g)[j]) /
                                       static_cast<double>(text.rows * kGroup);
    const double count = static_cast<double>(text.rows - kCalibrationSinks);
    for (int64_t row = kCalibrationSinks; row < text.rows; ++row)
      for (int64_t i = 0; i < kDim; ++i)
        mean[static_cast<size_t>(i)] += static_cast<double>(text.Key(row, head.value())[i]) / count;
    for (int64_t row = kCalibrationSinks; row < text.rows; ++row)
      for (int64_t i = 0; i < kDim; ++i)
        for (int64_t j = 0; j < kDim; ++j)
          covariance[At(i, j, kDim)] +=
              (static_cast<double>(text.Key(row, head.value())[i]) - mean[static_cast<size_t>(i)]) *
              (static_cast<double>(text.Key(row, head.value())[j]) - mean[static_cast<size_t>(j)]) / count;
    EXPECT_THAT(moments.QueryMoment(head), testing::Pointwise(testing::DoubleNear(1e-4), product));
    EXPECT_THAT(moments.KeyMean(head), testing::Pointwise(testing::DoubleNear(1e-5), mean));
    EXPECT_THAT(moments.KeyCovariance(head), testing::Pointwise(testing::DoubleNear(1e-5), covariance));
  }
}

TEST(SkewMoments, ALargeMeanCostsNoPrecision) {
  Text text = MakeText(300);
  const std::vector<double> before = MomentsOf(text).KeyCovariance(KvHead(1));
  for (float& value : text.keys) value = value + 4096;  // leaves 2^-12 of each key
  const std::vector<double> after = MomentsOf(text).KeyCovariance(KvHead(1));
  EXPECT_THAT(after, testing::Pointwise(testing::DoubleNear(2e-3), before));
}

TEST(SkewMoments, SinksAreExcludedAndThreadsChangeNothing) {
  Text text = MakeText(128);
  const SkewMoments before = MomentsOf(text, 1, 3);
  for (int64_t i = 0; i < kCalibrationSinks * kKvHeads * kDim; ++i) text.keys[static_cast<size_t>(i)] = 1e6f;
  const SkewMoments after = MomentsOf(text, 2, 3);
  for (KvHead head : IdRange<KvHead>(kKvHeads)) {
    EXPECT_EQ(before.KeyMean(head), after.KeyMean(head));
    EXPECT_EQ(before.KeyCovariance(head), after.KeyCovariance(head));
    EXPECT_EQ(before.QueryMoment(head), after.QueryMoment(head));
  }
}

TEST(Skew, AllColumnsKeepTheScore) {
  const Text text = MakeText(1000);
  const Skew skew = SkewOf(text);
  for (const ProjectionKind kind : {ProjectionKind::kRotation, ProjectionKind::kPair, ProjectionKind::kNone}) {
    const SketchMatrices basis = skew.Basis(LayerId(0), kind, kDim);
    for (int64_t head = 0; head < kHeads; ++head) {
      const std::vector<double> query = Sketch(text.Query(9, head), basis.query, head / kGroup, kDim);
      const std::vector<double> key = Sketch(text.Key(77, head / kGroup), basis.key, head / kGroup, kDim);
      // f16 has 11 bits; the sum has 32 · 32 products of magnitude |q|·|k|.
      const double size = std::sqrt(Dot(text.Query(9, head), text.Query(9, head)) *
                                    Dot(text.Key(77, head / kGroup), text.Key(77, head / kGroup)));
      EXPECT_NEAR(std::inner_product(query.begin(), query.end(), key.begin(), 0.0),
                  Dot(text.Query(9, head), text.Key(77, head / kGroup)), 2e-3 * size)
          << Name(kind);
    }
  }
}

TEST(Skew, FewColumnsGuessBestWithThePairAndWorstWithout) {
  const Text text = MakeText(1200);
  const Skew skew = SkewOf(text);
  for (const int64_t dims : {8, 16}) {
    const double pair = SketchError(text, skew.Basis(LayerId(0), ProjectionKind::kPair, dims), dims);
    const double rotation = SketchError(text, skew.Basis(LayerId(0), ProjectionKind::kRotation, dims), dims);
    const double none = SketchError(text, skew.Basis(LayerId(0), ProjectionKind::kNone, dims), dims);
    EXPECT_LT(pair, 0.8 * rotation) << dims;
    EXPECT_LT(rotation, 0.8 * none) << dims;
    // The energy that the skew reports.
    EXPECT_NEAR(1 - pair, skew.HeldEnergy(LayerId(0), ProjectionKind::kPair, dims), 0.03);
    EXPECT_NEAR(1 - rotation, skew.HeldEnergy(LayerId(0), ProjectionKind::kRotation, dims), 0.03);
    // The last columns hold hardly any energy.
    std::vector<int32_t> last;
    for (int64_t head = 0; head < kKvHeads; ++head)
      for (int64_t c = kDim - dims; c < kDim; ++c) last.push_back(static_cast<int32_t>(c));
    EXPECT_GT(SketchError(text, skew.Basis(LayerId(0), ProjectionKind::kPair, dims, last), dims), 2 * pair);
  }
}

TEST(Skew, TheGuessHoldsOnAnotherText) {
  const Skew skew = SkewOf(MakeText(1000, 1));
  Text other = MakeText(600, 1);  // other rows of the same distribution
  const Text longer = MakeText(1600, 1);
  other.queries.assign(longer.queries.end() - static_cast<ptrdiff_t>(other.queries.size()), longer.queries.end());
  other.keys.assign(longer.keys.end() - static_cast<ptrdiff_t>(other.keys.size()), longer.keys.end());
  EXPECT_LT(SketchError(other, skew.Basis(LayerId(0), ProjectionKind::kPair, 16), 16), 0.05);
}

TEST(Skew, BalancedColumnsAreCentredWithRmsOne) {
  const Text text = MakeText(800);
  const Skew skew = SkewOf(text);
  for (const ProjectionKind kind : {ProjectionKind::kRotation, ProjectionKind::kPair}) {
    const SketchMatrices basis = skew.Basis(LayerId(0), kind, 16);
    for (int64_t head = 0; head < kKvHeads; ++head) {
      std::vector<double> sum(16), square(16);
      for (int64_t row = kCalibrationSinks; row < text.rows; ++row) {
        const std::vector<double> key = Sketch(text.Key(row, head), basis.key, head, 16);
        for (size_t c = 0; c < key.size(); ++c) {
          const double number = key[c] - static_cast<double>(basis.key_offset[At(head, static_cast<int64_t>(c), 16)]);
          sum[c] += number;
          square[c] += number * number;
        }
      }
      const double count = static_cast<double>(text.rows - kCalibrationSinks);
      for (size_t c = 0; c < sum.size(); ++c) {
        EXPECT_NEAR(sum[c] / count, 0, 0.01) << Name(kind) << c;
        EXPECT_NEAR(std::sqrt(square[c] / count), 1, 0.02) << Name(kind) << c;
      }
    }
  }
}

TEST(Skew, RotationIsOrthogonalAndItsColumnsCanBeChosen) {
  const Skew skew = SkewOf(MakeText(500));
  const std::vector<float> rotation = skew.Rotation(LayerId(0));
  for (int64_t head = 0; head < kKvHeads; ++head)
    for (int64_t a = 0; a < kDim; ++a)
      for (int64_t b = 0; b < kDim; ++b) {
        double product = 0;
        for (int64_t i = 0; i < kDim; ++i)
          product += static_cast<double>(rotation[At(head * kDim + i, a, kDim)]) *
                     static_cast<double>(rotation[At(head * kDim + i, b, kDim)]);
        EXPECT_NEAR(product, a == b, 2e-3);
      }
  std::vector<double> sums(kKvHeads * kDim, 1.0);
  for (const int64_t column : {31, 2, 7, 5, 11, 30}) sums[static_cast<size_t>(column)] = 3;  // head 0; two more by ties
  sums[At(1, 20, kDim)] = 2;
  const std::vector<int32_t> columns = LargestColumns(sums, kKvHeads, 8);
  EXPECT_THAT(columns, ElementsAre(0, 1, 2, 5, 7, 11, 30, 31, 0, 1, 2, 3, 4, 5, 6, 20));
  const SketchMatrices all = skew.Basis(LayerId(0), ProjectionKind::kRotation, kDim);
  const SketchMatrices some = skew.Basis(LayerId(0), ProjectionKind::kRotation, 8, columns);
  for (int64_t head = 0; head < kKvHeads; ++head)
    for (int64_t c = 0; c < 8; ++c) {
      const int32_t column = columns[At(head, c, 8)];
      EXPECT_EQ(some.key_offset[At(head, c, 8)], all.key_offset[At(head, column, kDim)]);
      for (int64_t i = 0; i < kDim; ++i) {
        EXPECT_EQ(some.query[At(head * kDim + i, c, 8)], all.query[At(head * kDim + i, column, kDim)]);
        EXPECT_EQ(some.key[At(head * kDim + i, c, 8)], all.key[At(head * kDim + i, column, kDim)]);
      }
    }
}

TEST(Skew, NumbersPerSketch) {
  EXPECT_EQ(SketchDims(64, 0.3), 24);
  EXPECT_EQ(SketchDims(128, 0.3), 40);
  EXPECT_EQ(SketchDims(80, static_cast<double>(0.3f)), 24);
  EXPECT_EQ(SketchDims(64, 1), 64);
  EXPECT_EQ(SketchDims(64, 0.001), 8);
  EXPECT_EQ(SketchDims(20, 1), 16);
  EXPECT_EQ(SketchDims(8, 0.3), 8);
  EXPECT_EQ(SketchDims(6, 0.3), 8);
}

TEST(Skew, HeadsOfFewerThanEightDimensionsHaveZeroColumns) {
  const SketchMatrices plain = PlainBasis(1, 2, 8);
  EXPECT_THAT(plain.query, ElementsAre(1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0));
  EXPECT_EQ(plain.key, plain.query);
  EXPECT_THAT(plain.key_offset, Each(0.0f));
  const std::vector<int32_t> columns = LargestColumns(std::vector<double>{1, 2}, 1, 8);
  EXPECT_THAT(columns, ElementsAre(0, 1, -1, -1, -1, -1, -1, -1));
  EXPECT_EQ(PlainBasis(1, 2, 8, columns).query, plain.query);
}

TEST(Skew, SilentKeysOrQueriesGiveFiniteColumns) {
  ThreadPool pool(1);
  for (const bool silent_keys : {true, false}) {
    Text text = MakeText(100);
    std::vector<float>& silent = silent_keys ? text.keys : text.queries;
    std::fill(silent.begin(), silent.end(), 0.0f);
    const Skew skew = SkewOf(text);
    for (const ProjectionKind kind : {ProjectionKind::kRotation, ProjectionKind::kPair}) {
      const SketchMatrices basis = skew.Basis(LayerId(0), kind, 16);
      for (const std::vector<float>* numbers : {&basis.query, &basis.key, &basis.key_offset})
        for (const float number : *numbers) EXPECT_TRUE(std::isfinite(number));
    }
  }
  // Fewer keys than dimensions, and only sinks.
  for (const int64_t rows : {1, 4, 5, 6}) {
    const Skew skew = SkewOf(MakeText(rows));
    for (const float number : skew.Basis(LayerId(0), ProjectionKind::kPair, 16).key) EXPECT_TRUE(std::isfinite(number));
  }
}

TEST(Skew, NumbersThatAreNotFiniteAreRefused) {
  ThreadPool pool(1);
  Text text = MakeText(50);
  text.keys[static_cast<size_t>(20 * kKvHeads * kDim + kDim)] = NAN;
  Skew skew({.layers = 3, .kv_heads = kKvHeads, .head_dim = kDim}, {});
  const Status status = skew.FitLayer(LayerId(2), MomentsOf(text), pool);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message, HasSubstr("layer 2, KV head 1"));
}

// ---- file ----

class SkewFile : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = testing::TempDir() + "skew.XXXXXX";
    ASSERT_NE(::mkdtemp(directory_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string Path(const std::string& name) const { return directory_ + "/" + name; }
  std::string Put(const std::string& name, const std::string& bytes) const {
    std::ofstream(Path(name), std::ios::binary) << bytes;
    return Path(name);
  }
  static std::string Message(const Result<Skew>& skew) { return skew.ok() ? "accepted" : skew.error().message; }

  std::string directory_;
  Skew skew_ = SkewOf(MakeText(60), 2);
};

// Applies `change` to the bytes before the checksum, and corrects the checksum.
std::string Changed(std::string bytes, const std::function<void(std::string&)>& change) {
  bytes.resize(bytes.size() - 8);
  change(bytes);
  const uint64_t checksum = SkewChecksum(std::as_bytes(std::span(bytes)));
  return bytes.append(reinterpret_cast<const char*>(&checksum), sizeof(checksum));
}

void SetWord(std::string& bytes, size_t at, uint32_t value) { std::memcpy(bytes.data() + at, &value, sizeof(value)); }

TEST_F(SkewFile, RoundTrip) {
  const std::string path = Path("infinigen.skew");
  ASSERT_TRUE(WriteSkew(skew_, path).ok());
  const Result<Skew> read = ReadSkew(path, skew_.origin().model, skew_.shape());
  ASSERT_TRUE(read.ok()) << Message(read);
  EXPECT_EQ(read->shape(), skew_.shape());
  EXPECT_EQ(read->origin().model, skew_.origin().model);
  EXPECT_EQ(read->origin().tokens, 60);
  EXPECT_EQ(read->origin().positions, 8192);
  EXPECT_EQ(read->origin().text, "made up");
  for (LayerId layer : IdRange<LayerId>(2))
    for (const ProjectionKind kind : {ProjectionKind::kRotation, ProjectionKind::kPair}) {
      const SketchMatrices wrote = skew_.Basis(layer, kind, 24), got = read->Basis(layer, kind, 24);
      EXPECT_EQ(wrote.query, got.query);
      EXPECT_EQ(wrote.key, got.key);
      EXPECT_EQ(wrote.key_offset, got.key_offset);
      EXPECT_EQ(skew_.HeldEnergy(layer, kind, 8), read->HeldEnergy(layer, kind, 8));
    }
  EXPECT_EQ(SerialiseSkew(*read), SerialiseSkew(skew_));
}

TEST_F(SkewFile, ReplacesAnOlderFileAndLeavesNoTemporary) {
  const std::string path = Put("infinigen.skew", "something else");
  ASSERT_TRUE(WriteSkew(skew_, path).ok());
  EXPECT_TRUE(ReadSkew(path, skew_.origin().model, skew_.shape()).ok());
  size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(directory_)) ++files;
  EXPECT_EQ(files, 1u);
  const Status status = WriteSkew(skew_, Path("no/such/place.skew"));
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message, AllOf(HasSubstr("no/such/place.skew"), HasSubstr("cannot write")));
}

TEST_F(SkewFile, ForeignFilesAreRefusedByName) {
  const std::string path = Put("other.skew", SerialiseSkew(skew_));
  EXPECT_THAT(Message(ReadSkew(path, {1, 2}, skew_.shape())),
              AllOf(HasSubstr(path), HasSubstr("another model"), HasSubstr("0123456789abcdeffedcba9876543210")));
  EXPECT_THAT(Message(ReadSkew(path, skew_.origin().model, {.layers = 2, .kv_heads = 1, .head_dim = kDim})),
              AllOf(HasSubstr(path), HasSubstr("KV heads")));
  EXPECT_THAT(Message(ReadSkew(Path("none.skew"), {}, skew_.shape())), HasSubstr("none.skew"));
}

TEST_F(SkewFile, EveryCorruptionIsRefusedByName) {
  const std::string good = SerialiseSkew(skew_);
  const auto refusal = [&](const std::string& bytes) {
    const std::string path = Put("bad.skew", bytes);
    const std::string message = Message(ReadSkew(path, skew_.origin().model, skew_.shape()));
    EXPECT_THAT(message, HasSubstr(path));
    return message;
  };
  EXPECT_THAT(refusal(""), HasSubstr("too short"));
  EXPECT_THAT(refusal(good.substr(0, 40)), HasSubstr("too short"));
  EXPECT_THAT(refusal("{\"model\": 1}" + good), HasSubstr("not a skew file"));
  EXPECT_THAT(refusal(good + "x"), HasSubstr("1 extra bytes after the end"));
  for (const size_t cut : {size_t{1}, size_t{8}, good.size() / 2})
    EXPECT_THAT(refusal(good.substr(0, good.size() - cut)), HasSubstr("truncated"));
  // Bytes from the identity on are protected only by the checksum.
  for (size_t at = 32; at < good.size(); at += 97) {
    std::string bytes = good;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
    EXPECT_THAT(refusal(bytes), HasSubstr("damaged")) << at;
  }
  EXPECT_THAT(refusal(Changed(good, [](std::string& b) { SetWord(b, 8, 0); })), HasSubstr("outdated"));
  EXPECT_THAT(refusal(Changed(good, [](std::string& b) { SetWord(b, 8, kSkewVersion + 1); })), HasSubstr("newer"));
  for (const size_t field : {12, 16, 20}) {
    EXPECT_THAT(refusal(Changed(good, [&](std::string& b) { SetWord(b, field, 0); })), HasSubstr("expected 1 to"));
    EXPECT_THAT(refusal(Changed(good, [&](std::string& b) { SetWord(b, field, UINT32_MAX); })),
                HasSubstr("expected 1 to"));
    EXPECT_THAT(refusal(Changed(good, [&](std::string& b) { SetWord(b, field, 500); })), HasSubstr("truncated"));
    EXPECT_THAT(refusal(Changed(good, [&](std::string& b) { SetWord(b, field, 1); })), HasSubstr("after the end"));
  }
  EXPECT_THAT(refusal(Changed(good, [](std::string& b) { SetWord(b, 28, 256); })), HasSubstr("name has 256 bytes"));
  EXPECT_THAT(refusal(Changed(good, [](std::string& b) { SetWord(b, 36, 1 << 20); })), HasSubstr("positions"));
  // Infinity in the rotation, NaN in the last energy.
  const size_t payload = 56 + 7;
  EXPECT_THAT(refusal(Changed(good, [&](std::string& b) { b[payload] = '\0', b[payload + 1] = '\x7c'; })),
              HasSubstr("layer 0, KV head 0, rotation"));
  EXPECT_THAT(refusal(Changed(good, [](std::string& b) { SetWord(b, b.size() - 4, 0x7fc00000); })),
              HasSubstr("layer 1, KV head 1, value mean"));
}

TEST_F(SkewFile, IsAsSmallAsPromised) {
  ThreadPool pool(1);
  const Skew skew({.layers = 12, .kv_heads = 2, .head_dim = 64}, {});
  EXPECT_LT(SerialiseSkew(skew).size(), size_t{700} << 10);
}

}  // namespace
}  // namespace infinigen
