// Sketches in plain host form: how numbers are rounded into a block and how a block's rows are scored. The definition
// that every backend's own form is tested against; the integer types are tested for equality of bits.
//
// Integer types. A row's scale is the smallest bf16 s with largest · s ≥ max |number|; value = number / s, rounded to
// nearest, halves to even. A query is rounded to 15 bits: value = number / t, t = max |number| / 16319, so that a sum
// of 512 products fits into 32 bits. Then score = (float(Σ query value · key value) · t) · s: the sum is exact, and
// with it the score is the same on every machine. bf16. score = Σ query · key in ascending order by fused
// multiply-adds.
#pragma once

#include <span>
#include <vector>

#include "kv/sketch_view.h"

namespace infinigen {

// Numbers that are not finite count as zero.
void StoreSketch(const SketchLayout& layout, std::byte* block, int64_t row, std::span<const float> numbers);
// The stored numbers of a row.
std::vector<float> LoadSketch(const SketchLayout& layout, const std::byte* block, int64_t row);

struct QuantisedQuery {
  std::vector<int32_t> values;
  float scale = 0;
};
QuantisedQuery QuantiseQuery(std::span<const float> numbers);

// Scores of rows [0, rows) of one head's blocks for one query, which already carries the factor 1/√head_dim.
std::vector<float> ScoreSketches(const SketchLayout& layout, const std::byte* head, int64_t rows,
                                 std::span<const float> query);

}  // namespace infinigen
