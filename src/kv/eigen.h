// Eigenvalues and eigenvectors of a real symmetric matrix, in double. Householder reduction to tridiagonal form, then
// QL with implicit shifts: O(n³), about 10 ms for n = 128. The answer is the same on every run: values descending,
// every vector's largest component positive. Any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace infinigen {

struct SymmetricEigen {
  std::vector<double> values;   // [n], descending
  std::vector<double> vectors;  // [n][n]: row i is the unit vector of values[i]
};

// `matrix` [n][n] is symmetric and finite, n > 0.
SymmetricEigen DecomposeSymmetric(std::span<const double> matrix, int64_t n);

}  // namespace infinigen
