// Layers that evict: assigned rows, priorities, attention sums and survivors, on every backend against the oracle.
#include "kv/retain.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "backend/backends.h"
#include "backend/operands.h"
#include "backend/selections.h"

namespace infinigen {
namespace {

constexpr int64_t kSlots = 2, kHeads = 2, kGroup = 3, kDim = 32, kDims = 16;
constexpr AttentionShape kShape{kHeads * kGroup, 0.2f};

template <class Factory>
class RetainTest : public OpTest<Factory> {};
TYPED_TEST_SUITE(RetainTest, SketchingBackends, BackendName);

// A layer's cache with eviction state, sketches and entries, filled with poison.
template <class B>
class TestCache {
 public:
  TestCache(B& backend, int64_t slots, int64_t rows, const std::vector<int32_t>& quotas, Random& random,
            StoreType type = StoreType::kF32)
      : entries_(backend, {type, kHeads, kDim}, slots, rows, random),
        sketches_(backend, static_cast<size_t>(slots * kHeads) * kLayout.head_bytes(rows)),
        positions_(backend, static_cast<size_t>(slots * kHeads * rows) * 4),
        marks_(backend, static_cast<size_t>(slots * kHeads * rows) * 4),
        quotas_(backend, quotas),
        rows_(rows) {}
  LayerCache view() {
    const size_t head = kLayout.head_bytes(rows_);
    return {entries_.view(),
            {kLayout, sketches_.template as<std::byte>(), head, head * kHeads},
            {positions_.template as<int32_t>(), marks_.template as<float>(), rows_, kHeads, quotas_}};
  }
  void SetMarks(const std::vector<float>& priorities) { marks_.Put(priorities); }
  void SetPositions(const std::vector<int32_t>& positions) { positions_.Put(positions); }
  void SetSketches(const std::vector<std::byte>& bytes) { sketches_.Put(bytes); }
  std::vector<int32_t> Positions() const { return positions_.template Get<int32_t>(); }
  std::vector<float> Priorities() const { return marks_.template Get<float>(); }
  std::vector<std::byte> Sketches() const { return sketches_.template Get<std::byte>(); }
  TestEntries<B>& entries() { return entries_; }

  static constexpr SketchLayout kLayout{SketchType::kInt8, kHeads, kDims, /*scale_dims=*/8, /*value_dims=*/8};

