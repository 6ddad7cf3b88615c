// Sketches, selection and attention to the selection: every operation against the oracle, over random settings. Integer
// sketches have exact scores, so selections are compared for equality; with bf16 sketches a row at the edge may differ.
#include <algorithm>
#include <limits>
#include <numeric>

#include "backend/backends.h"
#include "backend/operands.h"
#include "backend/selections.h"
#include "kv/index.h"
#include "sanitized.h"

namespace infinigen {
namespace {

template <class Factory>
class SelectionTest : public OpTest<Factory> {};
TYPED_TEST_SUITE(SelectionTest, SketchingBackends, BackendName);

constexpr SketchType kSketchTypes[] = {SketchType::kBF16, SketchType::kInt8, SketchType::kInt4};

struct Shape {
  SketchType type = SketchType::kInt8;
  int64_t kv_heads = 2, group = 4, dims = 24, head_dim = 64;

  SketchLayout layout() const { return {type, kv_heads, dims}; }
};

template <class B>
class TestBasis {
 public:
  TestBasis(B& backend, const Shape& s, int64_t slots, bool per_slot, uint64_t seed)
      : shape_(s),
        per_slot_(per_slot),
        query_(backend, Size(slots) * sizeof(float)),
        key_(backend, Size(slots) * sizeof(float)),
        offset_(backend, Size(slots) / static_cast<size_t>(s.head_dim) * sizeof(float)) {
    Random random(seed);
    for (auto* part : {&query_, &key_, &offset_}) {
      std::vector<float> values(part->template Get<float>().size());
      for (float& value : values) value = random.Normal(0.3f);
      part->Put(values);
    }
  }
  SketchBasis view() const {
    return {shape_.kv_heads,
            shape_.head_dim,
            shape_.dims,
            query_.template as<float>(),
            key_.template as<float>(),
            offset_.template as<float>(),
            per_slot_};
  }

 private:
  size_t Size(int64_t slots) const {
    return static_cast<size_t>((per_slot_ ? slots : 1) * shape_.kv_heads * shape_.head_dim * shape_.dims);
  }
  Shape shape_;
  bool per_slot_;
  DeviceBytes<B> query_, key_, offset_;
};

// Random sketches of `rows` rows in every slot, computed by the oracle from normal numbers; both backends have the same
// bytes.
template <class B>
class Scene {
 public:
  Scene(B& backend, ReferenceBackend& reference, const Shape& shape, int64_t slots, int64_t rows, Random& random,
        float key_scale = 1.0f)
      : backend_(backend),
        reference_(reference),
        shape_(shape),
        mine_(backend, shape.layout(), slots, rows),
        theirs_(reference, shape.layout(), slots, rows) {
    // The basis is the identity on the first columns: sketches are the keys themselves.
    const int64_t per_head = shape.dims * shape.dims;
    std::vector<float> identity(static_cast<size_t>(shape.kv_heads * per_head));
    for (int64_t h = 0; h < shape.kv_heads; ++h)
      for (int64_t i = 0; i < shape.dims; ++i) identity[static_cast<size_t>(h * per_head + i * shape.dims + i)] = 1.0f;
    const std::vector<float> zero(static_cast<size_t>(shape.kv_heads * shape.dims));
    const SketchBasis basis{shape.kv_heads, shape.dims, shape.dims, identity.data(), identity.data(), zero.data()};
    HostTensor keys = HostTensor::Normal(random, DType::kF32, rows, shape.kv_heads * shape.dims, key_scale);
    std::vector<int32_t> at(static_cast<size_t>(rows));
    std::iota(at.begin(), at.end(), 0);
    for (int64_t slot = 0; slot < slots; ++slot) {
      for (int64_t r = 0; r < rows; ++r) keys.Set(r, slot % keys.cols, random.Normal(key_scale));
      const std::vector<int32_t> row_slots(at.size(), static_cast<int32_t>(slot));
      reference.AppendSketches(Queue::kCompute, {rows, nullptr, row_slots.data(), at.data()}, keys.view(), basis,
                               theirs_.view());
    }
    mine_.Put(theirs_.Get());
  }

