// What choosing rows costs a decode step: sketches of queries, scores and choice, and the sketch of the new key, at the
// shapes of OPT-13B and Llama-3.1-8B. Several layers follow each other in a graph, as in a step, so that sketches come
// from memory and not from the cache of the layer before. Beside it the floor: the bytes of sketches, at the speed of a
// plain copy. With value sketches, a second table: what a tail and late rows cost, in microseconds of a layer.
//     levels     levels of the queries
//     own        Select with a tail, by the layer's own query: one scoring for both
//     tails      SumTails after a guess: scores again, by the layer's own query
//     16, 64     SumTails with as many late rows
//     cells      AssignLate with 16 late rows, in a hot set that holds few of them
//     value      the sketch of the new value
//     scores     of which, by difference: the scoring; its floor are the bytes of key sketches, read once
//     sums       the tail from the scores; its floor are the bytes of scores and value sketches, read once
//     choice     rows chosen from the scores
//     late       16 late rows chosen from the scores and merged
// Takes some seconds.
//   build: part of the `cuda_select` target; run: build/release/cuda_select
#include <cuda_bf16.h>

#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>
#include <string>

#include "cuda_bench.cuh"
#include "kv/index_view.h"

namespace infinigen {
namespace {

constexpr int64_t kDim = 128;
constexpr int64_t kLayers = 8;

struct Setting {
  const char* name;
  int64_t heads, kv_heads, batch, rows;
  SelectRule rule;
  SketchLayout layout{SketchType::kInt8, kv_heads, 40};

  size_t head_bytes() const { return layout.head_bytes(rows + kSketchBlock); }
  size_t layer_bytes() const { return static_cast<size_t>(batch * kv_heads) * head_bytes(); }
  double sketch_bytes() const {
    return static_cast<double>(batch * kv_heads) * static_cast<double>(layout.head_bytes(rows));
  }
  // Of key sketches alone.
  double key_bytes() const {
    return sketch_bytes() * static_cast<double>(layout.values_offset()) / static_cast<double>(layout.block_bytes());
  }
  double score_bytes() const { return static_cast<double>(batch * heads * rows) * sizeof(float); }
  // Of a hot set with room for three selections.
  int64_t cells() const { return std::min<int64_t>(rows, 3 * rows / 20 + 256); }
};

// Normal numbers, repeated: a block of sketches for all, whose rows have different scores.
std::vector<std::byte> Sketches(const Setting& s) {
  const size_t period = 997 * s.layout.block_bytes();
  std::vector<std::byte> bytes(period);
  std::mt19937 random(3);
  std::normal_distribution<float> normal(128, 30);
  const size_t block = s.layout.block_bytes();
  const auto is_scale = [&](size_t at) {
    return (at >= s.layout.scales_offset() && at < s.layout.values_offset()) ||
           (at >= s.layout.value_scales_offset() && at < s.layout.means_offset()) || at >= s.layout.mean_scale_offset();
  };
  for (size_t i = 0; i < period; ++i) {
    if (!is_scale(i % block)) {
      bytes[i] = static_cast<std::byte>(std::clamp(normal(random), 1.0f, 255.0f));
    } else if (i % 2 == 0) {  // bf16 of 1/32 to 1/16
      const uint32_t bits = 0x3d00u + random() % 128;
      bytes[i] = static_cast<std::byte>(bits & 255u);
      bytes[i + 1] = static_cast<std::byte>(bits >> 8);
    }
  }
  return bytes;
}

class Step {
 public:
  Step(CudaBackend& backend, const Setting& s)
      : backend_(backend),
        setting_(s),
        sketches_(backend, s.layer_bytes() * kLayers),
        queries_(backend, Normal(s.batch * s.heads * kDim, 1.0f)),
        keys_(backend, Normal(s.batch * s.kv_heads * kDim, 1.0f)),
        basis_(backend, Floats(s.kv_heads * kDim * s.layout.dims, 0.1f)),
        offset_(backend, Floats(s.kv_heads * s.layout.dims, 0.1f)),
        value_basis_(backend, Floats(s.kv_heads * kDim * kMostValueDims, 0.1f)),
        levels_(backend, static_cast<size_t>(s.batch * s.heads)),
        sums_(backend, static_cast<size_t>(s.batch * s.heads * (2 + kMostValueDims + kDim))),
        query_sketches_(backend, static_cast<size_t>(s.batch * s.heads * s.layout.dims)),
        slots_(backend, Ascending(s.batch)),
        rows_(backend, std::vector<int32_t>(static_cast<size_t>(s.batch), static_cast<int32_t>(s.rows - 1))),
        lists_(backend, static_cast<size_t>(s.batch * s.kv_heads * s.rows)),
        counts_(backend, static_cast<size_t>(s.batch * s.kv_heads)),
        all_(backend, static_cast<size_t>(s.batch * s.kv_heads * s.rows)),
        all_counts_(backend, static_cast<size_t>(s.batch * s.kv_heads)),
        items_(backend, static_cast<size_t>(s.batch * s.kv_heads * kMostLate)),
        late_counts_(backend, static_cast<size_t>(s.batch * s.kv_heads)),
        // Cells, misses, counts and own cells of two fetch lists; holds, used and cell_of of a hot set.
        fetch_(backend, static_cast<size_t>(s.batch * s.kv_heads) * static_cast<size_t>(4 * s.rows + 4)),
        hot_(backend, std::vector<int32_t>(static_cast<size_t>(s.batch * s.kv_heads * (2 * s.cells() + s.rows)), -1)),
        fetched_(backend, std::vector<FetchTotals>(static_cast<size_t>(s.batch))),
        rules_(backend, std::vector<SelectRule>(static_cast<size_t>(s.batch), s.rule)),
        totals_(backend, std::vector<SelectionTotals>(static_cast<size_t>(s.batch))) {
    const std::vector<std::byte> some = Sketches(s);
    for (size_t at = 0; at < s.layer_bytes() * kLayers; at += some.size())
      CUDA_CHECK(cudaMemcpy(sketches_.get() + at, some.data(), std::min(some.size(), s.layer_bytes() * kLayers - at),
                            cudaMemcpyHostToDevice));
  }

