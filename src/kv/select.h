// Selection: which retained rows a token attends to. Two parts: SelectMethod describes a method, that is, what its
// index contains and how its rows may be chosen; the functions below turn scores into a list of rows, the same way for
// every method. Those functions are the plain host code that defines a selection; every backend's own implementation is
// tested against it. Pure functions, any thread.
//
// Each method has its own file in kv/select/; docs/adding-a-method.md shows how to add one. model/index_ops.h maps a
// method to the backend operations that append to its index and score rows by it.
//
// For one sequence and one KV head, with scores s_g(j) of its G query heads for the rows j that have a score (under the
// layer's soft cap, if it has one: alpha is a difference of capped scores, as attention sees them; where a tail knows
// the level of the scores (kv/tail.h), it is added before the cap):
//
//   1. The heads' scores have different ranges, so each is compared with its own maximum m_g:
//          r(j) = max over g of (s_g(j) − m_g)      ≤ 0, and 0 for the best row of each head
//   2. passing = #{ j : r(j) ≥ −alpha };  most = max(⌊cap · n⌋, min_rows);  count = clamp(passing, min_rows, most)
//      (mean_counts: `passing` is replaced by its mean over the sequence's KV heads, rounded down)
//      (rule.mass > 0: `passing` is the number of rows, largest u first, whose sum of u(j) reaches rule.mass · Σ u,
//      where
//          u(j) = max over g of e^{s_g(j)} / Σ_i e^{s_g(i)}, the row's largest share of a head's estimated attention)
//   3. chosen = the `count` rows with the largest r; among equals, newer rows first
//   4. attended = chosen ∪ the first `sinks` tokens ∪ the `window` tokens before the current ∪ the current
//
// Late rows: where a guess of the query made the selection, the layer's own query may rank other rows higher. Once it
// is known and has scored all rows for the tail, the `late` rows with the largest r, of the rows that have a score and
// are not attended yet, are attended too; among equals, newer rows first. r is relative to maxima over all rows that
// have a score. Late rows count as chosen, but do not raise the priorities of an evicting layer (kv/retain.h).
//
// "Newer", "first" and "before" refer to positions, which are equal to rows until a layer evicts. A score that is NaN
// never passes. With force_count, steps 2 and 3 are replaced: the sinks, the window and the current token are taken
// first, then the other rows with the largest r until there are force_count.
//
// Pages (page_rows > 1): every row of a page has the page's score, and the rows with a score are those of the pages
// that are complete before the current row; later rows count as window. `count` is rounded down to whole pages, but to
// at least one. All rows of a page tie and ties go to newer rows, so pages are chosen whole. With force_count, `count`
// is the number of whole pages that fit beside the rows of step 4, and the pages are chosen among all.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kv/index_view.h"
#include "kv/selection_view.h"

namespace infinigen {

// What the size of an index depends on.
struct IndexShape {
  int64_t head_dim = 0;
  SketchLayout sketch;
};

struct SelectMethod {
  std::string_view name;     // value of --kv-select
  std::string_view summary;  // for help texts
  // The layout of the method's index; null: it has none.
  IndexLayout (*index)(const IndexShape& shape) = nullptr;
  // Presets guess by default: scores need only the index and a query, not the keys, so a guessed query can select a
  // layer's rows in advance.
  bool can_guess = false;
  // The index of a single row can be rewritten, as eviction requires. Without it a sequence is rewound to the start of
  // a page.
  bool rewrites_rows = true;
  // Rows are chosen in runs of this many, which begin at its multiples.
  int64_t page_rows = 1;
  // The index needs a SketchBasis, which is calibrated once per model.
  bool uses_basis = false;

  // Eviction can drop rows: there is no index, or it consists of sketches, which the backends' AssignRows and
  // CopySurvivors void and copy with the entries. An index of another kind needs the same there.
  constexpr bool EvictsIndex() const { return rewrites_rows && (index == nullptr || uses_basis); }
};

// kSelectAll attends to every retained row; it has no index.
extern const SelectMethod kSelectAll, kSelectSketch, kSelectQuest, kSelectPageMean, kSelectOracle;

std::span<const SelectMethod* const> SelectMethods();
// Null when no method has the name.
const SelectMethod* FindSelectMethod(std::string_view name);

struct SelectedRows {
  std::vector<int32_t> rows;  // ascending, unique
  int64_t chosen = 0;         // how many of them were chosen by score
};

// A score under a soft cap: cap · tanh(score / cap); cap 0 leaves it unchanged. NaN stays NaN.
float SoftCapped(float score, float cap);

// Step 1. scores [group][visible], row-major. A result is NaN when all scores of the row are.
std::vector<float> RelativeScores(std::span<const float> scores, int64_t group);

// The number of rows that pass the threshold.
int64_t CountPassing(std::span<const float> relative, float alpha);

// The number of rows that hold the share `mass` of the estimated attention. Shares are rounded down to multiples of
// 2^-30 before they are added, so that the result does not depend on the order of additions. scores as above.
int64_t CountForMass(std::span<const float> scores, int64_t group, float mass);

// Step 2: how many rows are chosen of n retained rows, of which `visible` have a score.
int64_t ChosenCount(const SelectRule& rule, int64_t passing, int64_t visible, int64_t n, int64_t page = 1);

// The n rows of a cache, which include the current token's.
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

// Steps 3 and 4, with `count` from ChosenCount. relative [visible], visible ≤ n. With pages, `rule` is that of
// SelectCall::RuleFor.
SelectedRows ChooseRows(std::span<const float> relative, const SelectRule& rule, int64_t count,
                        const RetainedRows& retained, int64_t page = 1);

// The late rows, ascending. relative [visible] by the layer's own query; `attended` ascends.
std::vector<int32_t> ChooseLateRows(std::span<const float> relative, std::span<const int32_t> attended, int64_t late,
                                    const RetainedRows& retained);
// Writes the union of two ascending lists without common rows to `all`, and the indices that late rows have in it to
// `items`.
void MergeLateRows(std::span<const int32_t> attended, std::span<const int32_t> late, int32_t* all, int32_t* items);

}  // namespace infinigen
