// bench_selection: attention over a long cache, in full and over the rows selected by sketches or page bounds (quest),
// on the llama-3.2-1b shape (8 KV heads, group 4, d 64, bf16 entries) with random keys. Random keys give flat scores,
// so the number of selected rows is forced. Read bandwidth, full attention and the selection methods alternate in one
// process; medians are printed. Several layers are processed, so that neither entries nor sketches stay in the CPU
// caches.
//
// The floor of a step with selection is the time to read all sketches or bounds plus the selected entries at read
// bandwidth. Full attention over int8 and int4 entries is compared with the same kind of floor, and with full attention
// in bf16.
//
//   bench_selection [--threads N] [--rounds N] [--depth A,B,..] [--percent P] [--dims D] [--json]
#include <fmt/format.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>
#include <thread>

#include "floors.h"

namespace infinigen::bench {
namespace {

constexpr EntryLayout kLayout{StoreType::kBF16, kKvHeads, kHeadDim};
constexpr int64_t kGroup = kHeads / kKvHeads;

struct Command {
  int threads = 1;
  int rounds = 9;
  std::vector<int64_t> depths = {32768, 131072};
  int64_t percent = 5;
  int64_t dims = 24;
  bool json = false;
};

struct Kind {
  const char* name;
  SketchType type;
};
constexpr StoreType kQuantised[] = {StoreType::kInt8, StoreType::kInt4};
constexpr Kind kKinds[] = {{"int8", SketchType::kInt8},
                           {"bf16", SketchType::kBF16},
                           {"int4", SketchType::kInt4},
                           {"quest", SketchType::kBF16}};
constexpr size_t kQuest = 3;  // no sketch: page bounds
constexpr PageBoundsLayout kPages{kKvHeads, kHeadDim};

std::vector<float> RandomFloats(size_t count, float scale, uint32_t seed) {
  std::vector<float> values(count);
  uint32_t state = seed;
  for (float& value : values) {
    // A sum of four uniform numbers is close enough to normal.
    float sum = 0;
    for (int i = 0; i < 4; ++i) {
      state = state * 1664525u + 1013904223u;
      sum += static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
    }
    value = sum * scale;
  }
  return values;
}

Tensor View(std::vector<float>& values, int64_t rows, int64_t cols) {
  return {reinterpret_cast<std::byte*>(values.data()), DType::kF32, rows, cols, cols};
}

// Entries and sketches of `layers` layers of one sequence of `depth` rows.
class Cache {
 public:
  Cache(CpuBackend& backend, int64_t layers, int64_t depth, int64_t dims)
      : layers_(layers),
        depth_(depth),
        extents_((depth + kExtentTokens - 1) / kExtentTokens),
        quota_(static_cast<int32_t>(extents_ * kExtentTokens)),
        entries_(RandomBf16(backend.compute_memory(), static_cast<size_t>(layers * extents_) * kLayout.extent_bytes())),
        basis_values_(RandomFloats(static_cast<size_t>(kKvHeads * kHeadDim * dims), 0.2f, 7)),
        zero_(static_cast<size_t>(kKvHeads * dims)) {
    for (int64_t i = 0; i < layers * extents_; ++i)
      table_.push_back(entries_.data() + static_cast<size_t>(i) * kLayout.extent_bytes());
    basis = {kKvHeads, kHeadDim, dims, basis_values_.data(), basis_values_.data(), zero_.data()};
    for (size_t kind = 0; kind < std::size(kKinds); ++kind) {
      const SketchLayout layout{kKinds[kind].type, kKvHeads, dims};
      const size_t head_bytes = kind == kQuest ? kPages.head_bytes(depth) : layout.head_bytes(depth);
      Result<Buffer> buffer =
          Buffer::Make(backend.compute_memory(), static_cast<size_t>(layers * kKvHeads) * head_bytes);
      CHECK(buffer.ok());
      sketches_[kind] = std::move(*buffer);
      for (int64_t layer = 0; layer < layers; ++layer) Fill(backend, kind, layer);
    }
  }
  LayerEntries Entries(int64_t layer) const { return {kLayout, table_.data() + layer * extents_, extents_, &quota_}; }
  LayerSketches Sketches(size_t kind, int64_t layer) const {
    const SketchLayout layout{kKinds[kind].type, kKvHeads, basis.dims};
    const size_t head = layout.head_bytes(depth_), all = head * static_cast<size_t>(kKvHeads);
    return {layout, sketches_[kind].data() + static_cast<size_t>(layer) * all, head, all};
  }
  LayerPageBounds Bounds(int64_t layer) const {
    const size_t head = kPages.head_bytes(depth_), all = head * static_cast<size_t>(kKvHeads);
    return {kPages, sketches_[kQuest].data() + static_cast<size_t>(layer) * all, head, all};
  }
  const Buffer& entries() const { return entries_; }
  size_t sketch_bytes(size_t kind) const { return sketches_[kind].bytes() / static_cast<size_t>(layers_); }
  size_t entry_bytes() const { return static_cast<size_t>(depth_) * kLayout.row_bytes(); }
  int64_t layers() const { return layers_; }

