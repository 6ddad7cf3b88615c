// Fetching: cells, misses, and attention that reads the buffer. Everything is exact: cells are compared with a simple
// model, entries byte by byte, outputs bit for bit.
#include <memory>
#include <set>

#include "backend/backends.h"
#include "backend/fetch_layer.h"

namespace infinigen {
namespace {

template <class Factory>
class FetchTest : public OpTest<Factory> {
 protected:
  using Layer = FetchLayer<typename Factory::B>;
};
TYPED_TEST_SUITE(FetchTest, FetchingBackends, BackendName);

// `count` rows of [0, last], including `own`; many of them from the previous list.
std::vector<int32_t> RandomList(Random& random, int32_t last, int32_t own, int64_t count,
                                const std::vector<int32_t>& before) {
  std::set<int32_t> rows = {own};
  count = std::min<int64_t>(count, last + 1);
  for (const int32_t row : before)
    if (std::ssize(rows) < count && random.Int(0, 3) > 0) rows.insert(row);
  while (std::ssize(rows) < count) rows.insert(static_cast<int32_t>(random.Int(0, last)));
  return {rows.begin(), rows.end()};
}

// The cell of every selected row holds that row, and no two rows share a cell.
template <class Layer>
void ExpectFetched(const Layer& layer, const std::vector<FetchToken>& tokens,
                   const std::vector<FetchOutcome>& outcomes) {
  const Bytes data = layer.Data();
  size_t at = 0;
  for (const FetchToken& token : tokens)
    for (int64_t head = 0; head < layer.shape().kv_heads; ++head, ++at) {
      const auto& list = token.lists[static_cast<size_t>(head)];
      const auto& cells = outcomes[at].cells;
      ASSERT_EQ(std::set<int32_t>(cells.begin(), cells.end()).size(), list.size());
      for (size_t i = 0; i < list.size(); ++i)
        ASSERT_TRUE(layer.At(data, token.slot, head, cells[i]) == layer.PoolEntry(token.slot, head, list[i]))
            << "row " << list[i] << " at cell " << cells[i] << " of slot " << token.slot << ", head " << head;
    }
}

TYPED_TEST(FetchTest, WithoutAHotSetCellsFollowTheList) {
  for (const StoreType type : kStoreTypes) {
    for (const int64_t dim : {8, 64, 80, 128}) {
      SCOPED_TRACE(::testing::Message() << Name(type) << " dim " << dim);
      const FetchShape shape{
          .type = type, .kv_heads = 3, .dim = dim, .slots = 3, .rows = 300, .cells = 120, .hot = false};
      typename TestFixture::Layer layer(this->backend(), shape, 1);
      Random& random = layer.random();
      std::vector<FetchToken> tokens;
      uint64_t wanted = 0;
      for (const int32_t slot : {2, 0}) {
        FetchToken token{slot, 280, {}, {}, {}};
        for (const int64_t count : {int64_t{1}, random.Int(2, 60), int64_t{120}}) {
          token.own.push_back(slot == 0 ? 280 : static_cast<int32_t>(random.Int(0, 280)));
          token.lists.push_back(RandomList(random, 280, token.own.back(), count, {}));
          wanted += static_cast<uint64_t>(token.lists.back().size() - 1);
        }
        tokens.push_back(token);
      }
      const std::vector<FetchOutcome> outcomes = layer.Step(tokens);
      ExpectFetched(layer, tokens, outcomes);
      for (size_t i = 0; i < outcomes.size(); ++i) {
        const auto& list = tokens[i / 3].lists[i % 3];
        std::vector<int32_t> cells(list.size()), misses;
        std::iota(cells.begin(), cells.end(), 0);
        for (const int32_t item : cells)
          if (list[static_cast<size_t>(item)] != tokens[i / 3].own[i % 3]) misses.push_back(item);
        EXPECT_EQ(outcomes[i].cells, cells);
        EXPECT_EQ(outcomes[i].misses, misses);
        EXPECT_EQ(list[static_cast<size_t>(outcomes[i].own)], tokens[i / 3].own[i % 3]);
      }
      const std::vector<FetchTotals> totals = layer.Totals();
      EXPECT_EQ(totals[0].wanted + totals[2].wanted, wanted);
      EXPECT_EQ(totals[0].fetched + totals[2].fetched, wanted);
      EXPECT_EQ(totals[1].wanted, 0u);
    }
  }
}

TYPED_TEST(FetchTest, ForcedHitsAreAShareSpreadEvenly) {
  const FetchShape shape{.kv_heads = 2, .dim = 8, .slots = 1, .rows = 2000, .cells = 1500, .hot = false};
  typename TestFixture::Layer layer(this->backend(), shape, 2);
  for (const double hits : {0.0, 0.25, 0.6, 0.8, 0.97}) {
    FetchToken token{0, 1999, {1999, 1000}, {}, {}};
    for (const int64_t count : {409, 1500})
      token.lists.push_back(RandomList(layer.random(), 1999, token.own[token.lists.size()], count, {}));
    const std::vector<FetchOutcome> outcomes = layer.Step({token}, hits);
    for (size_t head = 0; head < 2; ++head) {
      const auto& [cells, misses, own] = outcomes[head];
      EXPECT_NEAR(static_cast<double>(misses.size()), (1 - hits) * static_cast<double>(cells.size()), 2.0) << hits;
      EXPECT_TRUE(std::is_sorted(misses.begin(), misses.end()));
      EXPECT_EQ(std::count(misses.begin(), misses.end(), own), 0);
      for (size_t i = 1; i < misses.size(); ++i)  // twice the mean distance if the own row is in between
        EXPECT_LE(misses[i] - misses[i - 1], 2 * (1 / (1 - hits) + 1)) << hits;
      for (size_t i = 0; i < cells.size(); ++i) EXPECT_EQ(cells[i], static_cast<int32_t>(i));
    }
  }
}

// One cell too few: the least recently used cell is reused; ties go to the lower cell.
TYPED_TEST(FetchTest, LeastRecentlyUsedCellsAreReused) {
  const FetchShape shape{.kv_heads = 1, .slots = 1, .rows = 60, .cells = 4};
  typename TestFixture::Layer layer(this->backend(), shape, 3);
  const auto step = [&](int32_t position, std::vector<int32_t> list) {
    const std::vector<FetchToken> tokens = {{0, position, {position}, {std::move(list)}, {}}};
    std::vector<FetchOutcome> outcomes = layer.Step(tokens);
    ExpectFetched(layer, tokens, outcomes);
    return outcomes[0];
  };
  using Ints = std::vector<int32_t>;
  FetchOutcome outcome = step(10, {3, 5, 10});
  EXPECT_EQ(outcome.cells, (Ints{0, 1, 2}));
  EXPECT_EQ(outcome.misses, (Ints{0, 1}));
  outcome = step(11, {3, 11});  // 11 takes the cell that was never used
  EXPECT_EQ(outcome.cells, (Ints{0, 3}));
  EXPECT_EQ(outcome.misses, Ints{});
  outcome = step(12, {3, 7, 12});  // 5 and 10 are dropped; the own row comes last
  EXPECT_EQ(outcome.cells, (Ints{0, 1, 2}));
  EXPECT_EQ(outcome.misses, Ints{1});
  outcome = step(13, {5, 10, 11, 13});  // all but 11 are dropped
  EXPECT_EQ(outcome.cells, (Ints{0, 1, 3, 2}));
  EXPECT_EQ(outcome.misses, (Ints{0, 1}));
  EXPECT_EQ(outcome.own, 2);
}

TYPED_TEST(FetchTest, HitsAreNotFetchedAgainUntilCleared) {
  for (const StoreType type : {StoreType::kBF16, StoreType::kInt8}) {
    const FetchShape shape{.type = type, .kv_heads = 1, .slots = 2, .rows = 60, .cells = 8};
    typename TestFixture::Layer layer(this->backend(), shape, 4);
    std::vector<FetchToken> tokens = {{1, 10, {10}, {{2, 4, 10}}, {}}, {0, 20, {20}, {{2, 20}}, {}}};
    const std::vector<FetchOutcome> first = layer.Step(tokens);
    const Bytes two = layer.PoolEntry(1, 0, 2), other_two = layer.PoolEntry(0, 0, 2);
    layer.Write({{1, 0, {2}, {}, {}}, {1, 0, {6}, {}, {}}, {0, 0, {2}, {}, {}}});
    ASSERT_FALSE(layer.PoolEntry(1, 0, 2) == two);
    tokens = {{0, 21, {21}, {{2, 21}}, {}}, {1, 11, {11}, {{2, 4, 6, 11}}, {}}};
    const std::vector<FetchOutcome> second = layer.Step(tokens);
    EXPECT_EQ(second[1].misses, std::vector<int32_t>{2});
    EXPECT_EQ(second[1].cells[0], first[0].cells[0]);
    Bytes data = layer.Data();
    EXPECT_TRUE(layer.At(data, 1, 0, second[1].cells[0]) == two);
    EXPECT_TRUE(layer.At(data, 1, 0, second[1].cells[2]) == layer.PoolEntry(1, 0, 6));

    layer.Clear(1);
    tokens = {{0, 22, {22}, {{2, 22}}, {}}, {1, 12, {12}, {{2, 4, 6, 12}}, {}}};
    const std::vector<FetchOutcome> third = layer.Step(tokens);
    EXPECT_EQ(third[0].misses, std::vector<int32_t>{});
    EXPECT_EQ(third[1].misses, (std::vector<int32_t>{0, 1, 2}));
    data = layer.Data();
    EXPECT_TRUE(layer.At(data, 0, 0, third[0].cells[0]) == other_two);
    EXPECT_TRUE(layer.At(data, 1, 0, third[1].cells[0]) == layer.PoolEntry(1, 0, 2));
    const std::vector<FetchTotals> totals = layer.Totals();
    EXPECT_EQ(totals[0].wanted, 3u);
    EXPECT_EQ(totals[0].fetched, 1u);
    EXPECT_EQ(totals[1].wanted, 8u);
    EXPECT_EQ(totals[1].fetched, 6u);
  }
}

// The late rows of a step against the model. `before`: outcomes of the step without them.
template <class Layer>
void ReplayLate(Layer& layer, const std::vector<FetchToken>& tokens, const std::vector<FetchOutcome>& before,
                std::vector<HotModel>& models) {
  const FetchShape& shape = layer.shape();
  const std::vector<FetchTotals> totals_before = layer.Totals();
  const std::vector<FetchOutcome> got = layer.StepLate(tokens);
  const std::vector<FetchTotals> totals = layer.Totals();
  const Bytes data = layer.Data();
  std::vector<FetchTotals> counted(totals.size());
  size_t at = 0;
  for (const FetchToken& token : tokens)
    for (int64_t head = 0; head < shape.kv_heads; ++head, ++at) {
      HotModel& model = models[static_cast<size_t>(token.slot * shape.kv_heads + head)];
      const auto& list = token.lists[static_cast<size_t>(head)];
      const auto& late = token.late[static_cast<size_t>(head)];
      const FetchOutcome want = model.AssignLate(list, late, before[at], token.position);
      std::vector<int32_t> joined = list;
      joined.insert(joined.end(), late.begin(), late.end());
      std::sort(joined.begin(), joined.end());
      for (const int32_t item : want.misses)
        model.At(want.cells[static_cast<size_t>(item)]) =
            layer.PoolEntry(token.slot, head, joined[static_cast<size_t>(item)]);
      ASSERT_EQ(got[at].cells, want.cells);
      ASSERT_EQ(got[at].misses, want.misses);
      ASSERT_EQ(got[at].own, want.own);
      FetchTotals& sum = counted[static_cast<size_t>(token.slot)];
      sum.wanted += late.size();
      sum.fetched += want.misses.size();
      for (const int32_t row : late)
        sum.fetched +=
            want.cells[static_cast<size_t>(std::lower_bound(joined.begin(), joined.end(), row) - joined.begin())] < 0;
      for (const int32_t cell : want.cells) {
        if (cell < 0) continue;
        ASSERT_TRUE(layer.At(data, token.slot, head, cell) == model.At(cell)) << "cell " << cell;
      }
    }
  for (size_t slot = 0; slot < totals.size(); ++slot) {
    EXPECT_EQ(totals[slot].wanted - totals_before[slot].wanted, counted[slot].wanted);
    EXPECT_EQ(totals[slot].fetched - totals_before[slot].fetched, counted[slot].fetched);
  }
}

// Random steps of random sequences, with changes to the pool in between, against the model. `evicts`: the own row may
// be any row, from the first step on. `late`: the most late rows of a list.
template <class Layer>
void Replay(Layer& layer, int64_t steps, int64_t most, bool evicts, int64_t late = 0) {
  const FetchShape& shape = layer.shape();
  Random& random = layer.random();
  std::vector<HotModel> models(static_cast<size_t>(shape.slots * shape.kv_heads), HotModel(shape.cells));
  std::vector<std::vector<int32_t>> before(models.size());
  std::vector<int32_t> position(static_cast<size_t>(shape.slots));
  for (int32_t& x : position) x = static_cast<int32_t>(shape.rows - 1 - steps - (evicts ? 0 : random.Int(0, 3)));
  for (int64_t s = 0; s < steps; ++s) {
    std::vector<int32_t> slots(static_cast<size_t>(shape.slots));
    std::iota(slots.begin(), slots.end(), 0);
    std::shuffle(slots.begin(), slots.end(), random.engine());
    slots.resize(static_cast<size_t>(random.Int(1, shape.slots)));
    std::vector<FetchToken> tokens, changed;
    std::vector<std::set<int32_t>> late_rows;
    for (const int32_t slot : slots) {
      const int32_t now = position[static_cast<size_t>(slot)]++;
      const int32_t last = evicts ? static_cast<int32_t>(shape.rows) - 1 : now;
      FetchToken token{slot, now, {}, {}, {}};
      for (int64_t head = 0; head < shape.kv_heads; ++head) {
        auto& list = before[static_cast<size_t>(slot * shape.kv_heads + head)];
        token.own.push_back(evicts ? static_cast<int32_t>(random.Int(0, last)) : now);
        list = RandomList(random, last, token.own.back(), random.Int(0, 5) == 0 ? most : random.Int(1, most), list);
        token.lists.push_back(list);
        std::set<int32_t>& rows = late_rows.emplace_back();
        for (int64_t i = random.Int(0, late); i > 0; --i) {
          const auto row = static_cast<int32_t>(random.Int(0, last));
          if (!std::binary_search(list.begin(), list.end(), row)) rows.insert(row);
        }
        token.late.emplace_back(rows.begin(), rows.end());
      }
      tokens.push_back(token);
      changed.push_back(
          {slot,
           0,
           std::vector<int32_t>(static_cast<size_t>(shape.kv_heads),
                                token.lists[0][static_cast<size_t>(random.Int(0, 1000)) % token.lists[0].size()]),
           {},
           {}});
    }
    layer.Write(changed);
    // Expected bytes as of the time of the fetch; the tokens' own entries are written later.
    std::vector<FetchOutcome> want;
    const auto for_lists = [&](auto&& f) {
      for (const FetchToken& token : tokens)
        for (int64_t head = 0; head < shape.kv_heads; ++head)
          f(token, head, models[static_cast<size_t>(token.slot * shape.kv_heads + head)]);
    };
    for_lists([&](const FetchToken& token, int64_t head, HotModel& model) {
      const auto& list = token.lists[static_cast<size_t>(head)];
      want.push_back(model.Assign(list, token.own[static_cast<size_t>(head)], token.position));
      for (const int32_t item : want.back().misses)
        model.At(want.back().cells[static_cast<size_t>(item)]) =
            layer.PoolEntry(token.slot, head, list[static_cast<size_t>(item)]);
    });
    const std::vector<FetchOutcome> got = layer.Step(tokens);
    const Bytes data = layer.Data();
    size_t at = 0;
    for_lists([&](const FetchToken& token, int64_t head, HotModel& model) {
      if (want[at].own >= 0)
        model.At(want[at].own) = layer.PoolEntry(token.slot, head, token.own[static_cast<size_t>(head)]);
      ASSERT_EQ(got[at].cells, want[at].cells) << "step " << s;
      ASSERT_EQ(got[at].misses, want[at].misses) << "step " << s;
      ASSERT_EQ(got[at].own, want[at].own) << "step " << s;
      for (const int32_t cell : want[at].cells) {
        if (cell < 0) continue;
        ASSERT_TRUE(layer.At(data, token.slot, head, cell) == model.At(cell)) << "step " << s << " cell " << cell;
      }
      ++at;
    });
    if (::testing::Test::HasFatalFailure()) return;
    if (late > 0) ReplayLate(layer, tokens, want, models);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TYPED_TEST(FetchTest, TheHotSetMatchesThePlainModel) {
  for (const int64_t cells : {9, 24, 70}) {
    SCOPED_TRACE(cells);
    typename TestFixture::Layer layer(this->backend(), {.slots = 3, .rows = 400, .cells = cells}, 5);
    Replay(layer, 300, cells == 70 ? 40 : cells, false);
  }
}

// A selection with more rows than cells leaves the buffer alone, and the hot sets of other sequences continue.
TYPED_TEST(FetchTest, ListsLongerThanTheBufferAreReadInThePool) {
  typename TestFixture::Layer layer(this->backend(), {.slots = 3, .rows = 400, .cells = 24}, 10);
  Replay(layer, 200, 40, false);
  typename TestFixture::Layer evicting(this->backend(), {.slots = 2, .rows = 310, .cells = 24}, 11);
  Replay(evicting, 200, 40, true);

  for (const bool hot : {false, true}) {
    typename TestFixture::Layer one(this->backend(), {.kv_heads = 1, .slots = 1, .rows = 60, .cells = 4, .hot = hot},
                                    12);
    const std::vector<FetchOutcome> outcomes = one.Step({{0, 9, {9}, {{1, 2, 5, 7, 9}}, {}}});
    EXPECT_EQ(outcomes[0].cells, (std::vector<int32_t>{~1, ~2, ~5, ~7, ~9}));
    EXPECT_EQ(outcomes[0].misses, std::vector<int32_t>{});
    EXPECT_EQ(one.Totals()[0].wanted, 4u);
    EXPECT_EQ(one.Totals()[0].fetched, 4u) << "rows read in the pool cross the link too";
  }
}

// Late rows get cells after the others: more, fewer and as many as there are.
TYPED_TEST(FetchTest, LateRowsInTheHotSetMatchThePlainModel) {
  for (const int64_t cells : {24, 40, 70}) {
    SCOPED_TRACE(cells);
    typename TestFixture::Layer layer(this->backend(), {.slots = 3, .rows = 400, .cells = cells}, 14);
    Replay(layer, 200, 30, false, 16);
    typename TestFixture::Layer evicting(this->backend(), {.slots = 2, .rows = 310, .cells = cells}, 15);
    Replay(evicting, 200, 30, true, 16);
  }
  typename TestFixture::Layer large(this->backend(), {.kv_heads = 1, .dim = 8, .slots = 1, .rows = 7000, .cells = 5000},
                                    16);
  Replay(large, 8, 4000, false, 900);
}

TYPED_TEST(FetchTest, WithoutAHotSetLateRowsFollowTheList) {
  for (const int64_t cells : {6, 8}) {
    const FetchShape shape{.kv_heads = 2, .dim = 64, .slots = 1, .rows = 60, .cells = cells, .hot = false};
    typename TestFixture::Layer layer(this->backend(), shape, 17);
    const FetchToken token{0, 40, {40, 40}, {{1, 9, 20, 40}, {3, 40}}, {{0, 10, 30, 39}, {}}};
    layer.Step({token});
    const std::vector<FetchOutcome> late = layer.StepLate({token});
    using Ints = std::vector<int32_t>;
    if (cells == 8) {
      EXPECT_EQ(late[0].cells, (Ints{4, 0, 1, 5, 2, 6, 7, 3})) << "rows 0, 1, 9, 10, 20, 30, 39, 40";
      EXPECT_EQ(late[0].misses, (Ints{0, 3, 5, 6}));
    } else {
      EXPECT_EQ(late[0].cells, (Ints{~0, 0, 1, ~10, 2, ~30, ~39, 3})) << "too few cells";
      EXPECT_EQ(late[0].misses, Ints{});
    }
    EXPECT_EQ(late[0].own, 3);
    EXPECT_EQ(late[1].cells, (Ints{0, 1}));
    EXPECT_EQ(late[1].misses, Ints{});
    EXPECT_EQ(layer.Totals()[0].wanted, 3u + 1u + 4u);
    EXPECT_EQ(layer.Totals()[0].fetched, 3u + 1u + 4u);
    const HostTensor queries = HostTensor::Normal(layer.random(), DType::kF32, 1, 2 * shape.group * shape.dim);
    EXPECT_TRUE(layer.Attend(queries, 0, 1, true) == layer.Attend(queries, 0, 1, false));
  }
}

// The steps between two notes take longer than the clock's resolution.
TYPED_TEST(FetchTest, WaitsAreFromReadyToArrived) {
  typename TestFixture::Layer layer(this->backend(), {.kv_heads = 1, .slots = 1, .rows = 400, .cells = 60}, 13);
  int32_t position = 200;
  const auto step = [&] {
    layer.Step({{0, position, {position}, {RandomList(layer.random(), position, position, 50, {})}, {}}});
    ++position;
  };
  DeviceBytes<typename TypeParam::B> memory(this->backend(), 2 * sizeof(FetchClock));
  memory.Put(std::vector<FetchClock>(2));
  FetchClock* clocks = memory.template as<FetchClock>();
  auto& b = this->backend();
  b.NoteReady(Queue::kCompute, clocks);
  b.NoteArrived(Queue::kCompute, clocks + 1);
  step();
  b.NoteArrived(Queue::kCompute, clocks);
  b.NoteReady(Queue::kCompute, clocks + 1);
  b.CountWaits(Queue::kCompute, clocks, 2);
  const auto after_one = memory.template Get<FetchClock>();
  EXPECT_GT(after_one[0].waited_ns, 0u);
  EXPECT_EQ(after_one[0].waited_ns, after_one[0].arrived_ns - after_one[0].ready_ns);
  EXPECT_EQ(after_one[1].waited_ns, 0u);
  b.NoteReady(Queue::kCompute, clocks);
  b.CountWaits(Queue::kCompute, clocks, 2);
  EXPECT_EQ(memory.template Get<FetchClock>()[0].waited_ns, after_one[0].waited_ns) << "arrived before it was ready";

  const uint64_t before = layer.Clock().arrived_ns;
  step();
  EXPECT_GT(layer.Clock().arrived_ns, before) << "FetchMisses notes it";
}

// In layers that evict, a new entry may take over a row that the hot set holds.
TYPED_TEST(FetchTest, RowsThatAreTakenOver) {
  typename TestFixture::Layer layer(this->backend(), {.type = StoreType::kInt4, .slots = 2, .rows = 310, .cells = 40},
                                    6);
  Replay(layer, 300, 25, true);
}

// More cells than threads, and lists longer than a warp's share; the hot set is full from the first step on.
TYPED_TEST(FetchTest, LargeHotSets) {
  typename TestFixture::Layer layer(this->backend(), {.kv_heads = 1, .dim = 8, .slots = 1, .rows = 7000, .cells = 5000},
                                    7);
  Replay(layer, 12, 4900, false);
  typename TestFixture::Layer middle(this->backend(),
                                     {.kv_heads = 2, .dim = 8, .slots = 2, .rows = 2500, .cells = 1636}, 8);
  Replay(middle, 20, 800, false);
}

// Reading cells gives the same as reading the pool, with any assignment of cells, alone and in a batch.
TYPED_TEST(FetchTest, AttentionIsThatOfThePool) {
  for (const StoreType type : kStoreTypes) {
    for (const auto& [group, dim] :
         std::vector<std::pair<int64_t, int64_t>>{{1, 128}, {4, 64}, {8, 80}, {12, 16}, {3, 256}}) {
      for (const bool hot : {false, true}) {
        SCOPED_TRACE(::testing::Message() << Name(type) << " group " << group << " dim " << dim << " hot " << hot);
        const FetchShape shape{
            .type = type, .kv_heads = 2, .group = group, .dim = dim, .slots = 3, .rows = 700, .cells = 600, .hot = hot};
        typename TestFixture::Layer layer(this->backend(), shape, 9);
        Random& random = layer.random();
        const int64_t counts[] = {1, 600, 257, 650, 17, 300};
        for (int32_t step = 0; step < (hot ? 3 : 1); ++step) {
          std::vector<FetchToken> tokens;
          for (const int32_t slot : {1, 2, 0}) {
            FetchToken token{slot, 650 + step, {650 + step, 650 + step}, {}, {}};
            for (int64_t head = 0; head < 2; ++head)
              token.lists.push_back(
                  RandomList(random, 650 + step, 650 + step, counts[(slot * 2 + head + step) % 6], {}));
            tokens.push_back(token);
          }
          layer.Step(tokens);
        }
        const DType activation = TypeParam::kActivations[std::size(TypeParam::kActivations) - 1];
        const HostTensor queries = HostTensor::Normal(random, activation, 3, 2 * group * dim);
        const Bytes together = layer.Attend(queries, 0, 3, true);
        EXPECT_TRUE(together == layer.Attend(queries, 0, 3, false));
        for (int64_t i = 0; i < 3; ++i) {
          const Bytes alone = layer.Attend(queries, i, 1, true);
          const auto begin = together.begin() + i * std::ssize(alone);
          EXPECT_TRUE(std::equal(alone.begin(), alone.end(), begin)) << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace infinigen
