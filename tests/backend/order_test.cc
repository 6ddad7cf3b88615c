// The contract of CPU backends, bit for bit: the result for a token does not depend on the other tokens of the call,
// the number of threads or the division of a prompt into chunks. Compares bits, not values.
#include <limits>
#include <numeric>
#include <vector>

#include "backend/backends.h"
#include "backend/operands.h"
#include "sanitized.h"

namespace infinigen {
namespace {

template <class Factory>
class OrderTest : public OpTest<Factory> {};
TYPED_TEST_SUITE(OrderTest, CpuBackends, BackendName);

void ExpectSameBits(const HostTensor& a, int64_t a_row, const HostTensor& b, int64_t b_row) {
  for (int64_t c = 0; c < a.cols; ++c) {
    ASSERT_EQ(std::bit_cast<uint32_t>(a.row(a_row)[c]), std::bit_cast<uint32_t>(b.row(b_row)[c]))
        << "row " << a_row << " column " << c << ": " << a.row(a_row)[c] << " and " << b.row(b_row)[c];
  }
}

HostTensor Product(CpuBackend& backend, HostTensor& x, int64_t first, int64_t count, HostTensor& weight) {
  HostTensor out(DType::kF32, count, weight.rows);
  const Projection projection{weight.weight(), {}, out.view()};
  backend.MatMul(Queue::kCompute, x.view().Rows(first, count), {&projection, 1});
  return out;
}

TYPED_TEST(OrderTest, MatMulRowsDoNotDependOnTheCall) {
  Random random(30);
  CpuBackend one(1), two(2);
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int64_t k : {7, 48, 512, 1030}) {
      const int64_t m = kSanitized ? 130 : 550, n = 75;
      HostTensor x = HostTensor::Normal(random, DType::kF32, m, k), weight = HostTensor::Normal(random, type, n, k);
      const HostTensor all = Product(this->backend(), x, 0, m, weight);
      for (CpuBackend* backend : {&one, &two, &this->backend()}) {
        for (const int64_t count : std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 16, 17, 20, 100, m - 1}) {
          const int64_t first = random.Int(0, m - count);
          const HostTensor part = Product(*backend, x, first, count, weight);
          for (int64_t r = 0; r < count; ++r) ExpectSameBits(part, r, all, first + r);
        }
      }
    }
  }
}

// Lengths around the one where a single row changes to another path.
TYPED_TEST(OrderTest, LongMatMulRowsDoNotDependOnTheCall) {
  Random random(35);
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int64_t k : {2047, 2050, 4096, 4097, 4641, 6173}) {
      const int64_t m = 20, n = 11;
      HostTensor x = HostTensor::Normal(random, DType::kF32, m, k), weight = HostTensor::Normal(random, type, n, k);
      const HostTensor all = Product(this->backend(), x, 0, m, weight);
      for (const int64_t count : {1, 2, 7}) {
        for (int64_t first = 0; first + count <= m; first += count) {
          const HostTensor part = Product(this->backend(), x, first, count, weight);
          for (int64_t r = 0; r < count; ++r) ExpectSameBits(part, r, all, first + r);
        }
      }
    }
  }
}

TYPED_TEST(OrderTest, MatMulOutputsDoNotDependOnTheirColumn) {
  Random random(31);
  for (const int64_t m : {1, 5, 30}) {
    HostTensor x = HostTensor::Normal(random, DType::kF32, m, 100);
    HostTensor weight = HostTensor::Normal(random, DType::kBF16, 90, 100);
    const HostTensor all = Product(this->backend(), x, 0, m, weight);
    for (int64_t n = 0; n < 90; ++n) {
      HostTensor row(DType::kBF16, 1, 100), out(DType::kF32, m, 1);
      for (int64_t c = 0; c < 100; ++c) row.Set(0, c, weight.At(n, c));
      const Projection projection{row.weight(), {}, out.view()};
      this->backend().MatMul(Queue::kCompute, x.view(), {&projection, 1});
      for (int64_t r = 0; r < m; ++r) ASSERT_EQ(out.At(r, 0), all.At(r, n));
    }
  }
}

struct Scene {
  StoreType type;
  int64_t kv_heads, group, dim, length;
};

