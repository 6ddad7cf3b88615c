// The oracle of entries that came near: the hot set as a list that is sorted by age. Who attends has a copy of them
// all, in the list's order.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "backend/reference/attention_weights.h"
#include "backend/reference/reference_backend.h"
#include "kv/store.h"

namespace infinigen {
namespace {

// The hot set of one KV head gets a place for every row of the list; `own` is the token's.
class HotHead {
 public:
  HotHead(const NearEntries& near, int64_t slot, int64_t head)
      : holds_(near.Holds(slot, head), static_cast<size_t>(near.capacity)),
        used_(near.Used(slot, head), static_cast<size_t>(near.capacity)),
        place_of_(near.PlaceOf(slot, head), static_cast<size_t>(near.rows)) {}

  void Find(std::span<const int32_t> rows, int32_t own, int32_t position, std::span<int32_t> places,
            std::vector<int32_t>& misses) {
    size_t own_item = rows.size();
    for (size_t i = 0; i < rows.size(); ++i) {
      places[i] = PlaceOf(rows[i]);
      if (rows[i] == own) own_item = i;
      if (places[i] < 0 && rows[i] != own) misses.push_back(static_cast<int32_t>(i));
    }
    CHECK(own_item < rows.size());
    std::vector<int32_t> homeless = misses;
    if (places[own_item] < 0) homeless.push_back(static_cast<int32_t>(own_item));
    const std::vector<int32_t> free = Oldest(rows, homeless.size());
    for (size_t i = 0; i < homeless.size(); ++i) {
      const size_t item = static_cast<size_t>(homeless[i]);
      places[item] = free[i];
      Put(rows[item], free[i]);
    }
    for (const int32_t place : places) used_[static_cast<size_t>(place)] = position;
  }

  void Forget(int32_t row) {
    if (PlaceOf(row) < 0) return;
    holds_[static_cast<size_t>(PlaceOf(row))] = -1;
    PlaceOf(row) = -1;
  }

 private:
  int32_t& PlaceOf(int32_t row) { return place_of_[static_cast<size_t>(row)]; }

  // The places, by number, of `count` rows that are not listed.
  std::vector<int32_t> Oldest(std::span<const int32_t> rows, size_t count) const {
    std::vector<std::pair<int32_t, int32_t>> by_age;  // last used, place
    for (size_t place = 0; place < holds_.size(); ++place)
      if (!std::binary_search(rows.begin(), rows.end(), holds_[place]))
        by_age.emplace_back(used_[place], static_cast<int32_t>(place));
    CHECK(count <= by_age.size());
    std::sort(by_age.begin(), by_age.end());
    std::vector<int32_t> places;
    for (size_t i = 0; i < count; ++i) places.push_back(by_age[i].second);
    std::sort(places.begin(), places.end());
    return places;
  }

  void Put(int32_t row, int32_t place) {
    int32_t& holds = holds_[static_cast<size_t>(place)];
    if (holds >= 0) PlaceOf(holds) = -1;
    holds = row;
    PlaceOf(row) = place;
  }

