// Page sums in plain host form: how a key changes its page's sum, and what a page scores. The definition that every
// backend's own form is tested against. (page-mean; see docs/methods.md.)
//
//     score of a page = q · (Σ of its keys) / 16  =  the mean of q · k over its keys k
//
// Only complete pages are scored (kv/select.h), so a page always has 16 rows, and the division is exact: it can be
// done to the query instead. A sum is a chain of f32 additions in the order of rows, nothing else. So its bits depend
// on the keys alone: not on the calls that bring them, and they are the same on every backend.
//
// A row that is a multiple of 16 starts its page anew; every other is added to it. So the rows of a page come in
// ascending order and each of them once: a sequence that is taken back to the middle of a page reads that page again
// from its first row (SelectMethod::rewrites_rows).
#pragma once

#include <cstdint>
#include <span>

#include "kv/page_sums_view.h"

namespace infinigen {

// Row `row` of the sequence has `key` [head_dim]; `sum` [head_dim] is that of its page. Numbers that are not finite
// count as zero.
void AddToPageSum(std::span<float> sum, int64_t row, std::span<const float> key);

// Of a complete page, for a query [head_dim] that already carries the factor 1/√head_dim.
float PageMeanScore(std::span<const float> sum, std::span<const float> query);

}  // namespace infinigen
