// Executor: a model ready to run on some backend, for those who must not care which. The only virtual interface of the
// engine room: one call per prefill unit or decode step, so its cost vanishes. Called from the engine's thread only.
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

struct ExecutorOptions {
  Device device = Device::kCpu;
  int threads = 1;
  int64_t max_tokens = 0;  // context: rows a sequence may have
  int64_t max_batch = 1;   // sequences at once
  StoreType kv_type = StoreType::kF32;
  KvMethod method;
  uint64_t pool_limit_bytes = UINT64_MAX;
  // A prompt whose prefill takes no more memory than one of so many tokens may be read beside a longer one; 0: prompts
  // are read one at a time.
  int64_t side_tokens = 0;
  // Of a GPU.
  DType activation = DType::kF32;  // elsewhere always this
  bool pool_on_device = false;
  uint64_t device_memory_bytes = UINT64_MAX;  // at most
  uint64_t hot_limit_bytes = 0;               // of entries that stay on the device; planned into method.hot_rows
  double hot_selections = 0;                  // the same, as room for so many selections; 0: no such limit
  double weights_on_device = 1.0;             // share of the layers; the others' weights come over the link
  // The heads that weights and sketches hold and that the pool is for; none: all of the model's.
  std::optional<OwnedHeads> owned;

  // Of side_tokens, what is planned: where a sequence is alone, or none is longer, nobody is read beside anybody.
  int64_t planned_side_tokens() const { return max_batch > 1 && max_tokens > side_tokens ? side_tokens : 0; }
  // Everything is kept, and attended to, as it is.
  bool is_full() const { return method.select == SelectKind::kAll && !method.evicts() && !IsQuantised(kv_type); }
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
  uint64_t near_pool_bytes = 0;     // of pool_bytes, layers that are on the device though the pool is not
  uint64_t sampling_bytes = 0;      // of a GPU's host, beside the executor
  bool has_device = false;          // the parts lie in two memories
  bool pool_on_device = false;

