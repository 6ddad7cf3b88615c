// The pool: where entries live. Host memory under a hard byte limit, handed out in extents (kv/view.h).
//
// A sequence is admitted with a quota of rows and gets all its extents at once: whole ones out of slabs, which the pool
// keeps and hands on, and a last one of exactly the rows that are left, of its own. Layers that evict have a quota of
// their own, smaller than the sequence. Admission and growth are the only places that can refuse; in between the
// sequence fills its quota whatever its neighbours do, and a step takes no memory.
// (Memory that was never written costs nothing: pages come with the first row in them.) Called from the engine's thread
// only.
//
// A full extent, in all layers at once, can be shared: from then on nobody writes to it, other sequences may begin with
// it, and it outlives the one that made it until it is dropped. With it comes memory for what is kept of these rows
// beside entries (sketches), under the same limit.
//
// Invariants: mapped bytes ≤ limit at every moment; an extent belongs to one (sequence, layer), is shared, or is free;
// a free extent belongs to a slab. A pool without sequences and shared extents can admit whatever the limit holds.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "kv/view.h"
#include "tensor/buffer.h"

namespace infinigen {

struct PoolOptions {
  EntryLayout layout;
  int64_t layers = 0;
  int64_t max_sequences = 0;
  int64_t max_tokens = 0;  // per sequence
  uint64_t limit_bytes = 0;
  int64_t evicting_from = INT64_MAX;  // layers from here on have the second quota
  int64_t device_layers = 0;          // the first so many layers lie in the device memory
  size_t side_bytes = 0;              // that come with a shared extent

  bool evicts(int64_t layer) const { return layer >= evicting_from; }
  int64_t evicting_layers() const { return std::max<int64_t>(0, layers - evicting_from); }
  int64_t extents_per_slot() const { return (max_tokens + kExtentTokens - 1) / kExtentTokens; }
};

// Rows of one sequence: in layers that keep everything, and in those that evict.
struct RowQuota {
  int64_t rows = 0;
  int64_t retained = 0;
};

class Pool {
 public:
  // `memory` outlives the pool, and so does `device`, where the first layers may be nearer to who computes.
  Pool(const PoolOptions& options, Allocator& memory, Allocator* device = nullptr);

  // A slot with room for the quota, or kExhausted with the numbers. `prefix`: the sequence begins with these, which are
  // part of the quota; only where no layer evicts.
  Result<SeqSlot> Admit(const RowQuota& quota, std::span<const SharedId> prefix = {});
  Result<SeqSlot> Admit(int64_t rows) { return Admit({rows, rows}); }
  // A larger quota, or kExhausted and all as before. Precondition: no layer evicts; the quota so far is whole extents.
  Status Grow(SeqSlot slot, int64_t rows);
  // The sequence has so many tokens from now on; layers that evict hold as many of them as they may. Precondition:
  // tokens ≤ quota.rows.
  void SetRows(SeqSlot slot, int64_t tokens);
  void Release(SeqSlot slot);

  // The sequence's extent, which is full, becomes shared; kExhausted when there is no memory for what comes with it.
  Result<SharedId> Share(SeqSlot slot, int64_t extent);
  // The sequence takes a shared extent in place of its own, which is the same or not written yet.
  void Adopt(SeqSlot slot, int64_t extent, SharedId id);
  // [side_bytes] of host memory, the sharer's to fill.
  std::byte* side(SharedId id) const { return shared_[id.index()].side.data(); }
  // Precondition: no sequence has it.
  void Drop(SharedId id);
  bool is_shared(SeqSlot slot, int64_t extent) const { return shared_of_[SlotIndex(slot, extent)] >= 0; }
  // Whole extents, in all layers, that could be had now; with two memories perhaps less.
  int64_t free_extents() const;

  // [max_sequences][extents_per_slot] host pointers; null where no extent is.
  std::span<std::byte* const> Table(LayerId layer) const;
  // [max_sequences] rows of a layer; 0 where no sequence is.
  std::span<const int32_t> quotas(LayerId layer) const {
    return options_.evicts(layer.value()) ? retained_quotas_ : quotas_;
  }
  RowQuota quota(SeqSlot slot) const { return {quotas_[slot.index()], retained_quotas_[slot.index()]}; }
  // Raised whenever a table or quota changed.
  uint64_t table_version() const { return table_version_; }

