// Tails: sketches of values, levels of queries, sums over the rows outside a selection, and attention to them, against
// the oracle. Scores of integer sketches are exact; weights are exponentials, which differ in their last digits.
#include "kv/tail.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "backend/backends.h"
#include "backend/fetch_layer.h"
#include "backend/operands.h"
#include "backend/selections.h"
#include "kv/index.h"

namespace infinigen {
namespace {

template <class Factory>
class TailTest : public OpTest<Factory> {};
TYPED_TEST_SUITE(TailTest, SketchingBackends, BackendName);

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Shape {
  SketchType type = SketchType::kInt4;
  int64_t kv_heads = 2, group = 4, head_dim = 64, dims = 48, scale_dims = 16, value_dims = 8;
  bool means = false;  // blocks have a mean of their values

  int64_t mean_dims() const { return means ? head_dim : 0; }
  SketchLayout layout() const { return {type, kv_heads, dims, scale_dims, value_dims, mean_dims()}; }
  int64_t heads() const { return kv_heads * group; }
  int64_t sums_floats() const { return 2 + value_dims + mean_dims(); }
};
std::ostream& operator<<(std::ostream& out, const Shape& s) {
  return out << "type " << static_cast<int>(s.type) << " group " << s.group << " head_dim " << s.head_dim << " sketch "
             << s.dims << "/" << s.scale_dims << "+" << s.value_dims << (s.means ? " means" : "");
}

std::vector<float> NormalNumbers(Random& random, int64_t count, float scale) {
  std::vector<float> numbers(static_cast<size_t>(count));
  for (float& number : numbers) number = random.Normal(scale);
  return numbers;
}

// Bases for keys and values in memory of a backend. Two with the same seed are equal.
template <class B>
class TestBases {
 public:
  TestBases(B& backend, const Shape& s, uint64_t seed)
      : shape_(s),
        key_(backend, Bytes(s.head_dim * s.dims)),
        key_offset_(backend, Bytes(s.dims)),
        key_mean_(backend, Bytes(s.head_dim)),
        value_(backend, Bytes(s.head_dim * s.value_dims)),
        value_offset_(backend, Bytes(s.value_dims)),
        value_mean_(backend, Bytes(s.head_dim)) {
    Random random(seed);
    for (auto* part : {&key_, &key_offset_, &key_mean_, &value_, &value_offset_, &value_mean_})
      part->Put(NormalNumbers(random, std::ssize(part->template Get<float>()), 0.3f));
  }
  SketchBasis keys() const {
    return {shape_.kv_heads,           shape_.head_dim,           shape_.dims,
            key_.template as<float>(), key_.template as<float>(), key_offset_.template as<float>()};
  }
  TailBasis values() const {
    return {shape_.kv_heads,
            shape_.head_dim,
            shape_.value_dims,
            key_mean_.template as<float>(),
            value_.template as<float>(),
            value_offset_.template as<float>(),
            value_mean_.template as<float>()};
  }

