// What a decode step selects and fetches, as plain structs for both kv and the backends. kv/select.h defines the
// selection itself.
//
// Fetching: where the pool is remote, selected entries are copied to a fetch buffer on the compute device. The buffer
// has `capacity` cells for every (sequence, KV head) of a layer. If it is a hot set, cells keep their entries from step
// to step, tables record which rows they hold, and only misses are fetched. Otherwise the i-th selected row goes to
// cell i, everything is fetched in every step, and layers share the memory.
//
// A selection with more rows than there are cells is not fetched: attention reads all of it in the pool, over the link.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kv/retain_view.h"
#include "kv/tail_view.h"
#include "kv/view.h"

namespace infinigen {

// How the rows of one sequence are chosen. `n` is its number of retained rows, including the current token's; "first"
// and "before" refer to positions.
struct SelectRule {
  float alpha = 5.0f;      // chosen: relative score ≥ −alpha; infinity: no threshold
  double cap = 0.2;        // at most ⌊cap · n⌋ rows are chosen
  int32_t min_rows = 1;    // at least this many are chosen, whatever threshold and cap say
  int32_t sinks = 0;       // first tokens, always attended
  int32_t window = 0;      // tokens just before the current one, always attended
  int32_t whole_rows = 0;  // up to this many retained rows, all are attended
  // > 0, for benchmarks: attend to exactly min(force_count, n) rows, without a threshold. Must exceed sinks + window.
  int32_t force_count = 0;
  // > 0: instead of by alpha, rows are chosen until they hold this share of the estimated attention (kv/select.h).
  float mass = 0;
  bool tail = false;  // attend to the other rows by their sketches (kv/tail.h)
  int32_t late = 0;   // rows that a guess missed and that are attended to after all, at most (kv/select.h)

  // Late rows need the scores of the tail.
  // A mass as a rule holds it; 0 stays reserved for none.
  static constexpr float MassOf(double mass) {
    return std::max(static_cast<float>(mass), std::numeric_limits<float>::min());
  }
  constexpr int32_t LateRows() const { return tail ? late : 0; }

  // ⌊cap · n⌋ with a margin for rounding: 0.29 · 100 is 29, though the double 0.29 is slightly less.
  constexpr int64_t Capped(int64_t n) const { return static_cast<int64_t>(cap * static_cast<double>(n) + 1e-9); }
};

// Shares of attention are added as multiples of 1 / kMassUnit.
inline constexpr float kMassUnit = 1 << 30;
// The sum of shares that a rule with a mass asks for, of all shares together.
constexpr uint64_t MassTarget(float mass, uint64_t all) {
  return static_cast<uint64_t>(static_cast<double>(mass) * static_cast<double>(all));
}
// The cap of a rule with a mass, which decides by itself how many rows it needs.
inline constexpr double kMassCap = 0.5;

// Selected rows of one sequence in one layer, summed over steps, tokens and KV heads.
struct SelectionTotals {
  uint64_t chosen = 0;    // by threshold and cap, and late rows
  uint64_t attended = 0;  // chosen, sinks, window, current token
  uint64_t retained = 0;  // rows in the cache
  uint64_t late = 0;      // late rows

  constexpr void Add(const SelectionTotals& other) {
    chosen += other.chosen;
    attended += other.attended;
    retained += other.retained;
    late += other.late;
  }
};

// The rows that each (token, KV head) attends to, including the current token's: ascending, unique. Memory of the
// compute device.
struct Selection {
  int32_t* rows = nullptr;    // [tokens][kv_heads][capacity]
  int32_t* counts = nullptr;  // [tokens][kv_heads]
  int64_t capacity = 0;
  int64_t kv_heads = 0;

  constexpr int32_t* Rows(int64_t token, int64_t head) const { return rows + (token * kv_heads + head) * capacity; }
  constexpr int32_t& Count(int64_t token, int64_t head) const { return counts[token * kv_heads + head]; }
  // The part for tokens from `first` on.
  constexpr Selection From(int64_t first) const {
    Selection part = *this;
    if (rows != nullptr) part.rows = Rows(first, 0), part.counts = counts + first * kv_heads;
    return part;
  }
};

// Selections that late rows have joined. The selections that a guess made stay as they are: a fetch of their rows may
// still be under way. Memory of the compute device.
struct LateSelection {
  Selection all;              // the rows of the selections and the late rows, ascending
  int32_t* items = nullptr;   // [tokens][kv_heads][capacity] indices of the late rows in the lists of `all`, ascending
  int32_t* counts = nullptr;  // [tokens][kv_heads] number of late rows
  int64_t capacity = 0;       // most late rows of a list

  constexpr explicit operator bool() const { return items != nullptr; }
  constexpr int32_t* Items(int64_t token, int64_t head) const {
    return items + (token * all.kv_heads + head) * capacity;
  }
  constexpr int32_t& Count(int64_t token, int64_t head) const { return counts[token * all.kv_heads + head]; }
  // The part for tokens from `first` on.
  constexpr LateSelection From(int64_t first) const {
    LateSelection part = *this;
    if (items == nullptr) return part;
    part.all = all.From(first);
    part.items = Items(first, 0);
    part.counts = counts + first * all.kv_heads;
    return part;
  }
};

// Arguments of one selection, for all tokens of a batch. Arrays are memory of the compute device.
struct SelectCall {
  const SelectRule* rules = nullptr;  // [slots]
  SelectionTotals* totals = nullptr;  // [slots]; the call adds to them
  bool current_known = true;          // the current token is in the index, so it can be chosen by score
  bool mean_counts = false;           // every head of a sequence chooses as many rows as the heads do on average
  int64_t max_rows = 0;               // the largest row + 1 in the batch
  EvictionState retained;             // of an evicting layer: gives the positions of rows
  int64_t page = 1;                   // rows that are chosen together, see kv/select.h
  float soft_cap = 0;                 // of the layer's attention scores; 0: none
  bool by_mass = true;                // some rule may have a mass
  TailView tail;                      // receives the tails of the selections, if the query is the layer's own
  LateSelection late;                 // SumTails: receives the selections with late rows; null: no late rows

