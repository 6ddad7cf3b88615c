// Executor: a model ready to run on a backend, behind a virtual interface. A virtual call does a whole prefill unit or
// decode step, so its cost is negligible. One object has three interfaces: Executor runs sequences, Sharing lets them
// grow and share prefixes, Instruments measures. Called from the engine's thread only.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kv/method.h"
#include "kv/stats.h"
#include "kv/view.h"
#include "model/config.h"
#include "model/weights.h"
#include "tensor/view.h"

namespace infinigen {

enum class Device { kCpu, kReference, kCuda };

// Everything that an executor needs beside the model. Final values, computed by the planner (runtime/plan.h) or chosen
// by a test; constant while the executor lives.
struct ExecutorOptions {
  Device device = Device::kCpu;
  int threads = 1;
  int64_t max_tokens = 0;  // context: the longest sequence, in tokens
  int64_t max_batch = 1;   // sequences at once
  StoreType kv_type = StoreType::kF32;
  KvMethod method;
  uint64_t pool_limit_bytes = UINT64_MAX;
  // A prompt may be prefilled alternately with a longer one if its prefill needs no more memory than one of side_tokens
  // tokens. 0: prompts are never interleaved.
  int64_t side_tokens = 0;

  // For a GPU.
  DType activation = DType::kF32;  // other devices use f32
  bool pool_on_device = false;
  uint64_t device_memory_bytes = UINT64_MAX;  // limit
  double weights_on_device = 1.0;             // share of the layers; weights of the others are streamed over the link
  int64_t hot_rows = 0;                       // hot-set cells of each (sequence, layer, KV head); 0: no hot set
  double forced_hits = 0;  // for benchmarks without a hot set: this share of a selection counts as hits

  // For tests on a CPU: memory of rows that are not written yet, or no longer used, is NaN (kPoison). So a computation
  // that reads a row of an earlier sequence shows.
  bool poisons = false;

  // The heads that weights, sketches and pool contain; none: all heads of the model.
  std::optional<OwnedHeads> owned;

  // side_tokens, or 0 where interleaving cannot occur: with one sequence, or if no prompt is longer than side_tokens.
  int64_t planned_side_tokens() const { return max_batch > 1 && max_tokens > side_tokens ? side_tokens : 0; }
  // Everything is retained, attended to, and stored unquantised.
  bool is_full() const { return !method.selects() && !method.evicts() && !IsQuantised(kv_type); }
};

// Memory that a run needs, computed before anything is allocated. On a GPU, everything lies in device memory except the
// pool (unless pool_on_device) and the parts said to be on the host.
struct MemoryPlan {
  uint64_t weights_bytes = 0;    // mapped from the files, or allocated for random weights
  uint64_t workspace_bytes = 0;  // activations, tables, logits; on a GPU also scratch memory and libraries
  uint64_t sketch_bytes = 0;
  // Prefill of a prompt of max_tokens, and of a short one interleaved with it: the residual stream, and for an evicting
  // method one layer's cache.
  uint64_t prefill_bytes = 0;
  uint64_t pool_bytes = 0;  // max_batch sequences of max_tokens
  uint64_t pool_bytes_per_token = 0;
  uint64_t stage_bytes = 0;         // stages of a remote pool and of streamed weights
  uint64_t hot_bytes = 0;           // hot set
  uint64_t host_weights_bytes = 0;  // part of weights_bytes that stays in host memory
  uint64_t device_pool_bytes = 0;   // part of a remote pool's pool_bytes: layers whose entries are on the device
  uint64_t sampling_bytes = 0;      // host memory that the engine uses for sampling
  uint64_t driver_bytes = 0;        // host memory of a GPU's driver and libraries
  bool has_device = false;          // host and device memory are separate
  bool pool_on_device = false;

