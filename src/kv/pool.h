// The pool: where entries live. Host memory under a hard byte limit, handed out in extents (kv/view.h).
//
// A sequence is admitted with a quota of rows and gets all its extents at once: whole ones out of slabs, which the pool
// keeps and hands on, and a last one of exactly the rows that are left, of its own. Layers that evict have a quota of
// their own, smaller than the sequence. Admission is the only place that can refuse; from then on the sequence grows to
// its quota whatever its neighbours do, and a step takes no memory.
// (Memory that was never written costs nothing: pages come with the first row in them.) Called from the engine's thread
// only.
//
// Invariants: mapped bytes ≤ limit at every moment; an extent belongs to one (sequence, layer) or is free; a free
// extent belongs to a slab. A pool without sequences can admit whatever the limit holds.
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
  int64_t near_layers = 0;            // the first so many layers lie in the near memory

  bool evicts(int64_t layer) const { return layer >= evicting_from; }
  int64_t evicting_layers() const { return std::max<int64_t>(0, layers - evicting_from); }
  int64_t extents_per_slot() const { return (max_tokens + kExtentTokens - 1) / kExtentTokens; }
};

// Rows of one sequence: in layers that keep everything, and in those that evict.
struct RowQuota {
  int64_t rows = 0;
  int64_t kept = 0;
};

class Pool {
 public:
  // `memory` outlives the pool, and so does `near`, where the first layers may be nearer to who computes.
  Pool(const PoolOptions& options, Allocator& memory, Allocator* near = nullptr);

  // A slot with room for the quota, or kExhausted with the numbers.
  Result<SeqSlot> Admit(const RowQuota& quota);
  Result<SeqSlot> Admit(int64_t rows) { return Admit({rows, rows}); }
  // The sequence has so many tokens from now on; layers that evict hold as many of them as they may. Precondition:
  // tokens ≤ quota.rows.
  void SetRows(SeqSlot slot, int64_t tokens);
  void Release(SeqSlot slot);

  // [max_sequences][extents_per_slot] host pointers; null where no extent is.
  std::span<std::byte* const> Table(LayerId layer) const;
  // [max_sequences] rows of a layer; 0 where no sequence is.
  std::span<const int32_t> quotas(LayerId layer) const { return options_.evicts(layer.value()) ? kept_ : quotas_; }
  RowQuota quota(SeqSlot slot) const { return {quotas_[slot.index()], kept_[slot.index()]}; }
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
    return options_.evicts(layer) ? quota.kept : quota.rows;
  }
  size_t SpaceOf(int64_t layer) const { return layer < options_.near_layers ? 1 : 0; }
  Status MakeRoom(const Demands& demands);
  void DropFreeSlabs(Space& space);
  Status MapSlab(Space& space, size_t extents);
  static std::byte* TakeExtent(Space& space, size_t* slab);
  size_t TableIndex(int64_t layer, SeqSlot slot, int64_t extent) const {
    return static_cast<size_t>((layer * options_.max_sequences + slot.value()) * options_.extents_per_slot() + extent);
  }

  PoolOptions options_;
  std::array<Space, 2> spaces_;      // the pool's memory, and the near one
  std::vector<Sequence> sequences_;  // [max_sequences]
  std::vector<int32_t> quotas_;      // [max_sequences] rows of layers that keep everything
  std::vector<int32_t> kept_;        // [max_sequences] rows of layers that evict
  std::vector<std::byte*> tables_;   // [layers][max_sequences][extents_per_slot]
  std::vector<size_t> slab_of_;      // the same shape: where a whole extent came from
  uint64_t mapped_bytes_ = 0;
  uint64_t used_bytes_ = 0;
  uint64_t peak_bytes_ = 0;
  uint64_t table_version_ = 0;
};

}  // namespace infinigen
