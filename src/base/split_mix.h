// SplitMix64: a random generator with the same output on every machine, for content derived from a seed (generated
// text, planted facts). The state is one word; every draw advances it by a constant. Not for cryptography. One thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/check.h"

namespace infinigen {

class SplitMix {
 public:
  explicit SplitMix(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  // Uniform in [0, n), n > 0; the bias of the modulo is below n / 2^31.
  size_t Below(size_t n) {
    CHECK(n > 0);
    return static_cast<size_t>((Next() >> 33) % n);
  }
  // Uniform in [least, most].
  size_t Between(size_t least, size_t most) { return least + Below(most - least + 1); }
  // Uniform in [0, 1).
  double Unit() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

  template <class Container>
  const auto& Pick(const Container& items) {
    return items[Below(std::size(items))];
  }

 private:
  uint64_t state_;
};

}  // namespace infinigen
