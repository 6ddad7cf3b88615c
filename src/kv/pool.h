// Pool: the memory where entries live, under a hard byte limit, handed out in extents (kv/view.h). Called from the
// engine's thread only.
//
// A sequence is admitted with a quota of rows and gets all its extents at once: whole extents out of slabs, which the
// pool reuses, and one last extent, allocated separately, of exactly the remaining rows. Evicting layers have a smaller
// quota. A layer with a window (docs/windows.md) has a ring: its first extents are memory of their own, each later one
// is the memory of the extent a ring's length before it, so appending a row overwrites one that no token attends to any
// more. Only admission and growth can fail for lack of memory: once admitted, a sequence can fill its quota whatever
// other sequences do, and a step allocates nothing. (Unwritten memory costs nothing: the operating system maps a page
// when its first row is written.)
//
// A full extent, in all layers at once, can be shared. From then on it is read-only, other sequences may begin with it,
// and it stays in the pool after its sequence is released, until it is dropped. The index of its rows is saved with it,
// under the same byte limit.
//
// Invariants: mapped bytes ≤ limit at all times; an extent belongs to one (sequence, layer), is shared, or is free; a
// free extent belongs to a slab. A pool without sequences and shared extents can admit anything that fits the limit.
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

// NaN as f32, f16 and as the scale of quantised rows: what reads such a row computes NaN.
inline constexpr int kPoison = 0xFF;

struct PoolOptions {
  EntryLayout layout;
  int64_t layers = 0;
  int64_t max_sequences = 0;
  int64_t max_tokens = 0;  // per sequence
  uint64_t limit_bytes = 0;
  int64_t evicting_from = INT64_MAX;  // layers from this one on have the quota for evicting layers
  int64_t device_layers = 0;          // number of first layers that lie in device memory
  int64_t window = 0;                 // of the layers with a window; 0: there are none
  std::vector<bool> windowed = {};    // [layers] the layers with a window; empty: none
  int64_t ring_rows = 0;              // most rows that a layer with a window has memory for; whole extents
  bool device_windows = false;        // layers with a window lie in device memory
  size_t index_bytes = 0;             // index that is saved with a shared extent
  bool poisons = false;               // for tests: rows that are not written yet are kPoison bytes; host memory only

  bool has_window(int64_t layer) const { return !windowed.empty() && windowed[static_cast<size_t>(layer)]; }
  bool evicts(int64_t layer) const { return layer >= evicting_from && !has_window(layer); }
  bool on_device(int64_t layer) const { return has_window(layer) ? device_windows : layer < device_layers; }
  // Numbers of layers.
  int64_t windowed_layers() const { return std::count(windowed.begin(), windowed.end(), true); }
  int64_t evicting_layers() const {
    int64_t count = 0;
    for (int64_t layer = 0; layer < layers; ++layer) count += evicts(layer) ? 1 : 0;
    return count;
  }
  // Rows that a layer with a window has memory for, in a sequence of `rows` rows.
  int64_t RingRows(int64_t rows) const {
    return std::min(ring_rows, (rows + kExtentTokens - 1) / kExtentTokens * kExtentTokens);
  }
  // ring_rows for a window if up to `together` rows are appended before any of them attends. The rows from the first
  // token's window to the last token may begin and end inside of extents.
  static constexpr int64_t RingFor(int64_t window, int64_t together) {
    return ((window + together - 3) / kExtentTokens + 2) * kExtentTokens;
  }
  int64_t extents_per_slot() const { return (max_tokens + kExtentTokens - 1) / kExtentTokens; }
};

// Rows that a sequence may have in each layer.
struct RowQuota {
  int64_t rows = 0;      // in layers that retain everything
  int64_t retained = 0;  // in layers that evict
};

class Pool {
 public:
  // Both allocators outlive the pool. `device` holds the layers of which on_device is true; null if there are none.
  Pool(const PoolOptions& options, Allocator& memory, Allocator* device = nullptr);

  // A slot with room for the quota, or kExhausted. `prefix`: shared extents that the sequence begins with, counted in
  // the quota; only if no layer evicts or has a window.
  Result<SeqSlot> Admit(const RowQuota& quota, std::span<const SharedId> prefix = {});
  Result<SeqSlot> Admit(int64_t rows) { return Admit({rows, rows}); }
  // Raises the quota to `rows`; on kExhausted nothing changes. Precondition: no layer evicts, and the current quota is
  // whole extents.
  Status Grow(SeqSlot slot, int64_t rows);
  // Sets the number of tokens of the sequence, for used_bytes(). Precondition: tokens ≤ quota.rows.
  void SetRows(SeqSlot slot, int64_t tokens);
  void Release(SeqSlot slot);
  // Frees every sequence and shared extent.
  void ReleaseAll();

