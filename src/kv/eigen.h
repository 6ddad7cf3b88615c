// Eigenvalues and eigenvectors of a real symmetric matrix, in double, by Householder reduction to tridiagonal form and
// QL with implicit shifts: O(n³), about 10 ms for n = 128. Deterministic: values descend, and the component of each
// vector with the largest magnitude is positive. Any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace infinigen {

struct SymmetricEigen {
  std::vector<double> values;   // [n], descending
  std::vector<double> vectors;  // [n][n]: row i is the unit eigenvector of values[i]
};

// Precondition: `matrix` [n][n] is symmetric and finite, n > 0.
SymmetricEigen DecomposeSymmetric(std::span<const double> matrix, int64_t n);

}  // namespace infinigen
