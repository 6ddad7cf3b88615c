// Whole layers of a remote pool on the compute device.
//
// A GPU reaches entries in pinned host memory over a link. Operations that walk all rows of a layer would cross it row
// by row; instead the layer is moved in bulk, by the copy engines, while another layer computes. Layers take turns on
// two stages: even ones use the first, odd ones the second.
//
//     prefill of layer i   chunks are appended to the stage and attended to there; then the layer is written out to the
//                          pool while layer i + 1 computes on the other stage
//     step of layer i      fetched while layer i - 1 computes; the new entries go both pool and to the stage
//
// A sequence has memory of its own on both stages while it is open, in the geometry of its extents in the pool, so that
// an extent moves as it is. Called by the decoder only, and only where the pool is remote.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "kv/pool.h"

namespace infinigen {

// The first `rows` rows of a sequence.
struct SlotRows {
  SeqSlot slot;
  int64_t rows = 0;
};

template <Backend B>
class LayerStage {
 public:
  static constexpr int64_t kStages = 2;

  // Both outlive it.
  LayerStage(B& backend, const Pool& pool) : backend_(backend), pool_(pool), slots_(Sequences()) {
    tables_.resize(static_cast<size_t>(kStages) * TableSize(), nullptr);
  }

  static size_t TableBytes(const PoolOptions& pool) {
    return static_cast<size_t>(kStages * pool.max_sequences * pool.extents_per_slot()) * sizeof(std::byte*);
  }
  // Of one sequence with so many rows.
  static size_t SlotBytes(const PoolOptions& pool, int64_t rows) {
    const int64_t extents = (rows + kExtentTokens - 1) / kExtentTokens;
    return static_cast<size_t>(kStages * extents) * pool.layout.extent_bytes();
  }

  Status Start() {
    ASSIGN_OR_RETURN(table_memory_, Buffer::Make(backend_.compute_memory(), TableBytes(pool_.options())));
    moves_.reserve(TableSize());
    return Ok();
  }

  // Takes memory for a sequence of up to so many rows.
  Status Open(SeqSlot slot, int64_t rows) {
    Slot& of = slots_[slot.index()];
    const size_t bytes = SlotBytes(pool_.options(), rows);
    if (of.memory.bytes() >= bytes) return Ok();
    Close(slot);
    ASSIGN_OR_RETURN(of.memory, Buffer::Make(backend_.compute_memory(), bytes));
    const int64_t extents = (rows + kExtentTokens - 1) / kExtentTokens;
    for (int64_t stage = 0; stage < kStages; ++stage)
      for (int64_t extent = 0; extent < extents; ++extent)
        tables_[TableIndex(stage, slot, extent)] =
            of.memory.data() + static_cast<size_t>(stage * extents + extent) * pool_.options().layout.extent_bytes();
    UploadTables();
    return Ok();
  }

  // Gives the memory back when all queues are done with it.
  void Close(SeqSlot slot) {
    Slot& of = slots_[slot.index()];
    if (of.memory.bytes() == 0) return;
    for (const Ticket& ticket : of.written) backend_.Wait(Queue::kCompute, ticket);
    for (const Ticket& ticket : fetched_) backend_.Wait(Queue::kCompute, ticket);
    of = {};
    for (int64_t stage = 0; stage < kStages; ++stage)
      for (int64_t extent = 0; extent < pool_.options().extents_per_slot(); ++extent)
        tables_[TableIndex(stage, slot, extent)] = nullptr;
  }

  bool is_open(SeqSlot slot) const { return slots_[slot.index()].memory.bytes() > 0; }

  // A layer's entries on its stage; `pool` are those in the pool.
  LayerEntries Staged(LayerId layer, const LayerEntries& pool) const {
    LayerEntries staged = pool;
    staged.extents =
        reinterpret_cast<std::byte* const*>(table_memory_.data()) + static_cast<size_t>(Stage(layer)) * TableSize();
    return staged;
  }

  // ---- a step ----

  // Everything enqueued for compute so far is pool before what follows is fetched.
  void BeginFetching() { backend_.Wait(Queue::kFetch, backend_.Record(Queue::kCompute)); }
  void Fetch(LayerId layer, std::span<const SlotRows> sequences, FetchClock* clock) {
    const size_t stage = static_cast<size_t>(Stage(layer));
    backend_.Wait(Queue::kFetch, free_[stage]);
    moves_.clear();
    for (const SlotRows& sequence : sequences) AddMoves(layer, sequence.slot, 0, sequence.rows, /*to_pool=*/false);
    backend_.Move(Queue::kFetch, moves_);
    backend_.NoteArrived(Queue::kFetch, clock);
    fetched_[stage] = backend_.Record(Queue::kFetch);
  }
  void AwaitFetched(LayerId layer, FetchClock* clock) {
    backend_.NoteReady(Queue::kCompute, clock);
    backend_.Wait(Queue::kCompute, fetched_[static_cast<size_t>(Stage(layer))]);
  }
  // Compute needs the layer no more, and the next may be fetched in its place.
  void Release(LayerId layer) { free_[static_cast<size_t>(Stage(layer))] = backend_.Record(Queue::kCompute); }