  void SketchQueries() {
    backend_.SketchQueries(Queue::kCompute, Matrix(queries_.get(), setting_.heads * kDim), batch(),
                           {setting_.heads, 0.0883883f}, basis(), query_sketches());
  }
  void Select(int64_t layer, bool with_tail = false) {
    SelectCall call = Call();
    if (with_tail) call.tail = tail();
    backend_.Select(Queue::kCompute, query_sketches(), batch(), call, sketches(layer), selection());
  }
  void Append(int64_t layer) {
    backend_.AppendSketches(Queue::kCompute, batch(), Matrix(keys_.get(), setting_.kv_heads * kDim), basis(),
                            sketches(layer));
  }
  void Levels() {
    backend_.QueryLevels(Queue::kCompute, Matrix(queries_.get(), setting_.heads * kDim), batch(),
                         {setting_.heads, 0.0883883f}, tail());
  }
  // Of the selection that Select has made.
  void SumTails(int64_t layer, bool with_late = false) {
    SelectCall call = Call();
    call.tail = tail();
    if (with_late) call.late = late();
    backend_.SumTails(Queue::kCompute, query_sketches(), batch(), call, sketches(layer), selection());
  }
  // Sets the number of late rows.
  void SetLate(int32_t rows) {
    SelectRule rule = setting_.rule;
    rule.late = rows;
    const std::vector<SelectRule> rules(static_cast<size_t>(setting_.batch), rule);
    CUDA_CHECK(cudaMemcpy(rules_.get(), rules.data(), rules.size() * sizeof(SelectRule), cudaMemcpyHostToDevice));
  }
  // One hot set for all layers, so that most late rows are misses.
  void AssignCells() {
    backend_.AssignCells(Queue::kCompute, batch(), selection(), buffer(), 0, fetch_list(0), fetched_.get());
  }
  void AssignLate() {
    backend_.AssignLate(Queue::kCompute, batch(), late(), buffer(), fetch_list(0), fetch_list(1), fetched_.get());
  }
  void AppendValues(int64_t layer) {
    backend_.AppendValueSketches(Queue::kCompute, batch(), Matrix(keys_.get(), setting_.kv_heads * kDim), tail().basis,
                                 sketches(layer));
  }
  double Attended() const {
    std::vector<int32_t> counts(static_cast<size_t>(setting_.batch * setting_.kv_heads));
    CUDA_CHECK(cudaMemcpy(counts.data(), counts_.get(), counts.size() * 4, cudaMemcpyDeviceToHost));
    return std::accumulate(counts.begin(), counts.end(), 0.0) / static_cast<double>(counts.size());
  }

