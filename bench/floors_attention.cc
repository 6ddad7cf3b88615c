// Attention over a full cache: decode (one token per layer over `depth` entries, all layers, so that nothing stays in
// the CPU caches) against read bandwidth, and prefill (a chunk of 512 tokens that ends at `depth`) in GFLOP/s.
#include <fmt/format.h>

#include "floors.h"

namespace infinigen::bench {
namespace {

constexpr EntryLayout kLayout{StoreType::kBF16, kKvHeads, kHeadDim};

class Cache {
 public:
  Cache(Allocator& memory, int64_t layers, int64_t depth)
      : extents_per_layer_((depth + kExtentTokens - 1) / kExtentTokens),
        quota_(static_cast<int32_t>(extents_per_layer_ * kExtentTokens)),
        entries_(RandomBf16(memory, static_cast<size_t>(layers * extents_per_layer_) * kLayout.extent_bytes())) {
    for (int64_t i = 0; i < layers * extents_per_layer_; ++i)
      table_.push_back(entries_.data() + static_cast<size_t>(i) * kLayout.extent_bytes());
  }
  LayerEntries Layer(int64_t layer) const {
    return {kLayout, table_.data() + layer * extents_per_layer_, extents_per_layer_, &quota_};
  }
  const Buffer& entries() const { return entries_; }

 private:
  int64_t extents_per_layer_;
  int32_t quota_;
  Buffer entries_;
  std::vector<std::byte*> table_;  // [layers][extents]
};

void Depth(const Options& options, CpuBackend& backend, ThreadPool& reader, int64_t depth, std::vector<Line>& lines) {
  // Beyond 32K, fewer layers: the KV cache still far exceeds any CPU cache.
  const int64_t layers = std::max<int64_t>(2, std::min<int64_t>(kLayers, kLayers * 32768 / depth));
  const Cache cache(backend.compute_memory(), layers, depth);
  constexpr int64_t kWidth = kHeads * kHeadDim;
  std::vector<float> queries(512 * kWidth), out(512 * kWidth);
  for (size_t i = 0; i < queries.size(); ++i) queries[i] = static_cast<float>(i % 997) * 2e-3f - 1.0f;
  const auto view = [](std::vector<float>& v, int64_t rows) {
    return Tensor{reinterpret_cast<std::byte*>(v.data()), DType::kF32, rows, kWidth, kWidth};
  };
  const int32_t slot = 0, last = static_cast<int32_t>(depth - 1);
  const AttentionShape shape{kHeads, 0.125f};
  const int64_t chunk = std::min<int64_t>(512, depth);

  std::vector<double> read, decode, prefill;
  for (int round = 0; round < options.rounds; ++round) {
    read.push_back(Seconds([&] { ReadAll(reader, cache.entries()); }));
    decode.push_back(Seconds([&] {
      for (int64_t layer = 0; layer < layers; ++layer)
        backend.AttendDecode(Queue::kCompute, view(queries, 1), {1, nullptr, &slot, &last}, depth, shape,
                             cache.Layer(layer), view(out, 1));
    }));
    if (depth > 32768) continue;
    prefill.push_back(Seconds([&] {
      backend.AttendPrefill(Queue::kCompute, view(queries, chunk), {SeqSlot(0), depth - chunk, chunk}, shape,
                            cache.Layer(round % layers), view(out, chunk));
    }));
  }
  const double gigabytes = static_cast<double>(cache.entries().bytes()) * 1e-9;
  lines.push_back({fmt::format("decode attention at {}, {:.3f} ms/layer", depth,
                               Median(decode) * 1e3 / static_cast<double>(layers)),
                   gigabytes / Median(decode), "GB/s", gigabytes / Median(read)});
  if (prefill.empty()) return;
  // Two products, two operations each, over the entries that each token attends to.
  const double seen = static_cast<double>(chunk * (depth - chunk) + chunk * (chunk + 1) / 2);
  lines.push_back({fmt::format("prefill attention, {} tokens ending at {}", chunk, depth),
                   4e-9 * static_cast<double>(kWidth) * seen / Median(prefill), "GFLOP/s", 0});
}

}  // namespace

std::vector<Line> AttentionFloors(const Options& options) {
  std::vector<Line> lines;
  CpuBackend backend(options.threads);
  ThreadPool reader(options.threads);
  for (const int64_t depth : options.depths) Depth(options, backend, reader, depth, lines);
  return lines;
}

}  // namespace infinigen::bench
