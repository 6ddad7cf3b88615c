// Entries that came buffer: chosen rows of a remote pool, copied to memory of the compute device, as plain structs for
// both kv and the backends.
//
// Every (sequence, KV head) of a layer has `capacity` cells for entries. With a hot set, cells keep what they hold
// from step to step, tables tell what that is, and only rows that are nowhere are fetched. Without one, cells are
// those of the list: everything is fetched anew, and the memory is shared by layers.
//
// A list that is longer than there are cells stays at home: all of it is read where it is, over the link.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kv/view.h"

namespace infinigen {

// One layer's cells. Memory of the compute device. Invariant of a hot set, between operations: cell_of[r] = p ≥ 0 if
// and only if holds[p] = r. Bytes of 0xff everywhere are a hot set that holds nothing.
struct FetchBuffer {
  EntryLayout layout;
  std::byte* data = nullptr;  // [slots][kv_heads][capacity] entries
  int64_t capacity = 0;
  // Of a hot set; null without one.
  int32_t* holds = nullptr;    // [slots][kv_heads][capacity] the row that a cell holds; -1: none
  int32_t* used = nullptr;     // [slots][kv_heads][capacity] position of the token that last used it; -1: none
  int32_t* cell_of = nullptr;  // [slots][kv_heads][rows] the cell of a row; -1: nowhere
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

// Where the rows of a selection are, and which of them have to be fetched. Of the same shape as the selection. What is
// negative is no cell but a row of the pool.
struct FetchList {
  int32_t* cells = nullptr;        // [tokens][kv_heads][capacity] cell of each listed row, or InPool(row)
  int32_t* misses = nullptr;       // [tokens][kv_heads][capacity] which of the list are fetched, ascending
  int32_t* miss_counts = nullptr;  // [tokens][kv_heads]
  int32_t* own = nullptr;          // [tokens][kv_heads] cell of the token's own entry, or InPool(row)
  int64_t capacity = 0;
  int64_t kv_heads = 0;

  constexpr int32_t* Cells(int64_t token, int64_t head) const { return cells + (token * kv_heads + head) * capacity; }
  constexpr int32_t* Misses(int64_t token, int64_t head) const { return misses + (token * kv_heads + head) * capacity; }
  constexpr int32_t& MissCount(int64_t token, int64_t head) const { return miss_counts[token * kv_heads + head]; }
  constexpr int32_t& Own(int64_t token, int64_t head) const { return own[token * kv_heads + head]; }

  // A row that has no cell, and back.
  static constexpr int32_t InPool(int32_t row) { return ~row; }
};

// Summed over steps and KV heads of one sequence in one layer: listed rows but the tokens' own, and those of them that
// were fetched, or read over the link.
struct FetchTotals {
  uint64_t wanted = 0;
  uint64_t fetched = 0;

  constexpr void Add(const FetchTotals& other) {
    wanted += other.wanted;
    fetched += other.fetched;
  }
};

// How long steps wait for a layer's entries, by the compute device's clock. Memory of that device.
struct FetchClock {
  uint64_t ready_ns = 0;    // when the latest step had nothing else to do
  uint64_t arrived_ns = 0;  // when its entries were there
  uint64_t waited_ns = 0;   // in all steps that were counted

  constexpr uint64_t wait_ns() const { return arrived_ns > ready_ns ? arrived_ns - ready_ns : 0; }
};

// Which of a list are fetched, where a share of them is taken to be there already: every so many-eth, evenly spread.
struct FetchShare {
  static constexpr int64_t kWhole = 1 << 16;
  int64_t share = kWhole;

  static constexpr FetchShare Beside(double hits) {
    return {kWhole - static_cast<int64_t>(hits * static_cast<double>(kWhole))};
  }
  // How many of the first `items`.
  constexpr int64_t Of(int64_t items) const { return items * share / kWhole; }
  constexpr bool Takes(int64_t item) const { return Of(item + 1) > Of(item); }
};

}  // namespace infinigen
