#include "kv/skew.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kv/eigen.h"

namespace infinigen {
namespace {

// Share of the mean eigenvalue that is added to all: directions that do not occur in the calibration text count as
// small rather than absent.
constexpr double kRegularisation = 1e-4;
constexpr int64_t kLargestHeadDim = 512;

size_t At(int64_t row, int64_t column, int64_t width) { return static_cast<size_t>(row * width + column); }

bool Finite(std::span<const double> values) {
  return std::all_of(values.begin(), values.end(), [](double value) { return std::isfinite(value); });
}

// kRegularisation · tr/d; 1 for a zero matrix, so that all columns are alike.
double Regulariser(std::span<const double> matrix, int64_t d) {
  double trace = 0;
  for (int64_t i = 0; i < d; ++i) trace += matrix[At(i, i, d)];
  return trace > 0 ? kRegularisation * trace / static_cast<double>(d) : 1;
}

// rows · matrix · rowsᵀ, all [d][d], matrix symmetric.
std::vector<double> Congruence(std::span<const double> rows, std::span<const double> matrix, int64_t d) {
  std::vector<double> half(rows.size()), result(rows.size());
  for (int64_t i = 0; i < d; ++i)
    for (int64_t k = 0; k < d; ++k)
      for (int64_t j = 0; j < d; ++j) half[At(i, j, d)] += rows[At(i, k, d)] * matrix[At(k, j, d)];
  for (int64_t i = 0; i < d; ++i)
    for (int64_t j = i; j < d; ++j)
      result[At(i, j, d)] = result[At(j, i, d)] =
          std::inner_product(&half[At(i, 0, d)], &half[At(i, 0, d)] + d, &rows[At(j, 0, d)], 0.0);
  return result;
}

// Stores `from`, divided by its largest magnitude, as column c of `to`; the magnitude becomes the scale.
void RoundColumn(std::span<const double> from, int64_t c, std::vector<F16>& to, std::vector<float>& scale) {
  double largest = 0;
  for (const double value : from) largest = std::max(largest, std::fabs(value));
  scale[static_cast<size_t>(c)] = static_cast<float>(largest);
  for (size_t i = 0; i < from.size(); ++i)
    to[static_cast<size_t>(c) * from.size() + i] = ToF16(largest > 0 ? static_cast<float>(from[i] / largest) : 0);
}

// The pair of projections, computed from the rotation A: M = AΛAᵀ, Λ^½AᵀNAΛ^½ = WΣ²Wᵀ, query AΛ^-½WΣ^½, key AΛ^½WΣ^-½.
// Centred keys have the covariance Σ in these columns, so the balanced pair is AΛ^-½WΣ and AΛ^½WΣ^-1. `lambda` and
// `rotated` = AᵀNA are regularised.
void FitPair(const SymmetricEigen& query, std::span<const double> lambda, std::vector<double> rotated, int64_t d,
             Skew::Head& head) {
  std::vector<double> root(lambda.size());
  for (size_t i = 0; i < root.size(); ++i) root[i] = std::sqrt(lambda[i]);
  for (int64_t i = 0; i < d; ++i)
    for (int64_t j = 0; j < d; ++j) rotated[At(i, j, d)] *= root[static_cast<size_t>(i)] * root[static_cast<size_t>(j)];
  const SymmetricEigen joint = DecomposeSymmetric(rotated, d);
  // Rounding errors can make a tiny eigenvalue zero or negative.
  const double least = std::max(joint.values[0] * 1e-24, 1e-200);
  std::vector<double> query_column(lambda.size()), key_column(lambda.size());
  for (int64_t c = 0; c < d; ++c) {
    const double sigma = std::sqrt(std::max(joint.values[static_cast<size_t>(c)], least));
    std::fill(query_column.begin(), query_column.end(), 0.0);
    std::fill(key_column.begin(), key_column.end(), 0.0);
    for (int64_t k = 0; k < d; ++k) {
      const double weight = joint.vectors[At(c, k, d)];
      const double query_weight = weight * sigma / root[static_cast<size_t>(k)];
      const double key_weight = weight * root[static_cast<size_t>(k)] / sigma;
      const double* axis = &query.vectors[At(k, 0, d)];
      for (size_t i = 0; i < query_column.size(); ++i) {
        query_column[i] += axis[i] * query_weight;
        key_column[i] += axis[i] * key_weight;
      }
    }
    RoundColumn(query_column, c, head.pair_query, head.pair_query_scale);
    RoundColumn(key_column, c, head.pair_key, head.pair_key_scale);
    head.pair_energy[static_cast<size_t>(c)] = static_cast<float>(sigma * sigma);
  }
}

// The leading directions of the values' covariance.
void FitValues(std::span<const double> mean, std::span<const double> covariance, int64_t d, Skew::Head& head) {
  const SymmetricEigen values = DecomposeSymmetric(covariance, d);
  for (int64_t i = 0; i < d; ++i) {
    head.value_mean[static_cast<size_t>(i)] = static_cast<float>(mean[static_cast<size_t>(i)]);
    for (int64_t c = 0; c < std::min(d, kValueColumns); ++c)
      head.value[At(c, i, d)] = ToF16(static_cast<float>(values.vectors[At(c, i, d)]));
  }
}

void FitHead(std::span<const double> m, std::span<const double> mean, std::span<const double> n, int64_t d,
             Skew::Head& head) {
  const SymmetricEigen query = DecomposeSymmetric(m, d);
  std::vector<double> rotated = Congruence(query.vectors, n, d);
  const double query_floor = Regulariser(m, d), key_floor = Regulariser(n, d);
  std::vector<double> lambda(query.values);
  for (int64_t c = 0; c < d; ++c) {
    const size_t column = static_cast<size_t>(c);
    head.key_mean[column] = static_cast<float>(mean[column]);
    head.rotation_energy[column] =
        static_cast<float>(std::max(lambda[column], 0.0) * std::max(rotated[At(c, c, d)], 0.0));
    lambda[column] = std::max(lambda[column], 0.0) + query_floor;
    rotated[At(c, c, d)] = std::max(rotated[At(c, c, d)], 0.0) + key_floor;
    head.rotation_rms[column] = static_cast<float>(std::sqrt(rotated[At(c, c, d)]));
    for (int64_t i = 0; i < d; ++i) head.rotation[At(c, i, d)] = ToF16(static_cast<float>(query.vectors[At(c, i, d)]));
  }
  FitPair(query, lambda, std::move(rotated), d, head);
}

// The columns of one KV head in a basis, as f32.
class Columns {
 public:
  Columns(const Skew::Head& head, ProjectionKind kind, int64_t head_dim)
      : head_(head), kind_(kind), head_dim_(head_dim) {}

