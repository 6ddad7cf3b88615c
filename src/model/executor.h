// Executor: a model ready to run on some backend, behind a virtual interface that hides which. One call per prefill
// unit or decode step, so the cost of a virtual call vanishes. Three interfaces to one object: Executor runs sequences,
// Sharing lets them grow and share their beginnings, Instruments measures. Called from the engine's thread only.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kv/ids.h"
#include "kv/method.h"
#include "kv/stats.h"
#include "kv/view.h"
#include "model/config.h"
#include "model/sketch_source.h"
#include "model/weights.h"
#include "tensor/view.h"

namespace infinigen {

enum class Device { kCpu, kReference, kCuda };

// Everything that an executor is made from, beside the model: final numbers, which the planner computed
// (runtime/plan.h) or a test chose. Nothing changes them later.
struct ExecutorOptions {
  Device device = Device::kCpu;
  int threads = 1;
  int64_t max_tokens = 0;  // context: rows of the longest sequence
  int64_t max_batch = 1;   // sequences at once
  StoreType kv_type = StoreType::kF32;
  KvMethod method;
  uint64_t pool_limit_bytes = UINT64_MAX;
  // A prompt whose prefill takes no more memory than one of this many tokens may be prefilled beside a longer one; 0:
  // prompts are never interleaved.
  int64_t side_tokens = 0;

  // On a GPU.
  DType activation = DType::kF32;  // f32 on other devices
  bool pool_on_device = false;
  uint64_t device_memory_bytes = UINT64_MAX;  // at most
  double weights_on_device = 1.0;             // share of the layers; weights of the others are streamed over the link
  int64_t hot_rows = 0;                       // hot-set slots of each (sequence, layer, KV head); 0: no hot set
  double forced_hits = 0;  // for benchmarks without a hot set: this share of a selection counts as hits

  // The heads that weights and sketches hold and that the pool is for; none: all of the model's.
  std::optional<OwnedHeads> owned;

  // side_tokens where interleaving is possible at all: with several sequences, some longer than that.
  int64_t planned_side_tokens() const { return max_batch > 1 && max_tokens > side_tokens ? side_tokens : 0; }
  // Everything is retained, attended to, and stored unquantised.
  bool is_full() const { return !method.selects() && !method.evicts() && !IsQuantised(kv_type); }
};

// What a run needs, stated before anything is allocated. On a GPU everything but the pool and what is said to be on the
// host lies in its own memory.
struct MemoryPlan {
  uint64_t weights_bytes = 0;    // mapped from the files, or allocated for random weights
  uint64_t workspace_bytes = 0;  // activations, tables, logits; on a GPU also scratch and what libraries take
  uint64_t sketch_bytes = 0;
  // Of a prompt of max_tokens, and of one beside it where that is planned: residual stream, and one layer's cache where
  // it evicts.
  uint64_t prefill_bytes = 0;
  uint64_t pool_bytes = 0;  // max_batch sequences of max_tokens
  uint64_t pool_bytes_per_token = 0;
  uint64_t stage_bytes = 0;         // layers of a remote pool on the device
  uint64_t hot_bytes = 0;           // entries kept on the device
  uint64_t host_weights_bytes = 0;  // of weights_bytes, those that stay on the host of a GPU
  uint64_t device_pool_bytes = 0;   // of pool_bytes, layers that are on the device though the pool is not
  uint64_t sampling_bytes = 0;      // of a GPU's host, beside the executor
  bool has_device = false;          // the parts lie in two memories
  bool pool_on_device = false;

  uint64_t total_bytes() const {
    return weights_bytes + workspace_bytes + sketch_bytes + prefill_bytes + pool_bytes + stage_bytes + hot_bytes +
           sampling_bytes;
  }
  uint64_t device_bytes() const {
    if (!has_device) return 0;
    return total_bytes() - sampling_bytes - host_weights_bytes - (pool_on_device ? 0 : pool_bytes - device_pool_bytes);
  }
  // Weights on a GPU are not needed in host memory; what was read from a file can be dropped.
  uint64_t host_bytes() const { return total_bytes() - device_bytes(); }
};

// Time of a kind of work on one queue.
struct ZoneTime {
  std::string_view name;
  double ms = 0;
};

// A GPU's memory, as it was used.
struct DeviceUse {
  uint64_t peak_bytes = 0;
  double pinning_s = 0;  // of host memory, in the background
};

// One sequence's part in a decode step: `token` becomes row `row` of the sequence.
struct StepItem {
  SeqSlot slot;
  int32_t token = 0;
  int64_t row = 0;
};

enum class PrefillKind : uint8_t {
  kDense,  // every token attends to all before it
  kSteps,  // every token attends as in a decode step, with the same result: teacher forcing in bulk
};

// Queries [count][heads·head_dim] and keys [count][kv_heads·head_dim] of one prefill unit, rotated; f32, host memory.
using PrefillObserver =
    std::function<void(LayerId layer, int64_t first_row, const ConstTensor& queries, const ConstTensor& keys)>;

// Rows, ascending, that one KV head of a sequence attends to in a decode step; called once per layer that selects, with
// host memory that lives until the call returns.
using SelectionObserver = std::function<void(LayerId layer, SeqSlot slot, KvHead head, std::span<const int32_t> rows)>;

// Sequences that grow, and that share the extents they begin with. Only of executors whose method retains everything.
class Sharing {
 public:
  virtual ~Sharing() = default;