  // Rows that can have a score. With pages: the rows of pages that are complete before the current row. In an evicting
  // layer the current token's row is included; its score is NaN until its sketch is appended.
  constexpr int64_t Visible(int64_t current) const {
    return page > 1 ? current / page * page : current + (current_known || retained ? 1 : 0);
  }
  // The rule of a slot. Rows after the last complete page count as window, and so do all rows of a short cache.
  constexpr SelectRule RuleFor(int64_t slot, int64_t current) const {
    SelectRule rule = rules[slot];
    rule.window = std::max(rule.window, static_cast<int32_t>(current % page));
    if (current < rule.whole_rows && rule.force_count == 0) rule.window = std::numeric_limits<int32_t>::max();
    return rule;
  }
};

// `count` rounded down to whole pages, but to at least one page unless it is 0.
constexpr int64_t WholePages(int64_t count, int64_t page) {
  return count <= 0 ? 0 : std::max(page, count / page * page);
}

// ---- fetching ----

// One layer's cells; memory of the compute device. Invariant of a hot set, between operations: cell_of[r] = c ≥ 0 if
// and only if holds[c] = r. A hot set filled with 0xff bytes is empty.
struct FetchBuffer {
  EntryLayout layout;
  std::byte* data = nullptr;  // [slots][kv_heads][capacity] entries
  int64_t capacity = 0;
  // Tables of a hot set; null if the buffer is not a hot set.
  int32_t* holds = nullptr;    // [slots][kv_heads][capacity] the row that a cell holds; -1: empty
  int32_t* used = nullptr;     // [slots][kv_heads][capacity] position of the latest token that used the cell; -1: none
  int32_t* cell_of = nullptr;  // [slots][kv_heads][rows] the cell of a row; -1: not on the device
  int64_t rows = 0;

  constexpr bool hot() const { return holds != nullptr; }
  constexpr int64_t List(int64_t slot, int64_t head) const { return slot * layout.kv_heads + head; }
  constexpr std::byte* Entry(int64_t slot, int64_t head, int64_t cell) const {
    return data + static_cast<size_t>(List(slot, head) * capacity + cell) * layout.entry_bytes();
  }
  constexpr int32_t* Holds(int64_t slot, int64_t head) const { return holds + List(slot, head) * capacity; }
  constexpr int32_t* Used(int64_t slot, int64_t head) const { return used + List(slot, head) * capacity; }
  constexpr int32_t* CellOf(int64_t slot, int64_t head) const { return cell_of + List(slot, head) * rows; }
};

// Where the rows of a selection are read from, and which of them must be fetched. Shaped like the selection. A negative
// "cell" encodes a row that is read from the pool (InPool).
struct FetchList {
  int32_t* cells = nullptr;        // [tokens][kv_heads][capacity] cell of each listed row, or InPool(row)
  int32_t* misses = nullptr;       // [tokens][kv_heads][capacity] indices of the listed rows to fetch, ascending
  int32_t* miss_counts = nullptr;  // [tokens][kv_heads]
  int32_t* own = nullptr;          // [tokens][kv_heads] cell of the token's own entry, or InPool(row)
  int64_t capacity = 0;
  int64_t kv_heads = 0;

  constexpr int32_t* Cells(int64_t token, int64_t head) const { return cells + (token * kv_heads + head) * capacity; }
  constexpr int32_t* Misses(int64_t token, int64_t head) const { return misses + (token * kv_heads + head) * capacity; }
  constexpr int32_t& MissCount(int64_t token, int64_t head) const { return miss_counts[token * kv_heads + head]; }
  constexpr int32_t& Own(int64_t token, int64_t head) const { return own[token * kv_heads + head]; }

  // Encodes a row without a cell; applied again, it decodes.
  static constexpr int32_t InPool(int32_t row) { return ~row; }
};

// Hits and misses of one sequence in one layer, summed over steps and KV heads.
struct FetchTotals {
  uint64_t wanted = 0;   // selected rows, without the current token's own
  uint64_t fetched = 0;  // misses: rows that were fetched, or read over the link

  constexpr void Add(const FetchTotals& other) {
    wanted += other.wanted;
    fetched += other.fetched;
  }
};

// How long steps stall on a layer's fetch, by the compute device's clock. Memory of that device.
struct FetchClock {
  uint64_t ready_ns = 0;    // when the latest step had no other work left
  uint64_t arrived_ns = 0;  // when its entries had arrived
  uint64_t waited_ns = 0;   // sum of the stalls counted so far

  constexpr uint64_t wait_ns() const { return arrived_ns > ready_ns ? arrived_ns - ready_ns : 0; }
};

// For benchmarks without a hot set: which rows of a list are fetched when a given share of them counts as hits. The
// fetched rows are spread evenly over the list.
struct FetchShare {
  static constexpr int64_t kWhole = 1 << 16;
  int64_t share = kWhole;  // of kWhole

  static constexpr FetchShare Beside(double hits) {
    return {kWhole - static_cast<int64_t>(hits * static_cast<double>(kWhole))};
  }
  // How many of the first `items` rows are fetched, and whether row `item` is.
  constexpr int64_t Of(int64_t items) const { return items * share / kWhole; }
  constexpr bool Takes(int64_t item) const { return Of(item + 1) > Of(item); }
};

}  // namespace infinigen
