// The contract of the GPU backend, bit for bit: the result for a token (attention, sketches, selections, norms) does
// not depend on the other tokens of the call, on their lengths or on what ran before. Matrix products are excepted,
// because a library computes them. And selecting all rows equals full attention.
#include <numeric>

#include "backend/backends.h"
#include "backend/operands.h"
#include "backend/selections.h"
#include "kv/index.h"

namespace infinigen {
namespace {

template <class Factory>
class GpuBatchTest : public OpTest<Factory> {};
TYPED_TEST_SUITE(GpuBatchTest, TestedBackends, BackendName);

struct Shape {
  StoreType type = StoreType::kBF16;
  DType activation = DType::kBF16;
  SketchType sketch = SketchType::kInt8;
  int64_t kv_heads = 2, group = 4, dim = 64, dims = 24;
  int64_t slots = 2, rows = 5000;

  int64_t heads() const { return kv_heads * group; }
};

// A layer of random entries with sketches and page bounds, and tokens that can be decoded in any combination.
class Layer {
 public:
  // One token of slots[i] at rows[i], with its own queries. `chunk`: rows that are appended together.
  Layer(CudaBackend& backend, const Shape& shape, const Batch& tokens, uint64_t seed, int64_t chunk)
      : backend_(backend),
        shape_(shape),
        tokens_(tokens),
        random_(seed),
        entries_(backend, {shape.type, shape.kv_heads, shape.dim}, shape.slots, shape.rows, random_),
        sketches_(backend, static_cast<size_t>(shape.slots * shape.kv_heads) * sketch_layout().head_bytes(shape.rows)),
        bounds_(backend, static_cast<size_t>(shape.slots * shape.kv_heads) * bounds_layout().head_bytes(shape.rows)),
        basis_(backend, static_cast<size_t>(shape.kv_heads * shape.dim * shape.dims) * 4),
        offset_(backend, static_cast<size_t>(shape.kv_heads * shape.dims) * 4),
        rules_(backend, static_cast<size_t>(shape.slots) * sizeof(SelectRule)),
        totals_(backend, static_cast<size_t>(shape.slots) * sizeof(SelectionTotals)) {
    std::vector<float> numbers(static_cast<size_t>(shape.kv_heads * shape.dim * shape.dims));
    for (float& number : numbers) number = random_.Normal(0.2f);
    basis_.Put(numbers);
    offset_.Put(std::vector<float>(static_cast<size_t>(shape.kv_heads * shape.dims), 0.1f));
    std::vector<SelectRule> rules(static_cast<size_t>(shape.slots), {.alpha = 1.0f, .cap = 0.05});
    rules[0] = {.alpha = 2.0f, .sinks = 2, .window = 8};
    rules_.Put(rules);
    totals_.Put(std::vector<SelectionTotals>(static_cast<size_t>(shape.slots)));
    for (int64_t slot = 0; slot < shape.slots; ++slot) Fill(slot, chunk);
    queries_ = HostTensor::Normal(random_, shape.activation, tokens.count(), shape.heads() * shape.dim, 1.0f, 3);
  }

