#include <algorithm>

#include "kv/skew.h"

namespace infinigen {
namespace {

constexpr int64_t kRows = 64;  // in a block: 32 KiB at head_dim 128, which fits the first-level cache
constexpr int64_t kTileRows = 4, kTileColumns = 8;

int64_t Padded(int64_t width) { return (width + kTileColumns - 1) / kTileColumns * kTileColumns; }

// Up to kRows rows, padded with zero columns to whole tiles.
class Block {
 public:
  explicit Block(int64_t head_dim)
      : head_dim_(head_dim), width_(Padded(head_dim)), rows_(static_cast<size_t>(kRows * width_)) {}

  // `shift` may be null.
  void Push(const float* row, const float* shift) {
    float* to = rows_.data() + count_++ * width_;
    for (int64_t i = 0; i < head_dim_; ++i) to[i] = shift == nullptr ? row[i] : row[i] - shift[i];
  }
  bool full() const { return count_ == kRows; }

  // products += XᵀX (upper triangle), sum += the sum of the rows; then empties the block.
  void AddTo(double* products, double* sum) {
    for (int64_t r = 0; r < count_; ++r)
      for (int64_t i = 0; i < head_dim_; ++i) sum[i] += static_cast<double>(rows_[static_cast<size_t>(r * width_ + i)]);
    for (int64_t i = 0; i < head_dim_; i += kTileRows)
      for (int64_t j = i / kTileColumns * kTileColumns; j < head_dim_; j += kTileColumns) AddTile(i, j, products);
    count_ = 0;
  }

 private:
  void AddTile(int64_t i0, int64_t j0, double* products) const {
    float tile[kTileRows][kTileColumns] = {};
    for (int64_t r = 0; r < count_; ++r) {
      const float* row = rows_.data() + r * width_;
      for (int64_t i = 0; i < kTileRows; ++i)
        for (int64_t j = 0; j < kTileColumns; ++j) tile[i][j] += row[i0 + i] * row[j0 + j];
    }
    for (int64_t i = i0; i < std::min(i0 + kTileRows, head_dim_); ++i)
      for (int64_t j = std::max(j0, i); j < std::min(j0 + kTileColumns, head_dim_); ++j)
        products[i * head_dim_ + j] += static_cast<double>(tile[i - i0][j - j0]);
  }

  int64_t head_dim_, width_;
  int64_t count_ = 0;
  std::vector<float> rows_;  // [kRows][width]
};

std::vector<double> MeanOf(const std::vector<double>& sum, int64_t count) {
  std::vector<double> mean(sum.size());
  if (count > 0)
    for (size_t i = 0; i < mean.size(); ++i) mean[i] = sum[i] / static_cast<double>(count);
  return mean;
}

// products / count, with the lower triangle filled in.
std::vector<double> Moment(const std::vector<double>& products, int64_t count, int64_t d) {
  std::vector<double> moment(products.size());
  if (count == 0) return moment;
  for (int64_t i = 0; i < d; ++i)
    for (int64_t j = i; j < d; ++j)
      moment[static_cast<size_t>(i * d + j)] = moment[static_cast<size_t>(j * d + i)] =
          products[static_cast<size_t>(i * d + j)] / static_cast<double>(count);
  return moment;
}

}  // namespace

SkewMoments::SkewMoments(int64_t heads, int64_t kv_heads, int64_t head_dim)
    : heads_(heads), kv_heads_(kv_heads), head_dim_(head_dim) {
  CHECK(kv_heads > 0 && heads > 0 && heads % kv_heads == 0 && head_dim > 0);
  const size_t d = static_cast<size_t>(head_dim);
  const Sums none{std::vector<double>(d * d), std::vector<double>(d), 0};
  queries_.assign(static_cast<size_t>(kv_heads), none);
  keys_.assign(static_cast<size_t>(kv_heads), {none, {}});
  values_ = keys_;
}

void SkewMoments::Add(int64_t first_row, const ConstTensor& queries, const ConstTensor& keys, ThreadPool& threads) {
  CHECK(queries.type == DType::kF32 && keys.type == DType::kF32 && queries.rows == keys.rows);
  CHECK(queries.cols == heads_ * head_dim_ && keys.cols == kv_heads_ * head_dim_);
  const int64_t begin = std::clamp<int64_t>(kCalibrationSinks - first_row, 0, keys.rows);
  threads.Run(2 * kv_heads_, [&](int64_t task, int) {
    const KvHead head(task / 2);
    task % 2 == 0 ? AddQueries(head, queries) : AddShifted(head, begin, keys, keys_[head.index()]);
  });
}

void SkewMoments::AddValues(int64_t first_row, const ConstTensor& values, ThreadPool& threads) {
  CHECK(values.type == DType::kF32 && values.cols == kv_heads_ * head_dim_);
  const int64_t begin = std::clamp<int64_t>(kCalibrationSinks - first_row, 0, values.rows);
  threads.Run(kv_heads_,
              [&](int64_t head, int) { AddShifted(KvHead(head), begin, values, values_[static_cast<size_t>(head)]); });
}

void SkewMoments::AddQueries(KvHead head, const ConstTensor& queries) {
  Sums& sums = queries_[head.index()];
  Block block(head_dim_);
  const int64_t group = heads_ / kv_heads_;
  for (int64_t row = 0; row < queries.rows; ++row) {
    for (int64_t g = 0; g < group; ++g) {
      block.Push(queries.as<float>(row) + (head.value() * group + g) * head_dim_, nullptr);
      if (block.full()) block.AddTo(sums.products.data(), sums.sum.data());
    }
  }
  block.AddTo(sums.products.data(), sums.sum.data());
  sums.count += queries.rows * group;
}

void SkewMoments::AddShifted(KvHead head, int64_t begin, const ConstTensor& rows, ShiftedSums& sums) const {
  if (begin == rows.rows) return;
  const auto row_of = [&](int64_t row) { return rows.as<float>(row) + head.value() * head_dim_; };
  if (sums.shift.empty()) {
    std::vector<double> sum(static_cast<size_t>(head_dim_));
    for (int64_t row = begin; row < rows.rows; ++row)
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<double>(row_of(row)[i]);
    for (const double mean : MeanOf(sum, rows.rows - begin)) sums.shift.push_back(static_cast<float>(mean));
  }
  Block block(head_dim_);
  for (int64_t row = begin; row < rows.rows; ++row) {
    block.Push(row_of(row), sums.shift.data());
    if (block.full()) block.AddTo(sums.products.data(), sums.sum.data());
  }
  block.AddTo(sums.products.data(), sums.sum.data());
  sums.count += rows.rows - begin;
}

std::vector<double> SkewMoments::QueryMoment(KvHead head) const {
  const Sums& sums = queries_[head.index()];
  return Moment(sums.products, sums.count, head_dim_);
}

std::vector<double> SkewMoments::ShiftedSums::Mean() const {
  std::vector<double> mean = MeanOf(sum, count);
  for (size_t i = 0; i < shift.size(); ++i) mean[i] += static_cast<double>(shift[i]);
  return mean;
}

std::vector<double> SkewMoments::ShiftedSums::Covariance() const {
  const auto d = static_cast<int64_t>(sum.size());
  std::vector<double> covariance = Moment(products, count, d);
  const std::vector<double> mean = MeanOf(sum, count);
  for (size_t i = 0; i < mean.size(); ++i)
    for (size_t j = 0; j < mean.size(); ++j) covariance[i * mean.size() + j] -= mean[i] * mean[j];
  return covariance;
}

}  // namespace infinigen
