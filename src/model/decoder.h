// The forward pass, written once over the backend concept (backend/backend.h).
//
// Two ways through the layers, one arithmetic:
//
//   Prefill: a prompt is a grid of units (layer, chunk of B::kChunkTokens tokens), walked layer by layer. The residual
//            stream of the whole prompt stays in compute memory between units, so a unit is resumable work: the engine
//            runs one, does something else, runs the next. After the last unit any token's logits can be asked for.
//   Step:    one token for each of up to max_batch sequences of any lengths.
//
// The decoder puts operations in order; it decides nothing about which entries exist (kv/pool.h) and moves no bytes
// itself. Called from the engine's thread only. A step takes no memory but the extents that its sequences grow into,
// and those before its first operation.
#pragma once

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "kv/pool.h"
#include "model/config.h"
#include "model/weights.h"
#include "model/workspace.h"

namespace infinigen {

// One sequence's part in a decode step: `token` becomes row `row` of the sequence.
struct StepItem {
  SeqSlot slot;
  int32_t token = 0;
  int64_t row = 0;
};

// A prompt on its way through the grid. Made by Decoder::BeginPrefill.
struct PrefillJob {
  SeqSlot slot;
  int64_t first_row = 0;  // of tokens[0]
  std::vector<int32_t> tokens;
  Buffer residual_memory;
  Tensor residual;  // [tokens][hidden]
  int64_t next_layer = 0;
  int64_t next_token = 0;  // first token of the next unit's chunk
};

template <Backend B>
class Decoder {
 public:
  // `backend`, `weights` and `pool` outlive the decoder.
  static Result<std::unique_ptr<Decoder>> Make(B& backend, const ModelConfig& config, const Weights& weights,
                                               Pool& pool, int64_t max_batch) {
    std::unique_ptr<Decoder> decoder(new Decoder(backend, config, pool, max_batch));
    RETURN_IF_ERROR(decoder->PlaceWeights(weights));
    RETURN_IF_ERROR(decoder->AllocateWorkspace());
    return decoder;
  }

  // `tokens` become rows first_row, first_row + 1, ... of the sequence; the rows before exist. Entries for every token
  // are taken from the pool here, so no unit can fail. Precondition: slot admitted for as many rows.
  Result<PrefillJob> BeginPrefill(SeqSlot slot, int64_t first_row, std::span<const int32_t> tokens) {
    CHECK(!tokens.empty() && first_row >= 0);
    const int64_t count = static_cast<int64_t>(tokens.size());
    PrefillJob job{.slot = slot, .first_row = first_row, .tokens = {tokens.begin(), tokens.end()}};
    const size_t bytes = tokens.size() * static_cast<size_t>(config_.hidden) * SizeOf(B::kActivation);
    ASSIGN_OR_RETURN(job.residual_memory, Buffer::Make(backend_.compute_memory(), bytes));
    job.residual = {job.residual_memory.data(), B::kActivation, count, config_.hidden, config_.hidden};
    RETURN_IF_ERROR(pool_.Grow(slot, first_row + count));
    return job;
  }

  int64_t PrefillUnits(const PrefillJob& job) const {
    return config_.layers * ((static_cast<int64_t>(job.tokens.size()) + B::kChunkTokens - 1) / B::kChunkTokens);
  }

  // Runs the next unit; true when it was the last one.
  bool RunPrefillUnit(PrefillJob& job) {
    CHECK(job.next_layer < config_.layers);
    const int64_t count = std::min<int64_t>(B::kChunkTokens, static_cast<int64_t>(job.tokens.size()) - job.next_token);
    const TokenRun run{.slot = job.slot, .first_row = job.first_row + job.next_token, .count = count};
    for (int64_t i = 0; i < count; ++i)
      SetToken(i, job.tokens[static_cast<size_t>(job.next_token + i)], job.slot, run.first_row + i);
    const TokenBatch batch = UploadBatch(count);
    const Tensor x = job.residual.Rows(job.next_token, count);
    if (job.next_layer == 0) Embed(batch, x);
    RunLayer(LayerId(job.next_layer), batch, x,
             [&](const LayerEntries& entries, const Tensor& queries, const Tensor& out) {
               backend_.AttendPrefill(Queue::kCompute, queries, run, attention_, entries, out);
             });
    job.next_token += count;
    if (job.next_token == static_cast<int64_t>(job.tokens.size())) {
      job.next_token = 0;
      ++job.next_layer;
    }
    return job.next_layer == config_.layers;
  }