  // All results of the chosen tokens, as bytes by token. Equal bytes are equal results.
  std::vector<std::vector<std::byte>> Decode(const std::vector<size_t>& chosen) {
    Batch batch;
    for (const size_t token : chosen) {
      batch.slots.push_back(tokens_.slots[token]);
      batch.rows.push_back(tokens_.rows[token]);
    }
    const int64_t count = batch.count(), capacity = batch.longest();
    HostTensor queries(shape_.activation, count, shape_.heads() * shape_.dim, 3);
    for (int64_t i = 0; i < count; ++i)
      for (int64_t c = 0; c < queries.cols; ++c)
        queries.Set(i, c, queries_.At(static_cast<int64_t>(chosen[static_cast<size_t>(i)]), c));
    HostTensor out(shape_.activation, count, queries.cols, 1), sketch(DType::kF32, count, shape_.heads() * shape_.dims);
    DeviceTensor dqueries(backend_, queries), dsketch(backend_, sketch), full(backend_, out);
    std::vector<DeviceTensor<CudaBackend>> selected;
    for (int i = 0; i < 3; ++i) selected.emplace_back(backend_, out);
    DeviceInts slots(backend_, batch.slots), rows(backend_, batch.rows);
    const size_t lists = static_cast<size_t>(count * shape_.kv_heads);
    DeviceBytes<CudaBackend> listed(backend_, 3 * lists * static_cast<size_t>(capacity) * 4),
        counts(backend_, 3 * lists * 4);
    const TokenBatch tokens{count, nullptr, slots, rows};
    SelectCall call{.rules = rules_.as<SelectRule>(), .totals = totals_.as<SelectionTotals>(), .max_rows = capacity};
    const AttentionShape shape{shape_.heads(), 1.0f / std::sqrt(static_cast<float>(shape_.dim))};
    const uint64_t used = backend_.used_bytes();
    backend_.SketchQueries(Queue::kCompute, dqueries, tokens, shape, basis(), dsketch);
    for (size_t way = 0; way < 3; ++way) {
      const Selection selection{listed.as<int32_t>() + way * lists * static_cast<size_t>(capacity),
                                counts.as<int32_t>() + way * lists, capacity, shape_.kv_heads};
      if (way == 0) backend_.Select(Queue::kCompute, dsketch, tokens, call, sketches(), selection);
      if (way == 1) backend_.SelectExact(Queue::kCompute, dqueries, tokens, call, shape, entries_.view(), selection);
      if (way == 2) {
        call.page = kPageRows;
        backend_.SelectPages(Queue::kCompute, dqueries, tokens, call, shape, bounds(), selection);
      }
      backend_.AttendSelected(Queue::kCompute, dqueries, tokens, selection, {}, shape, entries_.view(), selected[way]);
    }
    backend_.AttendDecode(Queue::kCompute, dqueries, tokens, capacity, shape, entries_.view(), full);
    grown_bytes_ += backend_.used_bytes() - used;

    std::vector<std::vector<std::byte>> results(chosen.size());
    const auto all = listed.Get<int32_t>(), lengths = counts.Get<int32_t>();
    for (size_t list = 0; list < 3 * lists; ++list) {
      EXPECT_TRUE(lengths[list] > 0 && lengths[list] <= capacity) << lengths[list];
      const auto* first = reinterpret_cast<const std::byte*>(all.data() + list * static_cast<size_t>(capacity));
      auto& result = results[list % lists / static_cast<size_t>(shape_.kv_heads)];
      result.insert(result.end(), first, first + std::clamp<int64_t>(lengths[list], 0, capacity) * 4);
    }
    AddRows(dsketch.Fetch(), results);
    AddRows(full.Fetch(), results);
    for (auto& way : selected) AddRows(way.Fetch(), results);
    return results;
  }

  std::vector<std::byte> Sketches() const { return sketches_.Get<std::byte>(); }
  std::vector<std::byte> Bounds() const { return bounds_.Get<std::byte>(); }
  // Memory that operations took beyond their operands.
  uint64_t grown_bytes() const { return grown_bytes_; }

