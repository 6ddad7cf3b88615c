// Decode allocates nothing: after Reserve, steps over growing sequences take no memory, neither from operator new nor
// from mmap for scratch. All threads are counted.
#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <numeric>

#include "backend/backends.h"
#include "backend/operands.h"

namespace {
std::atomic<int64_t> allocations{0};
}

void* operator new(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

// Scratch comes from mmap.
extern "C" void* __real_mmap(void*, size_t, int, int, int, off_t);
extern "C" void* __wrap_mmap(void* at, size_t bytes, int protection, int flags, int file, off_t offset) {
  ++allocations;
  return __real_mmap(at, bytes, protection, flags, file, offset);
}

namespace infinigen {
namespace {

constexpr int64_t kTokens = 9000, kBatch = 3, kKvHeads = 2, kGroup = 4, kHeads = kKvHeads * kGroup, kDim = 64,
                  kDims = 24;

class Steps {
 public:
  Steps(CpuBackend& backend, StoreType type)
      : backend_(backend),
        entries_(backend, {type, kKvHeads, kDim}, kBatch, kTokens, random_),
        queries_(HostTensor::Normal(random_, DType::kF32, kBatch, kHeads * kDim)),
        keys_(HostTensor::Normal(random_, DType::kF32, kBatch, kKvHeads * kDim)),
        out_(DType::kF32, kBatch, kHeads * kDim),
        sketch_(DType::kF32, kBatch, kHeads * kDims),
        basis_(static_cast<size_t>(kKvHeads * kDim * kDims)),
        zero_(static_cast<size_t>(kKvHeads * kDims)),
        rows_(static_cast<size_t>(kBatch * kKvHeads * kTokens)),
        counts_(static_cast<size_t>(kBatch * kKvHeads)) {
    for (float& value : basis_) value = random_.Normal(0.2f);
    sketches_.resize(static_cast<size_t>(kBatch * kKvHeads) * layout_.head_bytes(kTokens));
    bounds_.resize(static_cast<size_t>(kBatch * kKvHeads) * page_layout_.head_bytes(kTokens));
    for (int64_t slot = 0; slot < kBatch; ++slot) {
      std::vector<int32_t> slots(kTokens, static_cast<int32_t>(slot)), rows(kTokens);
      std::iota(rows.begin(), rows.end(), 0);
      HostTensor keys = HostTensor::Normal(random_, DType::kF32, kTokens, kKvHeads * kDim);
      backend.Append(Queue::kCompute, {kTokens, nullptr, slots.data(), rows.data()}, keys.view(), keys.view(),
                     entries_.view());
      backend.AppendSketches(Queue::kCompute, {kTokens, nullptr, slots.data(), rows.data()}, keys.view(), Basis(),
                             Sketches());
    }
  }

  // One token of every sequence; the last row of each is `row`.
  void Step(int32_t row, const SelectRule& rule, bool mean_counts) {
    const int32_t slots[kBatch] = {0, 1, 2}, rows[kBatch] = {row, row / 2, row / 3};
    const SelectRule rules[kBatch] = {rule, rule, rule};
    SelectionTotals totals[kBatch];
    const TokenBatch batch{kBatch, nullptr, slots, rows};
    const AttentionShape shape{kHeads, 0.125f};
    const Selection selection{rows_.data(), counts_.data(), kTokens, kKvHeads};
    const SelectCall call{.rules = rules, .totals = totals, .mean_counts = mean_counts, .max_rows = row + 1};
    backend_.Append(Queue::kCompute, batch, keys_.view(), keys_.view(), entries_.view());
    backend_.AppendSketches(Queue::kCompute, batch, keys_.view(), Basis(), Sketches());
    backend_.SketchQueries(Queue::kCompute, queries_.view(), batch, shape, Basis(), sketch_.view());
    backend_.Select(Queue::kCompute, sketch_.view(), batch, call, Sketches(), selection);
    backend_.AttendSelected(Queue::kCompute, queries_.view(), batch, selection, {}, shape, entries_.view(),
                            out_.view());
    backend_.SelectExact(Queue::kCompute, queries_.view(), batch, call, shape, entries_.view(), selection);
    SelectCall pages = call;
    pages.page = kPageRows;
    backend_.AppendBounds(Queue::kCompute, batch, keys_.view(), Bounds());
    backend_.SelectPages(Queue::kCompute, queries_.view(), batch, pages, shape, Bounds(), selection);
    backend_.AttendDecode(Queue::kCompute, queries_.view(), batch, row + 1, shape, entries_.view(), out_.view());
  }

 private:
  SketchBasis Basis() const { return {kKvHeads, kDim, kDims, basis_.data(), basis_.data(), zero_.data()}; }
  LayerSketches Sketches() {
    return {layout_, sketches_.data(), layout_.head_bytes(kTokens),
            layout_.head_bytes(kTokens) * static_cast<size_t>(kKvHeads)};
  }

  LayerPageBounds Bounds() {
    const size_t head = page_layout_.head_bytes(kTokens);
    return {page_layout_, bounds_.data(), head, head * static_cast<size_t>(kKvHeads)};
  }

  CpuBackend& backend_;
  Random random_{60};
  PageBoundsLayout page_layout_{kKvHeads, kDim};
  SketchLayout layout_{SketchType::kInt8, kKvHeads, kDims};
  TestEntries<CpuBackend> entries_;
  HostTensor queries_, keys_, out_, sketch_;
  std::vector<float> basis_, zero_;
  std::vector<int32_t> rows_, counts_;
  std::vector<std::byte> sketches_, bounds_;
};

TEST(AllocationTest, ReservedStepsTakeNoMemory) {
  constexpr std::pair<int, StoreType> kCases[] = {{1, StoreType::kBF16},
                                                  {3, StoreType::kBF16},
                                                  {13, StoreType::kBF16},
                                                  {3, StoreType::kInt8},
                                                  {3, StoreType::kInt4}};
  for (const auto& [threads, type] : kCases) {
    CpuBackend backend(threads);
    ASSERT_TRUE(backend.Reserve(kTokens, kBatch, kHeads, kKvHeads, kDim).ok());
    Steps steps(backend, type);
    const int64_t before = allocations;
    // The very first steps, then longer ones, up to the end.
    for (int32_t row = 10; row < kTokens; row += 899) {
      steps.Step(row, {.alpha = 3.0f, .cap = 0.1, .sinks = 4, .window = 16}, false);
      steps.Step(row, {.force_count = 200}, false);
      steps.Step(row, {.alpha = 8.0f, .cap = 1.0}, true);
    }
    EXPECT_EQ(allocations - before, 0) << threads << " threads, " << Name(type);
  }
}

// Validates the counter: without Reserve it counts allocations.
TEST(AllocationTest, TheCounterCounts) {
  CpuBackend backend(1);
  Steps steps(backend, StoreType::kBF16);
  const int64_t before = allocations;
  steps.Step(kTokens - 1, {}, false);
  EXPECT_GT(allocations - before, 0);
}

}  // namespace
}  // namespace infinigen
