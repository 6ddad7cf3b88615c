// Selection: which rows a token attends to, given guessed scores. The plain host form, which is the definition; every
// backend's own form is tested against it.
//
// For one sequence and one KV head, with scores s_g(j) of its G query heads for the rows j that have a sketch:
//
//   1. heads peak at different heights, so each is compared with its own maximum m_g:
//          r(j) = max over g of (s_g(j) − m_g)      ≤ 0, and 0 for the best row of each head
//   2. passing = #{ j : r(j) ≥ −alpha };  most = max(⌊cap · n⌋, min_rows);  count = clamp(passing, min_rows, most)
//      (mean counts: `passing` is replaced by its mean over the sequence's KV heads, rounded down)
//   3. chosen = the `count` rows of the largest r; among equals the newer row first
//   4. attended = chosen ∪ the first `sinks` tokens ∪ the `window` tokens before the current ∪ the current
//
// Newer, first and before are meant in the order of positions, which is that of rows until a layer evicts. force_count
// replaces 2 and 3: the rows of 4 that are not chosen by score come first, then as many others by r as are
// missing. A score that is not a number never passes.
//
// Pages (kv/page_bounds.h): every row of a page has the page's score, and rows j are those of the pages that are
// complete before the current row; what comes after them is attended like a window. `count` is rounded down to whole
// pages, though not to none. Rows of a page tie and a tie goes to the newer, so pages are chosen whole. With
// force_count, `count` is as many whole pages as fit beside the rows of 4, chosen among all.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/selection_view.h"

namespace infinigen {

struct SelectedRows {
  std::vector<int32_t> rows;  // ascending, unique
  int64_t chosen = 0;         // of them, by score
};

// Step 1. scores [group][visible], row-major; NaN where no score is a number.
std::vector<float> RelativeScores(std::span<const float> scores, int64_t group);

// How many rows pass the threshold.
int64_t CountPassing(std::span<const float> relative, float alpha);

// How many are chosen among n retained rows, of which `visible` have a score.
int64_t ChosenCount(const SelectRule& rule, int64_t passing, int64_t visible, int64_t n, int64_t page = 1);

// The n rows of a cache and the current token among them.
struct RetainedRows {
  // Nothing was evicted: the current row is the last.
  RetainedRows(int64_t current) : n(current + 1), position(current) {}  // NOLINT(google-explicit-constructor)
  RetainedRows(int64_t rows, int64_t current, const int32_t* of_rows)
      : n(rows), position(current), positions(of_rows) {}

  int64_t n;
  int64_t position;                    // of the current token
  const int32_t* positions = nullptr;  // [n]; null: row = position

  int64_t PositionOf(int64_t row) const { return positions == nullptr ? row : positions[row]; }
};

// Steps 3 and 4, `count` from ChosenCount. relative [visible], visible ≤ n. Of pages, the rule is that of
// SelectCall::RuleFor.
SelectedRows ChooseRows(std::span<const float> relative, const SelectRule& rule, int64_t count,
                        const RetainedRows& retained, int64_t page = 1);

}  // namespace infinigen
