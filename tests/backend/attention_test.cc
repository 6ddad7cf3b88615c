// AttendDecode and AttendPrefill against the reference. Bound: weights sum to one, so an output differs by at most a
// few ulp of the largest value, more if scores are large (a score's rounding error is multiplied by its exponential):
// 1e-6 · (8 + |largest score|) · max|value|. Backends that multiply in a narrower type than f32 add AttentionError
// (arithmetic.h); outputs that are not f32 add one rounding.
#include <numeric>

#include "backend/backends.h"
#include "backend/operands.h"
#include "sanitized.h"

namespace infinigen {
namespace {

template <class Factory>
class AttentionTest : public OpTest<Factory> {};
TYPED_TEST_SUITE(AttentionTest, TestedBackends, BackendName);

struct Setting {
  StoreType type = StoreType::kBF16;
  int64_t kv_heads = 2, group = 4, dim = 64;
  float query_scale = 1.0f;  // sharp or flat attention
  float value_scale = 1.0f;
  DType activation = DType::kF32;  // type of queries and outputs
  float soft_cap = 0;
  int64_t window = 0;
};

// The same random entries in both backends; sequence s has lengths[s] rows.
template <class Factory>
class Both {
 public:
  using B = typename Factory::B;
  Both(B& backend, ReferenceBackend& reference, const Setting& setting, const std::vector<int64_t>& lengths,
       Random& random)
      : backend_(backend),
        reference_(reference),
        setting_(setting),
        mine_(backend, Layout(setting), std::ssize(lengths), Longest(lengths), random),
        theirs_(reference, Layout(setting), std::ssize(lengths), Longest(lengths), random) {
    for (size_t s = 0; s < lengths.size(); ++s) {
      const int64_t n = lengths[s], width = setting.kv_heads * setting.dim;
      HostTensor keys = HostTensor::Normal(random, DType::kF32, n, width);
      HostTensor values = HostTensor::Normal(random, DType::kF32, n, width, setting.value_scale);
      std::vector<int32_t> slots(static_cast<size_t>(n), static_cast<int32_t>(s)), rows(static_cast<size_t>(n));
      for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int32_t>(i);
      DeviceTensor dkeys(backend, keys), dvalues(backend, values);
      DeviceInts dslots(backend, slots), drows(backend, rows);
      backend.Append(Queue::kCompute, {n, nullptr, dslots, drows}, dkeys, dvalues, mine_.view());
      reference.Append(Queue::kCompute, {n, nullptr, slots.data(), rows.data()}, keys.view(), values.view(),
                       theirs_.view());
    }
  }

  void CheckDecode(const std::vector<int32_t>& slots, const std::vector<int32_t>& rows, Random& random) {
    const int64_t count = std::ssize(rows), width = setting_.kv_heads * setting_.group * setting_.dim;
    HostTensor queries = HostTensor::Normal(random, setting_.activation, count, width, setting_.query_scale, 3);
    HostTensor out(setting_.activation, count, width, 5);
    HostTensor wide = queries.As(DType::kF32), want = out.As(DType::kF32);
    DeviceTensor dqueries(backend_, queries), dout(backend_, out);
    DeviceInts dslots(backend_, slots), drows(backend_, rows);
    const int64_t longest = *std::max_element(rows.begin(), rows.end()) + 1;
    backend_.AttendDecode(Queue::kCompute, dqueries, {count, nullptr, dslots, drows}, longest, Shape(), mine_.view(),
                          dout);
    reference_.AttendDecode(Queue::kCompute, wide.view(), {count, nullptr, slots.data(), rows.data()}, longest, Shape(),
                            theirs_.view(), want.view());
    Compare(dout.Fetch(), want, wide, slots, rows);
  }

