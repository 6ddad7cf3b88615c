#include "kv/pool.h"

#include <algorithm>
#include <cstring>

#include "base/size.h"

namespace infinigen {

Pool::Pool(const PoolOptions& options, Allocator& memory, Allocator* device) : options_(options) {
  CHECK(options.layers > 0 && options.max_sequences > 0);
  CHECK(options.max_tokens > 0 && options.max_tokens <= INT32_MAX);
  CHECK(options.layout.kv_heads > 0 && options.layout.head_dim > 0);
  CHECK((options.device_layers == 0 && !options.device_windows) || device != nullptr);
  CHECK(options.windowed.empty() || (std::ssize(options.windowed) == options.layers && options.window > 0 &&
                                     options.ring_rows > options.window && options.ring_rows % kExtentTokens == 0));
  spaces_[0].memory = &memory;
  spaces_[1].memory = device;
  sequences_.resize(static_cast<size_t>(options.max_sequences));
  quotas_.resize(sequences_.size());
  retained_quotas_.resize(sequences_.size());
  window_quotas_.resize(sequences_.size());
  const size_t extents = static_cast<size_t>(options.layers * options.max_sequences * options.extents_per_slot());
  tables_.resize(extents, nullptr);
  slab_of_.resize(extents);
  shared_of_.resize(static_cast<size_t>(options.max_sequences * options.extents_per_slot()), -1);
}

uint64_t Pool::QuotaBytes(const PoolOptions& options, const RowQuota& quota) {
  const int64_t evicting = options.evicting_layers(), windowed = options.windowed_layers();
  return static_cast<uint64_t>((options.layers - evicting - windowed) * quota.rows + evicting * quota.retained +
                               windowed * options.RingRows(quota.rows)) *
         options.layout.row_bytes();
}

Result<SeqSlot> Pool::Admit(const RowQuota& quota, std::span<const SharedId> prefix) {
  CHECK(quota.retained > 0 && quota.retained <= quota.rows && quota.rows <= options_.max_tokens);
  CHECK(prefix.empty() || (options_.evicting_layers() == 0 && options_.window == 0));
  const auto vacant = std::find_if(sequences_.begin(), sequences_.end(), [](const Sequence& s) { return !s.admitted; });
  if (vacant == sequences_.end())
    return Exhausted("all {} sequence slots of the KV pool are in use", sequences_.size());
  const SeqSlot slot(vacant - sequences_.begin());
  const int64_t have = std::ssize(prefix) * kExtentTokens;
  RETURN_IF_ERROR(Extend(slot, {have, have}, quota));
  // From here on nothing fails.
  vacant->admitted = true;
  vacant->shared = std::ssize(prefix);
  for (int64_t extent = 0; extent < std::ssize(prefix); ++extent)
    Use(slot, extent, prefix[static_cast<size_t>(extent)]);
  return slot;
}

void Pool::Use(SeqSlot slot, int64_t extent, SharedId id) {
  Shared& shared = shared_[id.index()];
  CHECK(shared.exists);
  ++shared.users;
  shared_of_[SlotIndex(slot, extent)] = id.value();
  for (int64_t layer = 0; layer < options_.layers; ++layer)
    tables_[TableIndex(layer, slot, extent)] = shared.data[static_cast<size_t>(layer)];
}

Status Pool::Grow(SeqSlot slot, int64_t rows) {
  const RowQuota have = quota(slot);
  CHECK(sequences_[slot.index()].admitted && options_.evicting_layers() == 0);
  CHECK(have.rows % kExtentTokens == 0 && rows >= have.rows && rows <= options_.max_tokens);
  return Extend(slot, have, {rows, rows});
}

// Adds the extents between the quotas `have` and `quota` to a slot. On an error nothing changes.
Status Pool::Extend(SeqSlot slot, const RowQuota& have, const RowQuota& quota) {
  const uint64_t row_bytes = options_.layout.row_bytes();
  Demands demands;
  for (int64_t layer = 0; layer < options_.layers; ++layer) {
    Demand& demand = demands[SpaceOf(layer)];
    demand.extents += static_cast<size_t>((QuotaOf(quota, layer) - QuotaOf(have, layer)) / kExtentTokens);
    demand.last_bytes += static_cast<uint64_t>(QuotaOf(quota, layer) % kExtentTokens) * row_bytes;
  }
  if (Status room = MakeRoom(demands); !room.ok()) {
    if (room.error().kind != ErrorKind::kExhausted) return room.error();
    return Exhausted("a sequence of {} tokens needs {} of the KV pool, {}", quota.rows,
                     FormatSize(QuotaBytes(options_, quota)), room.error().message);
  }
  std::array<Buffer, 2> last;
  for (size_t space = 0; space < spaces_.size(); ++space) {
    if (demands[space].last_bytes == 0) continue;
    ASSIGN_OR_RETURN(last[space], Buffer::Make(*spaces_[space].memory, demands[space].last_bytes));
    if (options_.poisons) std::memset(last[space].data(), kPoison, last[space].bytes());
  }

  // From here on nothing fails.
  std::array<std::byte*, 2> rest = {last[0].data(), last[1].data()};
  for (const Buffer& buffer : last) mapped_bytes_ += buffer.bytes();
  for (int64_t layer = 0; layer < options_.layers; ++layer) {
    const int64_t rows = QuotaOf(quota, layer), whole = rows / kExtentTokens;
    for (int64_t extent = QuotaOf(have, layer) / kExtentTokens; extent < whole; ++extent) {
      const size_t at = TableIndex(layer, slot, extent);
      tables_[at] = TakeExtent(spaces_[SpaceOf(layer)], &slab_of_[at]);
    }
    if (options_.has_window(layer)) {
      for (int64_t extent = whole; extent * kExtentTokens < quota.rows; ++extent)
        tables_[TableIndex(layer, slot, extent)] = tables_[TableIndex(layer, slot, extent - whole)];
      continue;
    }
    if (rows % kExtentTokens == 0) continue;
    tables_[TableIndex(layer, slot, whole)] = rest[SpaceOf(layer)];
    rest[SpaceOf(layer)] += static_cast<uint64_t>(rows % kExtentTokens) * row_bytes;
  }
  sequences_[slot.index()].last = std::move(last);
  quotas_[slot.index()] = static_cast<int32_t>(quota.rows);
  retained_quotas_[slot.index()] = static_cast<int32_t>(quota.retained);
  window_quotas_[slot.index()] = static_cast<int32_t>(
      std::min<int64_t>((quota.rows + kExtentTokens - 1) / kExtentTokens * kExtentTokens, INT32_MAX));
  ++table_version_;
  return Ok();
}

// Allocates slabs until the demanded whole extents are free and the last extents still fit under the limit.
Status Pool::MakeRoom(const Demands& demands) {
  const uint64_t extent_bytes = options_.layout.extent_bytes();
  const auto missing = [&](size_t space) {
    const size_t free = spaces_[space].free.size(), wanted = demands[space].extents;
    return wanted > free ? wanted - free : 0;
  };
  const auto fits = [&] {
    const uint64_t room = options_.limit_bytes - mapped_bytes_, extents = missing(0) + missing(1);
    return extents <= room / extent_bytes &&
           demands[0].last_bytes + demands[1].last_bytes <= room - extents * extent_bytes;
  };
  // Free slabs may hold extents of a space that needs none now; their bytes can go to another slab or last extent.
  if (!fits())
    for (Space& space : spaces_) DropFreeSlabs(space);
  if (!fits())
    return Exhausted("only {} of {} are free",
                     FormatSize(options_.limit_bytes - mapped_bytes_ +
                                (spaces_[0].free.size() + spaces_[1].free.size()) * extent_bytes),
                     FormatSize(options_.limit_bytes));
  for (size_t space = 0; space < spaces_.size(); ++space)
    if (missing(space) > 0) RETURN_IF_ERROR(MapSlab(spaces_[space], missing(space)));
  return Ok();
}

void Pool::DropFreeSlabs(Space& space) {
  const auto is_free = [&](size_t slab) { return space.slabs[slab].free == space.slabs[slab].extents; };
  std::erase_if(space.free, [&](const FreeExtent& extent) { return is_free(extent.slab); });
  for (size_t slab = 0; slab < space.slabs.size(); ++slab) {
    if (!is_free(slab)) continue;
    mapped_bytes_ -= space.slabs[slab].memory.bytes();
    space.slabs[slab] = {};
  }
}

Status Pool::MapSlab(Space& space, size_t extents) {
  const size_t extent_bytes = options_.layout.extent_bytes();
  ASSIGN_OR_RETURN(Buffer memory, Buffer::Make(*space.memory, extents * extent_bytes));
  if (options_.poisons) std::memset(memory.data(), kPoison, memory.bytes());
  const auto vacant =
      std::find_if(space.slabs.begin(), space.slabs.end(), [](const Slab& s) { return s.extents == 0; });
  const size_t index = static_cast<size_t>(vacant - space.slabs.begin());
  if (vacant == space.slabs.end()) space.slabs.emplace_back();
  // Room for all extents of the space, so that giving one back cannot fail.
  size_t all = extents;
  for (const Slab& slab : space.slabs) all += slab.extents;
  space.free.reserve(all);
  // From here on nothing fails.
  mapped_bytes_ += memory.bytes();
  CHECK(mapped_bytes_ <= options_.limit_bytes);
  for (size_t i = extents; i-- > 0;)
    space.free.push_back({memory.data() + i * extent_bytes, index});  // TakeExtent takes from the back
  space.slabs[index] = {.memory = std::move(memory), .extents = extents, .free = extents};
  return Ok();
}

std::byte* Pool::TakeExtent(Space& space, size_t* slab) {
  CHECK(!space.free.empty());
  const FreeExtent extent = space.free.back();
  space.free.pop_back();
  --space.slabs[extent.slab].free;
  *slab = extent.slab;
  return extent.data;
}

uint64_t Pool::OwnBytes(SeqSlot slot) const {
  const Sequence& sequence = sequences_[slot.index()];
  const int64_t rows = std::max<int64_t>(0, sequence.tokens - sequence.shared * kExtentTokens);
  return QuotaBytes(options_, {rows, std::min<int64_t>(rows, retained_quotas_[slot.index()])});
}
void Pool::CountUsed(uint64_t more, uint64_t less) {
  used_bytes_ += more;
  used_bytes_ -= less;
  peak_bytes_ = std::max(peak_bytes_, used_bytes_);
}

void Pool::SetRows(SeqSlot slot, int64_t tokens) {
  Sequence& sequence = sequences_[slot.index()];
  CHECK(sequence.admitted && tokens >= 0 && tokens <= quotas_[slot.index()]);
  const uint64_t before = OwnBytes(slot);
  sequence.tokens = tokens;
  CountUsed(OwnBytes(slot), before);
}

void Pool::GiveBack(int64_t layer, std::byte* data, size_t slab) {
  if (options_.poisons) std::memset(data, kPoison, options_.layout.extent_bytes());
  Space& space = spaces_[SpaceOf(layer)];
  space.free.push_back({data, slab});
  ++space.slabs[slab].free;
}

void Pool::Release(SeqSlot slot) {
  SetRows(slot, 0);
  Sequence& sequence = sequences_[slot.index()];
  // Backwards, so that the next sequence gets extents at ascending addresses.
  for (int64_t layer = options_.layers; layer-- > 0;) {
    const int64_t whole = QuotaOf(quota(slot), layer) / kExtentTokens;
    for (int64_t extent = options_.extents_per_slot(); extent-- > 0;) {
      const size_t at = TableIndex(layer, slot, extent);
      if (extent < whole && !is_shared(slot, extent)) GiveBack(layer, tables_[at], slab_of_[at]);
      tables_[at] = nullptr;
    }
  }
  for (int64_t extent = 0; extent < options_.extents_per_slot(); ++extent) {
    int32_t& id = shared_of_[SlotIndex(slot, extent)];
    if (id >= 0) --shared_[static_cast<size_t>(id)].users;
    id = -1;
  }
  for (const Buffer& last : sequence.last) mapped_bytes_ -= last.bytes();
  sequence = {};
  quotas_[slot.index()] = retained_quotas_[slot.index()] = window_quotas_[slot.index()] = 0;
  ++table_version_;
}

void Pool::ReleaseAll() {
  for (size_t slot = 0; slot < sequences_.size(); ++slot)
    if (sequences_[slot].admitted) Release(SeqSlot(static_cast<int64_t>(slot)));
  for (size_t id = 0; id < shared_.size(); ++id)
    if (shared_[id].exists) Drop(SharedId(static_cast<int64_t>(id)));
}

Result<SharedId> Pool::Share(SeqSlot slot, int64_t extent) {
  Sequence& sequence = sequences_[slot.index()];
  CHECK(sequence.admitted && options_.evicting_layers() == 0 && options_.window == 0 && !is_shared(slot, extent));
  CHECK(extent >= 0 && (extent + 1) * kExtentTokens <= sequence.tokens);
  Buffer index;
  if (options_.index_bytes > 0) {
    if (options_.limit_bytes - mapped_bytes_ < options_.index_bytes)
      for (Space& space : spaces_) DropFreeSlabs(space);
    if (options_.limit_bytes - mapped_bytes_ < options_.index_bytes)
      return Exhausted("only {} of {} of the KV pool are free", FormatSize(options_.limit_bytes - mapped_bytes_),
                       FormatSize(options_.limit_bytes));
    ASSIGN_OR_RETURN(index, Buffer::Make(index_memory_, options_.index_bytes));
  }
  const auto vacant = std::find_if(shared_.begin(), shared_.end(), [](const Shared& s) { return !s.exists; });
  const SharedId id(vacant - shared_.begin());
  if (vacant == shared_.end()) shared_.emplace_back();
  Shared& shared = shared_[id.index()];
  shared = {.index = std::move(index)};
  shared.data.reserve(static_cast<size_t>(options_.layers));
  shared.slabs.reserve(static_cast<size_t>(options_.layers));
  // From here on nothing fails.
  shared.exists = true;
  shared.users = 1;
  for (int64_t layer = 0; layer < options_.layers; ++layer) {
    const size_t at = TableIndex(layer, slot, extent);
    shared.data.push_back(tables_[at]);
    shared.slabs.push_back(slab_of_[at]);
  }
  mapped_bytes_ += shared.index.bytes();
  shared_of_[SlotIndex(slot, extent)] = id.value();
  // Its bytes now count for the shared extent, which is whole also where the sequence has fewer rows by now.
  const uint64_t before = OwnBytes(slot);
  ++sequence.shared;
  CountUsed(QuotaBytes(options_, {kExtentTokens, kExtentTokens}) + OwnBytes(slot), before);
  return id;
}

void Pool::Adopt(SeqSlot slot, int64_t extent, SharedId id) {
  Sequence& sequence = sequences_[slot.index()];
  CHECK(sequence.admitted && !is_shared(slot, extent) && (extent + 1) * kExtentTokens <= quotas_[slot.index()]);
  const uint64_t before = OwnBytes(slot);
  for (int64_t layer = options_.layers; layer-- > 0;) {
    const size_t at = TableIndex(layer, slot, extent);
    GiveBack(layer, tables_[at], slab_of_[at]);
  }
  Use(slot, extent, id);
  ++sequence.shared;
  CountUsed(OwnBytes(slot), before);
  ++table_version_;
}

void Pool::Drop(SharedId id) {
  Shared& shared = shared_[id.index()];
  CHECK(shared.exists && shared.users == 0);
  for (int64_t layer = options_.layers; layer-- > 0;)
    GiveBack(layer, shared.data[static_cast<size_t>(layer)], shared.slabs[static_cast<size_t>(layer)]);
  mapped_bytes_ -= shared.index.bytes();
  shared = {};
  CountUsed(0, QuotaBytes(options_, {kExtentTokens, kExtentTokens}));
}

int64_t Pool::free_extents() const {
  const uint64_t extent = options_.layout.extent_bytes();
  const uint64_t free =
      options_.limit_bytes - mapped_bytes_ + (spaces_[0].free.size() + spaces_[1].free.size()) * extent;
  return static_cast<int64_t>(free / (static_cast<uint64_t>(options_.layers) * extent));
}

std::span<std::byte* const> Pool::Table(LayerId layer) const {
  const size_t count = static_cast<size_t>(options_.max_sequences * options_.extents_per_slot());
  return {tables_.data() + layer.index() * count, count};
}

}  // namespace infinigen
