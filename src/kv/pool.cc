#include "kv/pool.h"

#include <algorithm>

#include "base/size.h"

namespace infinigen {
namespace {

// Large enough that huge pages cover it and the system is asked rarely; small against any real cache. Untouched pages
// of a slab cost nothing.
constexpr size_t kSlabBytes = size_t{64} << 20;

int64_t ExtentsFor(int64_t rows) { return (rows + kExtentTokens - 1) / kExtentTokens; }

}  // namespace

Pool::Pool(const PoolOptions& options, Allocator& memory)
    : options_(options), memory_(memory), extents_per_slot_(ExtentsFor(options.max_tokens)) {
  CHECK(options.layers > 0 && options.max_sequences > 0 && options.max_tokens > 0);
  CHECK(options.layout.kv_heads > 0 && options.layout.head_dim > 0);
  sequences_.resize(static_cast<size_t>(options.max_sequences));
  tables_.resize(static_cast<size_t>(options.layers * options.max_sequences * extents_per_slot_), nullptr);
}

uint64_t Pool::QuotaBytes(const EntryLayout& layout, int64_t layers, int64_t rows) {
  return static_cast<uint64_t>(layers * ExtentsFor(rows)) * layout.extent_bytes();
}

Result<SeqSlot> Pool::Admit(int64_t quota_rows) {
  CHECK(quota_rows > 0 && quota_rows <= options_.max_tokens);
  const auto vacant = std::find_if(sequences_.begin(), sequences_.end(), [](const Sequence& s) { return !s.admitted; });
  if (vacant == sequences_.end()) return Exhausted("all {} sequence slots of the KV pool are taken", sequences_.size());
  const uint64_t bytes = QuotaBytes(options_.layout, options_.layers, quota_rows);
  if (bytes > options_.limit_bytes - reserved_bytes_)
    return Exhausted("a sequence of {} tokens needs {} of KV pool; {} of {} are free", quota_rows, FormatSize(bytes),
                     FormatSize(options_.limit_bytes - reserved_bytes_), FormatSize(options_.limit_bytes));
  reserved_bytes_ += bytes;
  *vacant = {.admitted = true, .quota_extents = ExtentsFor(quota_rows), .extents = 0};
  return SeqSlot(vacant - sequences_.begin());
}

Status Pool::Grow(SeqSlot slot, int64_t rows) {
  Sequence& sequence = sequences_[slot.index()];
  const int64_t wanted = ExtentsFor(rows);
  CHECK(sequence.admitted && wanted <= sequence.quota_extents);
  for (; sequence.extents < wanted; ++sequence.extents) {
    for (int64_t layer = 0; layer < options_.layers; ++layer) {
      std::byte*& place = tables_[static_cast<size_t>(
          (layer * options_.max_sequences + slot.value()) * extents_per_slot_ + sequence.extents)];
      if (place != nullptr) continue;  // an earlier Grow failed half-way
      ASSIGN_OR_RETURN(place, TakeExtent());
      ++table_version_;
    }
  }
  return Ok();
}

Result<std::byte*> Pool::TakeExtent() {
  const size_t extent_bytes = options_.layout.extent_bytes();
  if (free_.empty()) {
    // No slab reaches beyond the limit; within it there is room, since quotas were granted from it.
    const size_t room = options_.limit_bytes / extent_bytes - allocated_extents_;
    const size_t extents = std::min(room, std::max<size_t>(1, kSlabBytes / extent_bytes));
    CHECK(extents > 0);
    ASSIGN_OR_RETURN(Buffer slab, Buffer::Make(memory_, extents * extent_bytes));
    for (size_t i = extents; i-- > 0;)
      free_.push_back(slab.data() + i * extent_bytes);  // handed out in ascending order
    slabs_.push_back(std::move(slab));
  }
  std::byte* extent = free_.back();
  free_.pop_back();
  ++allocated_extents_;
  peak_extents_ = std::max(peak_extents_, allocated_extents_);
  return extent;
}

void Pool::Release(SeqSlot slot) {
  Sequence& sequence = sequences_[slot.index()];
  CHECK(sequence.admitted);
  for (int64_t layer = 0; layer < options_.layers; ++layer) {
    for (int64_t extent = 0; extent < extents_per_slot_; ++extent) {
      std::byte*& place =
          tables_[static_cast<size_t>((layer * options_.max_sequences + slot.value()) * extents_per_slot_ + extent)];
      if (place == nullptr) break;
      free_.push_back(place);
      place = nullptr;
      --allocated_extents_;
    }
  }
  ++table_version_;
  reserved_bytes_ -= static_cast<uint64_t>(options_.layers * sequence.quota_extents) * options_.layout.extent_bytes();
  sequence = {};
}

std::span<std::byte* const> Pool::Table(LayerId layer) const {
  const size_t count = static_cast<size_t>(options_.max_sequences * extents_per_slot_);
  return {tables_.data() + layer.index() * count, count};
}

}  // namespace infinigen