 private:
  size_t Bytes(int64_t per_head) const { return static_cast<size_t>(shape_.kv_heads * per_head) * sizeof(float); }
  Shape shape_;
  DeviceBytes<B> key_, key_offset_, key_mean_, value_, value_offset_, value_mean_;
};

// ---- Making sketches

// Appends the sketches of keys and values of type `activation`; they equal the oracle's up to one rounding.
template <class B>
void CheckAppended(B& backend, ReferenceBackend& reference, const Shape& shape, DType activation, Random& random) {
  SCOPED_TRACE(::testing::Message() << shape << " by " << Name(activation));
  const int64_t slots = 3, count = 150;
  TestSketches mine(backend, shape.layout(), slots, 200);
  TestSketches theirs(reference, shape.layout(), slots, 200);
  TestBases bases(backend, shape, 41);
  TestBases other(reference, shape, 41);
  HostTensor keys = HostTensor::Normal(random, activation, count, shape.kv_heads * shape.head_dim, 2.0f, 3);
  HostTensor values = HostTensor::Normal(random, activation, count, shape.kv_heads * shape.head_dim, 2.0f, 1);
  values.Set(3, 5, kInfinity);
  values.Set(4, 1, kNaN);
  for (int64_t c = 0; c < values.cols; ++c) values.Set(5, c, 0.0f);
  HostTensor wide_keys = keys.As(DType::kF32), wide_values = values.As(DType::kF32);
  std::vector<int32_t> slot_of(count), at(count);
  for (int32_t i = 0; i < count; ++i) {
    slot_of[static_cast<size_t>(i)] = i / 20 % 3;
    at[static_cast<size_t>(i)] = i;
  }
  DeviceTensor dkeys(backend, keys), dvalues(backend, values);
  DeviceInts dslots(backend, slot_of), drows(backend, at);
  const TokenBatch batch{count, nullptr, dslots, drows}, host{count, nullptr, slot_of.data(), at.data()};
  backend.AppendSketches(Queue::kCompute, batch, dkeys, bases.keys(), mine.view());
  backend.AppendValueSketches(Queue::kCompute, batch, dvalues, bases.values(), mine.view());
  reference.AppendSketches(Queue::kCompute, host, wide_keys.view(), other.keys(), theirs.view());
  reference.AppendValueSketches(Queue::kCompute, host, wide_values.view(), other.values(), theirs.view());

  std::vector<std::byte> got = mine.Get();
  const std::vector<std::byte> want = theirs.Get();
  const LayerSketches view{shape.layout(), got.data(), mine.view().head_stride, mine.view().slot_stride};
  const auto compare = [&](const std::vector<float>& a, const std::vector<float>& b, double steps) {
    float largest = 0;
    for (const float number : b) largest = std::max(largest, std::fabs(number));
    for (size_t n = 0; n < a.size(); ++n) ASSERT_NEAR(a[n], b[n], largest * 1.01 / steps) << n;
  };
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t head = 0; head < shape.kv_heads; ++head) {
      SCOPED_TRACE(::testing::Message() << "row " << i << " head " << head);
      const std::byte* block = view.Block(slot_of[static_cast<size_t>(i)], head, i / kSketchBlock);
      const std::byte* oracle = want.data() + (block - got.data());
      const double steps = shape.type == SketchType::kBF16 ? 128 : shape.type == SketchType::kInt8 ? 120 : 6.9;
      compare(LoadSketch(view.layout, block, i % kSketchBlock), LoadSketch(view.layout, oracle, i % kSketchBlock),
              steps);
      compare(LoadValueSketch(view.layout, block, i % kSketchBlock),
              LoadValueSketch(view.layout, oracle, i % kSketchBlock), 6.9);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
  int64_t same = 0;
  for (size_t i = 0; i < got.size(); ++i) same += got[i] == want[i] ? 1 : 0;
  EXPECT_GT(same, std::ssize(got) * 98 / 100);
}

TYPED_TEST(TailTest, AppendedSketchesAreTheOraclesWithinARounding) {
  Random random(60);
  for (const SketchType type : {SketchType::kInt4, SketchType::kInt8, SketchType::kBF16})
    for (const int64_t scale_dims : {0, 8, 16, 32})
      for (const auto& [head_dim, dims] : {std::pair<int64_t, int64_t>{64, 48}, {80, 56}, {128, 96}})
        CheckAppended(this->backend(), this->reference(), {type, 3, 1, head_dim, dims, scale_dims, 8}, DType::kF32,
                      random);
  CheckAppended(this->backend(), this->reference(), {.value_dims = 16}, DType::kF32, random);
  for (const DType activation : TypeParam::kActivations)
    CheckAppended(this->backend(), this->reference(), {}, activation, random);
}

// Means of blocks are the oracle's bit for bit, whatever the chunks in which rows are appended. Rows that complete no
// block change nothing, and a block whose rows are written anew gets a new mean.
TYPED_TEST(TailTest, MeansOfBlocksAreTheOracles) {
  using Tested = typename TypeParam::B;
  Random random(58);
  for (const StoreType type : kStoreTypes) {
    for (const int64_t head_dim : {64, 80, 128, 256}) {
      SCOPED_TRACE(::testing::Message() << Name(type) << " head_dim " << head_dim);
      const Shape shape{.head_dim = head_dim, .means = true};
      const int64_t slots = 2, rows = 330;
      const EntryLayout stored{type, shape.kv_heads, head_dim};
      TestSketches mine(this->backend(), shape.layout(), slots, rows);
      TestSketches theirs(this->reference(), shape.layout(), slots, rows);
      mine.Put(theirs.Get());
      TestBases bases(this->backend(), shape, 71);
      TestBases other(this->reference(), shape, 71);
      TestEntries<Tested> entries(this->backend(), stored, slots, rows, random);
      TestEntries<ReferenceBackend> their_entries(this->reference(), stored, slots, rows, random);
      // The chunks of our calls; the oracle gets all rows at once. From row 200 on, slot 1 is written twice.
      const std::vector<std::pair<int32_t, int32_t>> chunks = {{0, 1}, {1, 63}, {63, 64}, {64, 300}, {200, 330}};
      for (int32_t slot = 0; slot < slots; ++slot) {
        for (const auto& [first, last] : chunks) {
          if (slot == 0 && first == 200) continue;
          const int64_t count = last - first;
          HostTensor keys = HostTensor::Normal(random, DType::kF32, count, shape.kv_heads * head_dim);
          HostTensor values = HostTensor::Normal(random, DType::kF32, count, shape.kv_heads * head_dim, 2.0f, 3);
          std::vector<int32_t> of(static_cast<size_t>(count), slot), at(static_cast<size_t>(count));
          std::iota(at.begin(), at.end(), first);
          DeviceTensor dkeys(this->backend(), keys), dvalues(this->backend(), values);
          DeviceInts dslots(this->backend(), of), drows(this->backend(), at);
          const TokenBatch batch{count, nullptr, dslots, drows}, host{count, nullptr, of.data(), at.data()};
          this->backend().Append(Queue::kCompute, batch, dkeys, dvalues, entries.view());
          this->backend().AppendBlockMeans(Queue::kCompute, batch, entries.view(), bases.values(), mine.view());
          this->reference().Append(Queue::kCompute, host, keys.view(), values.view(), their_entries.view());
        }
        const int32_t end = slot == 0 ? 300 : 330;
        std::vector<int32_t> of(static_cast<size_t>(end), slot), at(static_cast<size_t>(end));
        std::iota(at.begin(), at.end(), 0);
        this->reference().AppendBlockMeans(Queue::kCompute, {end, nullptr, of.data(), at.data()}, their_entries.view(),
                                           other.values(), theirs.view());
      }
      const std::vector<std::byte> got = mine.Get(), want = theirs.Get();
      ASSERT_EQ(got.size(), want.size());
      EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size()), 0);
      const LayerSketches view{shape.layout(), const_cast<std::byte*>(want.data()), theirs.view().head_stride,
                               theirs.view().slot_stride};
      EXPECT_NE(LoadBlockMean(shape.layout(), view.Block(0, 0, 0)), LoadBlockMean(shape.layout(), view.Block(0, 1, 0)));
    }
  }
}

