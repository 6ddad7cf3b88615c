// A decode step's way to its entries when the pool is in host memory: finding places, fetching what is missing, and
// attention from there, at the shapes of OPT-13B and Llama-3.1-8B, one layer. Then fetching beside products of a decode
// step: what each costs the other. Prints two tables; takes about a minute and 2 GiB of host memory.
//   build: part of the `cuda_fetch` target; run: build/release/cuda_fetch
#include <cuda_bf16.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <optional>
#include <random>
#include <string>

#include "cuda_bench.cuh"

namespace infinigen {
namespace {

constexpr int64_t kDim = 128;
constexpr int64_t kSteps = 100;  // lists that follow each other
constexpr double kKept = 0.8;    // of a list's rows are in the next one

struct Setting {
  const char* name;
  int64_t heads, kv_heads, batch, rows, listed;
  StoreType type = StoreType::kBF16;

  EntryLayout layout() const { return {type, kv_heads, kDim}; }
  int64_t lists() const { return batch * kv_heads; }
  double bytes() const { return static_cast<double>(lists() * listed) * static_cast<double>(layout().entry_bytes()); }
};

// One layer of a pool, its extents in random order, and lists of every step: of a (token, KV head), ascending, with the
// last row.
class Layer {
 public:
  Layer(CudaBackend& backend, const Setting& s) : setting_(s), per_slot_((s.rows + kExtentTokens - 1) / kExtentTokens) {
    Result<Buffer> pool =
        Buffer::Make(backend.pool_memory(), static_cast<size_t>(s.batch * per_slot_) * s.layout().extent_bytes());
    CHECK(pool.ok());
    pool_ = std::move(*pool);
    backend.AwaitPool();
    std::memset(pool_.data(), 1, pool_.bytes());
    std::vector<std::byte*> table(static_cast<size_t>(s.batch * per_slot_));
    for (size_t i = 0; i < table.size(); ++i) table[i] = pool_.data() + i * s.layout().extent_bytes();
    std::shuffle(table.begin(), table.end(), std::mt19937(1));
    table_.emplace(backend, table);
    quotas_.emplace(backend, std::vector<int32_t>(static_cast<size_t>(s.batch), static_cast<int32_t>(s.rows)));
    std::vector<int32_t> slots(static_cast<size_t>(s.batch)), positions;
    std::iota(slots.begin(), slots.end(), 0);
    for (int32_t step = 0; step < kSteps; ++step) positions.insert(positions.end(), slots.size(), 1000 + step);
    slots_.emplace(backend, slots);
    positions_.emplace(backend, positions);
    last_.emplace(backend, std::vector<int32_t>(static_cast<size_t>(s.lists()), static_cast<int32_t>(s.rows - 1)));
    counts_.emplace(backend, std::vector<int32_t>(static_cast<size_t>(s.lists()), static_cast<int32_t>(s.listed)));
    lists_.emplace(backend, Lists());
  }

  LayerEntries entries() const { return {setting_.layout(), table_->get(), per_slot_, quotas_->get()}; }
  TokenBatch batch(int64_t step) const {
    return {.count = setting_.batch,
            .slots = slots_->get(),
            .rows = last_->get(),
            .positions = positions_->get() + step % kSteps * setting_.batch,
            .own_rows = last_->get(),
            .kv_heads = setting_.kv_heads};
  }
  Selection selection(int64_t step) const {
    return {lists_->get() + step % kSteps * setting_.lists() * setting_.listed, counts_->get(), setting_.listed,
            setting_.kv_heads};
  }

 private:
  std::vector<int32_t> Lists() const {
    const Setting& s = setting_;
    const size_t listed = static_cast<size_t>(s.listed), per_step = static_cast<size_t>(s.lists()) * listed;
    std::vector<int32_t> all(per_step * kSteps);
    std::mt19937 random(5);
    std::vector<int32_t> order(static_cast<size_t>(s.rows - 1)), rows;
    std::iota(order.begin(), order.end(), 0);
    const size_t change = static_cast<size_t>((1 - kKept) * static_cast<double>(listed));
    for (size_t list = 0; list < static_cast<size_t>(s.lists()); ++list) {
      std::shuffle(order.begin(), order.end(), random);
      for (size_t step = 0; step < kSteps; ++step) {
        // The first of `order` are listed; some of them change places with others.
        for (size_t i = 0; i < change; ++i)
          std::swap(order[random() % (listed - 1)], order[listed + random() % (order.size() - listed)]);
        rows.assign(order.begin(), order.begin() + static_cast<int64_t>(listed) - 1);
        std::sort(rows.begin(), rows.end());
        rows.push_back(static_cast<int32_t>(s.rows - 1));
        std::copy(rows.begin(), rows.end(), all.begin() + static_cast<int64_t>(step * per_step + list * listed));
      }
    }
    return all;
  }