  void CheckPrefill(int64_t slot, int64_t first, int64_t count, Random& random) {
    const int64_t width = setting_.kv_heads * setting_.group * setting_.dim;
    HostTensor queries = HostTensor::Normal(random, setting_.activation, count, width, setting_.query_scale, 1);
    HostTensor out(setting_.activation, count, width, 2);
    HostTensor wide = queries.As(DType::kF32), want = out.As(DType::kF32);
    DeviceTensor dqueries(backend_, queries), dout(backend_, out);
    const TokenRun run{SeqSlot(static_cast<int32_t>(slot)), first, count};
    backend_.AttendPrefill(Queue::kCompute, dqueries, run, Shape(), mine_.view(), dout);
    reference_.AttendPrefill(Queue::kCompute, wide.view(), run, Shape(), theirs_.view(), want.view());
    std::vector<int32_t> rows(static_cast<size_t>(count));
    std::iota(rows.begin(), rows.end(), static_cast<int32_t>(first));
    Compare(dout.Fetch(), want, wide, std::vector<int32_t>(rows.size(), static_cast<int32_t>(slot)), rows);
  }

 private:
  static EntryLayout Layout(const Setting& s) { return {s.type, s.kv_heads, s.dim}; }
  static int64_t Longest(const std::vector<int64_t>& lengths) {
    return *std::max_element(lengths.begin(), lengths.end());
  }
  AttentionShape Shape() const {
    return {setting_.kv_heads * setting_.group, 1.0f / std::sqrt(static_cast<float>(setting_.dim)), setting_.soft_cap,
            setting_.window};
  }
  // Allowed error from rounding before multiplication, for query head `head` of a token.
  double Rounded(const HostTensor& queries, int64_t token, int64_t head, int64_t slot, int32_t row) const {
    const double rounding = Factory::AttentionRounding(setting_.type);
    if (rounding == 0) return 0;
    const int32_t seen = setting_.window > 0 ? std::min(row + 1, static_cast<int32_t>(setting_.window)) : row + 1;
    std::vector<int32_t> rows(static_cast<size_t>(seen));
    std::iota(rows.begin(), rows.end(), row + 1 - seen);
    const double spread = Spread(queries.row(token) + head * setting_.dim, slot, head / setting_.group, rows,
                                 Shape().scale, theirs_.view());
    return AttentionError(rounding, setting_.query_scale, setting_.value_scale, spread);
  }
  // Token i, with its own queries, attends to rows [0, rows[i]] of slots[i].
  void Compare(const HostTensor& got, const HostTensor& want, const HostTensor& queries,
               const std::vector<int32_t>& slots, const std::vector<int32_t>& rows) const {
    // |q·k| / √d of normal vectors is about query_scale; six deviations cover the largest.
    const float bound = 1e-6f * (8.0f + 6.0f * setting_.query_scale) * 6.0f * setting_.value_scale;
    for (int64_t r = 0; r < want.rows; ++r) {
      const size_t token = static_cast<size_t>(r);
      for (int64_t head = 0; head < Shape().heads; ++head) {
        const double more = bound + Rounded(queries, r, head, slots[token], rows[token]);
        for (int64_t c = head * setting_.dim; c < (head + 1) * setting_.dim; ++c)
          ASSERT_NEAR(got.At(r, c), want.At(r, c), more + OutputRounding(got.type) * std::fabs(want.At(r, c)))
              << "token " << r << " of row " << rows[token] << ", head " << head << ", column " << c;
      }
      for (int64_t c = got.cols; c < got.stride; ++c) ASSERT_TRUE(std::isnan(got.At(r, c))) << "gap written";
    }
  }