 private:
  TestEntries<B> entries_;
  DeviceBytes<B> sketches_, positions_, marks_;
  DeviceInts<B> quotas_;
  int64_t rows_;
};

// Two sequences with quotas of 40 and 23 take enough tokens, with random selections in between, that the counters of
// the oldest overflow. Returns the assigned rows and the eviction state after every step.
template <class B>
std::vector<std::vector<float>> RunSteps(B& backend, const RetainPolicy& policy, uint64_t seed) {
  Random random(seed);
  const std::vector<int32_t> quotas = {40, 23};
  TestCache<B> cache(backend, kSlots, 40, quotas, random);
  const RetainRule rule{policy.on_append, policy.on_select, false, /*sinks=*/2};
  const SelectRule select{.sinks = 1, .window = 3};
  DeviceBytes<B> rules(backend, 2 * sizeof(SelectRule)), own_rows(backend, kSlots * kHeads * 4);
  rules.Put(std::vector<SelectRule>{select, select});
  DeviceBytes<B> lists(backend, kSlots * kHeads * 40 * 4), counts(backend, kSlots * kHeads * 4);
  const Selection selection{lists.template as<int32_t>(), counts.template as<int32_t>(), 40, kHeads};
  std::vector<std::vector<float>> record;
  for (int32_t position = 0; position < 700; ++position) {
    const std::vector<int32_t> rows = {std::min(position, 39), std::min(position, 22)};
    DeviceInts<B> slots(backend, {0, 1}), last(backend, rows), at(backend, {position, position});
    TokenBatch batch{.count = 2, .slots = slots, .rows = last, .positions = at};
    backend.AssignRows(Queue::kCompute, batch, rule, cache.view(), own_rows.template as<int32_t>());
    const auto taken = own_rows.template Get<int32_t>();
    record.emplace_back(taken.begin(), taken.end());
    std::vector<int32_t> all(kSlots * kHeads * 40), lengths;
    for (size_t list = 0; list < kSlots * kHeads; ++list) {
      int32_t length = 0;
      for (int32_t row = 0; row <= rows[list / kHeads]; ++row)
        if (random.Int(0, 1) == 0) all[list * 40 + static_cast<size_t>(length++)] = row;
      lengths.push_back(length);
    }
    lists.Put(all);
    counts.Put(lengths);
    batch.own_rows = own_rows.template as<int32_t>();
    batch.kv_heads = kHeads;
    const SelectCall call{.rules = rules.template as<SelectRule>(), .max_rows = 40, .retained = cache.view().retained};
    backend.UpdatePriorities(Queue::kCompute, batch, rule, call, selection);
    // Rows that were never assigned are poison in both.
    std::vector<float>& state = record.emplace_back();
    const std::vector<int32_t> positions = cache.Positions();
    const std::vector<float> priorities = cache.Priorities();
    for (size_t list = 0; list < kSlots * kHeads; ++list)
      for (size_t row = 0; row <= static_cast<size_t>(rows[list / kHeads]); ++row) {
        state.push_back(static_cast<float>(positions[list * 40 + row]));
        state.push_back(priorities[list * 40 + row]);
      }
  }
  return record;
}

TYPED_TEST(RetainTest, EvictionStateMatchesTheOracle) {
  for (const RetainPolicy* policy : RetainPolicies()) {
    const auto ours = RunSteps(this->backend(), *policy, 5), want = RunSteps(this->reference(), *policy, 5);
    EXPECT_EQ(ours, want) << policy->name;
    if (policy != &kRetainCounter) continue;
    // The second token is a sink, so it is never evicted: its counter is halved at least once.
    float before = 0;
    bool halved = false;
    for (size_t i = 9; i < want.size(); i += 2) {  // assigned rows and eviction state alternate
      halved = halved || want[i][3] < before;
      before = want[i][3];
    }
    EXPECT_TRUE(halved);
  }
}

TYPED_TEST(RetainTest, AReusedRowHasNoScoreUntilItIsSketched) {
  using Tested = typename TypeParam::B;
  Random random(6);
  TestCache<Tested> cache(this->backend(), 1, 8, {8}, random);
  cache.SetSketches(std::vector<std::byte>(kHeads * TestCache<Tested>::kLayout.head_bytes(8), std::byte{0x81}));
  cache.SetPositions(std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7});
  cache.SetMarks(std::vector<float>{5, 1, 9, 9, 0, 0, 0, 0, 1, 5, 9, 9, 0, 0, 0, 0});
  DeviceInts<Tested> slots(this->backend(), {0}), rows(this->backend(), {7}), positions(this->backend(), {8});
  DeviceBytes<Tested> own_rows(this->backend(), kHeads * 4);
  const TokenBatch batch{.count = 1, .slots = slots, .rows = rows, .positions = positions};
  this->backend().AssignRows(Queue::kCompute, batch, {}, cache.view(), own_rows.template as<int32_t>());
  EXPECT_EQ(own_rows.template Get<int32_t>(), (std::vector<int32_t>{1, 0}));
  HostTensor query(DType::kF32, 1, kHeads * kGroup * kDims);
  for (int64_t c = 0; c < query.cols; ++c) query.Set(0, c, 1.0f);
  DeviceTensor<Tested> device_query(this->backend(), query);
  SelectCall call;
  call.retained = cache.view().retained;
  const Outcome outcome =
      RunSelect(this->backend(), {{0}, {7}}, {SelectRule{.alpha = kInfinity, .cap = 1.0}}, kHeads, call,
                [&](TokenBatch token, const SelectCall& with, const Selection& selection) {
                  token.positions = positions;
                  this->backend().Select(Queue::kCompute, device_query, token, with, cache.view().sketches, selection);
                });
  // All rows are attended, the new one as the current token: it was not chosen by score.
  EXPECT_EQ(outcome.rows[0].size(), 8u);
  EXPECT_EQ(outcome.totals[0].chosen, 7u + 7 + 7);
  EXPECT_EQ(outcome.totals[0].attended, 5u + 8 + 8);
}

// Selection if rows are in any order of positions. Integer sketches have exact scores, so lists are equal. Few rows and
// many, which a GPU chooses from in different ways.
TYPED_TEST(RetainTest, SelectionsGoByPosition) {
  const auto run = [&](auto& backend, int32_t all, uint64_t seed) {
    using Any = std::decay_t<decltype(backend)>;
    Random numbers(seed);
    TestCache<Any> cache(backend, kSlots, all, {all, all}, numbers);
    std::vector<std::byte> bytes(kSlots * kHeads * TestCache<Any>::kLayout.head_bytes(all));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(numbers.Int(120, 136));
    cache.SetSketches(bytes);
    std::vector<int32_t> positions;
    for (int64_t list = 0; list < kSlots * kHeads; ++list) {
      std::vector<int32_t> some(6000);
      std::iota(some.begin(), some.end(), 0);
      std::shuffle(some.begin(), some.end() - 1, numbers.engine());
      some[static_cast<size_t>(numbers.Int(0, all - 1))] = 5999;  // the current token
      positions.insert(positions.end(), some.begin(), some.begin() + all);
    }
    cache.SetPositions(positions);
    std::vector<Outcome> outcomes;
    for (int i = 0; i < 12; ++i) {
      HostTensor query = HostTensor::Normal(numbers, DType::kF32, 2, kHeads * kGroup * kDims);
      DeviceTensor<Any> device_query(backend, query);
      DeviceInts<Any> at(backend, {5999, 5999});
      SelectCall call;
      call.retained = cache.view().retained;
      call.mean_counts = i % 4 == 3;
      outcomes.push_back(
          RunSelect(backend, {{0, 1}, {all - 1, 900}}, {RandomRule(numbers), RandomRule(numbers)}, kHeads, call,
                    [&](TokenBatch token, const SelectCall& with, const Selection& selection) {
                      token.positions = at;
                      backend.Select(Queue::kCompute, device_query, token, with, cache.view().sketches, selection);
                    }));
    }
    return outcomes;
  };
  for (const int32_t all : {2500, 5500}) {
    const std::vector<Outcome> ours = run(this->backend(), all, 8), want = run(this->reference(), all, 8);
    for (size_t i = 0; i < want.size(); ++i) ExpectSame(ours[i], want[i]);
  }
}

TYPED_TEST(RetainTest, SumsOfAttention) {
  constexpr int64_t kRows = 330, kChunk = 70;
  const auto run = [&](auto& backend, StoreType type, DType activation) {
    using Any = std::decay_t<decltype(backend)>;
    Random random(9);
    TestCache<Any> cache(backend, kSlots, kRows, {kRows, kRows}, random, type);
    cache.SetMarks(std::vector<float>(kSlots * kHeads * kRows, 0.5f));
    HostTensor keys = HostTensor::Normal(random, DType::kF32, kRows, kHeads * kDim);
    HostTensor queries = HostTensor::Normal(random, activation, kRows, kShape.heads * kDim, 2.0f);
    if constexpr (std::is_same_v<Any, ReferenceBackend>) queries = queries.As(DType::kF32);
    DeviceTensor<Any> device_keys(backend, keys), device_queries(backend, queries);
    std::vector<int32_t> all(kRows), zeros(kRows, 1);
    std::iota(all.begin(), all.end(), 0);
    DeviceInts<Any> rows(backend, all), slots(backend, zeros);
    backend.Append(Queue::kCompute, {kRows, nullptr, slots, rows}, device_keys, device_keys, cache.view().entries);
    for (int64_t first = 0; first < kRows; first += kChunk) {
      const int64_t count = std::min(kChunk, kRows - first);
      backend.SumColumns(Queue::kCompute, device_queries.view().Rows(first, count), {SeqSlot(1), first, count}, kShape,
                         cache.view());
    }
    backend.SumAttention(Queue::kCompute, device_queries.view().Rows(40, 1),
                         TokenBatch{1, nullptr, slots, rows}.Range(kRows - 1, 1), kShape, cache.view());
    return cache.Priorities();
  };
  const auto check = [&](StoreType type, DType activation) {
    SCOPED_TRACE(::testing::Message() << Name(type) << " by " << Name(activation));
    const std::vector<float> ours = run(this->backend(), type, activation),
                             want = run(this->reference(), type, activation);
    // Scores have a deviation of two. If they are rounded (arithmetic.h), a weight is off by 1.2·u in the mean, the
    // largest by 6·u, and by p·(1 − p) of that. Errors of different queries are independent, so a sum of weights is off
    // by less than its own share of that.
    const double rounding = TypeParam::AttentionRounding(type), bound = 1e-5 + 4 * rounding;
    ASSERT_EQ(ours.size(), want.size());
    double total = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(ours[i], want[i], bound * std::max(1.0f, want[i])) << i;
      if (i >= kHeads * kRows) total += static_cast<double>(ours[i]) - 0.5;
    }
    EXPECT_EQ(ours[0], 0.5f) << "another sequence's";
    EXPECT_NEAR(total, kShape.heads * (kRows + 1), 0.01 + kShape.heads * rounding)
        << "the weights of every query sum to one";
  };
  for (const StoreType type : {StoreType::kF32, StoreType::kBF16, StoreType::kInt8, StoreType::kInt4})
    check(type, DType::kF32);
  for (const DType activation : TypeParam::kActivations) check(StoreType::kF16, activation);
}