  const PoolOptions& options() const { return options_; }
  // Rows of entries that exist, in bytes; now, and at most so far.
  uint64_t used_bytes() const { return used_bytes_; }
  uint64_t peak_bytes() const { return peak_bytes_; }
  // Taken from the machine: slabs and last extents.
  uint64_t mapped_bytes() const { return mapped_bytes_; }

  // Bytes that a quota takes.
  static uint64_t QuotaBytes(const PoolOptions& options, const RowQuota& quota);

 private:
  struct Sequence {
    bool admitted = false;
    int64_t tokens = 0;
    int64_t shared = 0;          // of its extents
    std::array<Buffer, 2> last;  // by space: the extents of each layer's remainder; empty when none has one
  };
  struct Slab {
    Buffer memory;
    size_t extents = 0;
    size_t free = 0;
  };
  struct FreeExtent {
    std::byte* data;
    size_t slab;
  };
  struct Shared {
    bool exists = false;
    int64_t users = 0;             // sequences
    std::vector<std::byte*> data;  // [layers]
    std::vector<size_t> slabs;     // [layers]
    Buffer side;
  };
  // One of the two memories.
  struct Space {
    Allocator* memory = nullptr;
    std::vector<Slab> slabs;  // one that was given back has no memory; its place is used again
    std::vector<FreeExtent> free;
  };
  // What a sequence takes of each space.
  struct Demand {
    size_t extents = 0;
    uint64_t last_bytes = 0;
  };
  using Demands = std::array<Demand, 2>;

  int64_t QuotaOf(const RowQuota& quota, int64_t layer) const {
    return options_.evicts(layer) ? quota.retained : quota.rows;
  }
  size_t SpaceOf(int64_t layer) const { return layer < options_.device_layers ? 1 : 0; }
  // Of what exists of a sequence and is not shared.
  uint64_t OwnBytes(SeqSlot slot) const;
  void CountUsed(uint64_t more, uint64_t less);
  Status Extend(SeqSlot slot, const RowQuota& have, const RowQuota& quota);
  Status MakeRoom(const Demands& demands);
  void Use(SeqSlot slot, int64_t extent, SharedId id);
  void GiveBack(int64_t layer, std::byte* data, size_t slab);
  void DropFreeSlabs(Space& space);
  Status MapSlab(Space& space, size_t extents);
  static std::byte* TakeExtent(Space& space, size_t* slab);
  size_t TableIndex(int64_t layer, SeqSlot slot, int64_t extent) const {
    return static_cast<size_t>((layer * options_.max_sequences + slot.value()) * options_.extents_per_slot() + extent);
  }

  size_t SlotIndex(SeqSlot slot, int64_t extent) const {
    return static_cast<size_t>(slot.value() * options_.extents_per_slot() + extent);
  }

  PoolOptions options_;
  HostAllocator side_memory_;             // wherever the pool lives; outlives shared_
  std::array<Space, 2> spaces_;           // the pool's memory, and the device one
  std::vector<Sequence> sequences_;       // [max_sequences]
  std::vector<int32_t> quotas_;           // [max_sequences] rows of layers that keep everything
  std::vector<int32_t> retained_quotas_;  // [max_sequences] rows of layers that evict
  std::vector<std::byte*> tables_;        // [layers][max_sequences][extents_per_slot]
  std::vector<size_t> slab_of_;           // the same shape: where a whole extent came from
  std::vector<Shared> shared_;            // by SharedId; the place of one that was dropped is used again
  std::vector<int32_t> shared_of_;        // [max_sequences][extents_per_slot] SharedId, or -1
  uint64_t mapped_bytes_ = 0;
  uint64_t used_bytes_ = 0;
  uint64_t peak_bytes_ = 0;
  uint64_t table_version_ = 0;
};

}  // namespace infinigen