  float Query(int64_t column, int64_t i) const {
    const size_t c = static_cast<size_t>(column);
    if (kind_ == ProjectionKind::kRotation) return Rotation(column, i) * head_.rotation_rms[c];
    return ToFloat(head_.pair_query[At(column, i, head_dim_)]) * head_.pair_query_scale[c];
  }
  float Key(int64_t column, int64_t i) const {
    const size_t c = static_cast<size_t>(column);
    if (kind_ == ProjectionKind::kPair)
      return ToFloat(head_.pair_key[At(column, i, head_dim_)]) * head_.pair_key_scale[c];
    const float rms = head_.rotation_rms[c];
    return rms > 0 ? Rotation(column, i) / rms : Rotation(column, i);
  }

 private:
  float Rotation(int64_t column, int64_t i) const { return ToFloat(head_.rotation[At(column, i, head_dim_)]); }

  const Skew::Head& head_;
  ProjectionKind kind_;
  int64_t head_dim_;
};

std::vector<int32_t> FirstColumns(int64_t kv_heads, int64_t head_dim, int64_t dims) {
  std::vector<int32_t> columns;
  for (int64_t head = 0; head < kv_heads; ++head)
    for (int64_t c = 0; c < dims; ++c) columns.push_back(c < head_dim ? static_cast<int32_t>(c) : -1);
  return columns;
}

SketchMatrices EmptyBasis(int64_t kv_heads, int64_t head_dim, int64_t dims) {
  SketchMatrices basis;
  basis.query.resize(static_cast<size_t>(kv_heads * head_dim * dims));
  basis.key = basis.query;
  basis.key_offset.resize(static_cast<size_t>(kv_heads * dims));
  return basis;
}

}  // namespace

int64_t SketchDims(int64_t head_dim, double ratio) {
  CHECK(head_dim > 0 && ratio > 0 && ratio <= 1);
  // Margin for rounding: 0.3 · 80 must give 24, though 0.3 in floating point may be slightly more.
  const double wanted = ratio * static_cast<double>(head_dim) - 1e-4;
  const int64_t steps = static_cast<int64_t>(std::ceil(wanted / static_cast<double>(kSketchDimStep)));
  return std::clamp<int64_t>(steps, 1, std::max<int64_t>(head_dim / kSketchDimStep, 1)) * kSketchDimStep;
}

std::string ModelIdentity::Hex() const { return fmt::format("{:016x}{:016x}", high, low); }

SketchMatrices PlainBasis(int64_t kv_heads, int64_t head_dim, int64_t dims) {
  return PlainBasis(kv_heads, head_dim, dims, FirstColumns(kv_heads, head_dim, dims));
}

SketchMatrices PlainBasis(int64_t kv_heads, int64_t head_dim, int64_t dims, std::span<const int32_t> columns) {
  CHECK(columns.size() == static_cast<size_t>(kv_heads * dims));
  SketchMatrices basis = EmptyBasis(kv_heads, head_dim, dims);
  for (int64_t head = 0; head < kv_heads; ++head) {
    for (int64_t c = 0; c < dims; ++c) {
      const int32_t column = columns[At(head, c, dims)];
      CHECK(column < head_dim);
      if (column >= 0) basis.query[At(head * head_dim + column, c, dims)] = 1;
    }
  }
  basis.key = basis.query;
  return basis;
}

TailMatrices PlainTail(int64_t kv_heads, int64_t head_dim, int64_t value_dims) {
  const std::vector<float> zeros(static_cast<size_t>(kv_heads * head_dim));
  TailMatrices tail{.key_mean = zeros,
                    .value = PlainBasis(kv_heads, head_dim, value_dims).key,
                    .value_offset = std::vector<float>(static_cast<size_t>(kv_heads * value_dims)),
                    .value_mean = zeros};
  return tail;
}

std::vector<int32_t> LargestColumns(std::span<const double> sums, int64_t kv_heads, int64_t dims) {
  CHECK(kv_heads > 0 && sums.size() % static_cast<size_t>(kv_heads) == 0);
  const int64_t head_dim = static_cast<int64_t>(sums.size()) / kv_heads;
  const int64_t taken = std::min(dims, head_dim);
  std::vector<int32_t> columns, order(static_cast<size_t>(head_dim));
  for (int64_t head = 0; head < kv_heads; ++head) {
    const std::span<const double> sum = sums.subspan(static_cast<size_t>(head * head_dim), order.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return sum[static_cast<size_t>(a)] > sum[static_cast<size_t>(b)]; });
    std::sort(order.begin(), order.begin() + taken);
    columns.insert(columns.end(), order.begin(), order.begin() + taken);
    columns.insert(columns.end(), static_cast<size_t>(dims - taken), -1);
  }
  return columns;
}

