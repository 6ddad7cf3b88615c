// Page bounds and selection by pages, against the oracle. If keys and queries are small integers, scores are exact on
// every target and selections are compared for equality; otherwise a page at the edge may differ.
#include <numeric>

#include "backend/backends.h"
#include "backend/operands.h"
#include "backend/selections.h"
#include "kv/index.h"

namespace infinigen {
namespace {

template <class Factory>
class PagesTest : public OpTest<Factory> {};
TYPED_TEST_SUITE(PagesTest, TestedBackends, BackendName);

struct Shape {
  int64_t kv_heads = 2, group = 4, head_dim = 64;
};

// The page bounds of one layer, in memory of a backend; there are gaps between heads and slots.
template <class B>
class TestBounds {
 public:
  TestBounds(B& backend, const Shape& shape, int64_t slots, int64_t rows)
      : backend_(backend),
        layout_{shape.kv_heads, shape.head_dim},
        head_stride_(layout_.head_bytes(rows) + 64),
        slot_stride_(head_stride_ * static_cast<size_t>(shape.kv_heads) + 32),
        bytes_(backend, slot_stride_ * static_cast<size_t>(slots)) {}
  LayerPageBounds view() const { return {layout_, bytes_.template as<std::byte>(), head_stride_, slot_stride_}; }
  // All numbers, including those that were never written.
  std::vector<float> Get() const {
    std::vector<float> numbers;
    for (const uint16_t bits : bytes_.template Get<uint16_t>()) numbers.push_back(ToFloat(BF16{bits}));
    return numbers;
  }
  void Append(const std::vector<int32_t>& slots, const std::vector<int32_t>& rows, HostTensor& keys,
              int64_t first = 0) {
    DeviceTensor device(backend_, keys);
    DeviceInts dslots(backend_, slots), drows(backend_, rows);
    const int64_t count = std::ssize(rows);
    backend_.AppendBounds(Queue::kCompute, {count, nullptr, dslots, drows}, device.view().Rows(first, count), view());
  }

 private:
  B& backend_;
  PageBoundsLayout layout_;
  size_t head_stride_, slot_stride_;
  DeviceBytes<B> bytes_;
};

void ExpectSameNumbers(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_TRUE(got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i])))
        << i << ": " << got[i] << " and " << want[i];
}

HostTensor WholeNumbers(Random& random, int64_t rows, int64_t cols, int64_t most, int64_t gap = 0) {
  HostTensor tensor(DType::kF32, rows, cols, gap);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) tensor.Set(r, c, static_cast<float>(random.Int(-most, most)));
  return tensor;
}

std::vector<int32_t> Ascending(int64_t first, int64_t count) {
  std::vector<int32_t> rows(static_cast<size_t>(count));
  std::iota(rows.begin(), rows.end(), static_cast<int32_t>(first));
  return rows;
}

// ---- Bounds

// Appended in pieces of any length, several sequences per call, with some rows rewritten.
TYPED_TEST(PagesTest, AppendedBoundsAreTheOracles) {
  Random random(70);
  for (const int64_t wanted : {1, 8, 20, 64, 80, 128}) {
    const int64_t dim = TypeParam::HeadDim(wanted);
    const Shape shape{3, 1, dim};
    const int64_t slots = 3, rows = 150;
    TestBounds mine(this->backend(), shape, slots, rows);
    TestBounds theirs(this->reference(), shape, slots, rows);
    std::vector<int64_t> next(slots);
    for (int call = 0; call < 60; ++call) {
      std::vector<int32_t> row_slots, at;
      for (int64_t slot = 0; slot < slots; ++slot) {
        int64_t& row = next[static_cast<size_t>(slot)];
        if (random.Int(0, 9) == 0) row = random.Int(0, row);  // a rewind
        for (int64_t count = random.Int(0, call % 7 == 0 ? 70 : 3); count > 0 && row < rows; --count) {
          row_slots.push_back(static_cast<int32_t>(slot));
          at.push_back(static_cast<int32_t>(row++));
        }
      }
      if (at.empty()) continue;
      HostTensor keys = HostTensor::Normal(random, DType::kF32, std::ssize(at), shape.kv_heads * dim, 3.0f, 5);
      keys.Set(0, 0, call % 2 == 0 ? kInfinity : std::numeric_limits<float>::quiet_NaN());
      keys.Set(keys.rows - 1, keys.cols - 1, call % 2 == 0 ? -3.4e38f : 1e-45f);
      mine.Append(row_slots, at, keys);
      theirs.Append(row_slots, at, keys);
    }
    ExpectSameNumbers(mine.Get(), theirs.Get());
  }
}

