// Sizes of real models, with large grids, offsets and rings: few cases, each compared as far as the oracle can afford.
// All are named *Large*, so that runs under a memory checker can leave them out.
#include <algorithm>
#include <numeric>

#include "backend/backends.h"
#include "backend/fetch_layer.h"
#include "backend/operands.h"
#include "backend/selections.h"
#include "kv/index.h"

namespace infinigen {
namespace {

template <class Factory>
class GpuLargeTest : public OpTest<Factory> {};
TYPED_TEST_SUITE(GpuLargeTest, TestedBackends, BackendName);

// Numbers that repeat with a long odd period: cheap to generate, and different at nearby positions.
HostTensor Repeated(Random& random, DType type, int64_t rows, int64_t cols) {
  const HostTensor some = HostTensor::Normal(random, type, 1, 99991);
  HostTensor tensor(type, rows, cols);
  const size_t period = some.bytes.size();
  for (size_t at = 0; at < tensor.bytes.size(); at += period)
    std::copy_n(some.bytes.begin(), std::min(period, tensor.bytes.size() - at),
                tensor.bytes.begin() + static_cast<int64_t>(at));
  return tensor;
}

std::vector<int32_t> Ascending(int64_t count) {
  std::vector<int32_t> rows(static_cast<size_t>(count));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

TYPED_TEST(GpuLargeTest, LargeTransfers) {
  auto& b = this->backend();
  constexpr size_t kBytes = 100'000'003;
  Random random(100);
  const HostTensor numbers = Repeated(random, DType::kF16, 1, kBytes / 2 + 1);
  for (const Queue queue : {Queue::kCompute, Queue::kFetch, Queue::kWriteout}) {
    for (Allocator* memory : {&b.compute_memory(), &b.pool_memory()}) {
      Result<Buffer> buffer = Buffer::Make(*memory, kBytes);
      ASSERT_TRUE(buffer.ok());
      b.AwaitPool();
      b.Synchronize(b.Record(Queue::kCompute));  // orders allocations
      b.Upload(queue, numbers.bytes.data(), kBytes, buffer->data());
      std::vector<std::byte> got(kBytes);
      b.Synchronize(b.Download(queue, buffer->data(), kBytes, got.data()));
      ASSERT_EQ(std::memcmp(got.data(), numbers.bytes.data(), kBytes), 0);
    }
  }
}

// Move can reach the end of a pool that is not pinned yet, and the pool can be freed before it is.
TYPED_TEST(GpuLargeTest, LargePoolIsReachedAtOnce) {
  auto& b = this->backend();
  constexpr size_t kBytes = 768 << 20, kPiece = 1 << 20;
  for (int round = 0; round < 2; ++round) {
    Result<Buffer> from = Buffer::Make(b.compute_memory(), kPiece), to = Buffer::Make(b.compute_memory(), kPiece);
    ASSERT_TRUE(from.ok() && to.ok());
    const std::vector<std::byte> sent(kPiece, std::byte{5});
    b.Upload(Queue::kCompute, sent.data(), kPiece, from->data());
    Result<Buffer> pool = Buffer::Make(b.pool_memory(), kBytes), unused = Buffer::Make(b.pool_memory(), kBytes);
    ASSERT_TRUE(pool.ok() && unused.ok());
    std::byte* const end = pool->data() + kBytes - kPiece;
    const ByteMove there{from->data(), end, kPiece}, back{end, to->data(), kPiece};
    b.Move(Queue::kCompute, {&there, 1});
    b.Move(Queue::kCompute, {&back, 1});
    std::vector<std::byte> got(kPiece);
    b.Synchronize(b.Download(Queue::kCompute, to->data(), kPiece, got.data()));
    ASSERT_EQ(got, sent);
  }
}

// One token and many, through the matrices of a model of 8 billion parameters and its vocabulary, loaded as the engine
// does. Some outputs are recomputed in double precision.
TEST(GpuProductTest, LargeProducts) {
  if (!FindCudaDevice().ok()) GTEST_SKIP() << "no GPU";
  Random random(101);
  struct Case {
    int64_t m, k, n;
    DType x, weight, out;
  };
  for (const Case& c : {Case{1, 4096, 14336, DType::kBF16, DType::kBF16, DType::kBF16},
                        Case{20, 14336, 4096, DType::kBF16, DType::kBF16, DType::kF32},
                        Case{2048, 4096, 6144, DType::kBF16, DType::kBF16, DType::kBF16},
                        Case{1000, 5120, 5120, DType::kF16, DType::kF16, DType::kF32},
                        Case{7, 4096, 128256, DType::kF32, DType::kBF16, DType::kF32},
                        // converted in parts, some rows at a time
                        Case{2500, 8192, 520, DType::kF32, DType::kBF16, DType::kF32},
                        Case{2048, 6000, 264, DType::kBF16, DType::kF32, DType::kBF16}}) {
    SCOPED_TRACE(::testing::Message() << c.m << " x " << c.k << " x " << c.n);
    HostTensor x = HostTensor::Normal(random, c.x, c.m, c.k), weight = Repeated(random, c.weight, c.n, c.k);
    HostTensor bias = HostTensor::Normal(random, DType::kF32, 1, c.n), out(c.out, c.m, c.n);
    const std::unique_ptr<CudaBackend> opened = CudaBackend::Open({.activation = c.x, .pool_on_device = true}).value();
    CudaBackend& b = *opened;
    const Result<WeightView> loaded = b.Load(weight.weight());
    const Result<ConstTensor> placed_bias = b.Load(bias.view());
    ASSERT_TRUE(loaded.ok() && placed_bias.ok());
    DeviceTensor dx(b, x), dout(b, out);
    const Projection projection{*loaded, *placed_bias, dout};
    b.MatMul(Queue::kCompute, dx, {&projection, 1});
    const HostTensor got = dout.Fetch();
    for (int sample = 0; sample < 3000; ++sample) {
      const int64_t r = random.Int(0, c.m - 1), n = sample < 20 ? c.n - 1 - sample : random.Int(0, c.n - 1);
      double want = bias.At(0, n), sum = 0, squares = 0;
      for (int64_t k = 0; k < c.k; ++k) {
        const double product = static_cast<double>(x.At(r, k)) * weight.At(n, k);
        want += product;
        sum += std::fabs(product);
        squares += product * product;
      }
      const double converted = c.x == c.weight ? 0 : CudaFactory::ProductRounding(c.weight);
      // A bias has the type of the output.
      const double bound = 0x1p-24 * (8 + 4 * std::sqrt(static_cast<double>(c.k))) * (sum + std::fabs(want)) +
                           ProductError(converted, sum, squares) +
                           OutputRounding(c.out) * (std::fabs(want) + std::fabs(bias.At(0, n)));
      ASSERT_NEAR(got.At(r, n), want, bound) << r << "," << n;
    }
  }
}

// More lists than one launch fetches.
TYPED_TEST(GpuLargeTest, ManyListsAreFetched) {
  const FetchShape shape{.kv_heads = 64, .group = 1, .dim = 8, .slots = 300, .rows = 4, .cells = 3, .hot = false};
  FetchLayer<typename TypeParam::B> layer(this->backend(), shape, 103);
  std::vector<FetchToken> tokens;
  for (int32_t slot = 0; slot < shape.slots; ++slot)
    tokens.push_back({slot, 3, std::vector<int32_t>(64, 3), std::vector<std::vector<int32_t>>(64, {slot % 2, 2, 3})});
  const std::vector<FetchOutcome> outcomes = layer.Step(tokens);
  const Bytes data = layer.Data();
  for (const FetchToken& token : tokens)
    for (int64_t head = 0; head < shape.kv_heads; ++head)
      for (int32_t cell = 0; cell < 3; ++cell)
        ASSERT_TRUE(layer.At(data, token.slot, head, cell) ==
                    layer.PoolEntry(token.slot, head, token.lists[0][static_cast<size_t>(cell)]))
            << "slot " << token.slot << ", head " << head << ", cell " << cell;
}

// A prompt of thousands of tokens: prefill gives what decoding its tokens gives, by another kernel. The outputs of a
// head have the deviation √Σp² of random values, so their size bounds the effect of rounding (arithmetic.h), twice.
TYPED_TEST(GpuLargeTest, LargePrefillAgreesWithDecode) {
  auto& b = this->backend();
  Random random(102);
  constexpr int64_t kRows = 6000, kKvHeads = 2, kGroup = 4, kDim = 128, kHeads = kKvHeads * kGroup;
  for (const auto& [type, activation] :
       {std::pair{StoreType::kBF16, DType::kBF16}, {StoreType::kF16, DType::kF16}, {StoreType::kInt8, DType::kF32}}) {
    SCOPED_TRACE(Name(type));
    TestEntries entries(b, {type, kKvHeads, kDim}, 1, kRows, random);
    HostTensor keys = HostTensor::Normal(random, activation, kRows, kKvHeads * kDim);
    HostTensor values = HostTensor::Normal(random, activation, kRows, kKvHeads * kDim);
    HostTensor queries = HostTensor::Normal(random, activation, kRows, kHeads * kDim);
    HostTensor out(activation, kRows, kHeads * kDim);
    DeviceTensor dkeys(b, keys), dvalues(b, values), dqueries(b, queries), prefilled(b, out);
    DeviceInts zeros(b, std::vector<int32_t>(kRows, 0)), all(b, Ascending(kRows));
    const TokenBatch batch{kRows, nullptr, zeros, all};
    const AttentionShape shape{kHeads, 1.0f / std::sqrt(static_cast<float>(kDim))};
    b.Append(Queue::kCompute, batch, dkeys, dvalues, entries.view());
    for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 2048}, {2048, 2048}, {4096, kRows - 4096}})
      b.AttendPrefill(Queue::kCompute, dqueries.view().Rows(first, count), {SeqSlot(0), first, count}, shape,
                      entries.view(), prefilled.view().Rows(first, count));
    const HostTensor got = prefilled.Fetch();
    for (const int64_t first : {0, 120, 1020, 2040, 4090, 5968}) {
      const int64_t count = 32;
      HostTensor decoded(activation, count, kHeads * kDim);
      DeviceTensor device(b, decoded);
      b.AttendDecode(Queue::kCompute, dqueries.view().Rows(first, count), batch.Range(first, count), first + count,
                     shape, entries.view(), device);
      const HostTensor want = device.Fetch();
      for (int64_t r = 0; r < count; ++r) {
        for (int64_t head = 0; head < kHeads; ++head) {
          double squares = 0;
          for (int64_t c = head * kDim; c < (head + 1) * kDim; ++c) squares += want.At(r, c) * want.At(r, c);
          const double spread = std::sqrt(squares / kDim);
          const double bound = 9e-5 + 2 * AttentionError(TypeParam::AttentionRounding(type), 1, 1, spread);
          for (int64_t c = head * kDim; c < (head + 1) * kDim; ++c)
            ASSERT_NEAR(got.At(first + r, c), want.At(r, c),
                        bound + 2 * OutputRounding(activation) * std::fabs(want.At(r, c)))
                << "row " << first + r << " head " << head;
        }
      }
    }
  }
}

