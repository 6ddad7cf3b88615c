#include "kv/pool.h"

#include <algorithm>

#include "base/size.h"

namespace infinigen {

Pool::Pool(const PoolOptions& options, Allocator& memory) : options_(options), memory_(memory) {
  CHECK(options.layers > 0 && options.max_sequences > 0);
  CHECK(options.max_tokens > 0 && options.max_tokens <= INT32_MAX);
  CHECK(options.layout.kv_heads > 0 && options.layout.head_dim > 0);
  sequences_.resize(static_cast<size_t>(options.max_sequences));
  quotas_.resize(sequences_.size());
  kept_.resize(sequences_.size());
  const size_t places = static_cast<size_t>(options.layers * options.max_sequences * options.extents_per_slot());
  tables_.resize(places, nullptr);
  slab_of_.resize(places);
}

uint64_t Pool::QuotaBytes(const PoolOptions& options, const RowQuota& quota) {
  const int64_t evicting = options.evicting_layers();
  return static_cast<uint64_t>((options.layers - evicting) * quota.rows + evicting * quota.kept) *
         options.layout.row_bytes();
}

Result<SeqSlot> Pool::Admit(const RowQuota& quota) {
  CHECK(quota.kept > 0 && quota.kept <= quota.rows && quota.rows <= options_.max_tokens);
  const auto vacant = std::find_if(sequences_.begin(), sequences_.end(), [](const Sequence& s) { return !s.admitted; });
  if (vacant == sequences_.end()) return Exhausted("all {} sequence slots of the KV pool are taken", sequences_.size());
  const SeqSlot slot(vacant - sequences_.begin());

  const uint64_t row_bytes = options_.layout.row_bytes();
  size_t whole_extents = 0;
  uint64_t last_bytes = 0;
  for (int64_t layer = 0; layer < options_.layers; ++layer) {
    whole_extents += static_cast<size_t>(QuotaOf(quota, layer) / kExtentTokens);
    last_bytes += static_cast<uint64_t>(QuotaOf(quota, layer) % kExtentTokens) * row_bytes;
  }
  if (Status room = MakeRoom(whole_extents, last_bytes); !room.ok()) {
    if (room.error().kind != ErrorKind::kExhausted) return room.error();
    return Exhausted("a sequence of {} tokens needs {} of KV pool: {}", quota.rows,
                     FormatSize(QuotaBytes(options_, quota)), room.error().message);
  }
  ASSIGN_OR_RETURN(Buffer last, Buffer::Make(memory_, last_bytes));
  mapped_bytes_ += last_bytes;

  // From here on nothing fails.
  std::byte* rest = last.data();
  for (int64_t layer = 0; layer < options_.layers; ++layer) {
    const int64_t rows = QuotaOf(quota, layer), whole = rows / kExtentTokens;
    for (int64_t extent = 0; extent < whole; ++extent) {
      const size_t place = TableIndex(layer, slot, extent);
      tables_[place] = TakeExtent(&slab_of_[place]);
    }
    if (rows % kExtentTokens == 0) continue;
    tables_[TableIndex(layer, slot, whole)] = rest;
    rest += static_cast<uint64_t>(rows % kExtentTokens) * row_bytes;
  }
  *vacant = {.admitted = true, .tokens = 0, .last = std::move(last)};
  quotas_[slot.index()] = static_cast<int32_t>(quota.rows);
  kept_[slot.index()] = static_cast<int32_t>(quota.kept);
  ++table_version_;
  return slot;
}

// Makes so many whole extents free, and leaves room under the limit for last extents of so many bytes.
Status Pool::MakeRoom(size_t whole_extents, uint64_t last_bytes) {
  const uint64_t extent_bytes = options_.layout.extent_bytes();
  const auto missing = [&] { return whole_extents > free_.size() ? whole_extents - free_.size() : 0; };
  const auto fits = [&] {
    const uint64_t room = options_.limit_bytes - mapped_bytes_;
    return missing() <= room / extent_bytes && last_bytes <= room - missing() * extent_bytes;
  };
  // Free slabs may hold more extents than are wanted now, in room that last extents need.
  if (!fits()) DropFreeSlabs();
  if (!fits())
    return Exhausted("{} of {} are free",
                     FormatSize(options_.limit_bytes - mapped_bytes_ + free_.size() * extent_bytes),
                     FormatSize(options_.limit_bytes));
  return missing() == 0 ? Ok() : MapSlab(missing());
}

void Pool::DropFreeSlabs() {
  const auto is_free = [&](size_t slab) { return slabs_[slab].free == slabs_[slab].extents; };
  std::erase_if(free_, [&](const FreeExtent& extent) { return is_free(extent.slab); });
  for (size_t slab = 0; slab < slabs_.size(); ++slab) {
    if (!is_free(slab)) continue;
    mapped_bytes_ -= slabs_[slab].memory.bytes();
    slabs_[slab] = {};
  }
}

Status Pool::MapSlab(size_t extents) {
  const size_t extent_bytes = options_.layout.extent_bytes();
  ASSIGN_OR_RETURN(Buffer memory, Buffer::Make(memory_, extents * extent_bytes));
  mapped_bytes_ += memory.bytes();
  CHECK(mapped_bytes_ <= options_.limit_bytes);
  const auto vacant = std::find_if(slabs_.begin(), slabs_.end(), [](const Slab& s) { return s.extents == 0; });
  const size_t index = static_cast<size_t>(vacant - slabs_.begin());
  if (vacant == slabs_.end()) slabs_.emplace_back();
  for (size_t i = extents; i-- > 0;)
    free_.push_back({memory.data() + i * extent_bytes, index});  // ascending, from the back
  slabs_[index] = {.memory = std::move(memory), .extents = extents, .free = extents};
  return Ok();
}

std::byte* Pool::TakeExtent(size_t* slab) {
  CHECK(!free_.empty());
  const FreeExtent extent = free_.back();
  free_.pop_back();
  --slabs_[extent.slab].free;
  *slab = extent.slab;
  return extent.data;
}

void Pool::SetRows(SeqSlot slot, int64_t tokens) {
  Sequence& sequence = sequences_[slot.index()];
  CHECK(sequence.admitted && tokens >= 0 && tokens <= quotas_[slot.index()]);
  const auto bytes = [&](int64_t count) {
    return QuotaBytes(options_, {count, std::min<int64_t>(count, kept_[slot.index()])});
  };
  used_bytes_ += bytes(tokens);
  used_bytes_ -= bytes(sequence.tokens);
  sequence.tokens = tokens;
  peak_bytes_ = std::max(peak_bytes_, used_bytes_);
}

void Pool::Release(SeqSlot slot) {
  SetRows(slot, 0);
  Sequence& sequence = sequences_[slot.index()];
  // Backwards, so that the next sequence gets them in ascending order.
  for (int64_t layer = options_.layers; layer-- > 0;) {
    const int64_t whole = QuotaOf(quota(slot), layer) / kExtentTokens;
    for (int64_t extent = options_.extents_per_slot(); extent-- > 0;) {
      const size_t place = TableIndex(layer, slot, extent);
      if (extent < whole) {
        free_.push_back({tables_[place], slab_of_[place]});
        ++slabs_[slab_of_[place]].free;
      }
      tables_[place] = nullptr;
    }
  }
  mapped_bytes_ -= sequence.last.bytes();
  sequence = {};
  quotas_[slot.index()] = kept_[slot.index()] = 0;
  ++table_version_;
}

std::span<std::byte* const> Pool::Table(LayerId layer) const {
  const size_t count = static_cast<size_t>(options_.max_sequences * options_.extents_per_slot());
  return {tables_.data() + layer.index() * count, count};
}

}  // namespace infinigen