Skew::Skew(const SkewShape& shape, SkewOrigin origin) : shape_(shape), origin_(std::move(origin)) {
  CHECK(shape.layers > 0 && shape.kv_heads > 0 && shape.head_dim > 0 && shape.head_dim <= kLargestHeadDim);
  const size_t d = static_cast<size_t>(shape.head_dim);
  const std::vector<F16> matrix(d * d);
  const std::vector<float> numbers(d);
  heads_.assign(static_cast<size_t>(shape.heads()),
                {matrix, matrix, matrix, numbers, numbers, numbers, numbers, numbers, numbers,
                 std::vector<F16>(d * static_cast<size_t>(kValueColumns)), numbers});
}

size_t Skew::Index(LayerId layer, KvHead head) const {
  CHECK(layer.value() < shape_.layers && head.value() < shape_.kv_heads);
  return static_cast<size_t>(layer.value() * shape_.kv_heads + head.value());
}

Status Skew::FitLayer(LayerId layer, const SkewMoments& moments, ThreadPool& threads) {
  CHECK(moments.kv_heads() == shape_.kv_heads && moments.head_dim() == shape_.head_dim);
  for (KvHead head : IdRange<KvHead>(shape_.kv_heads))
    if (!Finite(moments.QueryMoment(head)) || !Finite(moments.KeyMean(head)) || !Finite(moments.KeyCovariance(head)) ||
        !Finite(moments.ValueMean(head)) || !Finite(moments.ValueCovariance(head)))
      return Invalid(
          "layer {}, KV head {}: queries, keys or values are not finite, so the model cannot be calibrated (are its "
          "weights "
          "damaged?)",
          layer.value(), head.value());
  threads.Run(shape_.kv_heads, [&](int64_t task, int) {
    const KvHead head(task);
    FitHead(moments.QueryMoment(head), moments.KeyMean(head), moments.KeyCovariance(head), shape_.head_dim,
            mutable_head(layer, head));
    FitValues(moments.ValueMean(head), moments.ValueCovariance(head), shape_.head_dim, mutable_head(layer, head));
  });
  return Ok();
}