// A context of 128K against the oracle.
TYPED_TEST(GpuLargeTest, LargeContext) {
  auto& b = this->backend();
  Random random(103);
  constexpr int64_t kRows = 131072, kGroup = 2, kDim = 64;
  for (const StoreType type : {StoreType::kBF16, StoreType::kInt8}) {
    SCOPED_TRACE(Name(type));
    TestEntries mine(b, {type, 1, kDim}, 1, kRows, random);
    TestEntries theirs(this->reference(), {type, 1, kDim}, 1, kRows, random);
    HostTensor keys = Repeated(random, DType::kF32, kRows, kDim), values = Repeated(random, DType::kF32, kRows, kDim);
    HostTensor queries = HostTensor::Normal(random, DType::kF32, 2, kGroup * kDim), out(DType::kF32, 2, kGroup * kDim);
    const std::vector<int32_t> zero(kRows, 0), at = Ascending(kRows), rows = {kRows - 1, kRows - 70};
    DeviceTensor dkeys(b, keys), dvalues(b, values), dqueries(b, queries), dout(b, out);
    DeviceInts dzero(b, zero), dat(b, at), drows(b, rows);
    const AttentionShape shape{kGroup, 0.125f};
    b.Append(Queue::kCompute, {kRows, nullptr, dzero, dat}, dkeys, dvalues, mine.view());
    b.AttendDecode(Queue::kCompute, dqueries, {2, nullptr, dzero, drows}, kRows, shape, mine.view(), dout);
    this->reference().Append(Queue::kCompute, {kRows, nullptr, zero.data(), at.data()}, keys.view(), values.view(),
                             theirs.view());
    this->reference().AttendDecode(Queue::kCompute, queries.view(), {2, nullptr, zero.data(), rows.data()}, kRows,
                                   shape, theirs.view(), out.view());
    const HostTensor got = dout.Fetch();
    for (int64_t r = 0; r < 2; ++r) {
      for (int64_t head = 0; head < kGroup; ++head) {
        const double spread = Spread(queries.row(r) + head * kDim, 0, 0,
                                     std::span(at).first(static_cast<size_t>(rows[static_cast<size_t>(r)] + 1)),
                                     shape.scale, theirs.view());
        // The oracle's own f32 sums of 128K numbers are off by 2^-24 · √n of their size.
        const double bound = 9e-5 + AttentionError(TypeParam::AttentionRounding(type), 1, 1, spread);
        for (int64_t c = head * kDim; c < (head + 1) * kDim; ++c) ASSERT_NEAR(got.At(r, c), out.At(r, c), bound);
      }
    }
  }
}