TYPED_TEST(TailTest, LevelsMatchTheOracle) {
  using Tested = typename TypeParam::B;
  Random random(61);
  for (const int64_t group : {1, 3, 4, 8}) {
    for (const int64_t head_dim : {20, 64, 80, 128}) {
      for (const DType activation : TypeParam::kActivations) {
        const Shape shape{.group = group, .head_dim = head_dim};
        const int64_t count = 5, heads = shape.heads();
        TestBases bases(this->backend(), shape, 43);
        TestBases other(this->reference(), shape, 43);
        HostTensor queries = HostTensor::Normal(random, activation, count, heads * head_dim, 1.0f, 3);
        HostTensor wide = queries.As(DType::kF32);
        DeviceTensor dqueries(this->backend(), queries);
        DeviceBytes<Tested> levels(this->backend(), static_cast<size_t>(count * heads) * 4);
        std::vector<float> want(static_cast<size_t>(count * heads));
        const std::vector<int32_t> zeros(count);
        DeviceInts slots(this->backend(), zeros);
        TailView tail{.basis = bases.values(), .heads = heads, .levels = levels.template as<float>()};
        this->backend().QueryLevels(Queue::kCompute, dqueries, {count, nullptr, slots, slots}, {heads, 0.3f}, tail);
        tail.basis = other.values();
        tail.levels = want.data();
        this->reference().QueryLevels(Queue::kCompute, wide.view(), {count, nullptr, zeros.data(), zeros.data()},
                                      {heads, 0.3f}, tail);
        const std::vector<float> got = levels.template Get<float>();
        for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-5) << i;
      }
    }
  }
}

// ---- Sums

// Sketches of `rows` random rows in every slot, in both backends, with sketched queries and levels of a batch.
template <class B>
class TailScene {
 public:
  TailScene(B& backend, ReferenceBackend& reference, const Shape& shape, int64_t slots, int64_t rows, Random& random)
      : backend_(backend),
        reference_(reference),
        shape_(shape),
        mine_(backend, shape.layout(), slots, rows),
        theirs_(reference, shape.layout(), slots, rows),
        my_bases_(backend, shape, 47),
        their_bases_(reference, shape, 47) {
    std::vector<int32_t> at(static_cast<size_t>(rows));
    std::iota(at.begin(), at.end(), 0);
    for (int64_t slot = 0; slot < slots; ++slot) {
      HostTensor keys = HostTensor::Normal(random, DType::kF32, rows, shape.kv_heads * shape.head_dim);
      HostTensor values = HostTensor::Normal(random, DType::kF32, rows, shape.kv_heads * shape.head_dim);
      const std::vector<int32_t> of(at.size(), static_cast<int32_t>(slot));
      const TokenBatch batch{rows, nullptr, of.data(), at.data()};
      reference.AppendSketches(Queue::kCompute, batch, keys.view(), their_bases_.keys(), theirs_.view());
      reference.AppendValueSketches(Queue::kCompute, batch, values.view(), their_bases_.values(), theirs_.view());
      if (shape.means) StoreMeans(slot, rows, random);
    }
    mine_.Put(theirs_.Get());
  }
  // Random means in all blocks, also in those that are not complete, where they must not count.
  void StoreMeans(int64_t slot, int64_t rows, Random& random) {
    const std::vector<float> zeros(static_cast<size_t>(shape_.head_dim));
    for (int64_t block = 0; block * kSketchBlock < rows; ++block)
      for (int64_t head = 0; head < shape_.kv_heads; ++head)
        StoreBlockMean(shape_.layout(), theirs_.view().Block(slot, head, block),
                       NormalNumbers(random, kSketchBlock * shape_.head_dim, 8.0f), zeros);
  }

  // Rows without sketches, as after AssignRows: no key's, and any bits as the value's.
  void Void(int64_t slot, const std::vector<int64_t>& rows) {
    const SketchLayout layout = shape_.layout();
    for (const int64_t row : rows) {
      for (int64_t head = 0; head < shape_.kv_heads; ++head) {
        std::byte* block = theirs_.view().Block(slot, head, row / kSketchBlock);
        VoidSketch(layout, block, row % kSketchBlock);
        std::memset(block + layout.value_scales_offset() + row % kSketchBlock * 2, 0xff, 2);
      }
    }
    mine_.Put(theirs_.Get());
  }
  void Ask(const Batch& batch, float query_scale, Random& random) {
    queries_ = HostTensor::Normal(random, DType::kF32, batch.count(), shape_.heads() * shape_.dims, query_scale, 5);
    levels_ = NormalNumbers(random, batch.count() * shape_.heads(), 2.0f);
  }

  // Drops the queries of the other tokens.
  void KeepToken(int64_t token) {
    HostTensor one(DType::kF32, 1, queries_.cols, 5);
    for (int64_t c = 0; c < one.cols; ++c) one.Set(0, c, queries_.At(token, c));
    queries_ = one;
    levels_.erase(levels_.begin(), levels_.begin() + token * shape_.heads());
    levels_.resize(static_cast<size_t>(shape_.heads()));
  }