  HostTensor Queries(Random& random, int64_t tokens, float scale) const {
    return HostTensor::Normal(random, DType::kF32, tokens, shape_.kv_heads * shape_.group * shape_.dims, scale, 5);
  }
  Outcome Mine(HostTensor& queries, const Batch& batch, const std::vector<SelectRule>& rules, const SelectCall& call) {
    DeviceTensor device(backend_, queries);
    return RunSelect(backend_, batch, rules, shape_.kv_heads, call,
                     [&](const TokenBatch& tokens, const SelectCall& c, const Selection& selection) {
                       backend_.Select(Queue::kCompute, device, tokens, c, mine_.view(), selection);
                     });
  }
  Outcome Theirs(HostTensor& queries, const Batch& batch, const std::vector<SelectRule>& rules,
                 const SelectCall& call) {
    return RunSelect(reference_, batch, rules, shape_.kv_heads, call,
                     [&](const TokenBatch& tokens, const SelectCall& c, const Selection& selection) {
                       reference_.Select(Queue::kCompute, queries.view(), tokens, c, theirs_.view(), selection);
                     });
  }
  void Compare(HostTensor& queries, const Batch& batch, const std::vector<SelectRule>& rules,
               const SelectCall& call = {}) {
    const Outcome got = Mine(queries, batch, rules, call), want = Theirs(queries, batch, rules, call);
    if (shape_.type == SketchType::kBF16)
      ExpectAlike(got, want);
    else
      ExpectSame(got, want);
  }

 private:
  B& backend_;
  ReferenceBackend& reference_;
  Shape shape_;
  TestSketches<B> mine_;
  TestSketches<ReferenceBackend> theirs_;
};

// ---- Making sketches

// Appended sketches of keys of type `activation` equal the oracle's up to one rounding.
template <class B>
void CheckAppended(B& backend, ReferenceBackend& reference, SketchType type, bool per_slot, int64_t dims,
                   DType activation, Random& random) {
  const Shape shape{type, 3, 1, dims, 72};
  const int64_t slots = 3, count = 150;
  TestSketches mine(backend, shape.layout(), slots, 200);
  TestSketches theirs(reference, shape.layout(), slots, 200);
  TestBasis basis(backend, shape, slots, per_slot, 41);
  TestBasis other(reference, shape, slots, per_slot, 41);
  HostTensor keys = HostTensor::Normal(random, activation, count, shape.kv_heads * shape.head_dim, 2.0f, 3);
  keys.Set(3, 5, kInfinity);
  keys.Set(4, 1, std::numeric_limits<float>::quiet_NaN());
  for (int64_t c = 0; c < keys.cols; ++c) keys.Set(5, c, 0.0f);
  HostTensor wide = keys.As(DType::kF32);
  std::vector<int32_t> row_slots(count), at(count);
  for (int32_t i = 0; i < count; ++i) {
    row_slots[static_cast<size_t>(i)] = i / 20 % 3;
    at[static_cast<size_t>(i)] = i;
  }
  DeviceTensor dkeys(backend, keys);
  DeviceInts dslots(backend, row_slots), drows(backend, at);
  backend.AppendSketches(Queue::kCompute, {count, nullptr, dslots, drows}, dkeys, basis.view(), mine.view());
  reference.AppendSketches(Queue::kCompute, {count, nullptr, row_slots.data(), at.data()}, wide.view(), other.view(),
                           theirs.view());
  // Poison remains where nothing was appended; numbers agree up to a step of their type.
  const std::vector<std::byte> a = mine.Get(), b = theirs.Get();
  std::vector<std::byte> copy = a;
  const LayerSketches view{mine.view().layout, copy.data(), mine.view().head_stride, mine.view().slot_stride};
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t head = 0; head < shape.kv_heads; ++head) {
      const int64_t slot = row_slots[static_cast<size_t>(i)];
      const std::byte* block = view.Block(slot, head, i / kSketchBlock);
      const std::byte* oracle = b.data() + (block - copy.data());
      const auto got = LoadSketch(view.layout, block, i % kSketchBlock);
      const auto want = LoadSketch(view.layout, oracle, i % kSketchBlock);
      float largest = 0;
      for (const float number : want) largest = std::max(largest, std::fabs(number));
      const float step = type == SketchType::kBF16   ? 0x1p-7f * largest
                         : type == SketchType::kInt8 ? largest * 1.01f / 120
                                                     : largest * 1.01f / 6.9f;
      for (size_t n = 0; n < got.size(); ++n) ASSERT_NEAR(got[n], want[n], step) << i << "," << head << "," << n;
    }
  }
  int64_t same = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    same += a[i] == b[i] ? 1 : 0;
    if (b[i] == std::byte{0xff} && a[i] != b[i]) {
      // An untouched byte of the oracle may equal a stored 0xff only inside integer units.
      ASSERT_NE(type, SketchType::kBF16);
    }
  }
  EXPECT_GT(same, std::ssize(a) * 98 / 100);
}

