// Numbers that users write: sizes in bytes ("24GiB", "1.5GB", "1000000"), whole numbers with bounds, and arithmetic
// that detects overflow. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace infinigen {

// Accepts a non-negative decimal number and an optional unit: B, K/KB/KiB, M/…, G/…, T/…, case ignored. KB, MB, GB, TB
// are powers of 1000; K, KiB, M, MiB, … are powers of 1024.
Result<uint64_t> ParseSize(std::string_view text);

// Parses all of `text` as a whole number, an optional sign first. Returns what is wrong, or an empty string.
std::string ParseInteger(std::string_view text, int64_t least, int64_t most, int64_t* value);

// "3.2 GiB", "512 B".
std::string FormatSize(uint64_t bytes);

// For sizes that come from a file: nullopt on overflow.
inline std::optional<uint64_t> CheckedAdd(uint64_t a, uint64_t b) {
  uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

inline std::optional<uint64_t> CheckedMul(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

}  // namespace infinigen