TYPED_TEST(PagesTest, BoundsOfEveryActivation) {
  Random random(75);
  for (const DType activation : TypeParam::kActivations) {
    const Shape shape{2, 1, 72};
    TestBounds mine(this->backend(), shape, 1, 100);
    TestBounds theirs(this->reference(), shape, 1, 100);
    HostTensor keys = HostTensor::Normal(random, activation, 100, shape.kv_heads * shape.head_dim, 3.0f, 5);
    HostTensor wide = keys.As(DType::kF32);
    mine.Append(std::vector<int32_t>(100, 0), Ascending(0, 100), keys);
    theirs.Append(std::vector<int32_t>(100, 0), Ascending(0, 100), wide);
    ExpectSameNumbers(mine.Get(), theirs.Get());
  }
}

// ---- Selection

// The same keys in the bounds of both backends.
template <class B>
class Scene {
 public:
  Scene(B& backend, ReferenceBackend& reference, const Shape& shape, int64_t slots, int64_t rows, Random& random,
        bool whole)
      : backend_(backend),
        reference_(reference),
        shape_(shape),
        attention_{shape.kv_heads * shape.group, 0.125f},
        mine_(backend, shape, slots, rows),
        theirs_(reference, shape, slots, rows) {
    for (int64_t slot = 0; slot < slots; ++slot) {
      HostTensor keys = whole ? WholeNumbers(random, rows, shape.kv_heads * shape.head_dim, 40)
                              : HostTensor::Normal(random, DType::kF32, rows, shape.kv_heads * shape.head_dim);
      const std::vector<int32_t> row_slots(static_cast<size_t>(rows), static_cast<int32_t>(slot));
      mine_.Append(row_slots, Ascending(0, rows), keys);
      theirs_.Append(row_slots, Ascending(0, rows), keys);
    }
  }
  Outcome Mine(HostTensor& queries, const Batch& batch, const std::vector<SelectRule>& rules, const SelectCall& call) {
    return Run(backend_, mine_, queries, batch, rules, call);
  }
  Outcome Theirs(HostTensor& queries, const Batch& batch, const std::vector<SelectRule>& rules,
                 const SelectCall& call) {
    return Run(reference_, theirs_, queries, batch, rules, call);
  }
  int64_t width() const { return attention_.heads * shape_.head_dim; }

 private:
  template <class Any>
  Outcome Run(Any& backend, const TestBounds<Any>& bounds, HostTensor& queries, const Batch& batch,
              const std::vector<SelectRule>& rules, SelectCall call) {
    DeviceTensor device(backend, queries);
    call.page = kPageRows;
    return RunSelect(backend, batch, rules, shape_.kv_heads, call,
                     [&](const TokenBatch& tokens, const SelectCall& c, const Selection& selection) {
                       backend.SelectPages(Queue::kCompute, device, tokens, c, attention_, bounds.view(), selection);
                     });
  }

  B& backend_;
  ReferenceBackend& reference_;
  Shape shape_;
  AttentionShape attention_;
  TestBounds<B> mine_;
  TestBounds<ReferenceBackend> theirs_;
};