  static constexpr int64_t kMostLate = 64;

 private:
  SelectCall Call() const {
    return {.rules = rules_.get(), .totals = totals_.get(), .max_rows = Rounded(), .by_mass = setting_.rule.mass > 0};
  }
  Selection selection() const { return {lists_.get(), counts_.get(), setting_.rows, setting_.kv_heads}; }
  LateSelection late() const {
    return {.all = {all_.get(), all_counts_.get(), setting_.rows, setting_.kv_heads},
            .items = items_.get(),
            .counts = late_counts_.get(),
            .capacity = kMostLate};
  }
  FetchList fetch_list(int64_t which) const {
    const int64_t lists = setting_.batch * setting_.kv_heads;
    int32_t* cells = fetch_.get() + which * lists * (2 * setting_.rows + 2);
    int32_t* misses = cells + lists * setting_.rows;
    return {cells,         misses,           misses + lists * setting_.rows, misses + lists * (setting_.rows + 1),
            setting_.rows, setting_.kv_heads};
  }
  FetchBuffer buffer() const {
    const int64_t cells = setting_.batch * setting_.kv_heads * setting_.cells();
    return {.layout = {StoreType::kBF16, setting_.kv_heads, kDim},
            .capacity = setting_.cells(),
            .holds = hot_.get(),
            .used = hot_.get() + cells,
            .cell_of = hot_.get() + 2 * cells,
            .rows = setting_.rows};
  }
  static std::vector<float> Floats(int64_t count, float scale) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal(0, scale);
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = normal(random);
    return values;
  }
  static std::vector<__nv_bfloat16> Normal(int64_t count, float scale) {
    std::vector<__nv_bfloat16> values;
    for (const float value : Floats(count, scale)) values.push_back(__float2bfloat16_rn(value));
    return values;
  }
  static std::vector<int32_t> Ascending(int64_t count) {
    std::vector<int32_t> values(static_cast<size_t>(count));
    std::iota(values.begin(), values.end(), 0);
    return values;
  }
  // As in a step's graph.
  int64_t Rounded() const {
    int64_t rows = 256;
    while (rows < setting_.rows) rows *= 2;
    return rows;
  }
  Tensor Matrix(__nv_bfloat16* data, int64_t cols) const {
    return {reinterpret_cast<std::byte*>(data), DType::kBF16, setting_.batch, cols, cols};
  }
  Tensor query_sketches() const {
    const int64_t cols = setting_.heads * setting_.layout.dims;
    return {reinterpret_cast<std::byte*>(query_sketches_.get()), DType::kF32, setting_.batch, cols, cols};
  }
  TokenBatch batch() const { return {.count = setting_.batch, .slots = slots_.get(), .rows = rows_.get()}; }
  SketchBasis basis() const {
    return {setting_.kv_heads, kDim, setting_.layout.dims, basis_.get(), basis_.get(), offset_.get()};
  }
  TailView tail() const {
    const float* some = value_basis_.get();
    return {.basis = {setting_.kv_heads, kDim, setting_.layout.value_dims, some, some, some, some},
            .heads = setting_.heads,
            .levels = levels_.get(),
            .sums = sums_.get(),
            .mean_dims = setting_.layout.mean_dims};
  }
  LayerSketches sketches(int64_t layer) const {
    const size_t head = setting_.head_bytes();
    return {setting_.layout, sketches_.get() + static_cast<size_t>(layer) * setting_.layer_bytes(), head,
            head * static_cast<size_t>(setting_.kv_heads)};
  }