TYPED_TEST(SelectionTest, AppendedSketchesAreTheOraclesWithinARounding) {
  Random random(40);
  for (const SketchType type : kSketchTypes)
    for (const bool per_slot : {false, true})
      for (const int64_t dims : {8, 24, 40, 64})
        CheckAppended(this->backend(), this->reference(), type, per_slot, dims, DType::kF32, random);
  for (const DType activation : TypeParam::kActivations)
    CheckAppended(this->backend(), this->reference(), SketchType::kInt8, false, 24, activation, random);
}

template <class B>
void CheckQuerySketches(B& backend, ReferenceBackend& reference, int64_t group, int64_t dims, DType activation,
                        Random& random) {
  const Shape shape{SketchType::kInt8, 2, group, dims, 72};
  const int64_t count = 9, heads = shape.kv_heads * group;
  TestBasis basis(backend, shape, 3, true, 43);
  TestBasis other(reference, shape, 3, true, 43);
  HostTensor queries = HostTensor::Normal(random, activation, count, heads * shape.head_dim, 1.0f, 2);
  HostTensor wide = queries.As(DType::kF32), out(DType::kF32, count, heads * dims, 7);
  const std::vector<int32_t> slots = {0, 1, 2, 2, 1, 0, 0, 1, 2};
  DeviceTensor dqueries(backend, queries), dout(backend, out);
  DeviceInts dslots(backend, slots), drows(backend, slots);
  backend.SketchQueries(Queue::kCompute, dqueries, {count, nullptr, dslots, drows}, {heads, 0.37f}, basis.view(), dout);
  reference.SketchQueries(Queue::kCompute, wide.view(), {count, nullptr, slots.data(), slots.data()}, {heads, 0.37f},
                          other.view(), out.view());
  const HostTensor got = dout.Fetch();
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t c = 0; c < out.cols; ++c) ASSERT_NEAR(got.At(r, c), out.At(r, c), 2e-5f);
    for (int64_t c = out.cols; c < out.stride; ++c) ASSERT_TRUE(std::isnan(got.row(r)[c])) << "gap written";
  }
}

TYPED_TEST(SelectionTest, QuerySketchesMatchTheOracle) {
  Random random(42);
  for (const int64_t group : {1, 3, 4, 8, 9})
    for (const int64_t dims : {8, 24, 48, 72})
      CheckQuerySketches(this->backend(), this->reference(), group, dims, DType::kF32, random);
  for (const DType activation : TypeParam::kActivations)
    CheckQuerySketches(this->backend(), this->reference(), 4, 24, activation, random);
}

// ---- Selection