  B& backend_;
  ReferenceBackend& reference_;
  Setting setting_;
  TestEntries<B> mine_;
  TestEntries<ReferenceBackend> theirs_;
};

TYPED_TEST(AttentionTest, GroupsAndHeadDims) {
  Random random(20);
  for (const StoreType type : kStoreTypes) {
    for (const int64_t group : {1, 2, 3, 4, 7, 8}) {
      for (const int64_t wanted : {8, 20, 64, 80, 128}) {
        const int64_t dim = TypeParam::HeadDim(wanted);
        if (kSanitized && group * dim > 256) continue;
        SCOPED_TRACE(::testing::Message() << Name(type) << " group " << group << " dim " << dim);
        Both<TypeParam> both(this->backend(), this->reference(), {type, 2, group, dim}, {150}, random);
        both.CheckDecode({0}, {static_cast<int32_t>(random.Int(64, 149))}, random);
        both.CheckPrefill(0, random.Int(0, 70), random.Int(1, 70), random);
      }
    }
  }
}

// head_dims that do not fill the last group of a quantised row (64 numbers) or its last byte of codes.
TYPED_TEST(AttentionTest, QuantisedHeadDims) {
  Random random(25);
  for (const StoreType type : {StoreType::kInt8, StoreType::kInt4}) {
    for (const int64_t wanted : {1, 33, 75, 96, 192, 256}) {
      const int64_t dim = TypeParam::HeadDim(wanted);
      SCOPED_TRACE(::testing::Message() << Name(type) << " dim " << dim);
      Both<TypeParam> both(this->backend(), this->reference(), {type, 2, 4, dim}, {150}, random);
      both.CheckDecode({0, 0}, {149, static_cast<int32_t>(random.Int(0, 148))}, random);
      both.CheckPrefill(0, random.Int(0, 70), random.Int(1, 70), random);
    }
  }
}

// Lengths around the ends of blocks (64), extents (256) and chunks (1,024), all in one batch.
TYPED_TEST(AttentionTest, BatchOfDifferentLengths) {
  Random random(21);
  const std::vector<int64_t> lengths = {1, 2, 63, 64, 65, 255, 256, 257, 700, 1023, 1024, 1025, 2049, 2300};
  std::vector<int32_t> slots, rows;
  for (size_t s = 0; s < lengths.size(); ++s) {
    slots.push_back(static_cast<int32_t>(s));
    rows.push_back(static_cast<int32_t>(lengths[s] - 1));
  }
  slots.push_back(13);  // the same sequence twice, the second token at an earlier row
  rows.push_back(1500);
  for (const Setting& setting : {Setting{StoreType::kBF16, 3, 4, 32}, Setting{StoreType::kInt8, 1, 4, 64},
                                 Setting{StoreType::kInt4, 1, 4, 64}}) {
    Both<TypeParam> both(this->backend(), this->reference(), setting, lengths, random);
    both.CheckDecode(slots, rows, random);
  }
}

TYPED_TEST(AttentionTest, PrefillRuns) {
  Random random(22);
  Both<TypeParam> both(this->backend(), this->reference(), {StoreType::kBF16, 2, 3, 24}, {1300, 1300}, random);
  for (const int64_t first : {0, 1, 63, 64, 200, 256, 1000})
    for (const int64_t count : {1, 2, 64, 67, 130, 300}) both.CheckPrefill(first % 2, first, count, random);
}

// Windows that begin and end inside and at the ends of blocks, extents and chunks, from one row to all.
TYPED_TEST(AttentionTest, Windows) {
  Random random(28);
  for (const StoreType type : {StoreType::kF32, StoreType::kBF16, StoreType::kInt4}) {
    for (const int64_t window : {1, 2, 63, 64, 65, 200, 256, 1000, 1024, 1100, 5000}) {
      SCOPED_TRACE(::testing::Message() << Name(type) << " window " << window);
      const Setting setting{type, 2, 3, 32, 1.0f, 1.0f, DType::kF32, 0, window};
      Both<TypeParam> both(this->backend(), this->reference(), setting, {2300, 1100}, random);
      both.CheckDecode({0, 0, 1, 0, 1, 0, 0}, {2299, 0, 1099, 1024, 63, 1500, 255}, random);
      both.CheckPrefill(0, 1003, 140, random);
      both.CheckPrefill(0, 2047, 1, random);
      both.CheckPrefill(1, 0, 70, random);
    }
  }
}

TYPED_TEST(AttentionTest, SoftCaps) {
  Random random(29);
  for (const StoreType type : {StoreType::kF32, StoreType::kBF16, StoreType::kInt8}) {
    for (const float cap : {0.5f, 5.0f, 50.0f}) {
      for (const int64_t window : {0, 100}) {
        SCOPED_TRACE(::testing::Message() << Name(type) << " cap " << cap << " window " << window);
        const Setting setting{type, 2, 4, 64, 4.0f, 1.0f, DType::kF32, cap, window};
        Both<TypeParam> both(this->backend(), this->reference(), setting, {300}, random);
        both.CheckDecode({0, 0}, {299, 17}, random);
        both.CheckPrefill(0, 170, 130, random);
      }
    }
  }
}

TYPED_TEST(AttentionTest, ActivationsOfEveryType) {
  Random random(26);
  for (const DType activation : TypeParam::kActivations) {
    for (const StoreType type : kStoreTypes) {
      SCOPED_TRACE(::testing::Message() << Name(activation) << " over " << Name(type));
      Both<TypeParam> both(this->backend(), this->reference(), {type, 2, 4, 64, 1.0f, 1.0f, activation}, {300, 90},
                           random);
      both.CheckDecode({0, 1, 0}, {299, 89, 17}, random);
      both.CheckPrefill(0, 170, 130, random);
      both.CheckPrefill(1, 0, 90, random);
    }
  }
}

// Few rows and scores from flat to sharp: from equal weights to all weight on one row.
TYPED_TEST(AttentionTest, FlatAndSharpScores) {
  Random random(27);
  for (const StoreType type : {StoreType::kBF16, StoreType::kF16, StoreType::kInt8}) {
    for (const float scale : {0.01f, 0.3f, 4.0f, 20.0f}) {
      SCOPED_TRACE(::testing::Message() << Name(type) << " scale " << scale);
      Both<TypeParam> both(this->backend(), this->reference(), {type, 2, 2, 64, scale, 30.0f}, {200}, random);
      both.CheckDecode({0, 0, 0, 0, 0, 0}, {199, 100, 3, 2, 1, 0}, random);
      both.CheckPrefill(0, 0, 200, random);
    }
  }
}

TYPED_TEST(AttentionTest, SharpScoresDoNotOverflow) {
  Random random(23);
  for (const float scale : {100.0f, 3000.0f}) {
    Both<TypeParam> both(this->backend(), this->reference(), {StoreType::kF32, 2, 2, 16, scale}, {400}, random);
    both.CheckDecode({0}, {399}, random);
    both.CheckPrefill(0, 300, 100, random);
  }
}

// Scores of 1e6 and more: one entry takes all the weight, and the output is its value in the type that is multiplied.
TYPED_TEST(AttentionTest, HugeScoresPickOneEntry) {
  auto& b = this->backend();
  Random random(24);
  const EntryLayout layout{StoreType::kF32, 1, 8};
  TestEntries entries(b, layout, 1, 200, random);
  HostTensor keys(DType::kF32, 200, 8), values = HostTensor::Normal(random, DType::kF32, 200, 8);
  std::vector<int32_t> slots(200, 0), rows(200);
  for (int32_t i = 0; i < 200; ++i) {
    rows[static_cast<size_t>(i)] = i;
    for (int64_t c = 0; c < 8; ++c) keys.Set(i, c, i == 130 ? 1e4f : -1e4f + static_cast<float>(i));
  }
  HostTensor query(DType::kF32, 1, 8), out(DType::kF32, 1, 8);
  for (int64_t c = 0; c < 8; ++c) query.Set(0, c, 1e4f);
  DeviceTensor dkeys(b, keys), dvalues(b, values), dquery(b, query), dout(b, out);
  DeviceInts dslots(b, slots), drows(b, rows), last(b, {199});
  b.Append(Queue::kCompute, {200, nullptr, dslots, drows}, dkeys, dvalues, entries.view());
  b.AttendDecode(Queue::kCompute, dquery, {1, nullptr, dslots, last}, 200, {1, 0.35355339f}, entries.view(), dout);
  const double rounding = TypeParam::AttentionRounding(layout.type);
  for (int64_t c = 0; c < 8; ++c)
    EXPECT_NEAR(dout.Fetch().At(0, c), values.At(130, c), rounding * std::fabs(values.At(130, c)));
}

}  // namespace
}  // namespace infinigen
