// Test helpers for fetching: a layer with a pool and a fetch buffer, steps over any sequences and their outcomes; and a
// simple model of the hot set of one KV head.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/operands.h"
#include "backend/selections.h"

namespace infinigen {

using Bytes = std::vector<std::byte>;

struct FetchShape {
  StoreType type = StoreType::kBF16;
  int64_t kv_heads = 2, group = 2, dim = 16;
  int64_t slots = 2, rows = 400;
  int64_t cells = 24;
  bool hot = true;

  EntryLayout layout() const { return {type, kv_heads, dim}; }
};

// One token of a step.
struct FetchToken {
  int32_t slot = 0, position = 0;
  std::vector<int32_t> own;                 // [kv_heads] row of the token's own entry
  std::vector<std::vector<int32_t>> lists;  // [kv_heads] selected rows, ascending, including its own
  std::vector<std::vector<int32_t>> late;   // [kv_heads] late rows, ascending; empty: the step has none
};

// Outcome for one (token, KV head).
struct FetchOutcome {
  std::vector<int32_t> cells, misses;
  int32_t own = -1;
};

template <class B>
class FetchLayer {
 public:
  FetchLayer(B& backend, const FetchShape& shape, uint64_t seed)
      : backend_(backend),
        shape_(shape),
        random_(seed),
        pool_(backend, shape.layout(), shape.slots, shape.rows, random_),
        data_(backend, Heads() * static_cast<size_t>(shape.cells) * shape.layout().entry_bytes()),
        holds_(backend, Heads() * static_cast<size_t>(shape.cells) * 4),
        used_(backend, Heads() * static_cast<size_t>(shape.cells) * 4),
        cell_of_(backend, Heads() * static_cast<size_t>(shape.rows) * 4),
        totals_(backend, static_cast<size_t>(shape.slots) * sizeof(FetchTotals)),
        clock_(backend, sizeof(FetchClock)),
        mirror_(Heads() * static_cast<size_t>(shape.rows)) {
    totals_.Put(std::vector<FetchTotals>(static_cast<size_t>(shape.slots)));
    clock_.Put(std::vector<FetchClock>(1));
    for (int64_t slot = 0; slot < shape.slots; ++slot) {
      std::vector<FetchToken> all;
      all.reserve(static_cast<size_t>(shape.rows));
      for (int32_t row = 0; row < shape.rows; ++row)
        all.push_back(
            {static_cast<int32_t>(slot), row, std::vector<int32_t>(static_cast<size_t>(shape.kv_heads), row), {}, {}});
      Write(all);
    }
  }

  FetchBuffer buffer() const {
    FetchBuffer buffer{.layout = shape_.layout(), .data = data_.template as<std::byte>(), .capacity = shape_.cells};
    if (!shape_.hot) return buffer;
    buffer.holds = holds_.template as<int32_t>();
    buffer.used = used_.template as<int32_t>();
    buffer.cell_of = cell_of_.template as<int32_t>();
    buffer.rows = shape_.rows;
    return buffer;
  }

  // Writes new random entries to the tokens' rows of the pool, without telling the hot set.
  void Write(const std::vector<FetchToken>& tokens) {
    const Operands operands(*this, tokens, /*room=*/1);
    backend_.Append(Queue::kCompute, operands.batch(), operands.keys, operands.values, pool_.view());
    for (const FetchToken& token : tokens)
      for (int64_t head = 0; head < shape_.kv_heads; ++head) {
        const int32_t row = token.own[static_cast<size_t>(head)];
        mirror_[Index(token.slot, head) * static_cast<size_t>(shape_.rows) + static_cast<size_t>(row)] =
            pool_.Bytes(token.slot, head, row);
      }
  }
  // The expected bytes of an entry of the pool.
  const Bytes& PoolEntry(int64_t slot, int64_t head, int32_t row) const {
    return mirror_[Index(slot, head) * static_cast<size_t>(shape_.rows) + static_cast<size_t>(row)];
  }

