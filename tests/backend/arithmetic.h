// Rounding errors of a backend beyond those of f32 sums, and the error bounds of the op tests that follow from them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "backend/reference/reference_backend.h"
#include "kv/view.h"
#include "tensor/dtype.h"

namespace infinigen {

// The largest relative error of one rounding to a type.
constexpr double Rounding(DType type) { return type == DType::kF32 ? 0x1p-24 : type == DType::kF16 ? 0x1p-11 : 0x1p-8; }
// The error that an output of this type adds to the bound of an f32 output.
constexpr double OutputRounding(DType type) { return type == DType::kF32 ? 0 : Rounding(type); }

// Everything is f32 from the stored number on: the oracle and the CPU backend. Each factory inherits this or another
// arithmetic.
struct F32Arithmetic {
  static constexpr DType kActivations[] = {DType::kF32};
  // Rounding of x in a matrix product, if its type is not that of the weights.
  static constexpr double ProductRounding(DType /*weight*/) { return 0; }
  // Rounding of the factors of attention's products.
  static constexpr double AttentionRounding(StoreType /*type*/) { return 0; }
  // The head_dim to test in place of `wanted`.
  static constexpr int64_t HeadDim(int64_t wanted) { return wanted; }
};

// Error of a product sum if x was rounded (u): each product x·w is off by at most u·|x·w|, in either direction. The sum
// is off by at most u·Σ|x·w|, and by more than 6·u·√Σ(x·w)² once in 30 million outputs (Hoeffding).
inline double ProductError(double rounding, double sum, double sum_of_squares) {
  return rounding * std::min(sum, 6 * std::sqrt(sum_of_squares));
}

// Error of attention that multiplies in a type of rounding u. Queries, keys, weights and values are each rounded once,
// by 0.4·u in the mean square. A score of deviation s is then off by 0.6·u·s, which is the relative error of its
// weight, and an output Σp·v by Σp·(errors)·v. Errors of different rows are independent, so they grow like √Σp²
// (`spread`), as the output of random values does:
//
//     deviation   0.6 · u · √(1 + s²) · √Σp² · (deviation of values)
//     bound         6 · u ·   (1 + s) · √Σp² · (deviation of values)
//
// The bound is ten deviations, because products of normal numbers have long tails, and never more than the distance of
// two values. One wrong row among n of equal weight moves the outputs of a head by √(2/n) · √Σp² in the mean: always
// detected with f16 (12·u = 0.006 at s = 1), and with bf16 (0.05) up to n of thousands. A wrong head moves them by √2 ·
// √Σp².
inline double AttentionError(double rounding, double score_deviation, double value_deviation, double spread) {
  return std::min(6 * rounding * (1 + score_deviation) * spread, 12.0) * value_deviation;
}

// √Σp² of one query head over the listed rows.
inline double Spread(const float* query, int64_t slot, int64_t kv_head, std::span<const int32_t> rows, float scale,
                     const LayerEntries& entries) {
  double squares = 0;
  for (const float weight : AttentionWeights(query, slot, kv_head, rows, {.scale = scale}, entries))
    squares += static_cast<double>(weight) * weight;
  return std::sqrt(squares);
}

}  // namespace infinigen
