// The pool: where entries live. Host memory under a hard byte limit, mapped in slabs that never reach beyond it,
// handed out in extents (kv/view.h).
//
// A sequence is admitted with a quota of rows, and admission is the only place that can refuse: from then on the
// sequence can grow to its quota whatever its neighbours do. Extents are taken as rows arrive and returned all at once
// on release. Called from the engine's thread only, before the first operation of a step or a prompt, never during one.
//
// Invariant: Σ quota extents of admitted sequences ≤ limit; allocated extents of a sequence ≤ its quota; an extent
// belongs to one (sequence, layer) or to the free list.
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
};

class Pool {
 public:
  // `memory` outlives the pool.
  Pool(const PoolOptions& options, Allocator& memory);

  // A slot with room for `quota_rows` rows in every layer, or kExhausted with the numbers.
  Result<SeqSlot> Admit(int64_t quota_rows);
  // Makes extents for rows [0, rows) exist. Precondition: rows ≤ the sequence's quota. Fails only when the machine
  // itself has no memory left.
  Status Grow(SeqSlot slot, int64_t rows);
  void Release(SeqSlot slot);

  // [max_sequences][extents_per_slot()] host pointers; null where no extent is.
  std::span<std::byte* const> Table(LayerId layer) const;
  int64_t extents_per_slot() const { return extents_per_slot_; }
  // Raised whenever a table changed.
  uint64_t table_version() const { return table_version_; }

  const PoolOptions& options() const { return options_; }
  uint64_t allocated_bytes() const { return allocated_extents_ * options_.layout.extent_bytes(); }
  uint64_t peak_bytes() const { return peak_extents_ * options_.layout.extent_bytes(); }

  // Bytes that a quota of `rows` takes: whole extents in every layer.
  static uint64_t QuotaBytes(const EntryLayout& layout, int64_t layers, int64_t rows);

 private:
  struct Sequence {
    bool admitted = false;
    int64_t quota_extents = 0;  // per layer
    int64_t extents = 0;        // per layer, allocated
  };

  Result<std::byte*> TakeExtent();

  PoolOptions options_;
  Allocator& memory_;
  int64_t extents_per_slot_;
  std::vector<Sequence> sequences_;  // [max_sequences]
  std::vector<std::byte*> tables_;   // [layers][max_sequences][extents_per_slot]
  std::vector<Buffer> slabs_;
  std::vector<std::byte*> free_;  // extents of the slabs that nobody holds
  uint64_t reserved_bytes_ = 0;   // Σ quotas
  uint64_t allocated_extents_ = 0;
  uint64_t peak_extents_ = 0;
  uint64_t table_version_ = 0;
};

}  // namespace infinigen