// One sequence whose tokens attend through different operations.
class Sequence {
 public:
  Sequence(CpuBackend& backend, const Scene& s, Random& random)
      : scene_(s),
        entries_(backend, {s.type, s.kv_heads, s.dim}, 1, s.length, random),
        queries_(HostTensor::Normal(random, DType::kF32, s.length, s.kv_heads * s.group * s.dim, 2.0f)) {
    HostTensor keys = HostTensor::Normal(random, DType::kF32, s.length, s.kv_heads * s.dim);
    HostTensor values = HostTensor::Normal(random, DType::kF32, s.length, s.kv_heads * s.dim);
    for (int64_t c = 0; c < values.cols; ++c) values.Set(s.length / 2, c, -0.0f);
    // Values so small that their weighted sums underflow, with both signs: zero sums must agree in sign too.
    for (int64_t r = 0; r < s.length; ++r) values.Set(r, 0, r % 2 == 0 ? 1e-42f : -1e-42f);
    std::vector<int32_t> slots(static_cast<size_t>(s.length), 0);
    std::vector<int32_t> rows(static_cast<size_t>(s.length));
    std::iota(rows.begin(), rows.end(), 0);
    backend.Append(Queue::kCompute, {s.length, nullptr, slots.data(), rows.data()}, keys.view(), values.view(),
                   entries_.view());
  }
  HostTensor Prefill(CpuBackend& backend, int64_t chunk) {
    HostTensor out(DType::kF32, queries_.rows, queries_.cols);
    for (int64_t first = 0; first < scene_.length; first += chunk) {
      const int64_t count = std::min(chunk, scene_.length - first);
      backend.AttendPrefill(Queue::kCompute, queries_.view().Rows(first, count), {SeqSlot(0), first, count}, Shape(),
                            entries_.view(), out.view().Rows(first, count));
    }
    return out;
  }
  HostTensor Decode(CpuBackend& backend, std::vector<int32_t> rows) {
    HostTensor queries(DType::kF32, std::ssize(rows), queries_.cols), out = queries;
    for (size_t i = 0; i < rows.size(); ++i)
      std::copy_n(queries_.row(rows[i]), queries_.cols, queries.view().as<float>(static_cast<int64_t>(i)));
    const std::vector<int32_t> slots(rows.size(), 0);
    const int64_t longest = *std::max_element(rows.begin(), rows.end()) + 1;
    backend.AttendDecode(Queue::kCompute, queries.view(), {std::ssize(rows), nullptr, slots.data(), rows.data()},
                         longest, Shape(), entries_.view(), out.view());
    return out;
  }

 private:
  AttentionShape Shape() const { return {scene_.kv_heads * scene_.group, 0.2f}; }
  Scene scene_;
  TestEntries<CpuBackend> entries_;
  HostTensor queries_;
};

TYPED_TEST(OrderTest, AttentionIsOneArithmetic) {
  Random random(32);
  CpuBackend one(1), two(2);
  constexpr int64_t kLong = kSanitized ? 550 : 1100;  // two and three chunks
  const Scene scenes[] = {{StoreType::kBF16, 2, 4, 64, kLong}, {StoreType::kF16, 1, 1, 20, 330},
                          {StoreType::kF32, 2, 3, 80, 300},    {StoreType::kBF16, 1, 8, 128, 150},
                          {StoreType::kF32, 3, 2, 8, 90},      {StoreType::kInt8, 2, 4, 64, kLong},
                          {StoreType::kInt8, 1, 3, 80, 200},   {StoreType::kInt4, 2, 4, 64, kLong},
                          {StoreType::kInt4, 1, 8, 128, 150},  {StoreType::kInt4, 1, 2, 75, 200}};
  for (const Scene& scene : scenes) {
    SCOPED_TRACE(::testing::Message() << "group " << scene.group << " dim " << scene.dim);
    Sequence sequence(this->backend(), scene, random);
    const HostTensor whole = sequence.Prefill(this->backend(), scene.length);
    for (const int64_t chunk : {1, 7, 64, 100}) {
      if (chunk < 64 && scene.length > 400) continue;  // decode below covers this
      if (kSanitized && (chunk == 7 || chunk == 100)) continue;
      const HostTensor cut = sequence.Prefill(two, chunk);
      for (int64_t r = 0; r < scene.length; ++r) ExpectSameBits(cut, r, whole, r);
    }
    for (CpuBackend* backend : {&one, &two, &this->backend()}) {
      if (kSanitized && backend != &two) continue;
      // Every row of the first and last block, and some between.
      std::vector<int32_t> rows;
      for (int32_t row = 0; row < scene.length; row += row < 64 || row > scene.length - 64 ? 1 : 7) rows.push_back(row);
      const HostTensor batch = sequence.Decode(*backend, rows);
      for (size_t i = 0; i < rows.size(); ++i) ExpectSameBits(batch, static_cast<int64_t>(i), whole, rows[i]);
    }
    for (int32_t row = 0; row < scene.length; row += 29) ExpectSameBits(sequence.Decode(one, {row}), 0, whole, row);
  }
}

