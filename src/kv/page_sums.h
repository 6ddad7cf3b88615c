// Page sums in plain host form: how a key changes its page's sum, and what a page scores. The definition that every
// backend's own form is tested against. (page-mean; see docs/methods.md.)
//
//     score of a page = q · (Σ of its keys) / 16  =  the mean of q · k over its keys k
//
// Only complete pages are scored (kv/select.h), so a page always has 16 rows, and the division is exact: backends scale
// the query instead. Sums add keys in row order in f32, so all backends agree bit for bit, however the rows are divided
// into calls.
//
// Row 16·n resets the sum of its page; every other row is added to it. The rows of a page must therefore arrive in
// ascending order, each once. A sequence that is rewound to the middle of a page computes that page again from its
// first row (SelectMethod::rewrites_rows).
#pragma once

#include <cstdint>
#include <span>

#include "kv/page_sums_view.h"

namespace infinigen {

// Row `row` of the sequence has `key` [head_dim]; `sum` [head_dim] is that of its page. Numbers that are not finite
// count as zero.
void AddToPageSum(std::span<float> sum, int64_t row, std::span<const float> key);

// Score of a complete page for a query [head_dim] that is already scaled by 1/√head_dim.
float PageMeanScore(std::span<const float> sum, std::span<const float> query);

}  // namespace infinigen