  SketchBasis basis;

 private:
  // Appends chunk by chunk, like prefill.
  void Fill(CpuBackend& backend, size_t kind, int64_t layer) {
    constexpr int64_t kChunk = 512;
    std::vector<float> keys = RandomFloats(kChunk * kKvHeads * kHeadDim, 0.9f, static_cast<uint32_t>(layer) + 99);
    std::vector<int32_t> slots(kChunk, 0), rows(kChunk);
    for (int64_t first = 0; first < depth_; first += kChunk) {
      const int64_t count = std::min(kChunk, depth_ - first);
      for (int64_t i = 0; i < count; ++i) rows[static_cast<size_t>(i)] = static_cast<int32_t>(first + i);
      for (size_t i = 0; i < keys.size(); i += 3) keys[i] = -keys[(i * 7 + static_cast<size_t>(first)) % keys.size()];
      const TokenBatch batch{count, nullptr, slots.data(), rows.data()};
      const Tensor view = View(keys, count, kKvHeads * kHeadDim);
      if (kind == kQuest)
        backend.AppendBounds(Queue::kCompute, batch, view, Bounds(layer));
      else
        backend.AppendSketches(Queue::kCompute, batch, view, basis, Sketches(kind, layer));
    }
  }

  int64_t layers_, depth_, extents_;
  int32_t quota_;
  Buffer entries_;
  std::vector<std::byte*> table_;  // [layers][extents]
  std::vector<float> basis_values_, zero_;
  Buffer sketches_[std::size(kKinds)];
};

// Quantised entries of `layers` layers of one sequence of `depth` rows, appended like in prefill.
class QuantisedCache {
 public:
  QuantisedCache(CpuBackend& backend, StoreType type, int64_t layers, int64_t depth)
      : layout_{type, kKvHeads, kHeadDim},
        extents_((depth + kExtentTokens - 1) / kExtentTokens),
        quota_(static_cast<int32_t>(extents_ * kExtentTokens)),
        bytes_(static_cast<size_t>(depth) * layout_.row_bytes()) {
    Result<Buffer> buffer =
        Buffer::Make(backend.compute_memory(), static_cast<size_t>(layers * extents_) * layout_.extent_bytes());
    CHECK(buffer.ok());
    entries_ = std::move(*buffer);
    for (int64_t i = 0; i < layers * extents_; ++i)
      table_.push_back(entries_.data() + static_cast<size_t>(i) * layout_.extent_bytes());
    constexpr int64_t kChunk = 512, kWidth = kKvHeads * kHeadDim;
    std::vector<float> keys = RandomFloats(kChunk * kWidth, 0.9f, 3), values = RandomFloats(kChunk * kWidth, 0.9f, 4);
    std::vector<int32_t> slots(kChunk, 0), rows(kChunk);
    for (int64_t layer = 0; layer < layers; ++layer) {
      for (int64_t first = 0; first < depth; first += kChunk) {
        const int64_t count = std::min(kChunk, depth - first);
        for (int64_t i = 0; i < count; ++i) rows[static_cast<size_t>(i)] = static_cast<int32_t>(first + i);
        backend.Append(Queue::kCompute, {count, nullptr, slots.data(), rows.data()}, View(keys, count, kWidth),
                       View(values, count, kWidth), Entries(layer));
      }
    }
  }
  LayerEntries Entries(int64_t layer) const { return {layout_, table_.data() + layer * extents_, extents_, &quota_}; }
  size_t entry_bytes() const { return bytes_; }