// Sketches, selections and attention to them are the same for a token alone and in a batch, with any number of threads.
TYPED_TEST(OrderTest, SelectionsDoNotDependOnTheCall) {
  Random random(34);
  constexpr int64_t kRows = 9000, kSlots = 2, kKvHeads = 2, kGroup = 4, kDim = 64, kDims = 24, kTokens = 7;
  constexpr int64_t kQueryHeads = kKvHeads * kGroup;
  CpuBackend one(1), many(9);  // more threads than heads: several threads score one head
  std::vector<float> basis_values(static_cast<size_t>(kKvHeads * kDim * kDims)), zero(kKvHeads * kDims);
  for (float& value : basis_values) value = random.Normal(0.2f);
  const SketchBasis basis{kKvHeads, kDim, kDims, basis_values.data(), basis_values.data(), zero.data()};
  TestEntries entries(one, {StoreType::kBF16, kKvHeads, kDim}, kSlots, kRows, random);
  HostTensor keys = HostTensor::Normal(random, DType::kF32, kRows, kKvHeads * kDim);
  HostTensor queries = HostTensor::Normal(random, DType::kF32, kTokens, kQueryHeads * kDim);
  std::vector<int32_t> at(kRows);
  std::iota(at.begin(), at.end(), 0);
  const std::vector<int32_t> slots = {0, 1, 1, 0, 0, 1, 0}, rows = {8999, 8999, 17, 1500, 64, 4100, 8998};
  const std::vector<SelectRule> rules = {{.alpha = 2.0f, .sinks = 2, .window = 8}, {.alpha = 1.0f, .cap = 0.05}};
  const AttentionShape shape{kQueryHeads, 0.125f};
  for (const SketchType type : {SketchType::kBF16, SketchType::kInt8, SketchType::kInt4}) {
    const SketchLayout layout{type, kKvHeads, kDims};
    struct Outcome {
      std::vector<std::byte> sketches;
      std::vector<int32_t> rows = std::vector<int32_t>(kTokens * kKvHeads * kRows);
      std::vector<int32_t> counts = std::vector<int32_t>(kTokens * kKvHeads);
      HostTensor out{DType::kF32, kTokens, kQueryHeads* kDim};
      std::vector<SelectionTotals> totals = std::vector<SelectionTotals>(kSlots);
    };
    // Appends sketches `chunk` rows at a time and decodes tokens `together` at a time.
    const auto run = [&](CpuBackend& backend, int64_t chunk, int64_t together) {
      Outcome o;
      o.sketches.resize(static_cast<size_t>(kSlots * kKvHeads) * layout.head_bytes(kRows));
      const LayerSketches sketches{layout, o.sketches.data(), layout.head_bytes(kRows),
                                   layout.head_bytes(kRows) * static_cast<size_t>(kKvHeads)};
      for (int64_t slot = 0; slot < kSlots; ++slot) {
        const std::vector<int32_t> row_slots(kRows, static_cast<int32_t>(slot));
        backend.Append(Queue::kCompute, {kRows, nullptr, row_slots.data(), at.data()}, keys.view(), keys.view(),
                       entries.view());
        for (int64_t first = 0; first < kRows; first += chunk) {
          const int64_t count = std::min(chunk, kRows - first);
          backend.AppendSketches(Queue::kCompute, {count, nullptr, row_slots.data(), at.data() + first},
                                 keys.view().Rows(first, count), basis, sketches);
        }
      }
      for (int64_t first = 0; first < kTokens; first += together) {
        const int64_t count = std::min(together, kTokens - first);
        const TokenBatch batch{count, nullptr, slots.data() + first, rows.data() + first};
        HostTensor sketch(DType::kF32, count, kQueryHeads * kDims);
        const Selection selection{o.rows.data() + first * kKvHeads * kRows, o.counts.data() + first * kKvHeads, kRows,
                                  kKvHeads};
        const SelectCall call{.rules = rules.data(), .totals = o.totals.data(), .max_rows = kRows};
        backend.SketchQueries(Queue::kCompute, queries.view().Rows(first, count), batch, shape, basis, sketch.view());
        backend.Select(Queue::kCompute, sketch.view(), batch, call, sketches, selection);
        backend.AttendSelected(Queue::kCompute, queries.view().Rows(first, count), batch, selection, {}, shape,
                               entries.view(), o.out.view().Rows(first, count));
      }
      return o;
    };
    const Outcome all = run(this->backend(), kRows, kTokens);
    for (CpuBackend* backend : {&one, &many, &this->backend()}) {
      if (kSanitized && backend != &many) continue;
      for (const int64_t together : {1, 3}) {
        const Outcome part = run(*backend, together == 1 ? 512 : 61, together);
        ASSERT_EQ(part.sketches, all.sketches);
        ASSERT_EQ(part.counts, all.counts);
        ASSERT_EQ(part.rows, all.rows);
        for (int64_t r = 0; r < kTokens; ++r) ExpectSameBits(part.out, r, all.out, r);
        for (size_t s = 0; s < kSlots; ++s) {
          EXPECT_EQ(part.totals[s].chosen, all.totals[s].chosen);
          EXPECT_EQ(part.totals[s].attended, all.totals[s].attended);
          EXPECT_EQ(part.totals[s].retained, all.totals[s].retained);
        }
      }
    }
  }
}