  // A slot with room for `rows` rows, rounded up to whole extents or the context; kExhausted when there is none now.
  // `prefix`: its first extents, which it only reads; they need can_share().
  virtual Result<SeqSlot> AdmitGrowing(int64_t rows, std::span<const SharedId> prefix) = 0;
  // More room, by the same rule; kExhausted, and everything as before, when there is none now.
  virtual Status Grow(SeqSlot slot, int64_t rows) = 0;
  // Rows that a slot has room for.
  virtual int64_t Quota(SeqSlot slot) const = 0;
  // Whole extents, in all layers, that could be had now.
  virtual int64_t free_extents() const = 0;

  virtual bool can_share() const = 0;
  // Rows [256 · extent, 256 · (extent + 1)) of the sequence, which are complete, are never written again and can begin
  // other sequences until they are dropped. kExhausted when there is no memory for their index.
  virtual Result<SharedId> Share(SeqSlot slot, int64_t extent) = 0;
  // The sequence uses shared rows in place of its own, which are the same or not written yet.
  virtual void Adopt(SeqSlot slot, int64_t extent, SharedId id) = 0;
  // Precondition: no sequence uses them.
  virtual void DropShared(SharedId id) = 0;
  // Entries of one shared extent, and what the index adds to it.
  virtual uint64_t shared_extent_bytes() const = 0;
  virtual uint64_t shared_index_bytes() const = 0;
};

// What an executor did, and looks inside while it works: statistics, observers, and tools of benchmarks.
class Instruments {
 public:
  virtual ~Instruments() = default;

  // The device's own name: "AMD EPYC 9354".
  virtual std::string device_name() const = 0;
  // All decode steps so far. Not while a step runs.
  virtual KvStats Stats() = 0;
  // Steps of the sequences that had this slot: the difference of two calls is a sequence's own. Layers are added up;
  // mass and waiting time are not counted per slot.
  virtual KvStats SlotStats(SeqSlot slot) = 0;
  virtual uint64_t pool_bytes() const = 0;
  virtual uint64_t pool_peak_bytes() const = 0;
  virtual DeviceUse device_use() const = 0;

  // For calibration. An empty observer ends it, here and below.
  virtual void ObservePrefill(PrefillObserver observer) = 0;
  // For pictures of a step: the sequence in `slot`, or all. Costs a copy of every selection, and on a GPU the step's
  // graph.
  virtual void ObserveSelection(SelectionObserver observer, std::optional<SeqSlot> slot = std::nullopt) = 0;

  // For benchmarks. Rows [0, rows) get random entries, as if a prompt had been prefilled.
  virtual void FillSynthetic(SeqSlot slot, int64_t rows, uint64_t seed) = 0;
  // Waits until the memory of every admitted sequence is ready, so that a measurement can leave that time out.
  virtual void AwaitPool() = 0;
  // Steps leave out fetching, or most computing; false where the backend cannot.
  virtual bool Skip(bool fetch, bool compute) = 0;
  // Milliseconds by kind of work since the last call; empty where the backend cannot tell. `on`: keep timing.
  virtual std::vector<ZoneTime> TakeZones(bool on) = 0;
};

class Executor {
 public:
  virtual ~Executor() = default;

  virtual const ModelConfig& config() const = 0;
  virtual const ExecutorOptions& options() const = 0;
  // Null where the method evicts: then a sequence is admitted with all rows it will ever have.
  virtual Sharing* sharing() = 0;
  virtual Instruments& instruments() = 0;

  // A slot for a sequence that will have at most `final_tokens` rows; kExhausted when there is none now.
  virtual Result<SeqSlot> Admit(int64_t final_tokens) = 0;
  // The sequence selects by this rule from now on, instead of the method's. Precondition: the method selects, and
  // rule.cap ≤ method.LargestCap().
  virtual void SetRule(SeqSlot slot, const SelectRule& rule) = 0;
  // Gives back everything that the sequence has; also ends a prefill that is under way.
  virtual void Release(SeqSlot slot) = 0;

  // The prompt's grid of units: BeginPrefill, then RunPrefillUnit until it returns true, then PrefillLogits for any of
  // the prompt's tokens; EndPrefill frees the grid's memory, and may also give up a prefill that is under way.
  // Prefills of different sequences may be under way at once, their units in any order.
  // `first_row`: rows that the sequence has already, which stay; rows from there on are written anew.
  virtual Status BeginPrefill(SeqSlot slot, int64_t first_row, std::span<const int32_t> tokens,
                              PrefillKind kind = PrefillKind::kDense) = 0;
  virtual int64_t PrefillUnits(SeqSlot slot) const = 0;
  virtual bool RunPrefillUnit(SeqSlot slot) = 0;
  virtual void PrefillLogits(SeqSlot slot, int64_t first, int64_t count, std::span<float> logits) = 0;
  virtual void EndPrefill(SeqSlot slot) = 0;
  // Compute memory that a dense prefill of `count` tokens holds while it is under way.
  virtual uint64_t PrefillBytes(int64_t first_row, int64_t count) const = 0;

  // One token for each item, which must all be of different sequences; logits [items][vocab].
  virtual void Step(std::span<const StepItem> items, std::span<float> logits) = 0;
};

MemoryPlan PlanMemory(const ModelConfig& config, const ExecutorOptions& options, uint64_t weights_bytes);

// `config` and `weights` outlive the executor. `sketches`: needed by methods that select by sketch.
Result<std::unique_ptr<Executor>> MakeExecutor(const ModelConfig& config, const Weights& weights,
                                               const ExecutorOptions& options, SketchSource sketches = {});

}  // namespace infinigen
