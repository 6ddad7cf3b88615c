// Sizes as users write and read them: "24GiB", "512MiB", "1.5GB", bare bytes; and back.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace infinigen {

// Accepts a non-negative decimal number and an optional unit: B, K/KB/KiB, M/…, G/…, T/…, case ignored. KB, MB, GB, TB
// are powers of 1000; K, KiB, M, MiB, … are powers of 1024.
Result<uint64_t> ParseSize(std::string_view text);

// "3.2 GiB", "512 B".
std::string FormatSize(uint64_t bytes);

}  // namespace infinigen
