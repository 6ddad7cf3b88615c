// Sums of pages and selection by their means, against the oracle. Bounds: sums have the oracle's bits. With keys and
// queries of small whole numbers all scores are exact, and then selections are compared for equality. With others two
// pages may change places where their scores differ by no more than rounding (ExactScores::bound).
#include "kv/page_sums.h"

#include <numeric>

#include "backend/backends.h"
#include "backend/operands.h"
#include "backend/selections.h"

namespace infinigen {
namespace {

template <class Factory>
class PageSumsTest : public OpTest<Factory> {};
TYPED_TEST_SUITE(PageSumsTest, TestedBackends, BackendName);

struct MeanShape {
  int64_t kv_heads = 2, group = 4, head_dim = 64;
  int64_t key_width() const { return kv_heads * head_dim; }
  int64_t query_width() const { return group * key_width(); }
};

std::vector<int32_t> RowsFrom(int64_t first, int64_t count) {
  std::vector<int32_t> rows(static_cast<size_t>(count));
  std::iota(rows.begin(), rows.end(), static_cast<int32_t>(first));
  return rows;
}

HostTensor SmallNumbers(Random& random, int64_t rows, int64_t cols, int64_t most) {
  HostTensor tensor(DType::kF32, rows, cols, /*gap=*/3);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) tensor.Set(r, c, static_cast<float>(random.Int(-most, most)));
  return tensor;
}

// The sums of one layer in memory of a backend; heads and slots lie apart.
template <class B>
class TestSums {
 public:
  TestSums(B& backend, const MeanShape& shape, int64_t slots, int64_t rows)
      : backend_(backend),
        shape_(shape),
        head_stride_(layout().index().head_bytes(rows) + 64),
        slot_stride_(head_stride_ * static_cast<size_t>(shape.kv_heads) + 32),
        bytes_(backend, slot_stride_ * static_cast<size_t>(slots)) {}

  LayerPageSums view() const { return {layout(), {bytes_.template as<std::byte>(), head_stride_, slot_stride_}}; }
  // Every bit, those that were never written included.
  std::vector<uint32_t> Bits() const { return bytes_.template Get<uint32_t>(); }

  void Append(const Batch& batch, HostTensor& keys, int64_t first = 0) {
    DeviceTensor device(backend_, keys);
    DeviceInts slots(backend_, batch.slots), rows(backend_, batch.rows);
    backend_.AppendPageSums(Queue::kCompute, {batch.count(), nullptr, slots, rows},
                            device.view().Rows(first, batch.count()), view());
  }
  // Rows [0, keys.rows) of slot 0, `part` of them to a call.
  void AppendInParts(HostTensor& keys, int64_t part) {
    for (int64_t first = 0; first < keys.rows; first += part) {
      const int64_t count = std::min(part, keys.rows - first);
      Append({std::vector<int32_t>(static_cast<size_t>(count)), RowsFrom(first, count)}, keys, first);
    }
  }
  Outcome Select(HostTensor& queries, const Batch& batch, const std::vector<SelectRule>& rules, SelectCall call = {}) {
    DeviceTensor device(backend_, queries);
    call.page = kPageRows;
    const AttentionShape attention{shape_.kv_heads * shape_.group, 0.125f};
    return RunSelect(backend_, batch, rules, shape_.kv_heads, call,
                     [&](const TokenBatch& tokens, const SelectCall& c, const Selection& selection) {
                       backend_.SelectPageMeans(Queue::kCompute, device, tokens, c, attention, view(), selection);
                     });
  }

 private:
  PageSumsLayout layout() const { return {shape_.kv_heads, shape_.head_dim}; }

  B& backend_;
  MeanShape shape_;
  size_t head_stride_, slot_stride_;
  DeviceBytes<B> bytes_;
};

// The same keys in sums of the backend under test and of the oracle.
template <class B>
struct SumsPair {
  SumsPair(B& backend, ReferenceBackend& reference, const MeanShape& shape, HostTensor& keys)
      : mine(backend, shape, 1, keys.rows), theirs(reference, shape, 1, keys.rows) {
    mine.AppendInParts(keys, keys.rows);
    theirs.AppendInParts(keys, keys.rows);
  }
  void ExpectSameSelection(HostTensor& queries, const Batch& batch, const SelectRule& rule,
                           const SelectCall& call = {}) {
    ExpectSame(mine.Select(queries, batch, {rule}, call), theirs.Select(queries, batch, {rule}, call));
  }

