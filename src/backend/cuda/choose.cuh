// Parts shared by the two ways to choose rows: one block per task (choose.cu) and many (choose_split.cu). Private to
// backend/cuda.
//
// The relative score r ≤ 0 of an item becomes a key of 31 bits: the larger r, the larger the key; NaN becomes 0. A
// threshold on r is a threshold on keys. The choice is then a cut (radix_select.cuh): a key and, among equal keys, an
// age.
#pragma once

#include "backend/cuda/select.cuh"

namespace infinigen {

inline constexpr int kKeyBits = 31;
inline constexpr uint32_t kInfinityBits = 0x7f800000u;

// r ≤ 0, or NaN.
__device__ inline uint32_t KeyOf(float relative) {
  return relative != relative ? 0u : kInfinityBits + 1 - (__float_as_uint(relative) & 0x7fffffffu);
}
// The least key that passes r ≥ −alpha.
__device__ inline uint32_t LeastKey(float alpha) {
  return alpha >= 0 ? kInfinityBits + 1 - (__float_as_uint(alpha) & 0x7fffffffu) : 0xffffffffu;
}

// The items of a task that have a score.
__device__ inline int64_t ItemsOf(const TokenBatch& batch, const SelectCall& call, const ScoreTable& table,
                                  int64_t index) {
  const int64_t token = index / table.heads, current = batch.rows[token];
  if (table.listed.rows != nullptr &&
      (!call.rules[batch.slots[token]].tail || table.listed.Count(token, index % table.heads) > current))
    return 0;
  const int64_t visible = call.Visible(current);
  return call.page > 1 ? visible / call.page : visible;
}

// Writes maxima [group] to shared memory; the block synchronises.
__device__ inline void LoadMaxima(const ScoreTable& table, int64_t task, int64_t items, float* maxima) {
  for (int g = Warp(); g < table.group; g += Warps()) {
    const float largest = HeadMaximum(table, task, g, items);
    if (Lane() == 0) maxima[g] = largest;
  }
  __syncthreads();
}

// A task: one (token, KV head).
struct Task {
  __device__ Task(const TokenBatch& batch, const SelectCall& call, const ScoreTable& table, int64_t index)
      : token(index / table.heads),
        head(index % table.heads),
        slot(batch.slots[token]),
        n(batch.rows[token] + 1),
        visible(call.Visible(n - 1)),
        items(ItemsOf(batch, call, table, index)),
        page(static_cast<uint32_t>(call.page)),
        rule(call.RuleFor(slot, n - 1)),
        window(batch.Position(token) - rule.window),
        positions(call.retained ? call.retained.Positions(slot, head) : nullptr),
        late(table.late) {
    if (!late) return;
    rule.sinks = 0;  // sinks and window are listed already
    window = INT64_MAX;
  }

  __device__ int64_t ItemOf(int64_t row) const { return page == 1 ? row : static_cast<uint32_t>(row) / page; }
  __device__ int64_t PositionOf(int64_t row) const { return positions == nullptr ? row : positions[row]; }
  // Breaks ties between equal keys: the larger goes first. Pages are in order already.
  __device__ uint32_t AgeOf(int64_t item) const { return static_cast<uint32_t>(PositionOf(item)) + 1; }
  // Sinks and window: attended regardless of score.
  __device__ bool IsExtra(int64_t row) const {
    const int64_t position = PositionOf(row);
    return position < rule.sinks || position >= window;
  }
  // The number of extra rows if row = position.
  __device__ int64_t PlainExtras() const {
    return n - max(int64_t{0}, min(n, window) - max(int64_t{0}, static_cast<int64_t>(rule.sinks)));
  }
  // A forced count is reached with rows other than the extras.
  __device__ bool DropsExtras() const { return rule.force_count > 0 && page == 1 && !late; }

  // The number of rows follows from their estimated attention (choose_mass.cuh), not from the threshold.
  __device__ bool CountsByMass() const { return rule.mass > 0 && rule.force_count == 0 && !late; }
  // The least key that passes the threshold; above all keys if there is none.
  __device__ uint32_t Threshold() const { return CountsByMass() ? 0xffffffffu : LeastKey(rule.alpha); }

  // Number of items chosen by threshold and cap (ChosenCount of kv/select.h).
  __device__ int64_t CountChosen(int64_t passing) const {
    const int64_t least = rule.min_rows, most = max(rule.Capped(n), least);
    return WholePages(min(visible, min(max(passing, least), most)), page) / page;
  }
  // Number of items chosen under a forced count.
  __device__ int64_t CountForced(int64_t extras) const {
    return max(int64_t{0}, min(static_cast<int64_t>(rule.force_count), n) - extras) / page;
  }

  int64_t token, head, slot;
  int64_t n;               // rows, including the current one
  int64_t visible, items;  // rows and items that have a score
  uint32_t page;
  SelectRule rule;
  int64_t window;  // rows from this position on are extra
  const int32_t* positions;
  bool late;  // chooses late rows
};

__device__ inline void AddTotals(SelectionTotals& totals, uint64_t chosen, uint64_t attended, uint64_t retained) {
  using Word = unsigned long long;
  static_assert(sizeof(Word) == sizeof(totals.chosen));
  atomicAdd(reinterpret_cast<Word*>(&totals.chosen), static_cast<Word>(chosen));
  atomicAdd(reinterpret_cast<Word*>(&totals.attended), static_cast<Word>(attended));
  atomicAdd(reinterpret_cast<Word*>(&totals.retained), static_cast<Word>(retained));
}
// Late rows join a selection that has been counted.
__device__ inline void AddLate(SelectionTotals& totals, uint64_t rows) {
  AddTotals(totals, rows, rows, 0);
  atomicAdd(reinterpret_cast<unsigned long long*>(&totals.late), static_cast<unsigned long long>(rows));
}

// For many rows, and for mean counts. Defined in choose_split.cu.
void ChooseRowsSplit(cudaStream_t stream, const TokenBatch& batch, const SelectCall& call, const ScoreTable& table,
                     const Selection& selection);
// The first step of both that and late rows: keys of all items, and a histogram of them in the tallies. Defined in
// choose_split.cu.
void MakeKeys(cudaStream_t stream, const TokenBatch& batch, const SelectCall& call, const ScoreTable& table);
// Chooses the late rows of the table's listed selections: writes call.late, and leaves them out of the scores. `call`
// is the part's. Defined in late_rows.cu.
void ChooseLateRows(cudaStream_t stream, const TokenBatch& batch, const SelectCall& call, const ScoreTable& table);

}  // namespace infinigen