TYPED_TEST(PagesTest, RandomSettings) {
  Random random(71);
  const int64_t dims[] = {4, 20, 24, 64, 80, 128};
  for (const int64_t group : {1, 2, 3, 4, 5, 7, 8, 32}) {
    const int64_t rows = 700, slots = 3;
    const Shape shape{2, group, TypeParam::HeadDim(dims[random.Int(0, 5)])};
    Scene scene(this->backend(), this->reference(), shape, slots, rows, random, /*whole=*/true);
    for (int repeat = 0; repeat < 12; ++repeat) {
      Batch batch;
      const int64_t edges[] = {0, 1, 14, 15, 16, 17, 31, 32, 63, 64, 65, 255, 256, 300, 687, 688, 699};
      for (int64_t t = random.Int(1, 6); t > 0; --t) {
        batch.slots.push_back(static_cast<int32_t>(random.Int(0, slots - 1)));
        batch.rows.push_back(static_cast<int32_t>(edges[random.Int(0, 16)]));
      }
      std::vector<SelectRule> rules;
      for (int64_t s = 0; s < slots; ++s) {
        rules.push_back(RandomRule(random));
        rules.back().alpha *= 100;  // integers make large scores
      }
      HostTensor queries = WholeNumbers(random, batch.count(), scene.width(), 9, 3);
      const SelectCall call{.current_known = repeat % 3 != 0, .mean_counts = repeat % 4 == 1};
      SCOPED_TRACE(::testing::Message() << "group " << group << " dim " << shape.head_dim << " repeat " << repeat);
      ExpectSame(scene.Mine(queries, batch, rules, call), scene.Theirs(queries, batch, rules, call));
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TYPED_TEST(PagesTest, QueriesOfEveryActivation) {
  Random random(76);
  Scene scene(this->backend(), this->reference(), {2, 4, 64}, 1, 2000, random, /*whole=*/true);
  for (const DType activation : TypeParam::kActivations) {
    HostTensor wide = WholeNumbers(random, 3, scene.width(), 9, 3), queries = wide.As(activation);
    const Batch batch{{0, 0, 0}, {1999, 1000, 40}};
    for (const SelectRule& rule : {SelectRule{.alpha = kInfinity, .cap = 0.1}, SelectRule{.alpha = 300.0f, .cap = 1.0}})
      ExpectSame(scene.Mine(queries, batch, {rule}, {}), scene.Theirs(wide, batch, {rule}, {}));
  }
}

// Enough pages for a sampled floor, and for several threads to score one head.
TYPED_TEST(PagesTest, ThousandsOfPages) {
  Random random(72);
  const Shape shape{1, 3, 16};
  const int64_t rows = 40000;
  Scene scene(this->backend(), this->reference(), shape, 1, rows, random, /*whole=*/true);
  HostTensor queries = WholeNumbers(random, 2, scene.width(), 9);
  const Batch batch{{0, 0}, {39999, 30005}};
  for (const SelectRule& rule :
       {SelectRule{.alpha = kInfinity, .cap = 0.05}, SelectRule{.alpha = kInfinity, .cap = 0.3},
        SelectRule{.alpha = 300.0f, .cap = 1.0, .sinks = 4, .window = 64},
        SelectRule{.alpha = 0.0f, .cap = 0.1, .min_rows = 1000},
        SelectRule{.sinks = 4, .window = 16, .force_count = 450}}) {
    for (const bool mean : {false, true}) {
      ExpectSame(scene.Mine(queries, batch, {rule}, {.mean_counts = mean}),
                 scene.Theirs(queries, batch, {rule}, {.mean_counts = mean}));
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

// Normal numbers: lists are whole pages and the tail, as many as the oracle's and nearly the same.
TYPED_TEST(PagesTest, NormalNumbers) {
  Random random(73);
  for (const int64_t group : {1, 4, 6}) {
    Scene scene(this->backend(), this->reference(), {2, group, 64}, 1, 5000, random, /*whole=*/false);
    HostTensor queries = HostTensor::Normal(random, DType::kF32, 3, scene.width());
    const Batch batch{{0, 0, 0}, {4999, 3999, 130}};
    const std::vector<SelectRule> rules = {{.alpha = kInfinity, .cap = 0.1}};
    const Outcome got = scene.Mine(queries, batch, rules, {}), want = scene.Theirs(queries, batch, rules, {});
    ASSERT_EQ(got.rows.size(), want.rows.size());
    for (size_t i = 0; i < want.rows.size(); ++i) {
      ASSERT_EQ(got.rows[i].size(), want.rows[i].size());
      const int32_t current = batch.rows[i / 2], tail = current / 16 * 16;
      for (size_t j = 0; j < got.rows[i].size(); ++j)
        ASSERT_EQ(got.rows[i][j] % 16, static_cast<int32_t>(j % 16)) << "pages are whole";
      ASSERT_EQ(got.rows[i].back(), current);
      ASSERT_TRUE(std::count_if(got.rows[i].begin(), got.rows[i].end(), [&](int32_t row) { return row >= tail; }) ==
                  current - tail + 1);
      std::vector<int32_t> differing;
      std::set_symmetric_difference(got.rows[i].begin(), got.rows[i].end(), want.rows[i].begin(), want.rows[i].end(),
                                    std::back_inserter(differing));
      ASSERT_LE(std::ssize(differing), 2 * kPageRows) << "list " << i;
    }
  }
}

TYPED_TEST(PagesTest, ScoresThatAreNotNumbers) {
  Random random(74);
  Scene scene(this->backend(), this->reference(), {1, 2, 16}, 1, 3000, random, /*whole=*/true);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity}) {
    for (const int64_t heads : {1, 2}) {
      HostTensor queries = WholeNumbers(random, 2, scene.width(), 9);
      for (int64_t c = 0; c < heads * 16; ++c) queries.Set(0, c, bad);
      for (const SelectRule& rule : {SelectRule{}, SelectRule{.alpha = kInfinity, .cap = 1.0},
                                     SelectRule{.sinks = 2, .window = 2, .force_count = 50}})
        ExpectSame(scene.Mine(queries, {{0, 0}, {2999, 70}}, {rule}, {}),
                   scene.Theirs(queries, {{0, 0}, {2999, 70}}, {rule}, {}));
    }
  }
}

}  // namespace
}  // namespace infinigen