  // ---- a prefill ----

  // Before the first chunk of a layer: `rows` earlier rows are brought.
  void BeginLayer(LayerId layer, SeqSlot slot, int64_t rows) {
    const Ticket written = slots_[slot.index()].written[static_cast<size_t>(Stage(layer))];
    backend_.Wait(Queue::kCompute, written);
    if (rows == 0) return;
    backend_.Wait(Queue::kFetch, backend_.Record(Queue::kCompute));
    moves_.clear();
    AddMoves(layer, slot, 0, rows, /*to_pool=*/false);
    backend_.Move(Queue::kFetch, moves_);
    backend_.Wait(Queue::kCompute, backend_.Record(Queue::kFetch));
  }
  // After its last chunk: rows [first, rows) go pool.
  void EndLayer(LayerId layer, SeqSlot slot, int64_t first, int64_t rows) {
    backend_.Wait(Queue::kWriteout, backend_.Record(Queue::kCompute));
    moves_.clear();
    AddMoves(layer, slot, first, rows, /*to_pool=*/true);
    backend_.Move(Queue::kWriteout, moves_);
    written_out_ = slots_[slot.index()].written[static_cast<size_t>(Stage(layer))] = backend_.Record(Queue::kWriteout);
  }
  // What was written out is at pool before what compute does next.
  void AwaitWriteout() {
    backend_.Wait(Queue::kCompute, written_out_);
    written_out_ = {};
  }

 private:
  struct Slot {
    Buffer memory;                          // [stages][extents] of extent_bytes()
    std::array<Ticket, kStages> written{};  // the latest write-out from each stage
  };

  static int64_t Stage(LayerId layer) { return layer.value() % kStages; }
  size_t Sequences() const { return static_cast<size_t>(pool_.options().max_sequences); }
  size_t TableSize() const { return Sequences() * static_cast<size_t>(pool_.options().extents_per_slot()); }
  size_t TableIndex(int64_t stage, SeqSlot slot, int64_t extent) const {
    return static_cast<size_t>(stage) * TableSize() +
           static_cast<size_t>(slot.value() * pool_.options().extents_per_slot() + extent);
  }
  void UploadTables() {
    backend_.Upload(Queue::kCompute, tables_.data(), tables_.size() * sizeof(std::byte*), table_memory_.data());
  }

  // Rows [first, rows), from the beginning of first's extent on. Of an extent that is not full, only its rows.
  void AddMoves(LayerId layer, SeqSlot slot, int64_t first, int64_t rows, bool to_pool) {
    const EntryLayout& layout = pool_.options().layout;
    const int64_t quota = pool_.quotas(layer)[slot.index()];
    rows = std::min(rows, quota);  // a layer that evicts holds no more
    const std::span<std::byte* const> pool = pool_.Table(layer);
    for (int64_t extent = first / kExtentTokens; extent * kExtentTokens < rows; ++extent) {
      const int64_t holds = std::min(kExtentTokens, quota - extent * kExtentTokens);
      const int64_t filled = std::min(holds, rows - extent * kExtentTokens);
      std::byte* in_pool = pool[static_cast<size_t>(slot.value() * pool_.options().extents_per_slot() + extent)];
      std::byte* staged = tables_[TableIndex(Stage(layer), slot, extent)];
      ByteMove move{.from = to_pool ? staged : in_pool, .to = to_pool ? in_pool : staged};
      const auto bytes = [&](int64_t entries) { return static_cast<size_t>(entries) * layout.entry_bytes(); };
      if (filled == holds) {
        move.bytes = bytes(layout.kv_heads * holds);
      } else {
        move.bytes = bytes(filled);
        move.pieces = static_cast<size_t>(layout.kv_heads);
        move.stride = bytes(holds);
      }
      moves_.push_back(move);
    }
  }

  B& backend_;
  const Pool& pool_;
  std::vector<Slot> slots_;         // [max_sequences]
  std::vector<std::byte*> tables_;  // [stages][max_sequences][extents_per_slot]
  Buffer table_memory_;             // the same, for the device
  std::vector<ByteMove> moves_;
  std::array<Ticket, kStages> fetched_{}, free_{};
  Ticket written_out_;
};

}  // namespace infinigen
