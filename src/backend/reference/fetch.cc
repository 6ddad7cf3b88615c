// Fetch buffers of the oracle. The hot set picks its least recently used cells by sorting. Attention first copies the
// selected entries, in the order of the selection, into one array.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "backend/reference/reference_backend.h"
#include "kv/store.h"

namespace infinigen {
namespace {

// The hot set of one KV head.
class HotHead {
 public:
  HotHead(const FetchBuffer& buffer, int64_t slot, int64_t head)
      : holds_(buffer.Holds(slot, head), static_cast<size_t>(buffer.capacity)),
        used_(buffer.Used(slot, head), static_cast<size_t>(buffer.capacity)),
        cell_of_(buffer.CellOf(slot, head), static_cast<size_t>(buffer.rows)) {}

  // Assigns a cell to every row of a selection, which contains the token's own row. Indices of missing rows go to
  // `misses`.
  void Assign(std::span<const int32_t> rows, int32_t own, int32_t position, std::span<int32_t> cells,
              std::vector<int32_t>& misses) {
    size_t own_item = rows.size();
    for (size_t i = 0; i < rows.size(); ++i) {
      cells[i] = CellOf(rows[i]);
      if (rows[i] == own) own_item = i;
      if (cells[i] < 0 && rows[i] != own) misses.push_back(static_cast<int32_t>(i));
    }
    CHECK(own_item < rows.size());
    std::vector<int32_t> without_cell = misses;
    if (cells[own_item] < 0) without_cell.push_back(static_cast<int32_t>(own_item));
    const std::vector<int32_t> free = LeastRecentlyUsed(rows, without_cell.size());
    for (size_t i = 0; i < without_cell.size(); ++i) {
      const size_t item = static_cast<size_t>(without_cell[i]);
      cells[item] = free[i];
      Put(rows[item], free[i]);
    }
    for (const int32_t cell : cells) used_[static_cast<size_t>(cell)] = position;
  }

  // Gives cells to late rows: `items` of the list `rows`, whose other rows have cells. If cells are too few, rows
  // without one stay in the pool, and there are no misses.
  void AssignLate(std::span<const int32_t> rows, std::span<const int32_t> items, int32_t position,
                  std::span<int32_t> cells, std::vector<int32_t>& misses) {
    for (const int32_t item : items) {
      cells[static_cast<size_t>(item)] = CellOf(rows[static_cast<size_t>(item)]);
      if (cells[static_cast<size_t>(item)] < 0) misses.push_back(item);
    }
    if (rows.size() > holds_.size()) {
      for (const int32_t item : misses)
        cells[static_cast<size_t>(item)] = FetchList::InPool(rows[static_cast<size_t>(item)]);
      misses.clear();
    }
    const std::vector<int32_t> free = LeastRecentlyUsed(rows, misses.size());
    for (size_t i = 0; i < misses.size(); ++i) {
      const size_t item = static_cast<size_t>(misses[i]);
      cells[item] = free[i];
      Put(rows[item], free[i]);
    }
    for (const int32_t item : items)
      if (cells[static_cast<size_t>(item)] >= 0)
        used_[static_cast<size_t>(cells[static_cast<size_t>(item)])] = position;
  }

  void Drop(int32_t row) {
    if (CellOf(row) < 0) return;
    holds_[static_cast<size_t>(CellOf(row))] = -1;
    CellOf(row) = -1;
  }

 private:
  int32_t& CellOf(int32_t row) { return cell_of_[static_cast<size_t>(row)]; }

  // The `count` least recently used cells that hold no selected row, in ascending order.
  std::vector<int32_t> LeastRecentlyUsed(std::span<const int32_t> rows, size_t count) const {
    std::vector<std::pair<int32_t, int32_t>> by_age;  // last used, cell
    for (size_t cell = 0; cell < holds_.size(); ++cell)
      if (!std::binary_search(rows.begin(), rows.end(), holds_[cell]))
        by_age.emplace_back(used_[cell], static_cast<int32_t>(cell));
    CHECK(count <= by_age.size());
    std::sort(by_age.begin(), by_age.end());
    std::vector<int32_t> cells;
    for (size_t i = 0; i < count; ++i) cells.push_back(by_age[i].second);
    std::sort(cells.begin(), cells.end());
    return cells;
  }

  void Put(int32_t row, int32_t cell) {
    int32_t& holds = holds_[static_cast<size_t>(cell)];
    if (holds >= 0) CellOf(holds) = -1;
    holds = row;
    CellOf(row) = cell;
  }