TYPED_TEST(SelectionTest, RandomSettings) {
  Random random(44);
  for (const SketchType type : kSketchTypes) {
    for (const int64_t group : {1, 2, 3, 4, 5, 6, 7, 8, 32}) {
      const int64_t rows = 700, slots = 3;
      const Shape shape{type, 2, group, random.Int(1, 9) * 8};
      Scene scene(this->backend(), this->reference(), shape, slots, rows, random);
      for (int repeat = 0; repeat < 6; ++repeat) {
        Batch batch;
        const int64_t edges[] = {1, 2, 63, 64, 65, 128, 129, 255, 256, 300, 699, 700};
        for (int64_t t = random.Int(1, 6); t > 0; --t) {
          batch.slots.push_back(static_cast<int32_t>(random.Int(0, slots - 1)));
          batch.rows.push_back(static_cast<int32_t>(edges[random.Int(0, 11)] - 1));
        }
        std::vector<SelectRule> rules;
        for (int64_t s = 0; s < slots; ++s) rules.push_back(RandomRule(random));
        HostTensor queries = scene.Queries(random, batch.count(), repeat % 2 == 0 ? 0.3f : 2.0f);
        const SelectCall call{.current_known = repeat % 3 != 0, .mean_counts = repeat % 4 == 1};
        SCOPED_TRACE(::testing::Message() << "type " << static_cast<int>(type) << " group " << group << " dims "
                                          << shape.dims << " repeat " << repeat);
        scene.Compare(queries, batch, rules, call);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

// Enough rows for a sampled floor: flat and peaked scores, forced counts, caps and thresholds.
TYPED_TEST(SelectionTest, ThousandsOfRows) {
  Random random(45);
  for (const SketchType type : kSketchTypes) {
    const Shape shape{type, 2, 4, 24};
    const int64_t rows = 9000;
    Scene scene(this->backend(), this->reference(), shape, 1, rows, random);
    for (const float scale : {0.05f, 0.5f, 3.0f}) {
      if (kSanitized && scale != 0.5f) continue;
      HostTensor queries = scene.Queries(random, 3, scale);
      const Batch batch{{0, 0, 0}, {8999, 8500, 5000}};
      for (SelectRule rule :
           {SelectRule{.cap = 0.05}, SelectRule{.alpha = kInfinity, .cap = 0.3},
            SelectRule{.alpha = 3.0f, .cap = 1.0, .sinks = 4, .window = 64},
            SelectRule{.alpha = 0.0f, .cap = 0.1, .min_rows = 1000},
            SelectRule{.sinks = 4, .window = 16, .force_count = 450}, SelectRule{.force_count = 5500}}) {
        SCOPED_TRACE(::testing::Message() << "type " << static_cast<int>(type) << " scale " << scale << " alpha "
                                          << rule.alpha << " force " << rule.force_count);
        scene.Compare(queries, batch, {rule});
        scene.Compare(queries, batch, {rule}, {.current_known = false, .mean_counts = true});
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

// A misleading sample: the best rows are adjacent, where few or all samples fall.
TYPED_TEST(SelectionTest, ClusteredRows) {
  Random random(46);
  const Shape shape{SketchType::kInt8, 1, 1, 8};
  const int64_t rows = 8192;
  for (const int64_t period : {2, 5, 64, 256, 1000}) {
    TestSketches mine(this->backend(), shape.layout(), 1, rows);
    TestSketches theirs(this->reference(), shape.layout(), 1, rows);
    for (int64_t r = 0; r < rows; ++r) {
      std::vector<float> numbers(8);
      numbers[0] = r / 16 % period == 0 ? 3.0f + random.Normal(0.1f) : random.Normal(0.1f);
      StoreSketch({shape.type, 1, 8}, theirs.view().Block(0, 0, r / kSketchBlock), r % kSketchBlock, numbers);
    }
    mine.Put(theirs.Get());
    HostTensor query(DType::kF32, 1, 8);
    for (int64_t c = 0; c < 8; ++c) query.Set(0, c, c == 0 ? 1.0f : 0.0f);
    DeviceTensor dquery(this->backend(), query);
    const Batch batch{{0}, {static_cast<int32_t>(rows - 1)}};
    for (const int32_t count : {10, 400, 2000, 4000}) {
      const std::vector<SelectRule> rules = {{.force_count = count}};
      const Outcome got = RunSelect(
          this->backend(), batch, rules, 1, {}, [&](const auto& tokens, const auto& call, const auto& selection) {
            this->backend().Select(Queue::kCompute, dquery, tokens, call, mine.view(), selection);
          });
      const Outcome want = RunSelect(
          this->reference(), batch, rules, 1, {}, [&](const auto& tokens, const auto& call, const auto& selection) {
            this->reference().Select(Queue::kCompute, query.view(), tokens, call, theirs.view(), selection);
          });
      ExpectSame(got, want);
      EXPECT_EQ(std::ssize(got.rows[0]), count);
    }
  }
}

// Equal scores everywhere: the newest rows are chosen.
TYPED_TEST(SelectionTest, TiesGoToTheNewer) {
  Random random(47);
  const Shape shape{SketchType::kInt8, 1, 2, 8};
  for (const int64_t rows : {100, 6000}) {
    TestSketches mine(this->backend(), shape.layout(), 1, rows);
    for (int64_t block = 0; block < (rows + 63) / 64; ++block) {
      std::vector<std::byte> bytes(mine.view().layout.block_bytes());
      for (int64_t row = 0; row < kSketchBlock; ++row)
        StoreSketch(mine.view().layout, bytes.data(), row, std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8});
      this->backend().Upload(Queue::kCompute, bytes.data(), bytes.size(), mine.view().Block(0, 0, block));
    }
    HostTensor query = HostTensor::Normal(random, DType::kF32, 1, 16);
    DeviceTensor dquery(this->backend(), query);
    const Batch batch{{0}, {static_cast<int32_t>(rows - 1)}};
    const Outcome got =
        RunSelect(this->backend(), batch, {SelectRule{.cap = 0.1}}, 1, {},
                  [&](const auto& tokens, const auto& call, const auto& selection) {
                    this->backend().Select(Queue::kCompute, dquery, tokens, call, mine.view(), selection);
                  });
    ASSERT_EQ(std::ssize(got.rows[0]), rows / 10);
    for (int64_t i = 0; i < rows / 10; ++i) EXPECT_EQ(got.rows[0][static_cast<size_t>(i)], rows - rows / 10 + i);
  }
}

// NaN and infinite queries: nothing crashes, and lists are valid and equal the oracle's.
TYPED_TEST(SelectionTest, ScoresThatAreNotNumbers) {
  Random random(48);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const SketchType type : kSketchTypes) {
    const Shape shape{type, 1, 2, 16};
    Scene scene(this->backend(), this->reference(), shape, 1, 5000, random);
    for (const float bad : {nan, kInfinity, -kInfinity, 3e38f}) {
      // Products that overflow are infinite unless fused into their sum, which differs between targets.
      if (type == SketchType::kBF16 && std::isfinite(bad)) continue;
      for (const int64_t heads : {1, 2}) {
        HostTensor queries = scene.Queries(random, 2, 1.0f);
        for (int64_t c = 0; c < heads * shape.dims; ++c) queries.Set(0, c, bad);
        const Batch batch{{0, 0}, {4999, 70}};
        for (const SelectRule& rule : {SelectRule{}, SelectRule{.alpha = kInfinity, .cap = 1.0},
                                       SelectRule{.sinks = 2, .window = 2, .force_count = 50}})
          scene.Compare(queries, batch, {rule});
      }
    }
  }
}

TYPED_TEST(SelectionTest, HugeAndTinyKeys) {
  Random random(49);
  for (const SketchType type : {SketchType::kInt8, SketchType::kInt4}) {
    for (const float scale : {1e-30f, 1e30f, 1e37f}) {
      Scene scene(this->backend(), this->reference(), {type, 1, 3, 8}, 1, 300, random, scale);
      HostTensor queries = scene.Queries(random, 1, scale > 1 ? 1e30f : 1e-30f);
      scene.Compare(queries, {{0}, {299}}, {SelectRule{.cap = 0.3, .min_rows = 20}});
    }
  }
}

// ---- Attention to a selection

// Entries of `lengths[s]` rows in both backends.
template <class B>
class EntryScene {
 public:
  EntryScene(B& backend, ReferenceBackend& reference, const EntryLayout& layout, int64_t group,
             const std::vector<int64_t>& lengths, Random& random, DType activation = DType::kF32)
      : layout_(layout),
        activation_(activation),
        shape_{layout.kv_heads * group, 1.0f / std::sqrt(static_cast<float>(layout.head_dim))},
        mine_(backend, layout, std::ssize(lengths), *std::max_element(lengths.begin(), lengths.end()), random),
        theirs_(reference, layout, std::ssize(lengths), *std::max_element(lengths.begin(), lengths.end()), random) {
    for (size_t s = 0; s < lengths.size(); ++s) {
      HostTensor keys = HostTensor::Normal(random, DType::kF32, lengths[s], layout.kv_heads * layout.head_dim);
      HostTensor values = HostTensor::Normal(random, DType::kF32, lengths[s], layout.kv_heads * layout.head_dim);
      std::vector<int32_t> slots(static_cast<size_t>(lengths[s]), static_cast<int32_t>(s)), rows(slots.size());
      std::iota(rows.begin(), rows.end(), 0);
      DeviceTensor dkeys(backend, keys), dvalues(backend, values);
      DeviceInts dslots(backend, slots), drows(backend, rows);
      backend.Append(Queue::kCompute, {lengths[s], nullptr, dslots, drows}, dkeys, dvalues, mine_.view());
      reference.Append(Queue::kCompute, {lengths[s], nullptr, slots.data(), rows.data()}, keys.view(), values.view(),
                       theirs_.view());
    }
  }

  // A random ascending list for every (token, head), including the current row.
  void Lists(const Batch& batch, double keep, Random& random) {
    capacity_ = batch.longest();
    rows_.assign(static_cast<size_t>(batch.count() * layout_.kv_heads * capacity_), -1);
    counts_.clear();
    for (int64_t i = 0; i < batch.count() * layout_.kv_heads; ++i) {
      const int32_t current = batch.rows[static_cast<size_t>(i / layout_.kv_heads)];
      int32_t count = 0;
      for (int32_t row = 0; row <= current; ++row)
        if (row == current || static_cast<double>(random.Int(0, 9999)) < keep * 1e4)
          rows_[static_cast<size_t>(i * capacity_ + count++)] = row;
      counts_.push_back(count);
    }
  }
  HostTensor Queries(const Batch& batch, Random& random) const {
    return HostTensor::Normal(random, activation_, batch.count(), shape_.heads * layout_.head_dim, 1.0f, 3);
  }
  // Converts queries to the backend's activation type; the oracle's are f32.
  template <class Any>
  HostTensor As(const HostTensor& activations) const {
    return activations.As(std::is_same_v<Any, ReferenceBackend> ? DType::kF32 : activation_);
  }
  template <class Any>
  HostTensor Attend(Any& backend, const LayerEntries& entries, const HostTensor& queries, const Batch& batch,
                    bool selected = true) {
    HostTensor typed = As<Any>(queries);
    HostTensor out(typed.type, batch.count(), shape_.heads * layout_.head_dim, 5);
    DeviceTensor dqueries(backend, typed), dout(backend, out);
    DeviceInts slots(backend, batch.slots), tokens(backend, batch.rows), rows(backend, rows_), counts(backend, counts_);
    const TokenBatch call{batch.count(), nullptr, slots, tokens};
    const Selection selection{const_cast<int32_t*>(static_cast<const int32_t*>(rows)),
                              const_cast<int32_t*>(static_cast<const int32_t*>(counts)), capacity_, layout_.kv_heads};
    if (selected)
      backend.AttendSelected(Queue::kCompute, dqueries, call, selection, {}, shape_, entries, dout);
    else
      backend.AttendDecode(Queue::kCompute, dqueries, call, batch.longest(), shape_, entries, dout);
    return dout.Fetch();
  }
  template <class Any>
  MassTotals Mass(Any& backend, const LayerEntries& entries, const HostTensor& queries, const Batch& batch) {
    HostTensor typed = As<Any>(queries);
    DeviceTensor dqueries(backend, typed);
    DeviceBytes<Any> mass(backend, sizeof(MassTotals));
    mass.Put(std::vector<MassTotals>(1));
    DeviceInts slots(backend, batch.slots), tokens(backend, batch.rows), rows(backend, rows_), counts(backend, counts_);
    const Selection selection{const_cast<int32_t*>(static_cast<const int32_t*>(rows)),
                              const_cast<int32_t*>(static_cast<const int32_t*>(counts)), capacity_, layout_.kv_heads};
    backend.MeasureMass(Queue::kCompute, dqueries, {batch.count(), nullptr, slots, tokens}, selection, shape_, entries,
                        mass.template as<MassTotals>());
    return mass.template Get<MassTotals>()[0];
  }
  template <class Any>
  Outcome Exact(Any& backend, const LayerEntries& entries, const HostTensor& queries, const Batch& batch,
                const std::vector<SelectRule>& rules, const SelectCall& call) {
    HostTensor typed = As<Any>(queries);
    DeviceTensor dqueries(backend, typed);
    return RunSelect(backend, batch, rules, layout_.kv_heads, call,
                     [&](const auto& tokens, const auto& c, const auto& selection) {
                       backend.SelectExact(Queue::kCompute, dqueries, tokens, c, shape_, entries, selection);
                     });
  }
  // √Σp² of a query head over its list.
  double ListSpread(const HostTensor& queries, const Batch& batch, int64_t token, int64_t head) const {
    const int64_t kv_head = head * layout_.kv_heads / shape_.heads, list = token * layout_.kv_heads + kv_head;
    const std::span rows(rows_.data() + list * capacity_, static_cast<size_t>(counts_[static_cast<size_t>(list)]));
    return Spread(queries.As(DType::kF32).row(token) + head * layout_.head_dim, batch.slots[static_cast<size_t>(token)],
                  kv_head, rows, shape_.scale, theirs());
  }
  LayerEntries mine() const { return mine_.view(); }
  LayerEntries theirs() const { return theirs_.view(); }
  int64_t heads() const { return shape_.heads; }

 private:
  EntryLayout layout_;
  DType activation_;
  AttentionShape shape_;
  TestEntries<B> mine_;
  TestEntries<ReferenceBackend> theirs_;
  std::vector<int32_t> rows_, counts_;
  int64_t capacity_ = 0;
};

template <class Factory>
void CheckListed(typename Factory::B& backend, ReferenceBackend& reference, const EntryLayout& layout, int64_t group,
                 DType activation, Random& random) {
  SCOPED_TRACE(::testing::Message() << Name(layout.type) << " group " << group << " dim " << layout.head_dim << " by "
                                    << Name(activation));
  EntryScene scene(backend, reference, layout, group, {300, 700}, random, activation);
  const Batch batch{{0, 1, 1, 1}, {299, 699, 400, 0}};
  scene.Lists(batch, 0.3, random);
  const HostTensor queries = scene.Queries(batch, random);
  const HostTensor got = scene.Attend(backend, scene.mine(), queries, batch);
  const HostTensor want = scene.Attend(reference, scene.theirs(), queries, batch);
  const double rounding = Factory::AttentionRounding(layout.type);
  for (int64_t r = 0; r < want.rows; ++r) {
    for (int64_t head = 0; head < scene.heads(); ++head) {
      double bound = 9e-5;
      if (rounding > 0) bound += AttentionError(rounding, 1, 1, scene.ListSpread(queries, batch, r, head));
      for (int64_t c = head * layout.head_dim; c < (head + 1) * layout.head_dim; ++c)
        ASSERT_NEAR(got.At(r, c), want.At(r, c), bound + OutputRounding(got.type) * std::fabs(want.At(r, c)))
            << r << "," << c;
    }
    for (int64_t c = got.cols; c < got.stride; ++c) ASSERT_TRUE(std::isnan(got.At(r, c))) << "gap written";
  }
}

TYPED_TEST(SelectionTest, AttendsToTheListedRows) {
  Random random(50);
  for (const StoreType type : kStoreTypes)
    for (const int64_t group : {1, 3, 4, 8})
      for (const int64_t dim : {8, 20, 64, 128, 256})
        CheckListed<TypeParam>(this->backend(), this->reference(), {type, 2, TypeParam::HeadDim(dim)}, group,
                               DType::kF32, random);
  for (const DType activation : TypeParam::kActivations)
    for (const StoreType type : kStoreTypes)
      CheckListed<TypeParam>(this->backend(), this->reference(), {type, 2, 64}, 4, activation, random);
}

// Selecting all rows equals full attention bit for bit; lengths around blocks (64), extents (256) and chunks (1,024).
TYPED_TEST(SelectionTest, AllRowsAreFullAttention) {
  Random random(51);
  for (const StoreType type : kStoreTypes) {
    for (const auto& [group, dim] : {std::pair<int64_t, int64_t>{4, 64}, {1, 20}, {3, 32}, {8, 128}, {5, 40}}) {
      EntryScene scene(this->backend(), this->reference(), {type, 2, TypeParam::HeadDim(dim)}, group, {2300}, random);
      const Batch batch{std::vector<int32_t>(10, 0), {2299, 0, 62, 63, 64, 255, 256, 1023, 1024, 2047}};
      scene.Lists(batch, 1.0, random);
      HostTensor queries = scene.Queries(batch, random);
      const HostTensor listed = scene.Attend(this->backend(), scene.mine(), queries, batch);
      const HostTensor full = scene.Attend(this->backend(), scene.mine(), queries, batch, false);
      for (int64_t r = 0; r < full.rows; ++r)
        for (int64_t c = 0; c < full.cols; ++c)
          ASSERT_EQ(std::bit_cast<uint32_t>(listed.row(r)[c]), std::bit_cast<uint32_t>(full.row(r)[c]))
              << r << "," << c;
    }
  }
}

// ---- Measurements

TYPED_TEST(SelectionTest, ExactSelectionMatchesTheOracle) {
  Random random(52);
  for (const StoreType type : kStoreTypes) {
    for (const int64_t group : {1, 4, 7, 13}) {
      const int64_t dim = group == 4 ? 64 : TypeParam::HeadDim(20);
      EntryScene scene(this->backend(), this->reference(), {type, 2, dim}, group, {5000, 300}, random);
      const Batch batch{{0, 1, 1, 0, 0}, {4999, 299, 0, 63, 64}};
      const HostTensor queries = scene.Queries(batch, random);
      for (int repeat = 0; repeat < 4; repeat += kSanitized ? 3 : 1) {
        const std::vector<SelectRule> rules = {RandomRule(random), RandomRule(random)};
        const SelectCall call{.current_known = repeat % 2 == 0, .mean_counts = repeat == 3};
        ExpectAlike(scene.Exact(this->backend(), scene.mine(), queries, batch, rules, call),
                    scene.Exact(this->reference(), scene.theirs(), queries, batch, rules, call));
      }
    }
  }
}

TYPED_TEST(SelectionTest, ExactSelectionByEveryActivation) {
  Random random(54);
  for (const DType activation : TypeParam::kActivations) {
    EntryScene scene(this->backend(), this->reference(), {StoreType::kBF16, 2, 64}, 4, {3000}, random, activation);
    const Batch batch{{0, 0, 0}, {2999, 1500, 70}};
    const HostTensor queries = scene.Queries(batch, random);
    const std::vector<SelectRule> rules = {{.alpha = 4.0f, .cap = 0.1}};
    ExpectAlike(scene.Exact(this->backend(), scene.mine(), queries, batch, rules, {}),
                scene.Exact(this->reference(), scene.theirs(), queries, batch, rules, {}));
  }
}

TYPED_TEST(SelectionTest, MassInsideSelections) {
  Random random(53);
  for (const StoreType type : {StoreType::kF32, StoreType::kBF16, StoreType::kInt8, StoreType::kInt4}) {
    for (const int64_t group : {1, 4, 9}) {
      EntryScene scene(this->backend(), this->reference(), {type, 2, 64}, group, {1500, 300}, random);
      const Batch batch{{0, 1, 1, 0, 0}, {1499, 299, 0, 63, 64}};
      HostTensor queries = scene.Queries(batch, random);
      for (const double keep : {0.0, 0.2, 1.0}) {
        scene.Lists(batch, keep, random);
        const MassTotals got = scene.Mass(this->backend(), scene.mine(), queries, batch);
        const MassTotals want = scene.Mass(this->reference(), scene.theirs(), queries, batch);
        EXPECT_EQ(got.count, want.count);
        const double bound = 1e-4 + TypeParam::AttentionRounding(type);  // a share is off by less than its scores
        EXPECT_NEAR(got.sum, want.sum, bound * static_cast<double>(want.count));
        uint64_t bins = 0;
        for (const uint64_t bin : got.bins) bins += bin;
        EXPECT_EQ(bins, got.count);
      }
    }
  }
}

}  // namespace
}  // namespace infinigen
