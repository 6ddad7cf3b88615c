// How host backends multiply by block-quantised weights (tensor/block_formats.h): with activations of twelve bits and
// integer sums. The result is the same bit for bit for every instruction set, number of rows and number of threads, and
// in the reference:
//
//  * A row of activations is quantised once, in groups of 32: scale = largest magnitude / 2032, code = x · (2032 /
//    largest magnitude), rounded to the nearest integer (ties to even). A group below kSmallestMagnitude is zero. A
//    group that contains NaN or an infinity has the scale NaN, so that the outputs are NaN. Kernels multiply bytes:
//    code = 16 · high + low, high from −127 to 127, low from −8 to 7.
//  * A group of a product is an exact integer: sum = Σ over both halves of multiplier · Σ weight code · activation
//  code.
//    term = weight scale · (activation scale · sum). Formats with offsets: term = fma(weight scale, activation scale ·
//    sum, offset · (activation scale · Σ offset multiplier · activation code)).
//  * Eight lanes add the terms: lane i adds groups i, i + 8, … in ascending order, starting from zero. The output is
//    ((lane 0 + lane 1) + (lane 2 + lane 3)) + ((lane 4 + lane 5) + (lane 6 + lane 7)).
#pragma once

#include <cstdint>

namespace infinigen {

inline constexpr int64_t kBlockLanes = 8;
inline constexpr float kLargestCode = 2032;             // 16 · 127: its sums of 16 fit 16 bits
inline constexpr float kSmallestMagnitude = 0x1p-100f;  // 2032 / smaller numbers could overflow

}  // namespace infinigen