  struct Result {
    Outcome outcome;
    std::vector<float> sums;  // [tokens][heads][sums_floats]
    // With late rows: [tokens · kv_heads] the lists that they have joined, and their indices in these.
    std::vector<std::vector<int32_t>> all, items;
  };
  // Runs Select with a tail or, if there are `lists`, SumTails for them, with room for `late` late rows.
  template <class Any>
  Result Run(Any& backend, const TestSketches<Any>& sketches, const TestBases<Any>& bases, const Batch& batch,
             const std::vector<SelectRule>& rules, SelectCall call, const std::vector<std::vector<int32_t>>* lists,
             int64_t late) {
    DeviceTensor queries(backend, queries_);
    DeviceBytes<Any> levels(backend, levels_.size() * sizeof(float));
    levels.Put(levels_);
    const size_t floats = static_cast<size_t>(shape_.sums_floats());
    DeviceBytes<Any> sums(backend, levels_.size() * floats * sizeof(float));
    call.tail = {.basis = bases.values(),
                 .heads = shape_.heads(),
                 .levels = levels.template as<float>(),
                 .sums = sums.template as<float>(),
                 .mean_dims = shape_.mean_dims()};
    const size_t heads = static_cast<size_t>(batch.count() * shape_.kv_heads);
    const auto room = static_cast<size_t>(batch.longest());
    DeviceBytes<Any> all_rows(backend, heads * room * 4), all_counts(backend, heads * 4);
    DeviceBytes<Any> items(backend, heads * static_cast<size_t>(late) * 4), late_counts(backend, heads * 4);
    if (late > 0)
      call.late = {
          .all = {all_rows.template as<int32_t>(), all_counts.template as<int32_t>(), batch.longest(), shape_.kv_heads},
          .items = items.template as<int32_t>(),
          .counts = late_counts.template as<int32_t>(),
          .capacity = late};
    const auto run = [&](const TokenBatch& tokens, const SelectCall& c, const Selection& selection) {
      if (lists == nullptr) return backend.Select(Queue::kCompute, queries, tokens, c, sketches.view(), selection);
      std::vector<int32_t> all(lists->size() * static_cast<size_t>(selection.capacity), -1), counts;
      for (const auto& list : *lists) {
        std::copy(list.begin(), list.end(), all.begin() + std::ssize(counts) * selection.capacity);
        counts.push_back(static_cast<int32_t>(list.size()));
      }
      backend.Upload(Queue::kCompute, all.data(), all.size() * 4, selection.rows);
      backend.Upload(Queue::kCompute, counts.data(), counts.size() * 4, selection.counts);
      backend.SumTails(Queue::kCompute, queries, tokens, c, sketches.view(), selection);
    };
    Result result{RunSelect(backend, batch, rules, shape_.kv_heads, call, run), {}, {}, {}};
    result.sums = sums.template Get<float>();
    const auto read = [&](const auto& of, const auto& lengths, size_t capacity) {
      const auto numbers = of.template Get<int32_t>();
      std::vector<std::vector<int32_t>> read_lists;
      for (const int32_t length : lengths.template Get<int32_t>()) {
        const auto begin = numbers.begin() + static_cast<int64_t>(read_lists.size() * capacity);
        EXPECT_TRUE(length >= 0 && static_cast<size_t>(length) <= capacity) << length;
        read_lists.emplace_back(begin, begin + std::clamp<int64_t>(length, 0, static_cast<int64_t>(capacity)));
      }
      return read_lists;
    };
    if (late > 0) result.all = read(all_rows, all_counts, room);
    if (late > 0) result.items = read(items, late_counts, static_cast<size_t>(late));
    return result;
  }
  Result Mine(const Batch& batch, const std::vector<SelectRule>& rules, const SelectCall& call,
              const std::vector<std::vector<int32_t>>* lists = nullptr, int64_t late = 0) {
    return Run(backend_, mine_, my_bases_, batch, rules, call, lists, late);
  }
  Result Theirs(const Batch& batch, const std::vector<SelectRule>& rules, const SelectCall& call,
                const std::vector<std::vector<int32_t>>* lists = nullptr, int64_t late = 0) {
    return Run(reference_, theirs_, their_bases_, batch, rules, call, lists, late);
  }

  void CompareSums(const Result& got, const Result& want, const Batch& batch) {
    const int64_t floats = shape_.sums_floats();
    for (int64_t i = 0; i < batch.count() * shape_.heads(); ++i) {
      SCOPED_TRACE(::testing::Message() << "token " << i / shape_.heads() << " head " << i % shape_.heads());
      const float *a = got.sums.data() + i * floats, *b = want.sums.data() + i * floats;
      if (!(b[1] > 0)) {
        ASSERT_EQ(a[1], b[1]);  // 0, or kNoTail
        for (int64_t n = 2; n < floats; ++n) ASSERT_EQ(a[n], 0) << n;
        continue;
      }
      ASSERT_NEAR(a[0], b[0], 1e-4);
      const double factor = std::exp(static_cast<double>(a[0]) - static_cast<double>(b[0]));
      ASSERT_NEAR(a[1] * factor, b[1], 2e-4 * b[1]);
      // Value sketches are sums of many normal numbers, with some above 10.
      for (int64_t n = 2; n < floats; ++n) ASSERT_NEAR(a[n] * factor, b[n], 2e-4 * 10 * b[1]) << n;
    }
  }
  // SumTails for random lists that keep this share of the rows, and the current row.
  void CompareLists(const Batch& batch, double keep, const std::vector<SelectRule>& rules, const SelectCall& call,
                    Random& random) {
    const std::vector<std::vector<int32_t>> lists = Lists(batch, keep, random);
    CompareSums(Mine(batch, rules, call, &lists), Theirs(batch, rules, call, &lists), batch);
  }
  // The same with late rows, which are exactly the oracle's: scores of integer sketches are.
  void CompareLate(const Batch& batch, double keep, const std::vector<SelectRule>& rules, int64_t late,
                   const SelectCall& call, Random& random) {
    const std::vector<std::vector<int32_t>> lists = Lists(batch, keep, random);
    const Result got = Mine(batch, rules, call, &lists, late), want = Theirs(batch, rules, call, &lists, late);
    ASSERT_EQ(got.all, want.all);
    ASSERT_EQ(got.items, want.items);
    ExpectSame(got.outcome, want.outcome);
    CompareSums(got, want, batch);
  }
  // Random lists that keep this share of the rows, and the current row.
  std::vector<std::vector<int32_t>> Lists(const Batch& batch, double keep, Random& random) const {
    std::vector<std::vector<int32_t>> lists;
    for (int64_t i = 0; i < batch.count() * shape_.kv_heads; ++i) {
      const int32_t current = batch.rows[static_cast<size_t>(i / shape_.kv_heads)];
      auto& list = lists.emplace_back();
      for (int32_t row = 0; row <= current; ++row)
        if (row == current || static_cast<double>(random.Int(0, 9999)) < keep * 1e4) list.push_back(row);
    }
    return lists;
  }

