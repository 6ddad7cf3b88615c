// SplitMix64: random numbers that are the same on every machine, for things that are made by seed (generated text,
// planted facts). State is one word; every draw advances it by a constant. Not for cryptography, one thread.
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
  // Of [0, n), n > 0. The bias of the remainder is below n / 2^31.
  size_t Below(size_t n) {
    CHECK(n > 0);
    return static_cast<size_t>((Next() >> 33) % n);
  }
  size_t Between(size_t least, size_t most) { return least + Below(most - least + 1); }
  // Of [0, 1).
  double Unit() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

  template <class Container>
  const auto& Pick(const Container& items) {
    return items[Below(std::size(items))];
  }

 private:
  uint64_t state_;
};

}  // namespace infinigen