TYPED_TEST(RetainTest, SurvivorsKeepEntrySketchAndState) {
  using Tested = typename TypeParam::B;
  for (const int64_t quota : {300, 77, 1}) {
    Random random(10);
    constexpr int64_t kRows = 300;
    TestCache<Tested> from(this->backend(), 1, kRows, {static_cast<int32_t>(kRows)}, random);
    TestCache<Tested> to(this->backend(), kSlots, kRows, {1, static_cast<int32_t>(quota)}, random);
    HostTensor keys = HostTensor::Normal(random, DType::kF32, kRows, kHeads * kDim);
    DeviceTensor<Tested> device_keys(this->backend(), keys);
    std::vector<int32_t> all(kRows);
    std::iota(all.begin(), all.end(), 0);
    DeviceInts<Tested> rows(this->backend(), all), slots(this->backend(), std::vector<int32_t>(kRows, 0));
    this->backend().Append(Queue::kCompute, {kRows, nullptr, slots, rows}, device_keys, device_keys,
                           from.view().entries);
    std::vector<std::byte> sketches(kHeads * TestCache<Tested>::kLayout.head_bytes(kRows));
    for (std::byte& byte : sketches) byte = static_cast<std::byte>(random.Int(0, 255));
    from.SetSketches(sketches);
    std::vector<float> priorities;
    for (int64_t i = 0; i < kHeads * kRows; ++i) priorities.push_back(static_cast<float>(random.Int(0, 30)));
    from.SetMarks(priorities);
    const RetainRule rule{.sinks = 3};
    this->backend().CopySurvivors(Queue::kCompute, rule, from.view(), kRows, SeqSlot(1), to.view());
    for (int64_t head = 0; head < kHeads; ++head) {
      const std::vector<int32_t> stay =
          Survivors(std::span(priorities).subspan(static_cast<size_t>(head * kRows), kRows), rule, quota);
      const size_t first = static_cast<size_t>((kHeads + head) * kRows);
      for (int64_t row = 0; row < quota; ++row) {
        const int64_t source = stay[static_cast<size_t>(row)];
        ASSERT_EQ(to.entries().Read(1, head, row), from.entries().Read(0, head, source));
        ASSERT_EQ(to.Positions()[first + static_cast<size_t>(row)], source);
        ASSERT_EQ(to.Priorities()[first + static_cast<size_t>(row)],
                  priorities[static_cast<size_t>(head * kRows + source)]);
      }
    }
    // The sketches of key and value are copied to the row of the entry, and nothing else is written.
    const std::vector<std::byte> moved = to.Sketches();
    const SketchLayout layout = TestCache<Tested>::kLayout;
    std::vector<std::byte> expected(moved.size(), std::byte{0xff});
    for (int64_t head = 0; head < kHeads; ++head) {
      const std::vector<int32_t> stay =
          Survivors(std::span(priorities).subspan(static_cast<size_t>(head * kRows), kRows), rule, quota);
      const auto block = [&](std::byte* bytes, int64_t of_head, int64_t row) {
        return bytes + static_cast<size_t>(of_head) * layout.head_bytes(kRows) +
               static_cast<size_t>(row / kSketchBlock) * layout.block_bytes();
      };
      for (int64_t row = 0; row < quota; ++row) {
        const int64_t source = stay[static_cast<size_t>(row)];
        CopySketch(layout, block(sketches.data(), head, source), source % kSketchBlock,
                   block(expected.data(), kHeads + head, row), row % kSketchBlock);
      }
    }
    ASSERT_TRUE(moved == expected);
  }
}

}  // namespace
}  // namespace infinigen