  // AssignCells, FetchMisses, and the tokens' new entries in buffer and pool. Outcomes are [token · kv_heads + head].
  // Keeps the step's operands for Attend.
  std::vector<FetchOutcome> Step(const std::vector<FetchToken>& tokens, double forced_hits = 0) {
    size_t capacity = 1;
    for (const FetchToken& token : tokens)
      for (const auto& list : token.lists) capacity = std::max(capacity, list.size());
    step_ = std::make_unique<Operands>(*this, tokens, static_cast<int64_t>(capacity) + 3);
    const Operands& step = *step_;
    backend_.AssignCells(Queue::kCompute, step.batch(), step.selection(), buffer(), forced_hits, step.list(),
                         totals_.template as<FetchTotals>());
    backend_.Wait(Queue::kFetch, backend_.Record(Queue::kCompute));
    backend_.FetchMisses(Queue::kFetch, step.batch(), step.selection(), pool_.view(), buffer(), step.list(), clock());
    backend_.Wait(Queue::kCompute, backend_.Record(Queue::kFetch));
    backend_.AppendFetched(Queue::kCompute, step.batch(), step.keys, step.values, buffer(), step.list());
    backend_.Append(Queue::kCompute, step.batch(), step.keys, step.values, pool_.view());
    for (const FetchToken& token : tokens)
      for (int64_t head = 0; head < shape_.kv_heads; ++head) {
        const int32_t row = token.own[static_cast<size_t>(head)];
        mirror_[Index(token.slot, head) * static_cast<size_t>(shape_.rows) + static_cast<size_t>(row)] =
            pool_.Bytes(token.slot, head, row);
      }
    return step.Outcomes(tokens);
  }

  // AssignLate and FetchMisses for the tokens of the last step, some of whose first fetch may still run. Attend then
  // reads the longer lists. Outcomes are those of the late rows: cells of whole lists, and misses.
  std::vector<FetchOutcome> StepLate(const std::vector<FetchToken>& tokens) {
    std::vector<FetchToken> joined = tokens;
    std::vector<int32_t> items, counts;
    size_t capacity = 1, most = 1;
    for (FetchToken& token : joined)
      for (size_t head = 0; head < token.lists.size(); ++head) {
        auto& list = token.lists[head];
        list.insert(list.end(), token.late[head].begin(), token.late[head].end());
        std::sort(list.begin(), list.end());
        capacity = std::max(capacity, list.size());
        most = std::max(most, token.late[head].size());
      }
    for (const FetchToken& token : joined)
      for (size_t head = 0; head < token.lists.size(); ++head) {
        for (const int32_t row : token.late[head])
          items.push_back(static_cast<int32_t>(
              std::lower_bound(token.lists[head].begin(), token.lists[head].end(), row) - token.lists[head].begin()));
        counts.push_back(static_cast<int32_t>(token.late[head].size()));
        items.resize(counts.size() * most, -1);
      }
    auto late_step = std::make_unique<Operands>(*this, joined, static_cast<int64_t>(capacity) + 3);
    DeviceBytes<B> ditems(backend_, items.size() * 4), dcounts(backend_, counts.size() * 4);
    ditems.Put(items);
    dcounts.Put(counts);
    const LateSelection late{.all = late_step->selection(),
                             .items = ditems.template as<int32_t>(),
                             .counts = dcounts.template as<int32_t>(),
                             .capacity = static_cast<int64_t>(most)};
    backend_.AssignLate(Queue::kCompute, late_step->batch(), late, buffer(), step_->list(), late_step->list(),
                        totals_.template as<FetchTotals>());
    backend_.Wait(Queue::kFetch, backend_.Record(Queue::kCompute));
    backend_.FetchMisses(Queue::kFetch, late_step->batch(), late.all, pool_.view(), buffer(), late_step->list(),
                         clock());
    backend_.Wait(Queue::kCompute, backend_.Record(Queue::kFetch));
    step_ = std::move(late_step);
    return step_->Outcomes(joined);
  }