// Selections among 128K rows of integer sketches equal the oracle's.
TYPED_TEST(GpuLargeTest, LargeSelection) {
  auto& b = this->backend();
  Random random(104);
  constexpr int64_t kRows = 131072, kKvHeads = 2, kGroup = 4, kDims = 24;
  for (const SketchType type : {SketchType::kInt8, SketchType::kInt4}) {
    const SketchLayout layout{type, kKvHeads, kDims};
    const size_t head_bytes = layout.head_bytes(kRows);
    std::vector<std::byte> bytes(head_bytes * kKvHeads);
    for (int64_t block = 0; block < kKvHeads * kRows / kSketchBlock; ++block) {
      std::vector<float> numbers(kDims);
      for (int64_t row = 0; row < kSketchBlock; ++row) {
        for (float& number : numbers) number = random.Normal();
        StoreSketch(layout, bytes.data() + static_cast<size_t>(block) * layout.block_bytes(), row, numbers);
      }
    }
    DeviceBytes<CudaBackend> device(b, bytes.size());
    device.Put(bytes);
    HostTensor queries = HostTensor::Normal(random, DType::kF32, 2, kKvHeads * kGroup * kDims, 0.5f);
    DeviceTensor dqueries(b, queries);
    const Batch batch{{0, 0}, {kRows - 1, 100000}};
    for (const SelectRule& rule :
         {SelectRule{.cap = 0.05}, SelectRule{.alpha = kInfinity, .cap = 0.2, .sinks = 4, .window = 64},
          SelectRule{.alpha = 3.0f, .cap = 1.0}, SelectRule{.alpha = kInfinity, .cap = 1.0},
          SelectRule{.sinks = 4, .window = 64, .force_count = 2048}}) {
      const Outcome got =
          RunSelect(b, batch, {rule}, kKvHeads, {}, [&](const auto& tokens, const auto& call, const auto& selection) {
            const LayerSketches sketches{layout, device.template as<std::byte>(), head_bytes, head_bytes * kKvHeads};
            b.Select(Queue::kCompute, dqueries, tokens, call, sketches, selection);
          });
      const Outcome want =
          RunSelect(this->reference(), batch, {rule}, kKvHeads, {},
                    [&](const auto& tokens, const auto& call, const auto& selection) {
                      const LayerSketches sketches{layout, bytes.data(), head_bytes, head_bytes * kKvHeads};
                      this->reference().Select(Queue::kCompute, queries.view(), tokens, call, sketches, selection);
                    });
      ExpectSame(got, want);
    }
  }
}

}  // namespace
}  // namespace infinigen