 private:
  SketchLayout sketch_layout() const { return {shape_.sketch, shape_.kv_heads, shape_.dims}; }
  PageBoundsLayout bounds_layout() const { return {shape_.kv_heads, shape_.dim}; }
  LayerSketches sketches() const {
    const size_t head = sketch_layout().head_bytes(shape_.rows);
    return {sketch_layout(), sketches_.as<std::byte>(), head, head * static_cast<size_t>(shape_.kv_heads)};
  }
  LayerPageBounds bounds() const {
    const size_t head = bounds_layout().head_bytes(shape_.rows);
    return {bounds_layout(), bounds_.as<std::byte>(), head, head * static_cast<size_t>(shape_.kv_heads)};
  }
  SketchBasis basis() const {
    return {shape_.kv_heads, shape_.dim, shape_.dims, basis_.as<float>(), basis_.as<float>(), offset_.as<float>()};
  }
  void Fill(int64_t slot, int64_t chunk) {
    HostTensor keys = HostTensor::Normal(random_, shape_.activation, shape_.rows, shape_.kv_heads * shape_.dim);
    HostTensor values = HostTensor::Normal(random_, shape_.activation, shape_.rows, shape_.kv_heads * shape_.dim);
    std::vector<int32_t> at(static_cast<size_t>(shape_.rows));
    std::iota(at.begin(), at.end(), 0);
    DeviceInts slots(backend_, std::vector<int32_t>(at.size(), static_cast<int32_t>(slot))), rows(backend_, at);
    DeviceTensor dkeys(backend_, keys), dvalues(backend_, values);
    const TokenBatch all{shape_.rows, nullptr, slots, rows};
    for (int64_t first = 0; first < shape_.rows; first += chunk) {
      const int64_t count = std::min(chunk, shape_.rows - first);
      const Tensor some = dkeys.view().Rows(first, count);
      backend_.Append(Queue::kCompute, all.Range(first, count), some, dvalues.view().Rows(first, count),
                      entries_.view());
      backend_.AppendSketches(Queue::kCompute, all.Range(first, count), some, basis(), sketches());
      backend_.AppendBounds(Queue::kCompute, all.Range(first, count), some, bounds());
    }
  }
  static void AddRows(const HostTensor& from, std::vector<std::vector<std::byte>>& results) {
    const size_t row_bytes = static_cast<size_t>(from.stride) * SizeOf(from.type);
    for (size_t i = 0; i < results.size(); ++i)
      results[i].insert(results[i].end(), from.bytes.begin() + static_cast<int64_t>(i * row_bytes),
                        from.bytes.begin() + static_cast<int64_t>((i + 1) * row_bytes));
  }