 private:
  B& backend_;
  ReferenceBackend& reference_;
  Shape shape_;
  TestSketches<B> mine_;
  TestSketches<ReferenceBackend> theirs_;
  TestBases<B> my_bases_;
  TestBases<ReferenceBackend> their_bases_;
  HostTensor queries_;
  std::vector<float> levels_;
};

// Lengths around blocks of 64 rows, warps of 128 and chunks of 1,024. Slot 2 has no tail.
const Batch kLengths{{0, 1, 1, 0, 2, 0, 1, 0, 1, 0}, {2499, 2300, 1023, 1024, 2499, 0, 63, 64, 127, 128}};
const std::vector<SelectRule> kTailRules = {{.tail = true}, {.tail = true}, {.tail = false}};

TYPED_TEST(TailTest, SumsMatchTheOracle) {
  Random random(62);
  std::vector<Shape> shapes;
  for (const int64_t group : {1, 2, 3, 4, 5, 8}) shapes.push_back({.group = group});
  for (const int64_t head_dim : {64, 80, 128})
    shapes.push_back({.head_dim = head_dim, .dims = head_dim * 3 / 4 / 8 * 8});
  for (const SketchType type : {SketchType::kInt8, SketchType::kBF16})
    for (const int64_t group : {1, 3, 8}) shapes.push_back({.type = type, .group = group, .dims = 24});
  for (const int64_t scale_dims : {0, 8, 32}) shapes.push_back({.scale_dims = scale_dims, .value_dims = 16});
  shapes.push_back({.dims = 56, .scale_dims = 0});
  shapes.push_back({.type = SketchType::kInt8, .dims = 40, .scale_dims = 16});
  shapes.push_back({.kv_heads = 1, .group = 9, .dims = 8, .scale_dims = 8});
  for (const int64_t group : {1, 2, 3, 4, 8}) shapes.push_back({.group = group, .means = true});
  for (const int64_t head_dim : {80, 128, 256})
    shapes.push_back({.head_dim = head_dim, .dims = head_dim * 3 / 4 / 8 * 8, .means = true});
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(::testing::Message() << shape);
    TailScene scene(this->backend(), this->reference(), shape, 3, 2500, random);
    scene.Void(0, {0, 5, 63, 64, 777, 1023, 1024, 2490});
    scene.Void(1, {126});
    for (const float scale : {0.02f, 0.3f}) {
      scene.Ask(kLengths, scale, random);
      for (const double keep : {0.0, 0.05, 0.9, 1.0}) {
        SCOPED_TRACE(::testing::Message() << "scale " << scale << " keep " << keep);
        scene.CompareLists(kLengths, keep, kTailRules, {}, random);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
    scene.CompareLists(kLengths, 0.05, kTailRules, {.current_known = false}, random);
    scene.CompareLists(kLengths, 0.05, kTailRules, {.soft_cap = 3.0f}, random);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

// All rows in [0, 127], or none, of a warp's share are selected.
TYPED_TEST(TailTest, SumsWhereWholeRunsAreSelected) {
  Random random(63);
  TailScene scene(this->backend(), this->reference(), {}, 1, 2500, random);
  const Batch batch{{0}, {2400}};
  scene.Ask(batch, 0.3f, random);
  for (const auto& [first, last] : {std::pair<int32_t, int32_t>{0, 128}, {0, 1024}, {128, 256}, {100, 2300}}) {
    std::vector<int32_t> list(static_cast<size_t>(last - first));
    std::iota(list.begin(), list.end(), first);
    list.push_back(2400);
    const std::vector<std::vector<int32_t>> lists(2, list);
    scene.CompareSums(scene.Mine(batch, kTailRules, {}, &lists), scene.Theirs(batch, kTailRules, {}, &lists), batch);
  }
}

TYPED_TEST(TailTest, SumsOfManyRows) {
  Random random(64);
  for (const int64_t group : {1, 4}) {
    TailScene scene(this->backend(), this->reference(), {.kv_heads = 1, .group = group, .means = group == 4}, 1, 40000,
                    random);
    const Batch batch{{0, 0}, {39999, 36863}};
    scene.Ask(batch, 0.3f, random);
    scene.CompareLists(batch, 0.05, kTailRules, {}, random);
  }
}

// Huge scores do not overflow into the sums, and infinite scores make the tail empty.
TYPED_TEST(TailTest, SumsOfHugeScores) {
  Random random(65);
  TailScene scene(this->backend(), this->reference(), {}, 1, 1500, random);
  const Batch batch{{0, 0}, {1499, 70}};
  scene.Ask(batch, 1e4f, random);
  scene.CompareLists(batch, 0.05, kTailRules, {.soft_cap = 20.0f}, random);
}

// A tail does not depend on the other tokens of the batch.
TYPED_TEST(TailTest, SumsAreTheSameAloneAndInABatch) {
  Random random(66);
  TailScene scene(this->backend(), this->reference(), {.means = true}, 3, 2500, random);
  const Batch batch{{0, 1, 2, 1, 0}, {2499, 2299, 700, 2299, 64}};
  std::vector<std::vector<int32_t>> lists;
  for (const int32_t row : batch.rows)
    for (int head = 0; head < 2; ++head) lists.push_back({3, row / 2 + head + 4, row});
  scene.Ask(batch, 0.3f, random);
  const auto all = scene.Mine(batch, kTailRules, {}, &lists);
  scene.KeepToken(1);
  lists = {lists[2], lists[3]};
  const auto alone = scene.Mine({{1}, {2299}}, kTailRules, {}, &lists);
  for (size_t i = 0; i < alone.sums.size(); ++i)
    ASSERT_EQ(std::bit_cast<uint32_t>(alone.sums[i]), std::bit_cast<uint32_t>(all.sums[alone.sums.size() + i])) << i;
}

// ---- Late rows

TYPED_TEST(TailTest, LateRowsAreTheOracles) {
  Random random(72);
  std::vector<Shape> shapes;
  for (const int64_t group : {1, 2, 3, 4, 5, 8}) shapes.push_back({.group = group});
  for (const int64_t head_dim : {80, 128}) shapes.push_back({.head_dim = head_dim, .dims = head_dim * 3 / 4 / 8 * 8});
  for (const int64_t scale_dims : {0, 8, 32}) shapes.push_back({.scale_dims = scale_dims});
  shapes.push_back({.head_dim = 128, .dims = 112, .scale_dims = 0});
  shapes.push_back({.type = SketchType::kInt8, .dims = 24});
  // Few different scores: ties decide.
  shapes.push_back({.kv_heads = 1, .dims = 8, .scale_dims = 8});
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(::testing::Message() << shape);
    TailScene scene(this->backend(), this->reference(), shape, 3, 2500, random);
    scene.Void(0, {0, 5, 63, 64, 777, 1023, 1024, 2490});
    scene.Void(1, {126});
    for (const float scale : {0.02f, 0.3f}) {
      scene.Ask(kLengths, scale, random);
      for (const int32_t late : {1, 16, 64, 3000}) {
        std::vector<SelectRule> rules(3, {.tail = true, .late = late});
        rules[2].tail = false;  // then no row is late either
        for (const double keep : {0.0, 0.05, 0.99, 1.0}) {
          SCOPED_TRACE(::testing::Message() << "scale " << scale << " late " << late << " keep " << keep);
          scene.CompareLate(kLengths, keep, rules, late, {}, random);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TYPED_TEST(TailTest, LateRowsOfManyRows) {
  Random random(73);
  TailScene scene(this->backend(), this->reference(), {.kv_heads = 1, .head_dim = 128, .dims = 96}, 1, 40000, random);
  const Batch batch{{0, 0}, {39999, 36863}};
  scene.Ask(batch, 0.3f, random);
  scene.CompareLate(batch, 0.05, {{.tail = true, .late = 64}}, 64, {}, random);
}

// Sequences with a tail and less late rows than the others, all rows equal: the newest are late.
TYPED_TEST(TailTest, OfEqualRowsTheNewestAreLate) {
  Random random(74);
  TailScene scene(this->backend(), this->reference(), {}, 1, 3000, random);
  const Batch batch{{0}, {2999}};
  scene.Ask(batch, 0.0f, random);  // every score is 0
  const std::vector<std::vector<int32_t>> lists = {{5, 2998, 2999}, {0, 2000, 2999}};
  const auto got = scene.Mine(batch, {{.tail = true, .late = 3}}, {}, &lists, 8);
  EXPECT_EQ(got.all[0], (std::vector<int32_t>{5, 2995, 2996, 2997, 2998, 2999}));
  EXPECT_EQ(got.items[0], (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(got.all[1], (std::vector<int32_t>{0, 2000, 2996, 2997, 2998, 2999}));
  EXPECT_EQ(got.items[1], (std::vector<int32_t>{2, 3, 4}));
}

// ---- Selection with a tail, by mass, and of short caches

TYPED_TEST(TailTest, SelectChoosesAndSums) {
  Random random(67);
  for (const SketchType type : {SketchType::kInt4, SketchType::kInt8}) {
    for (const int64_t group : {1, 3, 4, 8}) {
      const Shape shape{.type = type, .group = group, .means = group > 1};
      TailScene scene(this->backend(), this->reference(), shape, 3, 6000, random);
      scene.Void(0, {0, 5, 63, 64, 777, 1023, 1024, 2490});
      const Batch batch{{0, 1, 2, 0, 1}, {5999, 5000, 4200, 700, 30}};
      scene.Ask(batch, 0.3f, random);
      for (const SelectRule& rule :
           {SelectRule{.cap = 0.05, .sinks = 4, .window = 64, .tail = true},
            SelectRule{.alpha = 2.0f, .cap = 1.0, .min_rows = 32, .tail = true},
            SelectRule{.cap = 0.05, .whole_rows = 1024, .tail = true}, SelectRule{.force_count = 100, .tail = true}}) {
        SCOPED_TRACE(::testing::Message() << shape << " alpha " << rule.alpha << " whole " << rule.whole_rows);
        const std::vector<SelectRule> rules = {rule, rule, {}};
        const auto got = scene.Mine(batch, rules, {}), want = scene.Theirs(batch, rules, {});
        ExpectSame(got.outcome, want.outcome);
        scene.CompareSums(got, want, batch);
        if (::testing::Test::HasFatalFailure()) return;
      }
      // Under a soft cap, scores differ in their last digits.
      const std::vector<SelectRule> rules(3, {.cap = 0.05, .sinks = 4, .window = 64, .tail = true});
      ExpectAlike(scene.Mine(batch, rules, {.soft_cap = 3.0f}).outcome,
                  scene.Theirs(batch, rules, {.soft_cap = 3.0f}).outcome);
    }
  }
}

// Caches of up to whole_rows rows are attended to entirely, and their tail is empty.
TYPED_TEST(TailTest, ShortCachesAreSelectedWhole) {
  Random random(68);
  for (const int64_t rows : {900, 5000}) {
    TailScene scene(this->backend(), this->reference(), {}, 1, rows, random);
    const auto last = static_cast<int32_t>(rows - 1);
    const Batch batch{{0, 0, 0, 0}, {last, last - 1, 0, 63}};
    scene.Ask(batch, 0.3f, random);
    const std::vector<SelectRule> rules = {{.cap = 0.05, .whole_rows = static_cast<int32_t>(rows - 1), .tail = true}};
    const auto got = scene.Mine(batch, rules, {}), want = scene.Theirs(batch, rules, {});
    ExpectSame(got.outcome, want.outcome);
    scene.CompareSums(got, want, batch);
    EXPECT_LT(std::ssize(got.outcome.rows[0]), rows);
    EXPECT_EQ(std::ssize(got.outcome.rows[2]), rows - 1);
    EXPECT_EQ(got.sums[static_cast<size_t>(8 * 10 + 1)], 0);  // token 1
  }
}

// Exponentials differ in their last digits, so that a row at the edge may differ.
TYPED_TEST(TailTest, SelectionsByMass) {
  Random random(69);
  for (const int64_t rows : {700, 6000}) {
    for (const int64_t group : {1, 3, 4, 8}) {
      TailScene scene(this->backend(), this->reference(), {.group = group}, 2, rows, random);
      scene.Void(0, {0, 5, 63});
      const auto last = static_cast<int32_t>(rows - 1);
      const Batch batch{{0, 1, 1, 0}, {last, last - 7, 64, 0}};
      for (const float scale : {0.01f, 0.1f, 1.0f}) {
        scene.Ask(batch, scale, random);
        for (const float mass : {0.01f, 0.5f, 0.95f, 0.999f}) {
          SCOPED_TRACE(::testing::Message()
                       << "rows " << rows << " group " << group << " scale " << scale << " mass " << mass);
          for (const bool mean : {false, true}) {
            const std::vector<SelectRule> rules = {{.alpha = kInfinity, .cap = 1.0, .mass = mass, .tail = true},
                                                   {.cap = 0.3, .min_rows = 4, .mass = mass}};
            const SelectCall call{.mean_counts = mean};
            ExpectAlike(scene.Mine(batch, rules, call).outcome, scene.Theirs(batch, rules, call).outcome);
            if (::testing::Test::HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

// ---- Attention to a selection and its tail

// Random sums for `tokens` tokens; every third query head has an empty tail, every other one of these no tail at all.
std::vector<float> RandomSums(const Shape& shape, int64_t tokens, Random& random) {
  std::vector<float> sums;
  for (int64_t i = 0; i < tokens * shape.heads(); ++i) {
    const bool empty = i % 3 == 2;
    sums.push_back(empty ? -kInfinity : random.Normal(1.5f));
    sums.push_back(empty ? (i % 6 == 2 ? TailView::kNoTail : 0) : std::fabs(random.Normal(20.0f)) + 0.01f);
    for (int64_t n = 2; n < shape.sums_floats(); ++n) sums.push_back(empty ? 0 : random.Normal(5.0f));
  }
  return sums;
}

// One layer's entries, lists and tails in memory of a backend.
template <class B>
struct AttendedLayer {
  AttendedLayer(B& b, const Shape& s, StoreType type, int64_t rows, Random random)
      : backend(b), shape(s), bases(b, s, 53), entries(b, {type, s.kv_heads, s.head_dim}, 1, rows, random) {
    Random numbers(59);
    HostTensor keys = HostTensor::Normal(numbers, DType::kF32, rows, s.kv_heads * s.head_dim);
    HostTensor values = HostTensor::Normal(numbers, DType::kF32, rows, s.kv_heads * s.head_dim);
    std::vector<int32_t> at(static_cast<size_t>(rows));
    std::iota(at.begin(), at.end(), 0);
    DeviceTensor dkeys(backend, keys), dvalues(backend, values);
    DeviceInts drows(backend, at), slots(backend, std::vector<int32_t>(at.size()));
    backend.Append(Queue::kCompute, {rows, nullptr, slots, drows}, dkeys, dvalues, entries.view());
  }
  struct Result {
    HostTensor out;
    MassTotals mass;
  };
  // `sums` empty: without a tail.
  Result Attend(const HostTensor& queries, const Batch& batch, const std::vector<std::vector<int32_t>>& lists,
                const std::vector<float>& sums, float soft_cap = 0) {
    const int64_t capacity = batch.longest();
    std::vector<int32_t> all(lists.size() * static_cast<size_t>(capacity), -1), lengths;
    for (const auto& list : lists) {
      std::copy(list.begin(), list.end(), all.begin() + std::ssize(lengths) * capacity);
      lengths.push_back(static_cast<int32_t>(list.size()));
    }
    DeviceBytes<B> rows(backend, all.size() * 4), counts(backend, lengths.size() * 4);
    rows.Put(all);
    counts.Put(lengths);
    DeviceBytes<B> dsums(backend, sums.size() * sizeof(float)), mass(backend, sizeof(MassTotals));
    dsums.Put(sums);
    mass.Put(std::vector<MassTotals>(1));
    TailView tail;
    if (!sums.empty())
      tail = {.basis = bases.values(),
              .heads = shape.heads(),
              .sums = dsums.template as<float>(),
              .mean_dims = shape.mean_dims(),
              .mass = mass.template as<MassTotals>()};
    HostTensor typed = queries, out(queries.type, batch.count(), queries.cols, 5);
    DeviceTensor dqueries(backend, typed), dout(backend, out);
    DeviceInts slots(backend, batch.slots), tokens(backend, batch.rows);
    backend.AttendSelected(Queue::kCompute, dqueries, {batch.count(), nullptr, slots, tokens},
                           {rows.template as<int32_t>(), counts.template as<int32_t>(), capacity, shape.kv_heads}, tail,
                           {.heads = shape.heads(), .scale = 0.12f, .soft_cap = soft_cap}, entries.view(), dout);
    return {dout.Fetch(), mass.template Get<MassTotals>()[0]};
  }

  B& backend;
  Shape shape;
  TestBases<B> bases;
  TestEntries<B> entries;
};

template <class Factory>
void CheckAttended(typename Factory::B& backend, ReferenceBackend& reference, const Shape& shape, StoreType type,
                   Random& random) {
  SCOPED_TRACE(::testing::Message() << shape << " entries " << Name(type));
  const Batch batch{{0, 0, 0}, {699, 255, 0}};
  AttendedLayer mine(backend, shape, type, 700, Random(1));
  AttendedLayer theirs(reference, shape, type, 700, Random(1));
  const HostTensor queries =
      HostTensor::Normal(random, DType::kF32, batch.count(), shape.heads() * shape.head_dim, 1.0f, 3);
  std::vector<std::vector<int32_t>> lists;
  for (int64_t i = 0; i < batch.count() * shape.kv_heads; ++i) {
    auto& list = lists.emplace_back();
    const int32_t current = batch.rows[static_cast<size_t>(i / shape.kv_heads)];
    for (int32_t row = 0; row <= current; ++row)
      if (row == current || random.Int(0, 9) == 0) list.push_back(row);
  }
  const std::vector<float> sums = RandomSums(shape, batch.count(), random);
  for (const float soft_cap : {0.0f, 4.0f}) {
    const auto got = mine.Attend(queries, batch, lists, sums, soft_cap);
    const auto want = theirs.Attend(queries, batch, lists, sums, soft_cap);
    const auto plain = mine.Attend(queries, batch, lists, {}, soft_cap);
    const double rounding = Factory::AttentionRounding(type);
    for (int64_t r = 0; r < got.out.rows; ++r) {
      for (int64_t c = 0; c < got.out.cols; ++c) {
        // One row has all the weight at worst. The share of the tail is as uncertain as the sum of weights.
        const double bound = 2e-4 + 2 * AttentionError(rounding, 1, 1, 1.0) / 3 * (1 + std::fabs(want.out.At(r, c)));
        ASSERT_NEAR(got.out.At(r, c), want.out.At(r, c), bound) << r << "," << c;
        const bool empty = (r * shape.heads() + c / shape.head_dim) % 3 == 2;
        if (empty) {
          ASSERT_EQ(std::bit_cast<uint32_t>(got.out.At(r, c)), std::bit_cast<uint32_t>(plain.out.At(r, c)));
        }
      }
      for (int64_t c = got.out.cols; c < got.out.stride; ++c) ASSERT_TRUE(std::isnan(got.out.At(r, c)));
    }
    EXPECT_EQ(got.mass.count, want.mass.count);
    // Empty tails count, as 0; heads without a tail do not.
    const int64_t all = batch.count() * shape.heads();
    EXPECT_EQ(static_cast<int64_t>(want.mass.count), all - (all + 3) / 6);
    EXPECT_GE(static_cast<int64_t>(want.mass.bins[0]), all / 3 - (all + 3) / 6);
    EXPECT_NEAR(got.mass.sum, want.mass.sum, (1e-4 + 2 * rounding) * static_cast<double>(want.mass.count));
    EXPECT_EQ(std::accumulate(std::begin(got.mass.bins), std::end(got.mass.bins), uint64_t{0}), got.mass.count);
  }
}

TYPED_TEST(TailTest, AttendsToTheTail) {
  Random random(70);
  for (const StoreType type : {StoreType::kF32, StoreType::kF16, StoreType::kBF16, StoreType::kInt8, StoreType::kInt4})
    for (const int64_t group : {1, 3, 4, 8})
      for (const int64_t head_dim : {64, 80, 128})
        CheckAttended<TypeParam>(this->backend(), this->reference(), {.group = group, .head_dim = head_dim}, type,
                                 random);
  CheckAttended<TypeParam>(this->backend(), this->reference(), {.head_dim = 256, .value_dims = 16}, StoreType::kBF16,
                           random);
  for (const int64_t head_dim : {64, 80, 128})
    CheckAttended<TypeParam>(this->backend(), this->reference(), {.head_dim = head_dim, .means = true},
                             StoreType::kBF16, random);
}

// ---- The same from fetched entries

template <class Factory>
class FetchedTailTest : public OpTest<Factory> {};
TYPED_TEST_SUITE(FetchedTailTest, FetchingBackends, BackendName);

TYPED_TEST(FetchedTailTest, CellsAndPoolGiveTheSameBits) {
  using Tested = typename TypeParam::B;
  const FetchShape fetched{.dim = 64};
  FetchLayer<Tested> layer(this->backend(), fetched, 3);
  for (int64_t slot = 0; slot < fetched.slots; ++slot) layer.Clear(slot);
  layer.Step(
      {{0, 399, {399, 399}, {{1, 2, 50, 399}, {0, 7, 399}}, {}}, {1, 300, {300, 300}, {{300}, {5, 6, 300}}, {}}});
  Random random(71);
  const Shape shape{.kv_heads = fetched.kv_heads, .group = fetched.group, .head_dim = fetched.dim};
  const TestBases bases(this->backend(), shape, 53);
  const std::vector<float> sums = RandomSums(shape, 2, random);
  DeviceBytes<Tested> dsums(this->backend(), sums.size() * sizeof(float)), mass(this->backend(), sizeof(MassTotals));
  dsums.Put(sums);
  mass.Put(std::vector<MassTotals>(1));
  const TailView tail{.basis = bases.values(),
                      .heads = shape.heads(),
                      .sums = dsums.template as<float>(),
                      .mass = mass.template as<MassTotals>()};
  const HostTensor queries = HostTensor::Normal(random, DType::kF32, 2, shape.heads() * shape.head_dim);
  const Bytes cells = layer.Attend(queries, 0, 2, true, tail), pool = layer.Attend(queries, 0, 2, false, tail);
  EXPECT_TRUE(cells == pool);
  EXPECT_FALSE(cells == layer.Attend(queries, 0, 2, true));
  EXPECT_EQ(mass.template Get<MassTotals>()[0].count, 2u * 7u);  // one of the eight has no tail
}

}  // namespace
}  // namespace infinigen