  Setting setting_;
  int64_t per_slot_;
  Buffer pool_;
  std::optional<Device<std::byte*>> table_;
  std::optional<Device<int32_t>> quotas_, slots_, positions_, last_, counts_, lists_;
};

// Memory on the device; `more` times a list, hot where it is not once.
class FetchMemory {
 public:
  FetchMemory(CudaBackend& backend, const Setting& s, int64_t more)
      : setting_(s),
        capacity_(s.listed * more),
        data_(backend, static_cast<size_t>(s.lists() * capacity_) * s.layout().entry_bytes()),
        tables_(backend,
                std::vector<int32_t>(more == 1 ? 1 : static_cast<size_t>(s.lists() * (2 * capacity_ + s.rows)), -1)),
        list_(backend, static_cast<size_t>(s.lists() * (2 * s.listed + 2))),
        totals_(backend, std::vector<FetchTotals>(static_cast<size_t>(s.batch))),
        clock_(backend, std::vector<FetchClock>(1)) {}

  FetchBuffer entries() const {
    FetchBuffer buffer{.layout = setting_.layout(), .data = data_.get(), .capacity = capacity_};
    if (capacity_ == setting_.listed) return buffer;
    buffer.holds = tables_.get();
    buffer.used = buffer.holds + setting_.lists() * capacity_;
    buffer.cell_of = buffer.used + setting_.lists() * capacity_;
    buffer.rows = setting_.rows;
    return buffer;
  }
  FetchList list() const {
    const int64_t all = setting_.lists() * setting_.listed;
    int32_t* at = list_.get();
    return {at, at + all, at + 2 * all, at + 2 * all + setting_.lists(), setting_.listed, setting_.kv_heads};
  }
  FetchTotals* totals() const { return totals_.get(); }
  FetchClock* clock() const { return clock_.get(); }
  // Since the last call, of all sequences.
  double FetchedShare() {
    std::vector<FetchTotals> now(static_cast<size_t>(setting_.batch));
    CUDA_CHECK(cudaMemcpy(now.data(), totals_.get(), now.size() * sizeof(FetchTotals), cudaMemcpyDeviceToHost));
    CUDA_CHECK(cudaMemset(totals_.get(), 0, now.size() * sizeof(FetchTotals)));
    double wanted = 0, fetched = 0;
    for (const FetchTotals& totals : now) {
      wanted += static_cast<double>(totals.wanted);
      fetched += static_cast<double>(totals.fetched);
    }
    return fetched / wanted;
  }

