#include "model/workspace.h"

#include <algorithm>

namespace infinigen {
namespace {

// Rows of logits computed at once for a prompt: enough to amortise reading the output matrix; 16 MiB at a vocabulary of
// 128K.
constexpr int64_t kLogitRows = 32;

// Hands out consecutive parts of a block, 64-byte aligned; without a block it only adds up their sizes.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}

  std::byte* Take(size_t bytes) {
    std::byte* part = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (bytes + 63) / 64 * 64;
    return part;
  }
  Tensor Matrix(DType type, int64_t rows, int64_t cols) {
    return {Take(static_cast<size_t>(rows * cols) * SizeOf(type)), type, rows, cols, cols};
  }
  template <class T>
  T* Array(int64_t count) {
    return reinterpret_cast<T*>(Take(static_cast<size_t>(count) * sizeof(T)));
  }
  size_t used() const { return used_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
};

void WalkSelection(Carver& carver, const WorkspaceShape& shape, Workspace& w) {
  const ModelConfig& config = shape.config;
  const KvMethod& method = shape.method;
  const int64_t sequences = shape.pool.max_sequences, query_width = shape.query_width();
  if (method.guesses_from_layer()) w.step_guess = carver.Matrix(shape.guess_type(), shape.max_batch, config.hidden);
  if (method.from != GuessSource::kSelf) w.guess_q = carver.Matrix(shape.activation, shape.tokens(), query_width);
  if (method.from == GuessSource::kPrevStep)
    w.last_q = carver.Matrix(shape.activation, config.layers * sequences, query_width);
  const int64_t tokens = shape.select_tokens();
  if (method.select->uses_basis)
    w.sketch_q = carver.Matrix(DType::kF32, tokens, shape.owned.heads * method.sketch.dims);
  const int64_t heads = shape.owned.kv_heads, lists = tokens * heads, capacity = shape.pool.max_tokens;
  const auto selection = [&]() -> Selection {
    return {.rows = carver.Array<int32_t>(lists * capacity),
            .counts = carver.Array<int32_t>(lists),
            .capacity = capacity,
            .kv_heads = heads};
  };
  const auto fetch_list = [&]() -> FetchList {
    const int64_t fetched = shape.max_batch * heads;  // only steps fetch
    return {.cells = carver.Array<int32_t>(fetched * capacity),
            .misses = carver.Array<int32_t>(fetched * capacity),
            .miss_counts = carver.Array<int32_t>(fetched),
            .own = carver.Array<int32_t>(fetched),
            .capacity = capacity,
            .kv_heads = heads};
  };
  for (size_t i = 0; i < static_cast<size_t>(shape.selections()); ++i) {
    w.selection[i] = selection();
    if (shape.fetches) w.fetch_lists[i] = fetch_list();
  }
  if (method.has_late()) {
    w.late = {.all = selection(),
              .items = carver.Array<int32_t>(lists * shape.late_rows()),
              .counts = carver.Array<int32_t>(lists),
              .capacity = shape.late_rows()};
    if (shape.fetches) w.late_list = fetch_list();
  }
  if (shape.fetches) w.fetch_totals = carver.Array<FetchTotals>(config.layers * sequences);
  w.rules = carver.Array<SelectRule>(sequences);
  w.totals = carver.Array<SelectionTotals>(config.layers * sequences);
  if (method.measure_mass) w.mass = carver.Array<MassTotals>(config.layers);
  const int64_t bases = shape.index().layers * (method.prompt_columns ? sequences : 1);
  if (method.select->uses_basis)
    w.basis = carver.Array<float>(bases * heads * (2 * config.head_dim + 1) * method.sketch.dims);
  if (!method.has_tail()) return;
  const int64_t values = method.sketch.value_dims;
  w.tail_basis = carver.Array<float>(shape.index().layers * heads * (config.head_dim * (values + 2) + values));
  w.tail_levels = carver.Array<float>(tokens * shape.owned.heads);
  w.tail_sums = carver.Array<float>(tokens * shape.owned.heads * (2 + values + method.sketch.mean_dims));
  w.tail_mass = carver.Array<MassTotals>(config.layers);
}

void WalkRetained(Carver& carver, const WorkspaceShape& shape, Workspace& w) {
  const int64_t sequences = shape.pool.max_sequences, heads = shape.owned.kv_heads;
  w.retained_rows = carver.Array<int32_t>(shape.tokens());
  w.retained_quotas = carver.Array<int32_t>(sequences);
  w.own_rows = carver.Array<int32_t>(shape.tokens() * heads);
  w.zeros = carver.Array<int32_t>(shape.tokens());
  w.uncounted = carver.Array<SelectionTotals>(1);
  const int64_t eviction = shape.pool.evicting_layers() * sequences * heads * shape.retained_rows();
  w.eviction = {.positions = carver.Array<int32_t>(eviction),
                .priorities = carver.Array<float>(eviction),
                .capacity = shape.retained_rows(),
                .kv_heads = heads,
                .quotas = w.retained_quotas};
}

PromptCache WalkPromptCache(Carver& carver, const WorkspaceShape& shape, int64_t tokens) {
  const EntryLayout& layout = shape.pool.layout;
  const int64_t heads = shape.owned.kv_heads, extents = (tokens + kExtentTokens - 1) / kExtentTokens;
  PromptCache prompt;
  prompt.quota = carver.Array<int32_t>(1);
  prompt.extents = carver.Array<std::byte*>(extents);
  std::byte* entries = carver.Take(static_cast<size_t>(tokens) * layout.row_bytes());
  prompt.cache.entries = {
      .layout = layout, .extents = prompt.extents, .extents_per_slot = extents, .quotas = prompt.quota};
  prompt.entries = entries;
  if (shape.method.has_index()) {
    const size_t head_bytes = shape.sketch_layout().head_bytes(tokens);
    prompt.cache.sketches = {.layout = shape.sketch_layout(),
                             .data = carver.Take(static_cast<size_t>(heads) * head_bytes),
                             .head_stride = head_bytes,
                             .slot_stride = static_cast<size_t>(heads) * head_bytes};
  }
  prompt.cache.retained = {.positions = carver.Array<int32_t>(heads * tokens),
                           .priorities = carver.Array<float>(heads * tokens),
                           .capacity = tokens,
                           .kv_heads = heads,
                           .quotas = prompt.quota};
  return prompt;
}

Workspace Walk(Carver& carver, const WorkspaceShape& shape) {
  const ModelConfig& config = shape.config;
  const int64_t tokens = shape.tokens(), sequences = shape.pool.max_sequences;
  const int64_t query_width = shape.query_width(), key_width = shape.key_width();
  const auto ropes = static_cast<int64_t>(config.ropes.size());
  const DType activation = shape.activation;
  Workspace w;
  w.step_residual = carver.Matrix(DType::kF32, shape.max_batch, config.hidden);
  w.normed = carver.Matrix(activation, tokens, config.hidden);
  if (config.has_projections()) w.narrow = carver.Matrix(activation, tokens, config.embed_dim);
  if (config.norms_outputs()) w.branch = carver.Matrix(DType::kF32, tokens, config.hidden);
  w.q = carver.Matrix(activation, tokens, query_width);
  w.k = carver.Matrix(activation, tokens, key_width);
  w.v = carver.Matrix(activation, tokens, key_width);
  w.mixed = carver.Matrix(activation, tokens, query_width);
  if (shape.pool.layout.turned()) {
    w.turned_q = carver.Matrix(activation, tokens, query_width);
    w.turned_k = carver.Matrix(activation, tokens, key_width);
    w.turned_v = carver.Matrix(activation, tokens, key_width);
    if (shape.method.select == &kSelectOracle) w.turned_select = carver.Matrix(activation, tokens, query_width);
  }
  if (config.has_gate()) w.gate = carver.Matrix(activation, tokens, config.ffn);
  w.up = carver.Matrix(activation, tokens, config.ffn);
  if (ropes > 0) w.rope = carver.Matrix(DType::kF32, ropes * tokens, config.head_dim);
  if (ropes > 0) w.frequencies = carver.Matrix(DType::kF32, ropes, config.head_dim / 2);
  w.logits = carver.Matrix(DType::kF32, std::max(shape.max_batch, kLogitRows), config.vocab);
  w.ids = carver.Array<int32_t>(tokens);
  w.slots = carver.Array<int32_t>(tokens);
  w.rows = carver.Array<int32_t>(tokens);
  w.tables = carver.Array<std::byte*>(config.layers * sequences * shape.pool.extents_per_slot());
  w.quotas = carver.Array<int32_t>(sequences);
  if (config.window() > 0) w.window_quotas = carver.Array<int32_t>(sequences);
  if (shape.remote) w.clocks = carver.Array<FetchClock>(config.layers);
  if (shape.method.selects()) WalkSelection(carver, shape, w);
  if (shape.method.evicts()) WalkRetained(carver, shape, w);
  return w;
}

}  // namespace

size_t Workspace::Bytes(const WorkspaceShape& shape) {
  Carver carver(nullptr);
  Walk(carver, shape);
  return carver.used();
}

Workspace Workspace::Carve(std::byte* base, const WorkspaceShape& shape) {
  Carver carver(base);
  return Walk(carver, shape);
}

size_t PromptCache::Bytes(const WorkspaceShape& shape, int64_t tokens) {
  Carver carver(nullptr);
  WalkPromptCache(carver, shape, tokens);
  return carver.used();
}

PromptCache PromptCache::Carve(std::byte* base, const WorkspaceShape& shape, int64_t tokens) {
  Carver carver(base);
  return WalkPromptCache(carver, shape, tokens);
}

}  // namespace infinigen
