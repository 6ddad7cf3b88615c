// Page bounds in plain host form: how a key widens its page's bounds, and what a page scores. The definition that every
// backend's own form is tested against. (Quest; see docs/quest.md.)
//
//     score of a page = Σ_i (q_i > 0 ? q_i · largest_i : q_i · least_i)  ≥  q · k  for every key k of the page
//
// Bounds are rounded outward to bf16: the least number down, the largest up. Rounding goes with minima and maxima in
// any order, so bounds do not depend on how keys came in. They are taken of keys as given, in f32, not as stored: that
// needs no knowledge of the stored type, and outward rounding makes them bounds of what is stored as bf16 or f16
// too; of int8 and int4 entries they are bounds up to the error of the codes, half a step. A bf16 on either
// side of a number holds whatever bf16 or f16 the number is rounded to (f16 below 2^-14, which is coarser than bf16
// there, by no more than 2^-25).
//
// A row that is a multiple of 16 starts its page anew; every other widens it. So rows of a page come in ascending
// order, and after a rewind into the middle of a page its bounds may still hold keys that are gone: too wide, but
// bounds.
#pragma once

#include <cstdint>
#include <span>

#include "kv/page_bounds_view.h"

namespace infinigen {

// The nearest bf16 that is not above, or not below, a finite number; no further out than the largest finite one.
BF16 RoundDownToBF16(float number);
BF16 RoundUpToBF16(float number);

// Row `row` of the sequence has `key`; bounds [2][head_dim] are those of its page. Numbers that are not finite count as
// zero.
void AddToBounds(std::span<BF16> bounds, int64_t row, std::span<const float> key);

// For a query that already carries the factor 1/√head_dim.
float PageScore(std::span<const BF16> bounds, std::span<const float> query);

}  // namespace infinigen