  // Outputs of tokens [first, first + count) of the last step, as bytes, read from the cells or from the pool. tail: of
  // these tokens.
  Bytes Attend(const HostTensor& queries, int64_t first, int64_t count, bool from_cells, const TailView& tail = {}) {
    HostTensor part(queries.type, count, queries.cols, 3), out(queries.type, count, queries.cols, 1);
    for (int64_t i = 0; i < count; ++i)
      for (int64_t c = 0; c < queries.cols; ++c) part.Set(i, c, queries.At(first + i, c));
    DeviceTensor dqueries(backend_, part), dout(backend_, out);
    const AttentionShape shape{shape_.kv_heads * shape_.group, 0.2f};
    const int64_t lists = first * shape_.kv_heads;
    Selection selection = step_->selection();
    FetchList list = step_->list();
    selection.rows += lists * selection.capacity;
    selection.counts += lists;
    list.cells += lists * list.capacity;
    const TokenBatch batch = step_->batch().Range(first, count);
    if (from_cells)
      backend_.AttendFetched(Queue::kCompute, dqueries, batch, selection, tail, shape, pool_.view(), buffer(), list,
                             dout);
    else
      backend_.AttendSelected(Queue::kCompute, dqueries, batch, selection, tail, shape, pool_.view(), dout);
    return dout.Fetch().bytes;
  }

  void Clear(int64_t slot) { backend_.ClearFetched(Queue::kCompute, buffer(), SeqSlot(slot)); }
  FetchClock* clock() const { return clock_.template as<FetchClock>(); }
  FetchClock Clock() const { return clock_.template Get<FetchClock>()[0]; }
  std::vector<FetchTotals> Totals() const { return totals_.template Get<FetchTotals>(); }
  // All cells; At(data, slot, head, cell) is one of them.
  Bytes Data() const { return data_.template Get<std::byte>(); }
  Bytes At(const Bytes& data, int64_t slot, int64_t head, int32_t cell) const {
    const size_t size = shape_.layout().entry_bytes();
    const auto begin =
        data.begin() + static_cast<int64_t>(
                           (Index(slot, head) * static_cast<size_t>(shape_.cells) + static_cast<size_t>(cell)) * size);
    return {begin, begin + static_cast<int64_t>(size)};
  }
  Random& random() { return random_; }
  const FetchShape& shape() const { return shape_; }