  std::span<int32_t> holds_, used_, place_of_;
};

// The entries of a list, near or at home, as a sequence of its own with one head.
class ListAsEntries {
 public:
  ListAsEntries(const LayerEntries& entries, const NearEntries& near, int64_t slot, int64_t head,
                std::span<const int32_t> places)
      : quota_(static_cast<int32_t>(places.size())),
        layout_(near.layout),
        bytes_(places.size() * near.layout.entry_bytes()) {
    layout_.kv_heads = 1;
    for (size_t i = 0; i < places.size(); ++i) {
      const int32_t place = places[i];
      std::memcpy(bytes_.data() + i * layout_.entry_bytes(),
                  place < 0 ? entries.Entry(slot, head, NearList::AtHome(place)) : near.Entry(slot, head, place),
                  layout_.entry_bytes());
    }
    for (size_t i = 0; i < places.size(); i += kExtentTokens)
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

void ReferenceBackend::ForgetNear(Queue, const NearEntries& near, SeqSlot slot) {
  if (!near.hot()) return;
  for (int64_t head = 0; head < near.layout.kv_heads; ++head) {
    std::fill_n(near.Holds(slot.value(), head), near.capacity, -1);
    std::fill_n(near.Used(slot.value(), head), near.capacity, -1);
    std::fill_n(near.PlaceOf(slot.value(), head), near.rows, -1);
  }
}

void ReferenceBackend::FindNear(Queue, const TokenBatch& batch, const Selection& selection, const NearEntries& near,
                                double forced_hits, const NearList& list, NearTotals* totals) {
  CHECK(list.capacity == selection.capacity && list.kv_heads == selection.kv_heads);
  CHECK(forced_hits >= 0 && forced_hits < 1 && (forced_hits == 0 || !near.hot()));
  for (int64_t t = 0; t < batch.count; ++t) {
    for (int64_t head = 0; head < selection.kv_heads; ++head) {
      const size_t count = static_cast<size_t>(selection.Count(t, head));
      const std::span<const int32_t> rows(selection.Rows(t, head), count);
      const std::span<int32_t> places(list.Places(t, head), count);
      const int32_t own = batch.Place(t, head);
      const auto own_at = std::find(rows.begin(), rows.end(), own);
      CHECK(own_at != rows.end());
      std::vector<int32_t> misses;
      const bool at_home = static_cast<int64_t>(count) > near.capacity;
      if (at_home) {
        std::transform(rows.begin(), rows.end(), places.begin(), NearList::AtHome);
        if (near.hot()) HotHead(near, batch.slots[t], head).Forget(own);
      } else if (near.hot()) {
        HotHead(near, batch.slots[t], head).Find(rows, own, batch.Position(t), places, misses);
      } else {
        const FetchShare share = FetchShare::Beside(forced_hits);
        for (size_t i = 0; i < count; ++i) {
          places[i] = static_cast<int32_t>(i);
          if (rows[i] != own && share.Takes(static_cast<int64_t>(i))) misses.push_back(static_cast<int32_t>(i));
        }
      }
      std::copy(misses.begin(), misses.end(), list.Misses(t, head));
      list.MissCount(t, head) = static_cast<int32_t>(misses.size());
      list.Own(t, head) = places[static_cast<size_t>(own_at - rows.begin())];
      totals[batch.slots[t]].wanted += count - 1;
      totals[batch.slots[t]].fetched += at_home ? count - 1 : misses.size();
    }
  }
}

void ReferenceBackend::FetchNear(Queue queue, const TokenBatch& batch, const Selection& selection,
                                 const LayerEntries& entries, const NearEntries& near, const NearList& list,
                                 FetchClock* clock) {
  for (int64_t t = 0; t < batch.count; ++t) {
    const int64_t slot = batch.slots[t];
    for (int64_t head = 0; head < selection.kv_heads; ++head) {
      for (int64_t i = 0; i < list.MissCount(t, head); ++i) {
        const int64_t item = list.Misses(t, head)[i];
        std::memcpy(near.Entry(slot, head, list.Places(t, head)[item]),
                    entries.Entry(slot, head, selection.Rows(t, head)[item]), near.layout.entry_bytes());
      }
    }
  }
  NoteArrived(queue, clock);
}

void ReferenceBackend::AppendNear(Queue, const TokenBatch& batch, const ConstTensor& keys, const ConstTensor& values,
                                  const NearEntries& near, const NearList& list) {
  const EntryLayout& layout = near.layout;
  const auto dim = static_cast<size_t>(layout.head_dim);
  for (int64_t t = 0; t < batch.count; ++t) {
    for (int64_t head = 0; head < layout.kv_heads; ++head) {
      if (list.Own(t, head) < 0) continue;
      std::byte* entry = near.Entry(batch.slots[t], head, list.Own(t, head));
      StoreRow(layout.type, {keys.as<float>(t) + head * layout.head_dim, dim}, entry);
      StoreRow(layout.type, {values.as<float>(t) + head * layout.head_dim, dim}, entry + layout.key_bytes());
    }
  }
}

void ReferenceBackend::AttendNear(Queue, const ConstTensor& queries, const TokenBatch& batch,
                                  const Selection& selection, const AttentionShape& shape, const LayerEntries& entries,
                                  const NearEntries& near, const NearList& list, const Tensor& out) {
  const int64_t group = shape.heads / near.layout.kv_heads, dim = near.layout.head_dim;
  for (int64_t t = 0; t < batch.count; ++t) {
    for (int64_t kv_head = 0; kv_head < near.layout.kv_heads; ++kv_head) {
      const std::span places(list.Places(t, kv_head), static_cast<size_t>(selection.Count(t, kv_head)));
      const ListAsEntries copy(entries, near, batch.slots[t], kv_head, places);
      std::vector<int32_t> all(places.size());
      std::iota(all.begin(), all.end(), 0);
      for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
        AttendHead(queries.as<float>(t) + head * dim, 0, 0, all, shape.scale, copy.view(),
                   out.as<float>(t) + head * dim);
    }
  }
}

}  // namespace infinigen
