#include "kv/eigen.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"

namespace infinigen {
namespace {

constexpr double kEpsilon = std::numeric_limits<double>::epsilon();

// A = Qᵀ T Q with T tridiagonal. Q is stored by rows, so that both phases work on contiguous memory.
class Decomposition {
 public:
  Decomposition(std::span<const double> matrix, int64_t n)
      : n_(static_cast<size_t>(n)), a_(matrix.begin(), matrix.end()), q_(n_ * n_), diagonal_(n_), off_diagonal_(n_) {
    for (size_t i = 0; i < n_; ++i) q_[i * n_ + i] = 1;
  }

  void Reduce() {
    std::vector<double> v(n_), w(n_);
    for (size_t k = 0; k + 2 < n_; ++k) {
      const double beta = Reflector(k, v);
      if (beta == 0) continue;
      ReflectMatrix(k + 1, beta, v, w);
      ReflectBasis(k + 1, beta, v, w);
    }
    for (size_t i = 0; i < n_; ++i) diagonal_[i] = a_[i * n_ + i];
    for (size_t i = 0; i + 1 < n_; ++i) off_diagonal_[i] = a_[i * n_ + i + 1];
  }

  // QL: off-diagonal elements converge to zero from the top; a zero in the middle splits the matrix.
  void Diagonalise() {
    double norm = 0;
    for (size_t i = 0; i < n_; ++i) norm = std::max(norm, std::fabs(diagonal_[i]) + std::fabs(off_diagonal_[i]));
    const double negligible = kEpsilon * norm;  // the accuracy of the reduction above
    for (size_t first = 0; first < n_; ++first) {
      // Two sweeps per eigenvalue are usual; only a matrix that is not finite needs fifty.
      for (int sweep = 0;; ++sweep) {
        size_t last = first;
        while (last + 1 < n_ && std::fabs(off_diagonal_[last]) > negligible) ++last;
        if (last == first) break;
        CHECK(sweep < 50);
        Sweep(first, last);
      }
    }
  }

  SymmetricEigen Sorted() const {
    std::vector<size_t> order(n_);
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return diagonal_[a] > diagonal_[b]; });
    SymmetricEigen result;
    for (const size_t i : order) {
      const std::span<const double> row(q_.data() + i * n_, n_);
      const auto largest =
          std::max_element(row.begin(), row.end(), [](double a, double b) { return std::fabs(a) < std::fabs(b); });
      const double sign = *largest < 0 ? -1 : 1;
      result.values.push_back(diagonal_[i]);
      for (const double component : row) result.vectors.push_back(sign * component);
    }
    return result;
  }

 private:
  double* Row(std::vector<double>& matrix, size_t i) { return matrix.data() + i * n_; }

  // The reflection I − beta·v·vᵀ that zeroes the elements of row k behind k + 1; v is zero up to k. Returns beta, or 0
  // when they are zero already.
  double Reflector(size_t k, std::vector<double>& v) {
    const double* row = Row(a_, k);
    double largest = 0;
    for (size_t i = k + 2; i < n_; ++i) largest = std::max(largest, std::fabs(row[i]));
    if (largest == 0) return 0;
    largest = std::max(largest, std::fabs(row[k + 1]));
    double square = 0;
    for (size_t i = k + 1; i < n_; ++i) {
      v[i] = row[i] / largest;  // scaled, so that no square overflows or underflows
      square += v[i] * v[i];
    }
    const double length = v[k + 1] > 0 ? -std::sqrt(square) : std::sqrt(square);
    const double beta = 1 / (square - v[k + 1] * length);
    v[k + 1] -= length;
    a_[k * n_ + k + 1] = length * largest;
    return beta;
  }

  // A ← P·A·P on rows and columns from `begin` on: A − v·wᵀ − w·vᵀ with w = beta·A·v − ½·beta²·(vᵀ·A·v)·v.
  void ReflectMatrix(size_t begin, double beta, const std::vector<double>& v, std::vector<double>& w) {
    double product = 0;
    for (size_t i = begin; i < n_; ++i) {
      const double* row = Row(a_, i);
      double sum = 0;
      for (size_t j = begin; j < n_; ++j) sum += row[j] * v[j];
      w[i] = beta * sum;
      product += w[i] * v[i];
    }
    for (size_t i = begin; i < n_; ++i) w[i] -= 0.5 * beta * product * v[i];
    for (size_t i = begin; i < n_; ++i) {
      double* row = Row(a_, i);
      const double vi = v[i], wi = w[i];
      for (size_t j = begin; j < n_; ++j) row[j] -= vi * w[j] + wi * v[j];
    }
  }

  // Q ← P·Q.
  void ReflectBasis(size_t begin, double beta, const std::vector<double>& v, std::vector<double>& sums) {
    std::fill(sums.begin(), sums.end(), 0.0);
    for (size_t i = begin; i < n_; ++i) {
      const double* row = Row(q_, i);
      for (size_t j = 0; j < n_; ++j) sums[j] += v[i] * row[j];
    }
    for (size_t i = begin; i < n_; ++i) {
      double* row = Row(q_, i);
      const double factor = beta * v[i];
      for (size_t j = 0; j < n_; ++j) row[j] -= factor * sums[j];
    }
  }

  // One implicit QL sweep over rows [first, last]. The shift is the eigenvalue of the leading 2×2 block that is nearer
  // to its first element. Rotations create a bulge at the lower end and chase it upwards.
  void Sweep(size_t first, size_t last) {
    const double half = (diagonal_[first + 1] - diagonal_[first]) / (2 * off_diagonal_[first]);
    const double root = std::hypot(half, 1.0);
    const double shift = diagonal_[first] - off_diagonal_[first] / (half + (half < 0 ? -root : root));
    double g = diagonal_[last] - shift;
    double sine = 1, cosine = 1, moved = 0;
    for (size_t i = last; i-- > first;) {
      const double f = sine * off_diagonal_[i], b = cosine * off_diagonal_[i];
      const double length = std::hypot(f, g);
      off_diagonal_[i + 1] = length;
      if (length == 0) {  // the matrix splits here; the rest of the sweep would divide by zero
        diagonal_[i + 1] -= moved;
        off_diagonal_[last] = 0;
        return;
      }
      sine = f / length;
      cosine = g / length;
      g = diagonal_[i + 1] - moved;
      const double turn = (diagonal_[i] - g) * sine + 2 * cosine * b;
      moved = sine * turn;
      diagonal_[i + 1] = g + moved;
      g = cosine * turn - b;
      Rotate(i, sine, cosine);
    }
    diagonal_[first] -= moved;
    off_diagonal_[first] = g;
    off_diagonal_[last] = 0;
  }

  void Rotate(size_t i, double sine, double cosine) {
    double* upper = Row(q_, i);
    double* lower = Row(q_, i + 1);
    for (size_t j = 0; j < n_; ++j) {
      const double below = lower[j], above = upper[j];
      lower[j] = sine * above + cosine * below;
      upper[j] = cosine * above - sine * below;
    }
  }

  const size_t n_;
  std::vector<double> a_;  // [n][n]
  std::vector<double> q_;  // [n][n]
  std::vector<double> diagonal_;
  std::vector<double> off_diagonal_;  // [i]: between diagonal i and i + 1; the last is scratch
};

}  // namespace

SymmetricEigen DecomposeSymmetric(std::span<const double> matrix, int64_t n) {
  CHECK(n > 0 && matrix.size() == static_cast<size_t>(n * n));
  Decomposition decomposition(matrix, n);
  decomposition.Reduce();
  decomposition.Diagonalise();
  return decomposition.Sorted();
}

}  // namespace infinigen