SketchMatrices Skew::Basis(LayerId layer, ProjectionKind kind, int64_t dims) const {
  return Basis(layer, kind, dims, FirstColumns(shape_.kv_heads, shape_.head_dim, dims));
}

SketchMatrices Skew::Basis(LayerId layer, ProjectionKind kind, int64_t dims, std::span<const int32_t> columns) const {
  const int64_t d = shape_.head_dim;
  if (kind == ProjectionKind::kNone) return PlainBasis(shape_.kv_heads, d, dims, columns);
  CHECK(columns.size() == static_cast<size_t>(shape_.kv_heads * dims));
  SketchMatrices basis = EmptyBasis(shape_.kv_heads, d, dims);
  for (KvHead kv_head : IdRange<KvHead>(shape_.kv_heads)) {
    const Head& from = head(layer, kv_head);
    const Columns source(from, kind, d);
    for (int64_t c = 0; c < dims; ++c) {
      const int32_t column = columns[At(kv_head.value(), c, dims)];
      CHECK(column < d);
      if (column < 0) continue;
      double offset = 0;
      for (int64_t i = 0; i < d; ++i) {
        const size_t to = At(kv_head.value() * d + i, c, dims);
        basis.query[to] = source.Query(column, i);
        basis.key[to] = source.Key(column, i);
        offset += static_cast<double>(from.key_mean[static_cast<size_t>(i)]) * static_cast<double>(basis.key[to]);
      }
      basis.key_offset[At(kv_head.value(), c, dims)] = static_cast<float>(offset);
    }
  }
  return basis;
}

TailMatrices Skew::Tail(LayerId layer, int64_t value_dims) const {
  CHECK(value_dims <= kValueColumns);
  const int64_t d = shape_.head_dim;
  TailMatrices tail;
  for (KvHead kv_head : IdRange<KvHead>(shape_.kv_heads)) {
    const Head& from = head(layer, kv_head);
    const auto column = [&](int64_t c, int64_t i) { return ToFloat(from.value[At(c, i, d)]); };
    tail.key_mean.insert(tail.key_mean.end(), from.key_mean.begin(), from.key_mean.end());
    tail.value_mean.insert(tail.value_mean.end(), from.value_mean.begin(), from.value_mean.end());
    for (int64_t i = 0; i < d; ++i)
      for (int64_t c = 0; c < value_dims; ++c) tail.value.push_back(column(c, i));
    for (int64_t c = 0; c < value_dims; ++c) {
      double offset = 0;
      for (int64_t i = 0; i < d; ++i)
        offset += static_cast<double>(from.value_mean[static_cast<size_t>(i)]) * static_cast<double>(column(c, i));
      tail.value_offset.push_back(static_cast<float>(offset));
    }
  }
  return tail;
}

std::vector<float> Skew::Rotation(LayerId layer) const {
  const int64_t d = shape_.head_dim;
  std::vector<float> rotation(static_cast<size_t>(shape_.kv_heads * d * d));
  for (KvHead kv_head : IdRange<KvHead>(shape_.kv_heads))
    for (int64_t c = 0; c < d; ++c)
      for (int64_t i = 0; i < d; ++i)
        rotation[At(kv_head.value() * d + i, c, d)] = ToFloat(head(layer, kv_head).rotation[At(c, i, d)]);
  return rotation;
}

double Skew::HeldEnergy(LayerId layer, ProjectionKind kind, int64_t dims) const {
  CHECK(kind != ProjectionKind::kNone);
  double share = 0;
  for (KvHead kv_head : IdRange<KvHead>(shape_.kv_heads)) {
    const Head& from = head(layer, kv_head);
    const std::vector<float>& energy = kind == ProjectionKind::kPair ? from.pair_energy : from.rotation_energy;
    const auto middle = energy.begin() + std::min<int64_t>(dims, shape_.head_dim);
    const double held = std::accumulate(energy.begin(), middle, 0.0);
    const double rest = std::accumulate(middle, energy.end(), 0.0);
    share += held + rest > 0 ? held / (held + rest) : 1;
  }
  return share / static_cast<double>(shape_.kv_heads);
}

}  // namespace infinigen