 private:
  // Operands of a call, in memory of the backend.
  struct Operands {
    Operands(FetchLayer& layer, const std::vector<FetchToken>& tokens, int64_t room)
        : kv_heads(layer.shape_.kv_heads),
          capacity(room),
          count(std::ssize(tokens)),
          host_keys(HostTensor::Normal(layer.random_, DType::kF32, count, kv_heads * layer.shape_.dim, 1.0f, 2)),
          host_values(HostTensor::Normal(layer.random_, DType::kF32, count, kv_heads * layer.shape_.dim, 1.0f, 1)),
          keys(layer.backend_, host_keys),
          values(layer.backend_, host_values),
          slots(layer.backend_, Collect(tokens, [](const FetchToken& t) { return std::vector{t.slot}; })),
          positions(layer.backend_, Collect(tokens, [](const FetchToken& t) { return std::vector{t.position}; })),
          own(layer.backend_, Collect(tokens, [](const FetchToken& t) { return t.own; })),
          rows(layer.backend_, Lists() * static_cast<size_t>(capacity) * 4),
          counts(layer.backend_, Lists() * 4),
          cells(layer.backend_, Lists() * static_cast<size_t>(capacity) * 4),
          misses(layer.backend_, Lists() * static_cast<size_t>(capacity) * 4),
          miss_counts(layer.backend_, Lists() * 4),
          own_cells(layer.backend_, Lists() * 4) {
      std::vector<int32_t> all(Lists() * static_cast<size_t>(capacity), -1), lengths;
      for (const FetchToken& token : tokens)
        for (const auto& list : token.lists) {
          std::copy(list.begin(), list.end(), all.begin() + std::ssize(lengths) * capacity);
          lengths.push_back(static_cast<int32_t>(list.size()));
        }
      rows.Put(all);
      counts.Put(lengths);
    }
    TokenBatch batch() const {
      return {.count = count, .slots = slots, .rows = positions, .own_rows = own, .kv_heads = kv_heads};
    }
    Selection selection() const {
      return {rows.template as<int32_t>(), counts.template as<int32_t>(), capacity, kv_heads};
    }
    FetchList list() const {
      return {cells.template as<int32_t>(),
              misses.template as<int32_t>(),
              miss_counts.template as<int32_t>(),
              own_cells.template as<int32_t>(),
              capacity,
              kv_heads};
    }
    std::vector<FetchOutcome> Outcomes(const std::vector<FetchToken>& tokens) const {
      const auto all_cells = cells.template Get<int32_t>(), all_misses = misses.template Get<int32_t>(),
                 missed = miss_counts.template Get<int32_t>(), owns = own_cells.template Get<int32_t>();
      std::vector<FetchOutcome> outcomes;
      for (const FetchToken& token : tokens)
        for (const auto& list : token.lists) {
          const size_t at = outcomes.size();
          const auto begin = static_cast<int64_t>(at) * capacity;
          EXPECT_TRUE(missed[at] >= 0 && missed[at] < std::ssize(list)) << missed[at] << " misses";
          const int64_t length = std::clamp<int64_t>(missed[at], 0, std::ssize(list));
          outcomes.push_back({{all_cells.begin() + begin, all_cells.begin() + begin + std::ssize(list)},
                              {all_misses.begin() + begin, all_misses.begin() + begin + length},
                              owns[at]});
        }
      return outcomes;
    }
    size_t Lists() const { return static_cast<size_t>(count * kv_heads); }
    template <class F>
    static std::vector<int32_t> Collect(const std::vector<FetchToken>& tokens, F&& of) {
      std::vector<int32_t> all;
      for (const FetchToken& token : tokens)
        for (const int32_t x : of(token)) all.push_back(x);
      return all;
    }

    int64_t kv_heads, capacity, count;
    HostTensor host_keys, host_values;
    DeviceTensor<B> keys, values;
    DeviceInts<B> slots, positions, own;
    DeviceBytes<B> rows, counts, cells, misses, miss_counts, own_cells;
  };

  size_t Heads() const { return static_cast<size_t>(shape_.slots * shape_.kv_heads); }
  size_t Index(int64_t slot, int64_t head) const { return static_cast<size_t>(slot * shape_.kv_heads + head); }

  B& backend_;
  FetchShape shape_;
  Random random_;
  TestEntries<B> pool_;
  DeviceBytes<B> data_, holds_, used_, cell_of_, totals_, clock_;
  std::vector<Bytes> mirror_;  // [slots][kv_heads][rows] expected entries of the pool
  std::unique_ptr<Operands> step_;
};

// Model of the hot set of one (sequence, KV head).
class HotModel {
 public:
  explicit HotModel(int64_t capacity) : capacity_(capacity) {}

