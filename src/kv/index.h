// Sketches and page bounds on the host: the plain code that defines what an index (kv/index_view.h) contains and how it
// scores rows. Every backend's own implementation is tested against it; integer sketches must agree bit for bit. Pure
// functions, any thread.
//
// Integer sketches. The scale of a group of numbers is the smallest bf16 s with largest · s ≥ max |number|; value =
// number / s, rounded to nearest, halves to even. A query is rounded to 15 bits: value = number / t, t = max |number| /
// 16319, so that a sum of 512 products fits into 32 bits. A group gives (float(Σ query value · key value) · t) · s; the
// score is the sum over the groups, ascending. The integer sums are exact, so the score is the same on every machine.
//
// Means of blocks. mean = (Σ values in ascending order) / 64 − value_mean, stored with one scale as a group above, with
// ±127 as largest value.
//
// bf16 sketches. score = Σ query · key in ascending order, by fused multiply-adds.
//
// Page bounds (Quest, docs/quest.md).
//
//     score of a page = Σ_i (q_i > 0 ? q_i · greatest_i : q_i · least_i)  ≥  q · k  for every key k of the page
//
// Bounds are rounded outward to bf16: the least component down, the greatest up. Rounding commutes with minimum and
// maximum, so bounds do not depend on the order or grouping in which keys are added. Bounds are taken over keys as
// computed, in f32, before they are rounded to the stored type. Outward rounding makes them valid for keys stored as
// bf16 or f16 too: whatever the key is rounded to lies between the bf16 numbers on either side of it (except f16 below
// 2^-14, which is coarser than bf16 there; the error is at most 2^-25). For int8 and int4 entries they are valid up to
// the quantisation error, half a step.
//
// A row that is a multiple of 16 resets the bounds of its page; every other row widens them. So the rows of a page must
// be added in ascending order. After a rewind into the middle of a page, its bounds may still cover keys that were
// overwritten: wider than needed, but valid.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/index_view.h"

namespace infinigen {

// Rounds the numbers of a key's sketch [dims], or of a value's [value_dims], into row `row` of a block. Numbers that
// are not finite are stored as zero.
void StoreSketch(const SketchLayout& layout, std::byte* block, int64_t row, std::span<const float> numbers);
void StoreValueSketch(const SketchLayout& layout, std::byte* block, int64_t row, std::span<const float> numbers);
// The stored numbers of a row's key, or value.
std::vector<float> LoadSketch(const SketchLayout& layout, const std::byte* block, int64_t row);
std::vector<float> LoadValueSketch(const SketchLayout& layout, const std::byte* block, int64_t row);

// Stores the mean of a block: values [64][mean_dims] of its rows, as read back from their entries. Sums are not finite
// where values are not; such numbers are stored as zero.
void StoreBlockMean(const SketchLayout& layout, std::byte* block, std::span<const float> values,
                    std::span<const float> value_mean);
// The stored mean [mean_dims].
std::vector<float> LoadBlockMean(const SketchLayout& layout, const std::byte* block);

struct QuantisedQuery {
  std::vector<int32_t> values;
  float scale = 0;
};
QuantisedQuery QuantiseQuery(std::span<const float> numbers);

// Scores of rows [0, rows) of one head's blocks, for a query that is already scaled by 1/√head_dim.
std::vector<float> ScoreSketches(const SketchLayout& layout, const std::byte* head, int64_t rows,
                                 std::span<const float> query);

// The nearest bf16 not above, or not below, a finite number, clamped to the largest finite bf16.
BF16 RoundDownToBF16(float number);
BF16 RoundUpToBF16(float number);

// Adds the key of row `row` to `bounds` [2][head_dim], the bounds of the row's page. Numbers that are not finite count
// as zero.
void AddToBounds(std::span<BF16> bounds, int64_t row, std::span<const float> key);

// The score of a page, for a query that is already scaled by 1/√head_dim.
float PageScore(std::span<const BF16> bounds, std::span<const float> query);

}  // namespace infinigen