  uint64_t total_bytes() const {
    return weights_bytes + workspace_bytes + sketch_bytes + prefill_bytes + pool_bytes + stage_bytes + hot_bytes +
           sampling_bytes + driver_bytes;
  }
  uint64_t device_bytes() const {
    if (!has_device) return 0;
    return total_bytes() - sampling_bytes - driver_bytes - host_weights_bytes -
           (pool_on_device ? 0 : pool_bytes - device_pool_bytes);
  }
  // Weights that were copied to a GPU do not count: the mapped file pages can be dropped.
  uint64_t host_bytes() const { return total_bytes() - device_bytes(); }
};

// Time that one kind of work took on its queue.
struct ZoneTime {
  std::string_view name;
  double ms = 0;
};

// Memory statistics of a GPU.
struct DeviceUse {
  uint64_t peak_bytes = 0;
  double pinning_s = 0;  // time spent pinning host memory, in the background
};

// One sequence in a decode step: `token` is appended as row `row`.
struct StepItem {
  SeqSlot slot;
  int32_t token = 0;
  int64_t row = 0;
};

enum class PrefillKind : uint8_t {
  kDense,  // every token attends to all tokens before it
  kSteps,  // every token attends as in a decode step, with bit-identical results: teacher forcing in bulk
};

// What one prefill unit computed in a layer, before attention; f32, host memory. Queries and keys are rotated.
struct PrefillRows {
  int64_t first_row = 0;
  ConstTensor queries;       // [count][heads·head_dim]
  ConstTensor keys, values;  // [count][kv_heads·head_dim]
};
using PrefillObserver = std::function<void(LayerId layer, const PrefillRows& rows)>;

// Receives the rows, ascending, that one KV head of a sequence attends to in a decode step. Called for every layer that
// selects; `rows` is valid until the call returns.
using SelectionObserver = std::function<void(LayerId layer, SeqSlot slot, KvHead head, std::span<const int32_t> rows)>;

// Sequences whose quota can grow and that can share prefixes. Only for methods that do not evict.
class Sharing {
 public:
  virtual ~Sharing() = default;

  // A slot with room for `rows` rows, rounded up to whole extents but at most the context; kExhausted when there is no
  // room now. `prefix`: shared extents that the sequence begins with and only reads; requires can_share().
  virtual Result<SeqSlot> AdmitGrowing(int64_t rows, std::span<const SharedId> prefix) = 0;
  // Raises the quota to `rows`, rounded in the same way; on kExhausted nothing changes.
  virtual Status Grow(SeqSlot slot, int64_t rows) = 0;
  // Rows that a slot has room for.
  virtual int64_t Quota(SeqSlot slot) const = 0;
  // Number of extents, each in all layers, that could be allocated now.
  virtual int64_t free_extents() const = 0;

  virtual bool can_share() const = 0;
  // Shares rows [256 · extent, 256 · (extent + 1)) of the sequence, which must be complete: they become read-only, and
  // other sequences can begin with them until they are dropped. kExhausted when there is no memory for their index.
  virtual Result<SharedId> Share(SeqSlot slot, int64_t extent) = 0;
  // Replaces an extent of the sequence, which has the same content or is unwritten, by a shared one.
  virtual void Adopt(SeqSlot slot, int64_t extent, SharedId id) = 0;
  // Frees a shared extent. Precondition: no sequence uses it.
  virtual void DropShared(SharedId id) = 0;
  // Bytes of one shared extent: its entries, and its index.
  virtual uint64_t shared_extent_bytes() const = 0;
  virtual uint64_t shared_index_bytes() const = 0;
};

// Statistics, observers, and operations for benchmarks.
class Instruments {
 public:
  virtual ~Instruments() = default;

  // Name of the processor: "AMD EPYC 9354".
  virtual std::string device_name() const = 0;
  // Counts of all decode steps so far.
  virtual KvStats Stats() = 0;
  // Counts of all sequences that had this slot so far; take the difference of two calls for one sequence. Layers are
  // added up (KvStats::AddUpLayers); mass and stalls are not counted per slot.
  virtual KvStats SlotStats(SeqSlot slot) = 0;
  virtual uint64_t pool_bytes() const = 0;
  virtual uint64_t pool_peak_bytes() const = 0;
  virtual DeviceUse device_use() const = 0;

  // For calibration. An empty observer ends the observation, here and below.
  virtual void ObservePrefill(PrefillObserver observer) = 0;
  // For visualisation. Observes the sequence in `slot`, or all. Copies every selection to the host, and on a GPU runs
  // steps without a graph.
  virtual void ObserveSelection(SelectionObserver observer, std::optional<SeqSlot> slot = std::nullopt) = 0;

  // For evaluations that keep predictions: the hidden states [count][hidden] after the last layer, for tokens [first,
  // first + count) of a finished prefill, and the logits [count][vocab] of such states. The logits are those of
  // PrefillLogits; a hidden state is far smaller (576 numbers beside 49,152).
  virtual Status PrefillHidden(SeqSlot, int64_t /*first*/, int64_t /*count*/, std::span<float> /*hidden*/) {
    return Unsupported("this executor does not give its hidden states");
  }
  virtual Status LogitsOfHidden(std::span<const float> /*hidden*/, std::span<float> /*logits*/) {
    return Unsupported("this executor does not take hidden states");
  }

