// LayerStage: device memory for whole layers of a remote pool.
//
// A GPU reaches entries in pinned host memory over a link. An operation that reads all rows of a layer would be slow
// over the link, so the copy engines move the layer in bulk while another layer computes. There are two stages, which
// the layers of the pool use in turn. Layers with a window lie on the device and use none.
//
//     prefill of layer i   chunks are appended to the stage and read there; then the layer is written out to the pool
//                          while layer i + 1 computes on the other stage
//     step of layer i      the layer is fetched while layer i - 1 computes; new entries are appended both to the pool
//                          and to the stage
//
// While a sequence is open it has memory on both stages, divided into extents as in the pool, so that an extent is one
// copy. Called by CacheAttention only, and only where the pool is remote.
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

  // Both arguments outlive the object.
  LayerStage(B& backend, const Pool& pool) : backend_(backend), pool_(pool), slots_(Sequences()) {
    tables_.resize(static_cast<size_t>(kStages) * TableSize(), nullptr);
    int64_t staged = 0;
    for (int64_t layer = 0; layer < pool.options().layers; ++layer) {
      stage_of_.push_back(staged % kStages);
      if (!pool.options().on_device(layer)) ++staged;
    }
  }

  static size_t TableBytes(const PoolOptions& pool) {
    return static_cast<size_t>(kStages * pool.max_sequences * pool.extents_per_slot()) * sizeof(std::byte*);
  }
  // Bytes on both stages for one sequence of `rows` rows.
  static size_t SlotBytes(const PoolOptions& pool, int64_t rows) {
    const int64_t extents = (rows + kExtentTokens - 1) / kExtentTokens;
    return static_cast<size_t>(kStages * extents) * pool.layout.extent_bytes();
  }

  Status Start() {
    ASSIGN_OR_RETURN(table_memory_, Buffer::Make(backend_.compute_memory(), TableBytes(pool_.options())));
    moves_.reserve(TableSize());
    return Ok();
  }

  // Allocates memory for a sequence of up to `rows` rows.
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

  // Frees the memory once all queues have finished with it.
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

  // The layer's entries on its stage. `pool`: the same entries in the pool.
  LayerEntries Staged(LayerId layer, const LayerEntries& pool) const {
    LayerEntries staged = pool;
    staged.extents =
        reinterpret_cast<std::byte* const*>(table_memory_.data()) + static_cast<size_t>(Stage(layer)) * TableSize();
    return staged;
  }

  // ---- a step ----

  // Fetches after this call see everything that the compute queue has written so far.
  void BeginFetching() { backend_.Wait(Queue::kFetch, backend_.Record(Queue::kCompute)); }
  // Starts to copy a layer of all sequences to its stage, once the stage is free.
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
  // The compute queue has enqueued its last use of the layer; the stage is free after that.
  void Release(LayerId layer) { free_[static_cast<size_t>(Stage(layer))] = backend_.Record(Queue::kCompute); }

  // ---- a prefill ----

  // Before a layer's first chunk: copies the `rows` rows that the sequence has already.
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
  // After a layer's last chunk: starts to write rows [first, rows) to the pool.
  void EndLayer(LayerId layer, SeqSlot slot, int64_t first, int64_t rows) {
    backend_.Wait(Queue::kWriteout, backend_.Record(Queue::kCompute));
    moves_.clear();
    AddMoves(layer, slot, first, rows, /*to_pool=*/true);
    backend_.Move(Queue::kWriteout, moves_);
    written_out_ = slots_[slot.index()].written[static_cast<size_t>(Stage(layer))] = backend_.Record(Queue::kWriteout);
  }
  // Makes the compute queue wait until all write-outs are in the pool.
  void AwaitWriteout() {
    backend_.Wait(Queue::kCompute, written_out_);
    written_out_ = {};
  }

 private:
  struct Slot {
    Buffer memory;                          // [stages][extents] of extent_bytes()
    std::array<Ticket, kStages> written{};  // the latest write-out from each stage
  };

  int64_t Stage(LayerId layer) const { return stage_of_[layer.index()]; }
  size_t Sequences() const { return static_cast<size_t>(pool_.options().max_sequences); }
  size_t TableSize() const { return Sequences() * static_cast<size_t>(pool_.options().extents_per_slot()); }
  size_t TableIndex(int64_t stage, SeqSlot slot, int64_t extent) const {
    return static_cast<size_t>(stage) * TableSize() +
           static_cast<size_t>(slot.value() * pool_.options().extents_per_slot() + extent);
  }
  void UploadTables() {
    backend_.Upload(Queue::kCompute, tables_.data(), tables_.size() * sizeof(std::byte*), table_memory_.data());
  }

  // Adds the copies of rows [first, rows), rounded down to the beginning of first's extent. An extent that is not full
  // is copied head by head, without its unused rows.
  void AddMoves(LayerId layer, SeqSlot slot, int64_t first, int64_t rows, bool to_pool) {
    const EntryLayout& layout = pool_.options().layout;
    const int64_t quota = pool_.quotas(layer)[slot.index()];
    rows = std::min(rows, quota);  // in a layer that evicts
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
  std::vector<int64_t> stage_of_;   // [layers]; unused for layers on the device
  std::vector<std::byte*> tables_;  // [stages][max_sequences][extents_per_slot]
  Buffer table_memory_;             // copy of tables_ on the device
  std::vector<ByteMove> moves_;
  std::array<Ticket, kStages> fetched_{};  // the latest fetch to each stage
  std::array<Ticket, kStages> free_{};     // the latest use of each stage by the compute queue
  Ticket written_out_;                     // the latest write-out
};

}  // namespace infinigen