  std::span<int32_t> holds_, used_, cell_of_;
};

// The entries of a selection, from cells or from the pool, copied into a sequence of one KV head.
class ListAsEntries {
 public:
  ListAsEntries(const LayerEntries& entries, const FetchBuffer& buffer, int64_t slot, int64_t head,
                std::span<const int32_t> cells)
      : quota_(static_cast<int32_t>(cells.size())),
        layout_(buffer.layout),
        bytes_(cells.size() * buffer.layout.entry_bytes()) {
    layout_.kv_heads = 1;
    for (size_t i = 0; i < cells.size(); ++i) {
      const int32_t cell = cells[i];
      std::memcpy(bytes_.data() + i * layout_.entry_bytes(),
                  cell < 0 ? entries.Entry(slot, head, FetchList::InPool(cell)) : buffer.Entry(slot, head, cell),
                  layout_.entry_bytes());
    }
    for (size_t i = 0; i < cells.size(); i += kExtentTokens)
      extents_.push_back(bytes_.data() + i * layout_.entry_bytes());
  }
  LayerEntries view() const { return {layout_, extents_.data(), std::ssize(extents_), &quota_}; }

 private:
  int32_t quota_;
  EntryLayout layout_;
  std::vector<std::byte> bytes_;
  std::vector<std::byte*> extents_;
};

}  // namespace

void ReferenceBackend::ClearFetched(Queue, const FetchBuffer& buffer, SeqSlot slot) {
  if (!buffer.hot()) return;
  for (int64_t head = 0; head < buffer.layout.kv_heads; ++head) {
    std::fill_n(buffer.Holds(slot.value(), head), buffer.capacity, -1);
    std::fill_n(buffer.Used(slot.value(), head), buffer.capacity, -1);
    std::fill_n(buffer.CellOf(slot.value(), head), buffer.rows, -1);
  }
}

void ReferenceBackend::AssignCells(Queue, const TokenBatch& batch, const Selection& selection,
                                   const FetchBuffer& buffer, double forced_hits, const FetchList& list,
                                   FetchTotals* totals) {
  CHECK(list.capacity == selection.capacity && list.kv_heads == selection.kv_heads);
  CHECK(forced_hits >= 0 && forced_hits < 1 && (forced_hits == 0 || !buffer.hot()));
  for (int64_t t = 0; t < batch.count; ++t) {
    for (int64_t head = 0; head < selection.kv_heads; ++head) {
      const size_t count = static_cast<size_t>(selection.Count(t, head));
      const std::span<const int32_t> rows(selection.Rows(t, head), count);
      const std::span<int32_t> cells(list.Cells(t, head), count);
      const int32_t own = batch.OwnRow(t, head);
      const auto own_at = std::find(rows.begin(), rows.end(), own);
      CHECK(own_at != rows.end());
      std::vector<int32_t> misses;
      const bool in_pool = static_cast<int64_t>(count) > buffer.capacity;
      if (in_pool) {
        std::transform(rows.begin(), rows.end(), cells.begin(), FetchList::InPool);
        if (buffer.hot()) HotHead(buffer, batch.slots[t], head).Drop(own);
      } else if (buffer.hot()) {
        HotHead(buffer, batch.slots[t], head).Assign(rows, own, batch.Position(t), cells, misses);
      } else {
        const FetchShare share = FetchShare::Beside(forced_hits);
        for (size_t i = 0; i < count; ++i) {
          cells[i] = static_cast<int32_t>(i);
          if (rows[i] != own && share.Takes(static_cast<int64_t>(i))) misses.push_back(static_cast<int32_t>(i));
        }
      }
      std::copy(misses.begin(), misses.end(), list.Misses(t, head));
      list.MissCount(t, head) = static_cast<int32_t>(misses.size());
      list.Own(t, head) = cells[static_cast<size_t>(own_at - rows.begin())];
      totals[batch.slots[t]].wanted += count - 1;
      totals[batch.slots[t]].fetched += in_pool ? count - 1 : misses.size();
    }
  }
}

void ReferenceBackend::AssignLate(Queue, const TokenBatch& batch, const LateSelection& late, const FetchBuffer& buffer,
                                  const FetchList& list, const FetchList& late_list, FetchTotals* totals) {
  for (int64_t t = 0; t < batch.count; ++t) {
    for (int64_t head = 0; head < late.all.kv_heads; ++head) {
      const std::span<const int32_t> rows(late.all.Rows(t, head), static_cast<size_t>(late.all.Count(t, head)));
      const std::span<const int32_t> items(late.Items(t, head), static_cast<size_t>(late.Count(t, head)));
      const std::span<int32_t> cells(late_list.Cells(t, head), rows.size());
      const size_t before = rows.size() - items.size();
      const auto is_late = [&](size_t item) {
        return std::binary_search(items.begin(), items.end(), static_cast<int32_t>(item));
      };
      const int32_t* next = list.Cells(t, head);
      for (size_t i = 0; i < rows.size(); ++i)
        if (!is_late(i)) cells[i] = *next++;
      const bool in_pool = static_cast<int64_t>(before) > buffer.capacity;
      std::vector<int32_t> misses;
      size_t crossing = 0;  // read over the link
      if (!in_pool && buffer.hot()) {
        HotHead(buffer, batch.slots[t], head).AssignLate(rows, items, batch.Position(t), cells, misses);
        for (const int32_t item : items) crossing += cells[static_cast<size_t>(item)] < 0 ? 1 : 0;
      } else if (!in_pool && static_cast<int64_t>(rows.size()) <= buffer.capacity) {
        misses.assign(items.begin(), items.end());
        for (size_t i = 0; i < items.size(); ++i)
          cells[static_cast<size_t>(items[i])] = static_cast<int32_t>(before + i);
      } else {
        for (const int32_t item : items)
          cells[static_cast<size_t>(item)] = FetchList::InPool(rows[static_cast<size_t>(item)]);
        crossing = items.size();
      }
      std::copy(misses.begin(), misses.end(), late_list.Misses(t, head));
      late_list.MissCount(t, head) = static_cast<int32_t>(misses.size());
      late_list.Own(t, head) = list.Own(t, head);
      totals[batch.slots[t]].wanted += items.size();
      totals[batch.slots[t]].fetched += misses.size() + crossing;
    }
  }
}

void ReferenceBackend::FetchMisses(Queue queue, const TokenBatch& batch, const Selection& selection,
                                   const LayerEntries& entries, const FetchBuffer& buffer, const FetchList& list,
                                   FetchClock* clock) {
  for (int64_t t = 0; t < batch.count; ++t) {
    const int64_t slot = batch.slots[t];
    for (int64_t head = 0; head < selection.kv_heads; ++head) {
      for (int64_t i = 0; i < list.MissCount(t, head); ++i) {
        const int64_t item = list.Misses(t, head)[i];
        std::memcpy(buffer.Entry(slot, head, list.Cells(t, head)[item]),
                    entries.Entry(slot, head, selection.Rows(t, head)[item]), buffer.layout.entry_bytes());
      }
    }
  }
  NoteArrived(queue, clock);
}

void ReferenceBackend::AppendFetched(Queue, const TokenBatch& batch, const ConstTensor& keys, const ConstTensor& values,
                                     const FetchBuffer& buffer, const FetchList& list) {
  const EntryLayout& layout = buffer.layout;
  const auto dim = static_cast<size_t>(layout.head_dim);
  for (int64_t t = 0; t < batch.count; ++t) {
    for (int64_t head = 0; head < layout.kv_heads; ++head) {
      if (list.Own(t, head) < 0) continue;
      std::byte* entry = buffer.Entry(batch.slots[t], head, list.Own(t, head));
      StoreRow(layout.key_type(), {keys.as<float>(t) + head * layout.head_dim, dim}, entry);
      StoreRow(layout.value_type(), {values.as<float>(t) + head * layout.head_dim, dim}, entry + layout.key_bytes());
    }
  }
}

void ReferenceBackend::AttendFetched(Queue, const ConstTensor& queries, const TokenBatch& batch,
                                     const Selection& selection, const TailView& tail, const AttentionShape& shape,
                                     const LayerEntries& entries, const FetchBuffer& buffer, const FetchList& list,
                                     const Tensor& out) {
  const int64_t group = shape.heads / buffer.layout.kv_heads, dim = buffer.layout.head_dim;
  for (int64_t t = 0; t < batch.count; ++t) {
    for (int64_t kv_head = 0; kv_head < buffer.layout.kv_heads; ++kv_head) {
      const std::span cells(list.Cells(t, kv_head), static_cast<size_t>(selection.Count(t, kv_head)));
      const ListAsEntries copy(entries, buffer, batch.slots[t], kv_head, cells);
      std::vector<int32_t> all(cells.size());
      std::iota(all.begin(), all.end(), 0);
      for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        float* const to = out.as<float>(t) + head * dim;
        const SoftmaxNorm norm = AttendHead(queries.as<float>(t) + head * dim, 0, 0, all, shape, copy.view(), to);
        if (tail) AttendToTail(tail, t, head, norm, to);
      }
    }
  }
}

}  // namespace infinigen