  // For benchmarks: fills rows [0, rows) with random entries, as if a prompt had been prefilled.
  virtual void FillSynthetic(SeqSlot slot, int64_t rows, uint64_t seed) = 0;
  // Waits until the memory of every admitted sequence is pinned, so that a measurement does not include that time.
  virtual void AwaitPool() = 0;
  // Makes steps skip fetching, or most computing; false where the backend does not support it.
  virtual bool Skip(bool fetch, bool compute) = 0;
  // Time by kind of work since the last call; empty where the backend does not measure it. `on`: continue to measure.
  virtual std::vector<ZoneTime> TakeZones(bool on) = 0;
};

class Executor {
 public:
  virtual ~Executor() = default;

  virtual const ModelConfig& config() const = 0;
  virtual const ExecutorOptions& options() const = 0;
  // Null where the method evicts: sequences are then admitted with their final number of rows.
  virtual Sharing* sharing() = 0;
  virtual Instruments& instruments() = 0;

  // A slot for a sequence of at most `final_tokens` tokens; kExhausted when there is no room now.
  virtual Result<SeqSlot> Admit(int64_t final_tokens) = 0;
  // Replaces the method's selection rule for this sequence. Precondition: the method selects, and rule.cap ≤
  // method.LargestCap().
  virtual void SetRule(SeqSlot slot, const SelectRule& rule) = 0;
  // Frees the slot and all memory of the sequence; aborts its prefill if one is in progress.
  virtual void Release(SeqSlot slot) = 0;
  // Frees all slots, prefills and shared extents. For use after an exception: a call above or below may have been left
  // anywhere.
  virtual void Reset() = 0;

  // Prefill: BeginPrefill, then RunPrefillUnit until it returns true, then PrefillLogits for any of the prompt's
  // tokens. EndPrefill frees the memory of the prefill; before the last unit it aborts it. Prefills of different
  // sequences may be in progress at once, with their units in any order. `first_row`: rows before it exist and stay;
  // `tokens` are written from there on.
  virtual Status BeginPrefill(SeqSlot slot, int64_t first_row, std::span<const int32_t> tokens,
                              PrefillKind kind = PrefillKind::kDense) = 0;
  virtual int64_t PrefillUnits(SeqSlot slot) const = 0;
  virtual bool RunPrefillUnit(SeqSlot slot) = 0;
  virtual void PrefillLogits(SeqSlot slot, int64_t first, int64_t count, std::span<float> logits) = 0;
  virtual void EndPrefill(SeqSlot slot) = 0;
  // The smallest row > 0 at which the sequence can continue with other tokens; 0: any. Layers with a window have
  // overwritten the rows that earlier tokens would attend to.
  virtual int64_t FirstRestart(SeqSlot) const { return 0; }
  // Compute memory that a dense prefill of `count` tokens after `first_row` rows uses.
  virtual uint64_t PrefillBytes(int64_t first_row, int64_t count) const = 0;

  // One token for each item; logits [items][vocab]. Precondition: the items are of different sequences.
  virtual void Step(std::span<const StepItem> items, std::span<float> logits) = 0;
  // Where numbers that are not finite come from, if the logits after this token have some: a tensor of the model's
  // file, or a layer. Slow; runs the token again, so its sequence must end afterwards. Empty: not known.
  virtual std::string ExplainBreak(const StepItem&) { return {}; }
};

// Where the bases of sketches come from.
struct SketchSource {
  std::vector<SketchMatrices> bases;  // [layers]; unused for layers without sketches
  std::vector<TailMatrices> tails;    // [layers]; for methods with a tail

  // For methods whose prompts choose their own columns. rotation: the matrix A, [kv_heads][head_dim][head_dim]. choose:
  // the basis of the columns with the largest sums Σ|qA| + Σ|kA| [kv_heads][head_dim] over the prompt.
  std::function<std::vector<float>(LayerId)> rotation;
  std::function<SketchMatrices(LayerId, std::span<const double> sums)> choose;
};

MemoryPlan PlanMemory(const ModelConfig& config, const ExecutorOptions& options, uint64_t weights_bytes);

// `config` and `weights` outlive the executor. `sketches` is needed only by methods that select by sketch.
Result<std::unique_ptr<Executor>> MakeExecutor(const ModelConfig& config, const Weights& weights,
                                               const ExecutorOptions& options, SketchSource sketches = {});

}  // namespace infinigen