  uint64_t total_bytes() const {
    return weights_bytes + workspace_bytes + sketch_bytes + prefill_bytes + pool_bytes + stage_bytes + hot_bytes +
           sampling_bytes;
  }
  uint64_t device_bytes() const {
    if (!has_device) return 0;
    return total_bytes() - sampling_bytes - host_weights_bytes - (pool_on_device ? 0 : pool_bytes - near_pool_bytes);
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

class Executor {
 public:
  virtual ~Executor() = default;

  virtual const ModelConfig& config() const = 0;
  virtual const ExecutorOptions& options() const = 0;
  virtual std::string device_name() const = 0;  // as its maker calls it: "AMD EPYC 9354"

  // A place for a sequence that will have at most `final_tokens` rows; kExhausted when there is none now.
  virtual Result<SeqSlot> Admit(int64_t final_tokens) = 0;

  // ---- sequences that grow, and share what they begin with: where the method keeps everything ----

  virtual bool can_grow() const { return false; }
  // A place with room for `rows` rows, rounded up to whole extents or the context; kExhausted when there is none now.
  // `prefix`: its first extents, which it only reads. Precondition: can_grow(); a prefix only where can_share().
  virtual Result<SeqSlot> AdmitGrowing(int64_t /*rows*/, std::span<const SharedId> /*prefix*/) { CHECK(false); }
  // More room, by the same rule; kExhausted, and all as before, when there is none now.
  virtual Status Grow(SeqSlot /*slot*/, int64_t /*rows*/) { CHECK(false); }
  // Rows that there is room for.
  virtual int64_t Quota(SeqSlot /*slot*/) const { CHECK(false); }
  // Whole extents, in all layers, that could be had now.
  virtual int64_t free_extents() const { CHECK(false); }

  virtual bool can_share() const { return false; }
  // Rows [256 · extent, 256 · (extent + 1)) of the sequence, which are complete, are never written again, and can begin
  // other sequences until they are dropped. kExhausted when there is no memory for their sketches.
  virtual Result<SharedId> Share(SeqSlot /*slot*/, int64_t /*extent*/) { CHECK(false); }
  // The sequence uses shared rows in place of its own, which are the same or not there yet.
  virtual void Adopt(SeqSlot /*slot*/, int64_t /*extent*/, SharedId /*id*/) { CHECK(false); }
  // Precondition: no sequence has them.
  virtual void DropShared(SharedId /*id*/) { CHECK(false); }
  // Of the entries of shared rows.
  virtual uint64_t shared_extent_bytes() const { return 0; }

  // The sequence selects by this rule from now on, not by the method's. Precondition: the method selects, and has room
  // for the rule's cap (KvMethod::LargestCap).
  virtual void SetRule(SeqSlot /*slot*/, const SelectRule& /*rule*/) {}
  // Gives everything of the sequence back; also ends a prefill that is under way.
  virtual void Release(SeqSlot slot) = 0;

  // The prompt's grid of units. After BeginPrefill, RunPrefillUnit until it says true; then PrefillLogits for any of
  // the prompt's tokens; EndPrefill frees the grid's memory, and may also give up a prefill that is under way.
  // Prefills of different sequences may be under way at once, their units in any order.
  // `first_row`: the sequence has that many rows already, which stay; rows from there on are written anew.
  virtual Status BeginPrefill(SeqSlot slot, int64_t first_row, std::span<const int32_t> tokens,
                              PrefillKind kind = PrefillKind::kDense) = 0;
  virtual int64_t PrefillUnits(SeqSlot slot) const = 0;
  virtual bool RunPrefillUnit(SeqSlot slot) = 0;
  virtual void PrefillLogits(SeqSlot slot, int64_t first, int64_t count, std::span<float> logits) = 0;
  virtual void EndPrefill(SeqSlot slot) = 0;
  // Compute memory that a dense prefill of `count` tokens has while it is under way.
  virtual uint64_t PrefillBytes(int64_t first_row, int64_t count) const = 0;

  // One token for each item, which must all be of different sequences; logits [items][vocab].
  virtual void Step(std::span<const StepItem> items, std::span<float> logits) = 0;

  // For calibration; an empty observer: nobody.
  virtual void ObservePrefill(PrefillObserver observer) = 0;
  // For pictures of what a step looks at: of the sequence in `slot`, or of all. Costs a copy of every selection, and on
  // a GPU the step its graph. An empty observer: nobody.
  virtual void ObserveSelection(SelectionObserver observer, std::optional<SeqSlot> slot = std::nullopt) = 0;
  // For benchmarks: rows [0, rows) get random entries, as if a prompt had been prefilled.
  virtual void FillSynthetic(SeqSlot slot, int64_t rows, uint64_t seed) = 0;

  // Of all decode steps so far. Not while a step runs.
  virtual KvStats Stats() = 0;
  // Of the tokens that went as steps through sequences with this place: what came between two calls is a sequence's
  // own. Layers are added up; mass and waiting are not told apart.
  virtual KvStats SlotStats(SeqSlot /*slot*/) { return {}; }

  virtual uint64_t pool_bytes() const = 0;
  virtual uint64_t pool_peak_bytes() const = 0;
  virtual DeviceUse device_use() const { return {}; }
  // Waits until the memory of everything admitted is ready. Nobody has to; measurements that leave it out do.
  virtual void AwaitPool() {}
  // For measurements: steps leave out fetching, or most computing, where the backend can; false where it cannot.
  virtual bool Skip(bool /*fetch*/, bool /*compute*/) { return false; }
  // Milliseconds by kind of work since the last call, where the backend can tell; times from now on, or not.
  virtual std::vector<ZoneTime> TakeZones(bool /*on*/) { return {}; }
};

MemoryPlan PlanMemory(const ModelConfig& config, const ExecutorOptions& options, uint64_t weights_bytes);

// `config` and `weights` outlive the executor. `sketches`: needed by methods that select by sketch.
Result<std::unique_ptr<Executor>> MakeExecutor(const ModelConfig& config, const Weights& weights,
                                               const ExecutorOptions& options, SketchSource sketches = {});

}  // namespace infinigen