 private:
  Setting setting_;
  int64_t capacity_;
  Device<std::byte> data_;
  Device<int32_t> tables_, list_;
  Device<FetchTotals> totals_;
  Device<FetchClock> clock_;
};

void Find(CudaBackend& backend, const Layer& layer, FetchMemory& buffer, int64_t step, double forced_hits = 0) {
  backend.AssignCells(Queue::kCompute, layer.batch(step), layer.selection(step), buffer.entries(), forced_hits,
                      buffer.list(), buffer.totals());
}
void Fetch(CudaBackend& backend, const Layer& layer, FetchMemory& buffer, int64_t step) {
  backend.FetchMisses(Queue::kFetch, layer.batch(step), layer.selection(step), layer.entries(), buffer.entries(),
                      buffer.list(), buffer.clock());
}

// Microseconds of AssignCells in a hot set of `more` lists, each call the next step; and the share that was missing.
std::string HotRow(CudaBackend& backend, const Layer& layer, const Setting& s, int64_t more) {
  FetchMemory buffer(backend, s, more);
  int64_t step = 0;
  for (; step < 20; ++step) Find(backend, layer, buffer, step);  // fills it
  backend.Synchronize(backend.Record(Queue::kCompute));
  buffer.FetchedShare();
  const auto begin = std::chrono::steady_clock::now();
  for (; step < kSteps; ++step) Find(backend, layer, buffer, step);
  backend.Synchronize(backend.Record(Queue::kCompute));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  char text[64];
  std::snprintf(text, sizeof(text), "%6.1f (%4.1f%%)", took.count() / (kSteps - 20) * 1e6, 100 * buffer.FetchedShare());
  return text;
}

void Alone(CudaBackend& backend, const Setting& s) {
  const Layer layer(backend, s);
  FetchMemory buffer(backend, s, 1);
  const Device<__nv_bfloat16> queries(
      backend, std::vector<__nv_bfloat16>(static_cast<size_t>(s.batch * s.heads * kDim), __float2bfloat16_rn(0.1f)));
  const Device<__nv_bfloat16> outputs(backend, static_cast<size_t>(s.batch * s.heads * kDim));
  const int64_t width = s.heads * kDim;
  const Tensor q{reinterpret_cast<std::byte*>(queries.get()), DType::kBF16, s.batch, width, width};
  const Tensor out{reinterpret_cast<std::byte*>(outputs.get()), DType::kBF16, s.batch, width, width};
  int64_t step = 0;
  const double find = Time(
      backend, [&] { Find(backend, layer, buffer, step++); }, 1e-5);
  const double attend = Time(
      backend,
      [&] {
        backend.AttendFetched(Queue::kCompute, q, layer.batch(step), layer.selection(step), {}, {s.heads, 0.1f},
                              layer.entries(), buffer.entries(), buffer.list(), out);
      },
      s.bytes() / 3e12);
  const auto fetch = [&](double forced_hits) {
    Find(backend, layer, buffer, step, forced_hits);
    backend.Synchronize(backend.Record(Queue::kCompute));
    return Time(
        backend, [&] { Fetch(backend, layer, buffer, step); }, s.bytes() / 5e10, Queue::kFetch);
  };
  const double all = fetch(0), fifth = fetch(0.8);
  std::printf("%-36s %-5s %7.1f %16s %16s %9.0f %7.1f %9.0f %7.1f %8.1f %7.0f\n", s.name,
              std::string(Name(s.type)).c_str(), find * 1e6, HotRow(backend, layer, s, 2).c_str(),
              HotRow(backend, layer, s, 4).c_str(), all * 1e6, s.bytes() / all * 1e-9, fifth * 1e6,
              0.2 * s.bytes() / fifth * 1e-9, attend * 1e6, s.bytes() / attend * 1e-9);
  std::fflush(stdout);
}

// Products [tokens][k] · [n][k]ᵀ on one queue while entries are fetched on the other.
void Beside(CudaBackend& backend, const Setting& s, int64_t n, int64_t k) {
  const Layer layer(backend, s);
  FetchMemory buffer(backend, s, 1);
  const Device<__nv_bfloat16> weights(backend, static_cast<size_t>(n * k)),
      x(backend, static_cast<size_t>(s.batch * k)), y(backend, static_cast<size_t>(s.batch * n));
  CUDA_CHECK(cudaMemset(weights.get(), 0, static_cast<size_t>(n * k) * 2));
  CUDA_CHECK(cudaMemset(x.get(), 0, static_cast<size_t>(s.batch * k) * 2));
  const Projection projection{.weight = {reinterpret_cast<const std::byte*>(weights.get()), WeightType::kBF16, n, k},
                              .bias = {},
                              .out = {reinterpret_cast<std::byte*>(y.get()), DType::kBF16, s.batch, n, n}};
  const Tensor input{reinterpret_cast<std::byte*>(x.get()), DType::kBF16, s.batch, k, k};
  const auto multiply = [&] { backend.MatMul(Queue::kCompute, input, {&projection, 1}); };
  Find(backend, layer, buffer, 0);
  backend.Synchronize(backend.Record(Queue::kCompute));
  const double product = Time(backend, multiply, 1e-4);
  const double fetch = Time(
      backend, [&] { Fetch(backend, layer, buffer, 0); }, s.bytes() / 5e10, Queue::kFetch);

  // Both run for as long as the fetches; products are fewer, so that they are never alone.
  const int fetches = std::max(4, static_cast<int>(0.1 / fetch));
  const int products = static_cast<int>(0.5 * fetches * fetch / product);
  const auto begin = std::chrono::steady_clock::now();
  const auto since = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  for (int i = 0; i < fetches; ++i) Fetch(backend, layer, buffer, 0);
  for (int i = 0; i < products; ++i) multiply();
  backend.Synchronize(backend.Record(Queue::kCompute));
  const double products_s = since();
  backend.Synchronize(backend.Record(Queue::kFetch));
  const double fetches_s = since();
  std::printf("%-36s %6ld x %-6ld %9.1f %9.1f %8.0f%% %11.1f %9.1f\n", s.name, n, k, product * 1e6,
              products_s / products * 1e6, 100 * (products_s / products / product - 1), s.bytes() / fetch * 1e-9,
              s.bytes() * fetches / fetches_s * 1e-9);
  std::fflush(stdout);
}

int Main() {
  if (const Result<GpuInfo> device = FindCudaDevice(); !device.ok()) {
    std::fprintf(stderr, "%s\n", device.error().message.c_str());
    return 1;
  }
  const std::unique_ptr<CudaBackend> opened =
      CudaBackend::Open({.activation = DType::kBF16, .pool_on_device = false}).value();
  CudaBackend& backend = *opened;
  const Setting opt{"OPT-13B 20 x 409 of 2,048", 40, 40, 20, 2048, 409};
  const Setting llama{"Llama-3.1-8B 8 x 1,638 of 32,768", 32, 8, 8, 32768, 1638};
  const Setting longest{"Llama-3.1-8B 1 x 6,553 of 131,072", 32, 8, 1, 131072, 6553};
  std::printf(
      "find: us without a hot set, and with one of 2 and 4 lists (fetched share). fetch, attend: us and GB/s\n");
  std::printf("%-36s %-5s %7s %16s %16s %17s %17s %16s\n", "", "type", "find", "hot 2", "hot 4", "fetch all",
              "fetch a fifth", "attend");
  for (const StoreType type : {StoreType::kBF16, StoreType::kInt8, StoreType::kInt4})
    for (Setting s : {opt, llama, longest}) {
      s.type = type;
      Alone(backend, s);
    }
  std::printf("\nproducts of a step beside fetching: us alone and beside, and GB/s fetched alone and beside\n");
  Beside(backend, opt, 20480, 5120);
  Beside(backend, opt, 5120, 5120);
  Beside(backend, llama, 14336, 4096);
  Beside(backend, longest, 4096, 4096);
  return 0;
}

}  // namespace
}  // namespace infinigen

int main() { return infinigen::Main(); }