  // Logits after tokens [first, first + count) of a finished prefill, to the host: logits [count][vocab]. The residual
  // stream stays as it is, so any tokens may be asked for, in any order.
  void PrefillLogits(const PrefillJob& job, int64_t first, int64_t count, std::span<float> logits) {
    CHECK(job.next_layer == config_.layers && logits.size() == static_cast<size_t>(count * config_.vocab));
    for (int64_t done = 0; done < count;) {
      const int64_t part = std::min(count - done, work_.logits.rows);
      DownloadLogits(job.residual.Rows(first + done, part), logits.subspan(static_cast<size_t>(done * config_.vocab)));
      done += part;
    }
  }

  // One token for each item, logits [items][vocab] to the host. Fails only when the machine has no memory for a new
  // extent.
  Status Step(std::span<const StepItem> items, std::span<float> logits) {
    const int64_t count = static_cast<int64_t>(items.size());
    CHECK(count > 0 && count <= max_batch_ && logits.size() == static_cast<size_t>(count * config_.vocab));
    int64_t max_rows = 0;
    for (int64_t i = 0; i < count; ++i) {
      const StepItem& item = items[static_cast<size_t>(i)];
      RETURN_IF_ERROR(pool_.Grow(item.slot, item.row + 1));
      SetToken(i, item.token, item.slot, item.row);
      max_rows = std::max(max_rows, item.row + 1);
    }
    const TokenBatch batch = UploadBatch(count);
    const Tensor x = work_.step_residual.Rows(0, count);
    Embed(batch, x);
    for (LayerId layer : IdRange<LayerId>(config_.layers)) {
      RunLayer(layer, batch, x, [&](const LayerEntries& entries, const Tensor& queries, const Tensor& out) {
        backend_.AttendDecode(Queue::kCompute, queries, batch, max_rows, attention_, entries, out);
      });
    }
    DownloadLogits(x, logits);
    return Ok();
  }

  static size_t WorkspaceBytes(const ModelConfig& config, const PoolOptions& pool, int64_t max_batch) {
    return Workspace::Bytes(config, pool, max_batch, B::kChunkTokens, B::kActivation);
  }