  FetchOutcome Assign(const std::vector<int32_t>& list, int32_t own, int32_t position) {
    FetchOutcome outcome;
    if (std::ssize(list) > capacity_) {  // read from the pool
      for (const int32_t row : list) outcome.cells.push_back(FetchList::InPool(row));
      outcome.own = FetchList::InPool(own);
      for (auto& [cell, held] : held_)
        if (held.row == own) held.row = -1;
      return outcome;
    }
    std::map<int32_t, int32_t> cell_of;
    for (const auto& [cell, held] : held_) cell_of[held.row] = cell;
    std::vector<int32_t> without_cell;
    for (size_t i = 0; i < list.size(); ++i)
      if (list[i] != own && !cell_of.contains(list[i])) {
        outcome.misses.push_back(static_cast<int32_t>(i));
        without_cell.push_back(list[i]);
      }
    if (!cell_of.contains(own)) without_cell.push_back(own);

    std::vector<std::pair<int32_t, int32_t>> reusable;  // used, cell
    for (int32_t cell = 0; cell < capacity_; ++cell) {
      const auto held = held_.find(cell);
      if (held == held_.end())
        reusable.emplace_back(-1, cell);
      else if (std::find(list.begin(), list.end(), held->second.row) == list.end())
        reusable.emplace_back(held->second.used, cell);
    }
    std::sort(reusable.begin(), reusable.end());
    reusable.resize(without_cell.size());
    std::sort(reusable.begin(), reusable.end(), [](auto a, auto b) { return a.second < b.second; });
    for (size_t i = 0; i < without_cell.size(); ++i) {
      held_[reusable[i].second] = {without_cell[i], position, {}};
      cell_of[without_cell[i]] = reusable[i].second;
    }
    for (const int32_t row : list) {
      outcome.cells.push_back(cell_of[row]);
      held_[cell_of[row]].used = position;
    }
    outcome.own = cell_of[own];
    return outcome;
  }

  // Gives cells to late rows, after Assign for the list without them. `before`: the outcome of that.
  FetchOutcome AssignLate(const std::vector<int32_t>& list, const std::vector<int32_t>& late,
                          const FetchOutcome& before, int32_t position) {
    std::vector<int32_t> joined = list;
    joined.insert(joined.end(), late.begin(), late.end());
    std::sort(joined.begin(), joined.end());
    const auto index_of = [&](int32_t row) {
      return static_cast<int32_t>(std::lower_bound(joined.begin(), joined.end(), row) - joined.begin());
    };
    FetchOutcome outcome{std::vector<int32_t>(joined.size()), {}, before.own};
    for (size_t i = 0; i < list.size(); ++i) outcome.cells[static_cast<size_t>(index_of(list[i]))] = before.cells[i];
    std::vector<int32_t> missing;
    for (const int32_t row : late) {
      int32_t& cell = outcome.cells[static_cast<size_t>(index_of(row))];
      cell = FetchList::InPool(row);
      const auto held = std::find_if(held_.begin(), held_.end(), [&](const auto& h) { return h.second.row == row; });
      if (std::ssize(list) > capacity_) continue;
      if (held == held_.end()) {
        missing.push_back(row);
      } else {
        cell = held->first;
        held->second.used = position;
      }
    }
    if (std::ssize(joined) > capacity_) return outcome;
    std::vector<std::pair<int32_t, int32_t>> reusable;  // used, cell
    for (int32_t cell = 0; cell < capacity_; ++cell) {
      const auto held = held_.find(cell);
      if (held == held_.end())
        reusable.emplace_back(-1, cell);
      else if (!std::binary_search(joined.begin(), joined.end(), held->second.row))
        reusable.emplace_back(held->second.used, cell);
    }
    std::sort(reusable.begin(), reusable.end());
    reusable.resize(missing.size());
    std::sort(reusable.begin(), reusable.end(), [](auto a, auto b) { return a.second < b.second; });
    for (size_t i = 0; i < missing.size(); ++i) {
      held_[reusable[i].second] = {missing[i], position, {}};
      outcome.cells[static_cast<size_t>(index_of(missing[i]))] = reusable[i].second;
      outcome.misses.push_back(index_of(missing[i]));
    }
    return outcome;
  }

  Bytes& At(int32_t cell) { return held_.at(cell).bytes; }

 private:
  struct Held {
    int32_t row = -1, used = -1;
    Bytes bytes;
  };
  int64_t capacity_;
  std::map<int32_t, Held> held_;  // by cell
};

}  // namespace infinigen
