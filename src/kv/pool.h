// The pool: where entries live. Host memory under a hard byte limit, handed out in extents (kv/view.h).
//
// A sequence is admitted with a quota of rows and gets all its extents at once: whole ones out of slabs, which the pool
// keeps and hands on, and a last one of exactly the rows that are left, of its own. Admission is the only place that
// can refuse; from then on the sequence grows to its quota whatever its neighbours do, and a step takes no memory.
// (Memory that was never written costs nothing: pages come with the first row in them.) Called from the engine's thread
// only.
//
// Invariants: mapped bytes ≤ limit at every moment; an extent belongs to one (sequence, layer) or is free; a free
// extent belongs to a slab. A pool without sequences can admit whatever the limit holds.
#pragma once

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

  int64_t extents_per_slot() const { return (max_tokens + kExtentTokens - 1) / kExtentTokens; }
};

class Pool {
 public:
  // `memory` outlives the pool.
  Pool(const PoolOptions& options, Allocator& memory);

  // A slot with room for `quota_rows` rows in every layer, or kExhausted with the numbers.
  Result<SeqSlot> Admit(int64_t quota_rows);
  // The sequence has rows [0, rows) from now on. Precondition: rows ≤ the sequence's quota.
  void SetRows(SeqSlot slot, int64_t rows);
  void Release(SeqSlot slot);

  // [max_sequences][extents_per_slot] host pointers; null where no extent is.
  std::span<std::byte* const> Table(LayerId layer) const;
  // [max_sequences]; 0 where no sequence is.
  std::span<const int32_t> quotas() const { return quotas_; }
  // Raised whenever a table or quota changed.
  uint64_t table_version() const { return table_version_; }

  const PoolOptions& options() const { return options_; }
  // Rows of entries that exist, in bytes; now, and at most so far.
  uint64_t used_bytes() const { return used_bytes_; }
  uint64_t peak_bytes() const { return peak_bytes_; }
  // Taken from the machine: slabs and last extents.
  uint64_t mapped_bytes() const { return mapped_bytes_; }

  // Bytes that a quota of `rows` takes.
  static uint64_t QuotaBytes(const EntryLayout& layout, int64_t layers, int64_t rows);

 private:
  struct Sequence {
    bool admitted = false;
    int64_t rows = 0;  // in use
    Buffer last;       // [layers] extents of the quota's remainder; empty when it has none
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

  Status MakeRoom(size_t whole_extents, uint64_t last_bytes);
  void DropFreeSlabs();
  Status MapSlab(size_t extents);
  std::byte* TakeExtent(size_t* slab);
  size_t TableIndex(int64_t layer, SeqSlot slot, int64_t extent) const {
    return static_cast<size_t>((layer * options_.max_sequences + slot.value()) * options_.extents_per_slot() + extent);
  }

  PoolOptions options_;
  Allocator& memory_;
  std::vector<Sequence> sequences_;  // [max_sequences]
  std::vector<int32_t> quotas_;      // [max_sequences]
  std::vector<std::byte*> tables_;   // [layers][max_sequences][extents_per_slot]
  std::vector<size_t> slab_of_;      // the same shape: where a whole extent came from
  std::vector<Slab> slabs_;          // one that was given back has no memory; its place is used again
  std::vector<FreeExtent> free_;
  uint64_t mapped_bytes_ = 0;
  uint64_t used_bytes_ = 0;
  uint64_t peak_bytes_ = 0;
  uint64_t table_version_ = 0;
};

}  // namespace infinigen