  CudaBackend& backend_;
  Shape shape_;
  Batch tokens_;
  Random random_;
  TestEntries<CudaBackend> entries_;
  DeviceBytes<CudaBackend> sketches_, bounds_, basis_, offset_, rules_, totals_;
  HostTensor queries_;
  uint64_t grown_bytes_ = 0;
};

const Batch kTokens{{0, 1, 1, 0, 0, 1, 0, 1, 0}, {4999, 4999, 17, 1500, 64, 4100, 4998, 0, 255}};

std::vector<size_t> AllTokens() {
  std::vector<size_t> all(kTokens.rows.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

TYPED_TEST(GpuBatchTest, ATokensResultDoesNotDependOnTheCall) {
  for (const Shape& shape : {Shape{StoreType::kBF16, DType::kBF16, SketchType::kInt8},
                             Shape{StoreType::kF16, DType::kF16, SketchType::kInt4},
                             Shape{StoreType::kInt8, DType::kBF16, SketchType::kBF16, 2, 7, 128, 40},
                             Shape{StoreType::kInt4, DType::kF32, SketchType::kInt8, 3, 1, 80},
                             Shape{StoreType::kF32, DType::kF32, SketchType::kInt8, 1, 16, 64}}) {
    SCOPED_TRACE(::testing::Message() << Name(shape.type) << " by " << Name(shape.activation));
    Layer layer(this->backend(), shape, kTokens, 90, shape.rows);
    const std::vector<size_t> all = AllTokens();
    const auto together = layer.Decode(all);
    std::vector<std::vector<size_t>> subsets = {{8, 7, 6, 5, 4, 3, 2, 1, 0}, {2, 7}, {3, 2, 4}, {0, 8}, {6, 6, 6}};
    for (const size_t token : all) subsets.push_back({token});
    for (const auto& subset : subsets) {
      const auto part = layer.Decode(subset);
      for (size_t i = 0; i < subset.size(); ++i)
        ASSERT_TRUE(part[i] == together[subset[i]]) << "token " << subset[i] << " among " << subset.size();
    }
  }
}

TYPED_TEST(GpuBatchTest, CutsOfAPromptDoNotMatter) {
  const Shape shape{.slots = 1, .rows = 700};
  const Batch tokens{{0, 0}, {699, 300}};
  Layer whole(this->backend(), shape, tokens, 91, shape.rows);
  const auto want = whole.Decode({0, 1});
  for (const int64_t chunk : {1, 61, 256, 512}) {
    Layer cut(this->backend(), shape, tokens, 91, chunk);
    EXPECT_TRUE(cut.Sketches() == whole.Sketches()) << chunk;
    EXPECT_TRUE(cut.Bounds() == whole.Bounds()) << chunk;
    EXPECT_TRUE(cut.Decode({0, 1}) == want) << chunk;
  }
}

// Scratch that has grown for a larger call gives the same results for smaller ones as scratch that never grew.
TYPED_TEST(GpuBatchTest, ScratchGrows) {
  const Shape shape{.rows = 9000};
  const Batch tokens{{0, 1, 0, 1, 0, 1, 0, 1}, {40, 8999, 8999, 700, 3000, 6000, 100, 5}};
  Layer layer(this->backend(), shape, tokens, 92, shape.rows);
  const auto small = layer.Decode({0});
  const auto large = layer.Decode({0, 1, 2, 3, 4, 5, 6, 7});
  EXPECT_TRUE(layer.Decode({0}) == small);
  EXPECT_TRUE(large[0] == small[0]);
  EXPECT_TRUE(layer.Decode({0, 1, 2, 3, 4, 5, 6, 7}) == large);
  const auto fresh = TypeParam::Make();
  ASSERT_TRUE(fresh->Reserve(9000, 8, shape.heads(), shape.kv_heads, shape.dim).ok());
  Layer other(*fresh, shape, tokens, 92, shape.rows);
  EXPECT_TRUE(other.Decode({0, 1, 2, 3, 4, 5, 6, 7}) == large);
}

// Decode allocates nothing after Reserve, and Reserve takes as much as ReservedBytes says.
TYPED_TEST(GpuBatchTest, ReservedStepsTakeNoMemory) {
  auto& b = this->backend();
  for (const StoreType type : {StoreType::kBF16, StoreType::kInt4}) {
    const Shape shape{.type = type, .rows = 6000};
    const Batch tokens{{0, 1, 0, 1}, {5999, 5999, 100, 3000}};
    const uint64_t before = b.used_bytes();
    ASSERT_TRUE(b.Reserve(shape.rows, tokens.count(), shape.heads(), shape.kv_heads, shape.dim).ok());
    EXPECT_LE(b.used_bytes() - before,
              CudaBackend::ReservedBytes(shape.rows, tokens.count(), shape.heads(), shape.kv_heads, shape.dim));
    Layer layer(b, shape, tokens, 93, 512);
    for (const auto& chosen : std::vector<std::vector<size_t>>{{2}, {3, 2}, {0, 1, 2, 3}, {1}, {0, 1, 2, 3}})
      layer.Decode(chosen);
    EXPECT_EQ(layer.grown_bytes(), 0u) << Name(type);
  }
}

// Selecting all rows equals AttendDecode: lengths around blocks (64), extents (256) and the other divisions of work.
TYPED_TEST(GpuBatchTest, AllRowsAreFullAttention) {
  auto& b = this->backend();
  Random random(94);
  const std::vector<int32_t> rows = {2699, 0, 1, 62, 63, 64, 127, 128, 255, 256, 511, 512, 1023, 1024, 2047, 2048};
  const int64_t count = std::ssize(rows), length = 2700;
  for (const StoreType type : kStoreTypes) {
    for (const auto& [group, dim] : {std::pair<int64_t, int64_t>{1, 64},
                                     {2, 128},
                                     {3, 96},
                                     {4, 64},
                                     {5, 40},
                                     {6, 8},
                                     {7, 128},
                                     {8, 256},
                                     {12, 80},
                                     {16, 64}}) {
      const DType activation = TypeParam::kActivations[random.Int(0, 2)];
      SCOPED_TRACE(::testing::Message() << Name(type) << " by " << Name(activation) << " group " << group << " dim "
                                        << dim);
      const int64_t kv_heads = 2;
      TestEntries entries(b, {type, kv_heads, dim}, 1, length, random);
      HostTensor keys = HostTensor::Normal(random, activation, length, kv_heads * dim);
      std::vector<int32_t> at(static_cast<size_t>(length)), lists, counts;
      std::iota(at.begin(), at.end(), 0);
      for (const int32_t row : rows)
        for (int64_t head = 0; head < kv_heads; ++head) {
          lists.insert(lists.end(), at.begin(), at.end());
          counts.push_back(row + 1);
        }
      HostTensor queries = HostTensor::Normal(random, activation, count, kv_heads * group * dim);
      HostTensor out(activation, count, kv_heads * group * dim, 1);
      DeviceTensor dkeys(b, keys), dqueries(b, queries), listed(b, out), full(b, out);
      DeviceInts zeros(b, std::vector<int32_t>(at.size(), 0)), dat(b, at), drows(b, rows);
      DeviceBytes<CudaBackend> dlists(b, lists.size() * 4), dcounts(b, counts.size() * 4);
      dlists.Put(lists);
      dcounts.Put(counts);
      b.Append(Queue::kCompute, {length, nullptr, zeros, dat}, dkeys, dkeys, entries.view());
      const AttentionShape shape{kv_heads * group, 1.0f / std::sqrt(static_cast<float>(dim))};
      const TokenBatch tokens{count, nullptr, zeros, drows};
      b.AttendDecode(Queue::kCompute, dqueries, tokens, length, shape, entries.view(), full);
      b.AttendSelected(Queue::kCompute, dqueries, tokens,
                       {dlists.template as<int32_t>(), dcounts.template as<int32_t>(), length, kv_heads}, {}, shape,
                       entries.view(), listed);
      const HostTensor want = full.Fetch(), got = listed.Fetch();
      for (int64_t r = 0; r < count; ++r)
        for (int64_t c = 0; c < want.cols; ++c) ASSERT_EQ(got.At(r, c), want.At(r, c)) << rows[static_cast<size_t>(r)];
      ASSERT_TRUE(got.bytes == want.bytes) << "zeros of different sign, or a gap was written";
    }
  }
}

TYPED_TEST(GpuBatchTest, RowwiseOpsDoNotDependOnTheCall) {
  auto& b = this->backend();
  Random random(95);
  for (const DType type : TypeParam::kActivations) {
    constexpr int64_t kRows = 70, kCols = 384;
    HostTensor x = HostTensor::Normal(random, DType::kF32, kRows, kCols), gate = x.As(type);
    HostTensor weight = HostTensor::Normal(random, DType::kF32, 1, kCols), out(type, kRows, kCols);
    HostTensor table = HostTensor::Normal(random, DType::kF32, kRows, 64);
    DeviceTensor dx(b, x), dw(b, weight), dtable(b, table);
    // Processes rows [first, first + count) of the operands, `step` at a time.
    const auto run = [&](int64_t step) {
      DeviceTensor rms(b, out), layer(b, out), gated(b, gate), up(b, gate);
      for (int64_t first = 0; first < kRows; first += step) {
        const int64_t count = std::min(step, kRows - first);
        const auto some = [&](const Tensor& all) { return all.Rows(first, count); };
        b.RmsNorm(Queue::kCompute, some(dx), dw, 1e-5f, some(rms));
        b.LayerNorm(Queue::kCompute, some(dx), dw, dw, 1e-5f, some(layer));
        b.SiluMul(Queue::kCompute, some(gated), some(up));
        b.Rope(Queue::kCompute, some(dtable), {.head_dim = 64}, some(up));
      }
      return std::vector{rms.Fetch().bytes, layer.Fetch().bytes, gated.Fetch().bytes, up.Fetch().bytes};
    };
    const auto all = run(kRows);
    for (const int64_t step : {1, 3, 33}) EXPECT_TRUE(run(step) == all) << Name(type) << " by " << step;
  }
}

}  // namespace
}  // namespace infinigen