  // Makes a full extent of the sequence shared; kExhausted when there is no memory for its index.
  Result<SharedId> Share(SeqSlot slot, int64_t extent);
  // Replaces an extent of the sequence, which has the same content or is unwritten, by a shared one.
  void Adopt(SeqSlot slot, int64_t extent, SharedId id);
  // [index_bytes] of host memory for the index of a shared extent; the caller fills it.
  std::byte* index(SharedId id) const { return shared_[id.index()].index.data(); }
  // Frees a shared extent. Precondition: no sequence uses it.
  void Drop(SharedId id);
  bool is_shared(SeqSlot slot, int64_t extent) const { return shared_of_[SlotIndex(slot, extent)] >= 0; }
  // Number of extents, each in all layers, that could be allocated now. With two memories an upper bound.
  int64_t free_extents() const;

  // [max_sequences][extents_per_slot] host pointers; null where there is no extent.
  std::span<std::byte* const> Table(LayerId layer) const;
  // [max_sequences] the rows that the table of a layer has extents for; 0 for a free slot. In a layer with a window,
  // they are whole extents.
  std::span<const int32_t> quotas(LayerId layer) const {
    if (options_.has_window(layer.value())) return window_quotas_;
    return options_.evicts(layer.value()) ? retained_quotas_ : quotas_;
  }
  std::span<const int32_t> full_quotas() const { return quotas_; }
  std::span<const int32_t> retained_quotas() const { return retained_quotas_; }
  std::span<const int32_t> window_quotas() const { return window_quotas_; }
  RowQuota quota(SeqSlot slot) const { return {quotas_[slot.index()], retained_quotas_[slot.index()]}; }
  // Incremented whenever a table or quota changes.
  uint64_t table_version() const { return table_version_; }

  const PoolOptions& options() const { return options_; }
  // Bytes of the entries that exist now, and their maximum so far.
  uint64_t used_bytes() const { return used_bytes_; }
  uint64_t peak_bytes() const { return peak_bytes_; }
  // Bytes allocated: slabs, last extents and saved indexes.
  uint64_t mapped_bytes() const { return mapped_bytes_; }

  // Bytes that a quota takes.
  static uint64_t QuotaBytes(const PoolOptions& options, const RowQuota& quota);

 private:
  struct Sequence {
    bool admitted = false;
    int64_t tokens = 0;
    int64_t shared = 0;          // number of shared extents that it uses
    std::array<Buffer, 2> last;  // [space] the last, shorter extents of all its layers; empty when there are none
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
    int64_t users = 0;             // sequences that use it
    std::vector<std::byte*> data;  // [layers]
    std::vector<size_t> slabs;     // [layers]
    Buffer index;
  };
  // Host or device memory.
  struct Space {
    Allocator* memory = nullptr;
    std::vector<Slab> slabs;  // a freed slab has no memory, and its element is reused
    std::vector<FreeExtent> free;
  };
  // Memory that a request needs in one space.
  struct Demand {
    size_t extents = 0;
    uint64_t last_bytes = 0;
  };
  using Demands = std::array<Demand, 2>;

  // Rows that a layer has memory for.
  int64_t QuotaOf(const RowQuota& quota, int64_t layer) const {
    if (options_.has_window(layer)) return options_.RingRows(quota.rows);
    return options_.evicts(layer) ? quota.retained : quota.rows;
  }
  size_t SpaceOf(int64_t layer) const { return options_.on_device(layer) ? 1 : 0; }
  // Bytes of a sequence's entries that are not shared.
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
  HostAllocator index_memory_;            // outlives shared_
  std::array<Space, 2> spaces_;           // `memory` and `device` of the constructor
  std::vector<Sequence> sequences_;       // [max_sequences]
  std::vector<int32_t> quotas_;           // [max_sequences] rows of layers that retain everything
  std::vector<int32_t> retained_quotas_;  // [max_sequences] rows of layers that evict
  std::vector<int32_t> window_quotas_;    // [max_sequences] rows in the tables of layers with a window
  std::vector<std::byte*> tables_;        // [layers][max_sequences][extents_per_slot]
  std::vector<size_t> slab_of_;           // [layers][max_sequences][extents_per_slot] slab of a whole extent
  std::vector<Shared> shared_;            // by SharedId; ids of dropped extents are reused
  std::vector<int32_t> shared_of_;        // [max_sequences][extents_per_slot] SharedId, or -1
  uint64_t mapped_bytes_ = 0;
  uint64_t used_bytes_ = 0;
  uint64_t peak_bytes_ = 0;
  uint64_t table_version_ = 0;
};

}  // namespace infinigen