// The same for page bounds and selections by pages.
TYPED_TEST(OrderTest, PagesDoNotDependOnTheCall) {
  Random random(36);
  constexpr int64_t kRows = 9000, kSlots = 2, kKvHeads = 2, kGroup = 3, kDim = 72, kTokens = 7;
  CpuBackend one(1), many(9);  // more threads than heads: several threads score one head
  HostTensor keys = HostTensor::Normal(random, DType::kF32, kRows, kKvHeads * kDim);
  HostTensor queries = HostTensor::Normal(random, DType::kF32, kTokens, kKvHeads * kGroup * kDim);
  std::vector<int32_t> at(kRows);
  std::iota(at.begin(), at.end(), 0);
  const std::vector<int32_t> slots = {0, 1, 1, 0, 0, 1, 0}, rows = {8999, 8999, 17, 1500, 64, 4100, 8998};
  const std::vector<SelectRule> rules = {{.alpha = 3.0f, .sinks = 2, .window = 8},
                                         {.alpha = std::numeric_limits<float>::infinity(), .cap = 0.05}};
  const PageBoundsLayout layout{kKvHeads, kDim};
  struct Outcome {
    std::vector<std::byte> bounds;
    std::vector<int32_t> rows = std::vector<int32_t>(kTokens * kKvHeads * kRows);
    std::vector<int32_t> counts = std::vector<int32_t>(kTokens * kKvHeads);
  };
  // Appends keys `chunk` rows at a time and decodes tokens `together` at a time.
  const auto run = [&](CpuBackend& backend, int64_t chunk, int64_t together) {
    Outcome o;
    const size_t head = layout.head_bytes(kRows);
    o.bounds.resize(static_cast<size_t>(kSlots * kKvHeads) * head);
    const LayerPageBounds bounds{layout, o.bounds.data(), head, head * static_cast<size_t>(kKvHeads)};
    for (int32_t slot = 0; slot < kSlots; ++slot) {
      const std::vector<int32_t> row_slots(kRows, slot);
      for (int64_t first = 0; first < kRows; first += chunk) {
        const int64_t count = std::min(chunk, kRows - first);
        backend.AppendBounds(Queue::kCompute, {count, nullptr, row_slots.data(), at.data() + first},
                             keys.view().Rows(first, count), bounds);
      }
    }
    std::vector<SelectionTotals> totals(kSlots);
    for (int64_t first = 0; first < kTokens; first += together) {
      const int64_t count = std::min(together, kTokens - first);
      const Selection selection{o.rows.data() + first * kKvHeads * kRows, o.counts.data() + first * kKvHeads, kRows,
                                kKvHeads};
      const SelectCall call{.rules = rules.data(), .totals = totals.data(), .max_rows = kRows, .page = kPageRows};
      backend.SelectPages(Queue::kCompute, queries.view().Rows(first, count),
                          {count, nullptr, slots.data() + first, rows.data() + first}, call,
                          {kKvHeads * kGroup, 0.125f}, bounds, selection);
    }
    return o;
  };
  const Outcome all = run(this->backend(), kRows, kTokens);
  for (CpuBackend* backend : {&one, &many, &this->backend()}) {
    for (const int64_t together : {1, 3}) {
      const Outcome part = run(*backend, together == 1 ? 512 : 61, together);
      ASSERT_EQ(part.bounds, all.bounds);
      ASSERT_EQ(part.counts, all.counts);
      ASSERT_EQ(part.rows, all.rows);
    }
  }
}

TYPED_TEST(OrderTest, RowwiseOpsDoNotDependOnTheCall) {
  Random random(33);
  CpuBackend one(1);
  HostTensor x = HostTensor::Normal(random, DType::kF32, 100, 333),
             weight = HostTensor::Normal(random, DType::kF32, 1, 333);
  HostTensor many(DType::kF32, 100, 333), single = many, gated = x, gated_single = x;
  this->backend().RmsNorm(Queue::kCompute, x.view(), weight.view(), 1e-5f, many.view());
  this->backend().SiluMul(Queue::kCompute, gated.view(), x.view());
  for (int64_t r = 0; r < 100; ++r) {
    one.RmsNorm(Queue::kCompute, x.view().Rows(r, 1), weight.view(), 1e-5f, single.view().Rows(r, 1));
    one.SiluMul(Queue::kCompute, gated_single.view().Rows(r, 1), x.view().Rows(r, 1));
    ExpectSameBits(single, r, many, r);
    ExpectSameBits(gated_single, r, gated, r);
  }
}

}  // namespace
}  // namespace infinigen
