// Turning: the change of basis in which int4 entries are stored (docs/decisions/0006-quantised-entries.md).
//
// A few dimensions of a key are large in every row, and one scale serves 64 numbers. Turned, every number is a sum of
// all of them with signs, so all are of one size. A head is cut into runs whose lengths are the powers of two of its
// dimension, the longest first (80 = 64 + 16), and each run is multiplied by the normalised Hadamard matrix. That
// matrix is symmetric and its own inverse: scores of turned queries and turned keys are those of the originals, and
// the output over turned values is turned back by turning it again. It needs no calibration.
//
// The arithmetic, on every backend: stages of halves 1, 2, 4, … replace numbers (a, b) that lie `half` apart by
// (a + b, a − b), in f32; then each number is multiplied by TurnScale. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <span>

namespace infinigen {

// Length of the first run of a head, or of the rest of a head, of `dim` > 0 numbers.
constexpr int64_t TurnRun(int64_t dim) {
  int64_t run = 1;
  while (2 * run <= dim) run *= 2;
  return run;
}

// 1 / √run, rounded to f32.
constexpr float TurnScale(int64_t run) {
  float scale = 1;
  for (; run >= 4; run /= 4) scale *= 0.5f;
  return run == 2 ? scale * 0.70710678f : scale;
}

// Turns one head, or part of one, in place.
inline void TurnHead(std::span<float> head) {
  const auto dim = static_cast<int64_t>(head.size());
  float* numbers = head.data();
  for (int64_t first = 0; first < dim;) {
    const int64_t run = TurnRun(dim - first);
    for (int64_t half = 1; half < run; half *= 2) {
      for (int64_t pair = 0; pair < run; pair += 2 * half) {
        float* low = numbers + first + pair;
        for (int64_t i = 0; i < half; ++i) {
          const float a = low[i], b = low[half + i];
          low[i] = a + b;
          low[half + i] = a - b;
        }
      }
    }
    const float scale = TurnScale(run);
    for (int64_t i = 0; i < run; ++i) numbers[first + i] *= scale;
    first += run;
  }
}

}  // namespace infinigen