 private:
  Decoder(B& backend, const ModelConfig& config, Pool& pool, int64_t max_batch)
      : backend_(backend),
        config_(config),
        pool_(pool),
        max_batch_(max_batch),
        attention_{.heads = config.heads, .scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim))} {}

  // ---- one layer ----

  template <class Attend>
  void RunLayer(LayerId layer, const TokenBatch& batch, const Tensor& x, Attend&& attend) {
    const LayerWeights& w = weights_.layers[layer.index()];
    const Queue queue = Queue::kCompute;
    const int64_t m = batch.count;

    const Tensor q = work_.q.Rows(0, m), k = work_.k.Rows(0, m), v = work_.v.Rows(0, m), mixed = work_.mixed.Rows(0, m);
    const Tensor attention_in = config_.pre_norm ? Norm(w.attention_norm, x, work_.normed.Rows(0, m)) : x;
    MatMul(attention_in, {To(w.q, q), To(w.k, k), To(w.v, v)});
    if (config_.positions == PositionKind::kRope) {
      backend_.Rope(queue, work_.rope.Rows(0, m), q);
      backend_.Rope(queue, work_.rope.Rows(0, m), k);
    }
    const LayerEntries entries = EntriesOf(layer);
    backend_.Append(queue, batch, k, v, entries);
    attend(entries, q, mixed);
    MatMul(mixed, {To(w.o, x, Epilogue::kAdd)});
    if (!config_.pre_norm) Norm(w.attention_norm, x, x);

    const Tensor up = work_.up.Rows(0, m);
    const Tensor mlp_in = config_.pre_norm ? Norm(w.mlp_norm, x, work_.normed.Rows(0, m)) : x;
    if (config_.mlp == MlpKind::kGatedSilu) {
      const Tensor gate = work_.gate.Rows(0, m);
      MatMul(mlp_in, {To(w.gate, gate), To(w.up, up)});
      backend_.SiluMul(queue, gate, up);
      MatMul(gate, {To(w.down, x, Epilogue::kAdd)});
    } else {
      MatMul(mlp_in, {To(w.up, up, Epilogue::kRelu)});
      MatMul(up, {To(w.down, x, Epilogue::kAdd)});
    }
    if (!config_.pre_norm) Norm(w.mlp_norm, x, x);
  }

  // ---- before the first and after the last layer ----

  // x = embeddings of the batch; leaves the batch's rotation table in the workspace.
  void Embed(const TokenBatch& batch, const Tensor& x) {
    const Queue queue = Queue::kCompute;
    if (config_.has_projections()) {
      const Tensor narrow = work_.narrow.Rows(0, batch.count);
      backend_.Embed(queue, batch, weights_.embedding, narrow);
      MatMul(narrow, {To(weights_.project_in, x)});
    } else {
      backend_.Embed(queue, batch, weights_.embedding, x);
    }
    if (config_.positions == PositionKind::kLearned)
      backend_.AddPositions(queue, batch, weights_.positions, config_.position_offset, x);
  }

  // Precondition: x.rows ≤ work_.logits.rows. The one point where the host waits.
  void DownloadLogits(const Tensor& x, std::span<float> logits) {
    const int64_t m = x.rows;
    Tensor h = config_.final_norm ? Norm(weights_.final_norm, x, work_.normed.Rows(0, m)) : x;
    if (config_.has_projections()) {
      const Tensor narrow = work_.narrow.Rows(0, m);
      MatMul(h, {To(weights_.project_out, narrow)});
      h = narrow;
    }
    const Tensor out = work_.logits.Rows(0, m);
    MatMul(h, {To(weights_.lm_head, out)});
    const size_t bytes = static_cast<size_t>(m * config_.vocab) * sizeof(float);
    backend_.Synchronize(backend_.Download(Queue::kCompute, out.data, bytes, logits.data()));
  }

  // ---- small parts ----

  Tensor Norm(const NormWeights& w, const Tensor& x, const Tensor& out) {
    if (config_.norm == NormKind::kRms)
      backend_.RmsNorm(Queue::kCompute, x, w.weight, config_.norm_eps, out);
    else
      backend_.LayerNorm(Queue::kCompute, x, w.weight, w.bias, config_.norm_eps, out);
    return out;
  }

  static Projection To(const Linear& linear, const Tensor& out, Epilogue epilogue = Epilogue::kStore) {
    return {.weight = linear.weight, .bias = linear.bias, .out = out, .epilogue = epilogue};
  }
  void MatMul(const Tensor& x, std::initializer_list<Projection> projections) {
    backend_.MatMul(Queue::kCompute, x, {projections.begin(), projections.size()});
  }

  void SetToken(int64_t i, int32_t id, SeqSlot slot, int64_t row) {
    host_ids_[static_cast<size_t>(i)] = id;
    host_slots_[static_cast<size_t>(i)] = slot.value();
    host_rows_[static_cast<size_t>(i)] = static_cast<int32_t>(row);
  }

  // Brings tokens set by SetToken, and the extent tables where they changed, to the compute device.
  TokenBatch UploadBatch(int64_t count) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(int32_t);
    backend_.Upload(Queue::kCompute, host_ids_.data(), bytes, work_.ids);
    backend_.Upload(Queue::kCompute, host_slots_.data(), bytes, work_.slots);
    backend_.Upload(Queue::kCompute, host_rows_.data(), bytes, work_.rows);
    if (tables_seen_ != pool_.table_version()) {
      for (LayerId layer : IdRange<LayerId>(config_.layers)) {
        const std::span<std::byte* const> table = pool_.Table(layer);
        backend_.Upload(Queue::kCompute, table.data(), table.size_bytes(), work_.tables + layer.index() * table.size());
      }
      tables_seen_ = pool_.table_version();
    }
    const TokenBatch batch{.count = count, .ids = work_.ids, .slots = work_.slots, .rows = work_.rows};
    if (config_.positions == PositionKind::kRope)
      backend_.RopeTable(Queue::kCompute, batch, work_.frequencies, work_.rope.Rows(0, count));
    return batch;
  }

  LayerEntries EntriesOf(LayerId layer) const {
    const PoolOptions& pool = pool_.options();
    return {.layout = pool.layout,
            .extents = work_.tables + layer.value() * pool.max_sequences * pool_.extents_per_slot(),
            .extents_per_slot = pool_.extents_per_slot()};
  }

  // ---- set-up ----

  Status Place(ConstTensor& tensor) {
    if (!tensor) return Ok();
    ASSIGN_OR_RETURN(tensor, backend_.Place(tensor));
    return Ok();
  }
  Status Place(Linear& linear) {
    RETURN_IF_ERROR(Place(linear.weight));
    return Place(linear.bias);
  }
  Status Place(NormWeights& norm) {
    RETURN_IF_ERROR(Place(norm.weight));
    return Place(norm.bias);
  }

  Status PlaceWeights(const Weights& host) {
    weights_.embedding = host.embedding;
    weights_.positions = host.positions;
    weights_.project_in = host.project_in;
    weights_.project_out = host.project_out;
    weights_.layers = host.layers;
    weights_.final_norm = host.final_norm;
    weights_.lm_head = host.lm_head;
    for (ConstTensor* tensor : {&weights_.embedding, &weights_.positions}) RETURN_IF_ERROR(Place(*tensor));
    for (LayerWeights& layer : weights_.layers) {
      for (NormWeights* norm : {&layer.attention_norm, &layer.mlp_norm}) RETURN_IF_ERROR(Place(*norm));
      for (Linear* linear : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down})
        RETURN_IF_ERROR(Place(*linear));
    }
    RETURN_IF_ERROR(Place(weights_.final_norm));
    for (Linear* linear : {&weights_.project_in, &weights_.project_out}) RETURN_IF_ERROR(Place(*linear));
    if (config_.tied_embeddings) {
      weights_.lm_head = {.weight = weights_.embedding, .bias = {}};
      return Ok();
    }
    return Place(weights_.lm_head);
  }

  Status AllocateWorkspace() {
    ASSIGN_OR_RETURN(workspace_memory_,
                     Buffer::Make(backend_.compute_memory(), WorkspaceBytes(config_, pool_.options(), max_batch_)));
    work_ = Workspace::Carve(workspace_memory_.data(), config_, pool_.options(), max_batch_, B::kChunkTokens,
                             B::kActivation);
    if (config_.positions == PositionKind::kRope) {
      const std::vector<float> frequencies = RopeInverseFrequencies(config_.rope, config_.head_dim);
      backend_.Upload(Queue::kCompute, frequencies.data(), frequencies.size() * sizeof(float), work_.frequencies.data);
    }
    const size_t tokens = static_cast<size_t>(std::max<int64_t>(max_batch_, B::kChunkTokens));
    host_ids_.resize(tokens);
    host_slots_.resize(tokens);
    host_rows_.resize(tokens);
    return Ok();
  }

  B& backend_;
  const ModelConfig& config_;
  Pool& pool_;
  const int64_t max_batch_;
  const AttentionShape attention_;

  Weights weights_;  // views where the backend reads them; its storage is empty
  Buffer workspace_memory_;
  Workspace work_;

  std::vector<int32_t> host_ids_, host_slots_, host_rows_;  // [max(max_batch, chunk)]
  uint64_t tables_seen_ = 0;
};

}  // namespace infinigen