  CudaBackend& backend_;
  Setting setting_;
  Device<std::byte> sketches_;
  Device<__nv_bfloat16> queries_, keys_;
  Device<float> basis_, offset_, value_basis_, levels_, sums_, query_sketches_;
  Device<int32_t> slots_, rows_, lists_, counts_, all_, all_counts_, items_, late_counts_, fetch_, hot_;
  Device<FetchTotals> fetched_;
  Device<SelectRule> rules_;
  Device<SelectionTotals> totals_;
};

// Microseconds of one layer's call, as part of a graph of all layers.
double LayerTime(CudaBackend& backend, const std::function<void(int64_t)>& call) {
  static uint64_t key = 0;
  ++key;
  const auto all = [&] {
    for (int64_t layer = 0; layer < kLayers; ++layer) call(layer);
  };
  all();  // scratch grows, which would drop a graph
  CHECK(!backend.BeginGraph(key));
  CHECK(backend.BeginGraph(key));
  all();
  CHECK(backend.EndGraph());
  return Time(
             backend, [&] { CHECK(backend.LaunchGraph(key)); }, 1e-3) /
         kLayers * 1e6;
}

void Run(CudaBackend& backend, const Setting& s) {
  Step step(backend, s);
  const double queries = LayerTime(backend, [&](int64_t) { step.SketchQueries(); });
  const double select = LayerTime(backend, [&](int64_t layer) { step.Select(layer); });
  const double append = LayerTime(backend, [&](int64_t layer) { step.Append(layer); });
  const double all = LayerTime(backend, [&](int64_t layer) {
    step.SketchQueries();
    step.Select(layer);
    step.Append(layer);
  });
  // A copy reads and writes.
  const Device<std::byte> copies(backend, s.layer_bytes() * 2);
  const ByteMove move{copies.get(), copies.get() + s.layer_bytes(), s.layer_bytes()};
  const double copied = LayerTime(backend, [&](int64_t) { backend.Move(Queue::kCompute, {&move, 1}); });
  std::printf("%-32s %8.0f %9.1f %8.1f %8.1f %8.1f %9.1f %7.1f\n", s.name, step.Attended(), queries, select, append,
              all, s.sketch_bytes() * 1e-6, copied / 2);
  std::fflush(stdout);
}

void RunTail(CudaBackend& backend, const Setting& s) {
  Step step(backend, s);
  step.SketchQueries();
  const double levels = LayerTime(backend, [&](int64_t) { step.Levels(); });
  const double own = LayerTime(backend, [&](int64_t layer) { step.Select(layer, true); });
  const double select = LayerTime(backend, [&](int64_t layer) { step.Select(layer); });
  const double tails = LayerTime(backend, [&](int64_t layer) { step.SumTails(layer); });
  const auto with_late = [&](int32_t rows) {
    step.SetLate(rows);
    return LayerTime(backend, [&](int64_t layer) { step.SumTails(layer, true); });
  };
  const double late64 = with_late(64), late16 = with_late(16);
  const auto whole = [&](bool assigns) {
    return LayerTime(backend, [&](int64_t layer) {
      step.Select(layer);
      step.SumTails(layer, true);
      step.AssignCells();
      if (assigns) step.AssignLate();
    });
  };
  const double before = whole(false), cells = whole(true) - before;
  const double values = LayerTime(backend, [&](int64_t layer) { step.AppendValues(layer); });
  const Device<std::byte> copies(backend, s.layer_bytes() * 2);
  const ByteMove move{copies.get(), copies.get() + s.layer_bytes(), s.layer_bytes()};
  const double byte_us = LayerTime(backend,
                                   [&](int64_t) {
                                     backend.Move(Queue::kCompute, {&move, 1});
                                   }) /
                         2 / static_cast<double>(s.layer_bytes());
  const double sums = own - select, scores = tails - sums, value_bytes = s.sketch_bytes() - s.key_bytes();
  std::printf("%-32s %7.1f %7.1f %7.1f %7.1f %7.1f %7.1f %7.1f | %7.1f (%5.1f) %7.1f (%5.1f) %7.1f %7.1f\n", s.name,
              levels, own, tails, late16, late64, cells, values, scores, s.key_bytes() * byte_us, sums,
              (value_bytes + s.score_bytes()) * byte_us, select - scores, late16 - tails);
  std::fflush(stdout);
}

int Main() {
  if (const Result<GpuInfo> device = FindCudaDevice(); !device.ok()) {
    std::fprintf(stderr, "%s\n", device.error().message.c_str());
    return 1;
  }
  const std::unique_ptr<CudaBackend> opened =
      CudaBackend::Open({.activation = DType::kBF16, .pool_on_device = true}).value();
  CudaBackend& backend = *opened;
  std::printf("us of a layer; attended: rows of a list; floor: MB of sketches and us to read them\n");
  std::printf("%-32s %8s %9s %8s %8s %8s %17s\n", "", "attended", "queries", "select", "append", "all", "floor");
  const SelectRule capped{.alpha = 1e30f, .cap = 0.05};
  const SelectRule threshold{.alpha = 5.0f, .cap = 0.2, .sinks = 4, .window = 64};
  const SelectRule forced{.sinks = 4, .window = 64, .force_count = 1600};
  Run(backend, {"OPT-13B 20 x 2,000", 40, 40, 20, 2000, {.alpha = 1e30f, .cap = 0.2}});
  Run(backend, {"OPT-13B 20 x 2,000, threshold", 40, 40, 20, 2000, threshold});
  Run(backend, {"Llama-3.1-8B 8 x 32,000", 32, 8, 8, 32000, capped});
  Run(backend, {"Llama-3.1-8B 8 x 32,000, thresh.", 32, 8, 8, 32000, threshold});
  Run(backend, {"Llama-3.1-8B 8 x 32,000, forced", 32, 8, 8, 32000, forced});
  Run(backend, {"Llama-3.1-8B 1 x 128,000", 32, 8, 1, 128000, capped});
  Run(backend, {"Llama-3.1-8B 1 x 128,000, thresh.", 32, 8, 1, 128000, threshold});
  Run(backend, {"Llama-3.1-8B 1 x 8,000", 32, 8, 1, 8000, capped});
  Run(backend, {"Llama-3.1-8B 1 x 4,000", 32, 8, 1, 4000, capped});
  // The default sketches: 7/8 of head_dim at 4 bits, 8 numbers of a value, means.
  const SelectRule tail{.alpha = 5.0f, .cap = 0.05, .min_rows = 32, .sinks = 4, .window = 64, .tail = true};
  SelectRule mass = tail;
  mass.cap = 0.5;
  mass.mass = 0.95f;
  const auto sketched = [](int64_t kv_heads) { return SketchLayout{SketchType::kInt4, kv_heads, 112, 0, 8, kDim}; };
  const Setting tails[] = {{"tail: OPT-13B 20 x 2,000", 40, 40, 20, 2000, tail, sketched(40)},
                           {"tail: Llama-3.1-8B 8 x 32,000", 32, 8, 8, 32000, tail, sketched(8)},
                           {"tail, mass 0.95: 8 x 32,000", 32, 8, 8, 32000, mass, sketched(8)},
                           {"tail: Llama-3.1-8B 1 x 128,000", 32, 8, 1, 128000, tail, sketched(8)},
                           {"tail, mass 0.95: 1 x 128,000", 32, 8, 1, 128000, mass, sketched(8)},
                           {"tail: Llama-3.1-8B 1 x 8,000", 32, 8, 1, 8000, tail, sketched(8)}};
  for (const Setting& s : tails) Run(backend, s);
  std::printf("\ntails and late rows, us of a layer (floor)\n");
  std::printf("%-32s %7s %7s %7s %7s %7s %7s %7s | %15s %15s %7s %7s\n", "", "levels", "own", "tails", "16", "64",
              "cells", "value", "scores", "sums", "choice", "late");
  for (const Setting& s : tails) RunTail(backend, s);
  return 0;
}

}  // namespace
}  // namespace infinigen

int main() { return infinigen::Main(); }