  TestSums<B> mine;
  TestSums<ReferenceBackend> theirs;
};

// ---- Sums.

// In pieces of any length, several sequences to a call, with pages that are written again.
TYPED_TEST(PageSumsTest, AppendedSumsHaveTheOraclesBits) {
  Random random(170);
  for (const int64_t wanted : {1, 8, 20, 64, 80, 128}) {
    const MeanShape shape{3, 1, TypeParam::HeadDim(wanted)};
    constexpr int64_t kSlots = 3, kRows = 150;
    TestSums mine(this->backend(), shape, kSlots, kRows);
    TestSums theirs(this->reference(), shape, kSlots, kRows);
    int64_t next[kSlots] = {};
    for (int call = 0; call < 60; ++call) {
      Batch batch;
      for (int64_t slot = 0; slot < kSlots; ++slot) {
        if (random.Int(0, 9) == 0) next[slot] = random.Int(0, next[slot]) / kPageRows * kPageRows;
        for (int64_t count = random.Int(0, call % 7 == 0 ? 70 : 3); count > 0 && next[slot] < kRows; --count) {
          batch.slots.push_back(static_cast<int32_t>(slot));
          batch.rows.push_back(static_cast<int32_t>(next[slot]++));
        }
      }
      if (batch.rows.empty()) continue;
      HostTensor keys = HostTensor::Normal(random, DType::kF32, batch.count(), shape.key_width(), 3.0f, 5);
      keys.Set(0, 0, call % 2 == 0 ? kInfinity : std::numeric_limits<float>::quiet_NaN());
      keys.Set(keys.rows - 1, keys.cols - 1, call % 2 == 0 ? -3.4e38f : 1e-45f);
      mine.Append(batch, keys);
      theirs.Append(batch, keys);
    }
    ASSERT_EQ(mine.Bits(), theirs.Bits()) << "head_dim " << shape.head_dim;
  }
}

TYPED_TEST(PageSumsTest, SumsDoNotDependOnTheCut) {
  Random random(171);
  const MeanShape shape{2, 1, 72};
  HostTensor keys = HostTensor::Normal(random, DType::kF32, 200, shape.key_width(), 3.0f, 5);
  TestSums whole(this->backend(), shape, 1, keys.rows);
  whole.AppendInParts(keys, keys.rows);
  for (const int64_t part : {1, 7, 16, 33, 64}) {
    TestSums parts(this->backend(), shape, 1, keys.rows);
    parts.AppendInParts(keys, part);
    ASSERT_EQ(parts.Bits(), whole.Bits()) << "parts of " << part;
  }
}

TYPED_TEST(PageSumsTest, SumsOfEveryActivation) {
  Random random(172);
  const MeanShape shape{2, 1, 72};
  for (const DType activation : TypeParam::kActivations) {
    HostTensor keys = HostTensor::Normal(random, activation, 100, shape.key_width(), 3.0f, 5);
    HostTensor wide = keys.As(DType::kF32);
    TestSums mine(this->backend(), shape, 1, keys.rows);
    TestSums theirs(this->reference(), shape, 1, keys.rows);
    mine.AppendInParts(keys, keys.rows);
    theirs.AppendInParts(wide, wide.rows);
    ASSERT_EQ(mine.Bits(), theirs.Bits());
  }
}

// ---- Selecting.

TYPED_TEST(PageSumsTest, RandomSettings) {
  Random random(173);
  const int64_t dims[] = {4, 20, 24, 64, 80, 128};
  const int64_t edges[] = {0, 1, 14, 15, 16, 17, 31, 32, 63, 64, 65, 255, 256, 300, 687, 688, 699};
  for (const int64_t group : {1, 2, 3, 4, 5, 7, 8, 32}) {
    const MeanShape shape{2, group, TypeParam::HeadDim(dims[random.Int(0, 5)])};
    HostTensor keys = SmallNumbers(random, 700, shape.key_width(), 40);
    SumsPair sums(this->backend(), this->reference(), shape, keys);
    for (int repeat = 0; repeat < 12; ++repeat) {
      Batch batch;
      for (int64_t t = random.Int(1, 6); t > 0; --t) {
        batch.slots.push_back(0);
        batch.rows.push_back(static_cast<int32_t>(edges[random.Int(0, 16)]));
      }
      SelectRule rule = RandomRule(random);
      rule.alpha *= 30;  // whole numbers make large scores
      HostTensor queries = SmallNumbers(random, batch.count(), shape.query_width(), 9);
      SCOPED_TRACE(::testing::Message() << "group " << group << " dim " << shape.head_dim << " repeat " << repeat);
      sums.ExpectSameSelection(queries, batch, rule,
                               {.current_known = repeat % 3 != 0, .mean_counts = repeat % 4 == 1});
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

// Enough pages for a sampled floor, and for a head's scores to be made in parts.
TYPED_TEST(PageSumsTest, ThousandsOfPages) {
  Random random(174);
  const MeanShape shape{1, 3, 16};
  HostTensor keys = SmallNumbers(random, 40000, shape.key_width(), 40);
  SumsPair sums(this->backend(), this->reference(), shape, keys);
  HostTensor queries = SmallNumbers(random, 2, shape.query_width(), 9);
  for (const SelectRule& rule :
       {SelectRule{.alpha = kInfinity, .cap = 0.05}, SelectRule{.alpha = 60.0f, .cap = 1.0, .sinks = 4, .window = 64},
        SelectRule{.sinks = 4, .window = 16, .force_count = 450}}) {
    for (const bool mean : {false, true}) {
      sums.ExpectSameSelection(queries, {{0, 0}, {39999, 30005}}, rule, {.mean_counts = mean});
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TYPED_TEST(PageSumsTest, QueriesOfEveryActivation) {
  Random random(175);
  const MeanShape shape{2, 4, 64};
  HostTensor keys = SmallNumbers(random, 2000, shape.key_width(), 40);
  SumsPair sums(this->backend(), this->reference(), shape, keys);
  const Batch batch{{0, 0, 0}, {1999, 1000, 40}};
  const SelectRule rule{.alpha = kInfinity, .cap = 0.1};
  for (const DType activation : TypeParam::kActivations) {
    HostTensor wide = SmallNumbers(random, 3, shape.query_width(), 9), queries = wide.As(activation);
    ExpectSame(sums.mine.Select(queries, batch, {rule}), sums.theirs.Select(wide, batch, {rule}));
  }
}

TYPED_TEST(PageSumsTest, ScoresThatAreNotNumbers) {
  Random random(176);
  const MeanShape shape{1, 2, 16};
  HostTensor keys = SmallNumbers(random, 3000, shape.key_width(), 40);
  SumsPair sums(this->backend(), this->reference(), shape, keys);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity}) {
    for (const int64_t heads : {1, 2}) {
      HostTensor queries = SmallNumbers(random, 2, shape.query_width(), 9);
      for (int64_t c = 0; c < heads * shape.head_dim; ++c) queries.Set(0, c, bad);
      for (const SelectRule& rule : {SelectRule{}, SelectRule{.alpha = kInfinity, .cap = 1.0},
                                     SelectRule{.sinks = 2, .window = 2, .force_count = 50}})
        sums.ExpectSameSelection(queries, {{0, 0}, {2999, 70}}, rule);
    }
  }
}

// The scores of one KV head's pages in double arithmetic, and how far f32 may be from them.
struct ExactScores {
  std::vector<double> relative;  // [pages]
  double bound = 0;              // of the difference of two relative scores
};

// A score is a dot product of d terms with sums of 16 keys: off by at most (d + 16) · 2^-24 · Σ|q·k|. A relative score
// has two of them, and two are compared.
ExactScores ScoreExactly(const HostTensor& keys, const HostTensor& queries, const MeanShape& shape, int64_t head,
                         int64_t pages) {
  ExactScores exact{std::vector<double>(static_cast<size_t>(pages), -1e300)};
  for (int64_t g = 0; g < shape.group; ++g) {
    std::vector<double> scores(static_cast<size_t>(pages));
    double magnitude = 0;
    for (int64_t page = 0; page < pages; ++page) {
      double of_page = 0;
      for (int64_t row = page * kPageRows; row < (page + 1) * kPageRows; ++row)
        for (int64_t i = 0; i < shape.head_dim; ++i) {
          const double product = static_cast<double>(queries.At(0, (head * shape.group + g) * shape.head_dim + i)) *
                                 static_cast<double>(keys.At(row, head * shape.head_dim + i)) * 0.125 / 16;
          scores[static_cast<size_t>(page)] += product;
          of_page += std::fabs(product);
        }
      magnitude = std::max(magnitude, of_page);
    }
    const double best = *std::max_element(scores.begin(), scores.end());
    for (size_t page = 0; page < scores.size(); ++page)
      exact.relative[page] = std::max(exact.relative[page], scores[page] - best);
    exact.bound = std::max(exact.bound, 4 * static_cast<double>(shape.head_dim + 16) * 0x1p-24 * magnitude);
  }
  return exact;
}

// Numbers of any kind: the pages attended are the best by exact scores, up to the bound; and whole.
TYPED_TEST(PageSumsTest, TheBestPagesUpToRounding) {
  Random random(177);
  for (const int64_t group : {1, 4, 6}) {
    const MeanShape shape{2, group, 64};
    HostTensor keys = HostTensor::Normal(random, DType::kF32, 3000, shape.key_width());
    HostTensor queries = HostTensor::Normal(random, DType::kF32, 1, shape.query_width());
    SumsPair sums(this->backend(), this->reference(), shape, keys);
    const int32_t current = 2999, complete = current / 16 * 16;
    const Outcome got = sums.mine.Select(queries, {{0}, {current}}, {{.alpha = kInfinity, .cap = 0.1}});
    for (int64_t head = 0; head < shape.kv_heads; ++head) {
      const std::vector<int32_t>& rows = got.rows[static_cast<size_t>(head)];
      ASSERT_EQ(std::ssize(rows), 300 / 16 * 16 + current - complete + 1);
      const ExactScores exact = ScoreExactly(keys, queries, shape, head, complete / kPageRows);
      double least_chosen = 0, best_left = -1e300;
      for (int64_t page = 0; page < complete / kPageRows; ++page) {
        const auto first = std::lower_bound(rows.begin(), rows.end(), page * kPageRows);
        const auto last = std::lower_bound(rows.begin(), rows.end(), (page + 1) * kPageRows);
        ASSERT_TRUE(last - first == 0 || last - first == kPageRows) << "pages are whole";
        const double score = exact.relative[static_cast<size_t>(page)];
        if (first == last) best_left = std::max(best_left, score);
        if (first != last) least_chosen = std::min(least_chosen, score);
      }
      EXPECT_GE(least_chosen, best_left - exact.bound) << "group " << group << " head " << head;
    }
  }
}

// A token's selection is the same alone and among others.
TYPED_TEST(PageSumsTest, SelectionsDoNotDependOnTheCall) {
  Random random(178);
  const MeanShape shape{2, 3, 40};
  HostTensor keys = HostTensor::Normal(random, DType::kF32, 1500, shape.key_width());
  HostTensor queries = HostTensor::Normal(random, DType::kF32, 4, shape.query_width());
  TestSums sums(this->backend(), shape, 1, keys.rows);
  sums.AppendInParts(keys, 100);
  const std::vector<SelectRule> rules = {{.alpha = 0.5f, .cap = 0.3}};
  const Batch batch{{0, 0, 0, 0}, {1499, 700, 1498, 33}};
  const Outcome together = sums.Select(queries, batch, rules);
  for (size_t token = 0; token < 4; ++token) {
    HostTensor one(DType::kF32, 1, shape.query_width());
    for (int64_t c = 0; c < one.cols; ++c) one.Set(0, c, queries.At(static_cast<int64_t>(token), c));
    const Outcome alone = sums.Select(one, {{0}, {batch.rows[token]}}, rules);
    for (size_t head = 0; head < 2; ++head) ASSERT_EQ(alone.rows[head], together.rows[2 * token + head]) << token;
  }
}

}  // namespace
}  // namespace infinigen