 private:
  EntryLayout layout_;
  int64_t extents_;
  int32_t quota_;
  size_t bytes_;  // of one layer
  Buffer entries_;
  std::vector<std::byte*> table_;  // [layers][extents]
};

struct Timings {
  std::vector<double> select, attend, both;
  int64_t attended = 0;  // sum over heads, layers and rounds: whole pages may stay below the forced count
};

void Depth(const Command& command, CpuBackend& backend, ThreadPool& reader, int64_t depth, nlohmann::json& results) {
  const int64_t layers = std::max<int64_t>(3, 8 * 32768 / depth);
  const Cache cache(backend, layers, depth, command.dims);
  const QuantisedCache quantised[] = {{backend, kQuantised[0], layers, depth}, {backend, kQuantised[1], layers, depth}};
  const int32_t slot = 0, last = static_cast<int32_t>(depth - 1);
  const TokenBatch token{1, nullptr, &slot, &last};
  const AttentionShape shape{kHeads, 0.125f};
  std::vector<float> queries = RandomFloats(kHeads * kHeadDim, 0.9f, 5), out(kHeads * kHeadDim);
  std::vector<float> sketch(static_cast<size_t>(kHeads * command.dims));
  const int64_t count = depth * command.percent / 100;
  const SelectRule rule{.force_count = static_cast<int32_t>(count)};
  SelectionTotals totals;
  std::vector<int32_t> rows(static_cast<size_t>(kKvHeads * (count + 64))), counts(kKvHeads);
  const Selection selection{rows.data(), counts.data(), count + 64, kKvHeads};
  CHECK(backend.Reserve(depth, 1, kHeads, kKvHeads, kHeadDim).ok());

  std::vector<double> read, full, stored[std::size(kQuantised)];
  Timings kinds[std::size(kKinds)];
  for (int round = 0; round < command.rounds; ++round) {
    read.push_back(Seconds([&] { ReadAll(reader, cache.entries()); }));
    full.push_back(Seconds([&] {
      for (int64_t layer = 0; layer < layers; ++layer)
        backend.AttendDecode(Queue::kCompute, View(queries, 1, kHeads * kHeadDim), token, depth, shape,
                             cache.Entries(layer), View(out, 1, kHeads * kHeadDim));
    }));
    for (size_t i = 0; i < std::size(kQuantised); ++i)
      stored[i].push_back(Seconds([&] {
        for (int64_t layer = 0; layer < layers; ++layer)
          backend.AttendDecode(Queue::kCompute, View(queries, 1, kHeads * kHeadDim), token, depth, shape,
                               quantised[i].Entries(layer), View(out, 1, kHeads * kHeadDim));
      }));
    for (size_t kind = 0; kind < std::size(kKinds); ++kind) {
      double select = 0, attend = 0;
      for (int64_t layer = 0; layer < layers; ++layer) {
        select += Seconds([&] {
          SelectCall call{.rules = &rule, .totals = &totals, .max_rows = depth};
          if (kind == kQuest) {
            call.page = kPageRows;
            backend.SelectPages(Queue::kCompute, View(queries, 1, kHeads * kHeadDim), token, call, shape,
                                cache.Bounds(layer), selection);
            return;
          }
          backend.SketchQueries(Queue::kCompute, View(queries, 1, kHeads * kHeadDim), token, shape, cache.basis,
                                View(sketch, 1, kHeads * command.dims));
          backend.Select(Queue::kCompute, View(sketch, 1, kHeads * command.dims), token, call,
                         cache.Sketches(kind, layer), selection);
        });
        for (const int32_t of_head : counts) kinds[kind].attended += of_head;
        attend += Seconds([&] {
          backend.AttendSelected(Queue::kCompute, View(queries, 1, kHeads * kHeadDim), token, selection, {}, shape,
                                 cache.Entries(layer), View(out, 1, kHeads * kHeadDim));
        });
      }
      kinds[kind].select.push_back(select);
      kinds[kind].attend.push_back(attend);
      kinds[kind].both.push_back(select + attend);
    }
  }

  const double per_layer = 1.0 / static_cast<double>(layers);
  const double per_layer_rounds = static_cast<double>(layers * command.rounds);
  const double all = static_cast<double>(cache.entry_bytes());
  const double bandwidth = static_cast<double>(cache.entries().bytes()) / Median(read);
  const double full_seconds = Median(full) * per_layer;
  nlohmann::json result = {{"depth", depth},
                           {"selected", count},
                           {"read_gb_s", bandwidth * 1e-9},
                           {"full_ms", full_seconds * 1e3},
                           {"full_gb_s", all / full_seconds * 1e-9},
                           {"full_of_bandwidth", all / full_seconds / bandwidth}};
  for (size_t i = 0; i < std::size(kQuantised); ++i) {
    const double seconds = Median(stored[i]) * per_layer, bytes = static_cast<double>(quantised[i].entry_bytes());
    result["stores"].push_back({{"store", Name(kQuantised[i])},
                                {"full_ms", seconds * 1e3},
                                {"full_gb_s", bytes / seconds * 1e-9},
                                {"faster_than_bf16", full_seconds / seconds},
                                {"of_bandwidth", bytes / seconds / bandwidth}});
  }
  for (size_t kind = 0; kind < std::size(kKinds); ++kind) {
    const double select = Median(kinds[kind].select) * per_layer, attend = Median(kinds[kind].attend) * per_layer;
    const double both = Median(kinds[kind].both) * per_layer;
    const double sketch_bytes = static_cast<double>(cache.sketch_bytes(kind));
    const double attended = static_cast<double>(kinds[kind].attended) / (kKvHeads * per_layer_rounds);
    const double entry_bytes = attended * static_cast<double>(kLayout.row_bytes());
    result["kinds"].push_back({{"sketch", kKinds[kind].name},
                               {"select_ms", select * 1e3},
                               {"select_gb_s", sketch_bytes / select * 1e-9},
                               {"attend_ms", attend * 1e3},
                               {"attend_gb_s", entry_bytes / attend * 1e-9},
                               {"both_ms", both * 1e3},
                               {"faster_than_full", full_seconds / both},
                               {"of_floor", (sketch_bytes + entry_bytes) / bandwidth / both}});
  }
  results.push_back(result);
}

void Print(const nlohmann::json& results) {
  for (const auto& r : results) {
    fmt::print("{} rows, {} selected per KV head, read bandwidth {:.1f} GB/s\n", r["depth"].get<int64_t>(),
               r["selected"].get<int64_t>(), r["read_gb_s"].get<double>());
    fmt::print("  full attention              {:>7.3f} ms/layer  {:>5.1f} GB/s  {:.2f} of bandwidth\n",
               r["full_ms"].get<double>(), r["full_gb_s"].get<double>(), r["full_of_bandwidth"].get<double>());
    for (const auto& s : r["stores"])
      fmt::print("  full attention on {:<4}     {:>7.3f} ms/layer  {:>5.1f} GB/s  {:.2f} of bandwidth  {:.2f}x bf16\n",
                 s["store"].get<std::string>(), s["full_ms"].get<double>(), s["full_gb_s"].get<double>(),
                 s["of_bandwidth"].get<double>(), s["faster_than_bf16"].get<double>());
    for (const auto& k : r["kinds"])
      fmt::print(
          "  select by {:<5} and attend  {:>7.3f} ms/layer  {:.2f}x full  {:.2f} of floor   (select {:.3f} ms, {:.1f} "
          "GB/s; "
          "attend {:.3f} ms, {:.1f} GB/s)\n",
          k["sketch"].get<std::string>(), k["both_ms"].get<double>(), k["faster_than_full"].get<double>(),
          k["of_floor"].get<double>(), k["select_ms"].get<double>(), k["select_gb_s"].get<double>(),
          k["attend_ms"].get<double>(), k["attend_gb_s"].get<double>());
  }
}

Command Parse(int argc, char** argv) {
  Command command;
  command.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--json") {
      command.json = true;
      continue;
    }
    if (i + 1 == argc) {
      fmt::print(stderr, "unknown flag '{}', or no value for it; see the head of bench/selection.cc\n", flag);
      std::exit(2);
    }
    const std::string value = argv[++i];
    if (flag == "--threads")
      command.threads = std::max(1, std::atoi(value.c_str()));
    else if (flag == "--rounds")
      command.rounds = std::max(1, std::atoi(value.c_str()));
    else if (flag == "--percent")
      command.percent = std::atoi(value.c_str());
    else if (flag == "--dims")
      command.dims = std::atoi(value.c_str());
    else if (flag == "--depth")
      command.depths = ParseList(value);
    else {
      fmt::print(stderr, "unknown flag '{}'; see the head of bench/selection.cc\n", flag);
      std::exit(2);
    }
  }
  return command;
}

}  // namespace
}  // namespace infinigen::bench

int main(int argc, char** argv) {
  using namespace infinigen::bench;
  const Command command = Parse(argc, argv);
  infinigen::CpuBackend backend(command.threads);
  infinigen::ThreadPool reader(command.threads);
  nlohmann::json results = nlohmann::json::array();
  for (const int64_t depth : command.depths) Depth(command, backend, reader, depth, results);
  if (command.json)
    fmt::print("{}\n", results.dump(2));
  else
    Print(results);
  return 0;
}
