// What is asked of a selection and what comes out of it, as plain structs for both kv and the backends. The rule itself
// is written down, and implemented plainly, in kv/selection.h.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kv/retain_view.h"

namespace infinigen {

// Who is chosen, for one sequence. `n` is the number of its retained rows, the current token's included; "first" and
// "before" are meant in the order of positions.
struct SelectRule {
  float alpha = 5.0f;    // chosen: relative score ≥ −alpha; infinity: no threshold
  double cap = 0.2;      // at most ⌊cap · n⌋ rows are chosen ...
  int32_t min_rows = 1;  // ... but at least so many, cap or threshold or not
  int32_t sinks = 0;     // first rows, always attended
  int32_t window = 0;    // rows just before the current token, always attended
  // > 0, for benchmarks: attend exactly min(this, n) rows, whatever the scores' height; more than sinks + window.
  int32_t force_count = 0;

  // ⌊cap · n⌋ of the number that was meant: 0.29 of 100 is 29, though its double is a little less.
  constexpr int64_t Capped(int64_t n) const { return static_cast<int64_t>(cap * static_cast<double>(n) + 1e-9); }
};

// What was selected so far, summed over steps, KV heads and tokens of one sequence in one layer.
struct SelectionTotals {
  uint64_t chosen = 0;    // by threshold and cap
  uint64_t attended = 0;  // chosen, sinks, window, current token
  uint64_t retained = 0;  // rows there were to choose from

  constexpr void Add(const SelectionTotals& other) {
    chosen += other.chosen;
    attended += other.attended;
    retained += other.retained;
  }
};

// The rows that each (token, KV head) attends to: ascending, without repetition, the current token's included. Memory
// of the compute device.
struct Selection {
  int32_t* rows = nullptr;    // [tokens][kv_heads][capacity]
  int32_t* counts = nullptr;  // [tokens][kv_heads]
  int64_t capacity = 0;
  int64_t kv_heads = 0;

  constexpr int32_t* Rows(int64_t token, int64_t head) const { return rows + (token * kv_heads + head) * capacity; }
  constexpr int32_t& Count(int64_t token, int64_t head) const { return counts[token * kv_heads + head]; }
};

// Of one call, for all its tokens. Arrays are memory of the compute device.
struct SelectCall {
  const SelectRule* rules = nullptr;  // [slots]
  SelectionTotals* totals = nullptr;  // [slots], added to
  bool current_known = true;          // the current token can be chosen by its score, its sketch being there already
  bool mean_counts = false;           // every head of a sequence chooses the mean of the heads' counts
  int64_t max_rows = 0;               // the largest row + 1 in the batch
  EvictionState retained;             // where rows are not in the order of positions; its positions then decide
  int64_t page = 1;                   // rows that are chosen together, see kv/selection.h

  // Rows with a score: of pages, those that are complete before the current row. A row that was taken over counts,
  // but has no score until its sketch is there.
  constexpr int64_t Visible(int64_t current) const {
    return page > 1 ? current / page * page : current + (current_known || retained ? 1 : 0);
  }
  // The rule of a slot; rows after the last complete page are like a window.
  constexpr SelectRule RuleFor(int64_t slot, int64_t current) const {
    SelectRule rule = rules[slot];
    rule.window = std::max(rule.window, static_cast<int32_t>(current % page));
    return rule;
  }
};

// `count` rows as whole pages: rounded down, but not to none.
constexpr int64_t WholePages(int64_t count, int64_t page) {
  return count <= 0 ? 0 : std::max(page, count / page * page);
}

// Shares of true attention mass that lay inside selections, of one layer: one number per query head and token.
struct MassTotals {
  static constexpr int kBins = 1000;
  uint64_t count = 0;
  double sum = 0;
  uint64_t bins[kBins + 1] = {};  // by ⌊share · kBins⌋
};

}  // namespace infinigen
