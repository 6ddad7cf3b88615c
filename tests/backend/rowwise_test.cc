// Embed, AddPositions, the norms, rope, turning, Copy, SiluMul and Append against the reference. Outputs that are not
// f32 add their rounding to the bound.
#include <complex>

#include "backend/backends.h"
#include "backend/operands.h"

namespace infinigen {
namespace {

template <class Factory>
class RowwiseTest : public OpTest<Factory> {};
TYPED_TEST_SUITE(RowwiseTest, TestedBackends, BackendName);

// |got - want| <= relative · |want| + absolute inside the rows; the gaps are untouched. Adds the rounding of `got`'s
// type, at least the smallest step of f16.
void ExpectClose(const HostTensor& got, const HostTensor& want, float relative, float absolute) {
  const double more = OutputRounding(got.type) * (1 + relative), least = got.type == DType::kF16 ? 0x1p-25 : 0;
  for (int64_t r = 0; r < want.rows; ++r)
    for (int64_t c = 0; c < want.cols; ++c)
      ASSERT_NEAR(got.At(r, c), want.At(r, c), (relative + more) * std::fabs(want.At(r, c)) + absolute + least)
          << r << "," << c;
  for (int64_t r = 0; r < got.rows; ++r)
    for (int64_t c = got.cols; c < got.stride; ++c) ASSERT_TRUE(std::isnan(got.At(r, c))) << "gap written";
}

constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

TYPED_TEST(RowwiseTest, EmbedAndPositionsAreExact) {
  auto& b = this->backend();
  Random random(1);
  for (const DType type : kTypes) {
    for (const int64_t hidden : {1, 15, 16, 33, 200}) {
      const int64_t count = random.Int(1, 40);
      HostTensor table = HostTensor::Normal(random, type, 57, hidden);
      HostTensor positions = HostTensor::Normal(random, type, 102, hidden);
      if (type == DType::kF16) table.Set(3, 0, 0x1.8p-20f);  // a subnormal half
      HostTensor out(DType::kF32, count, hidden, 3);
      std::vector<int32_t> ids, rows;
      for (int64_t i = 0; i < count; ++i) {
        ids.push_back(static_cast<int32_t>(i == 0 ? 3 : random.Int(0, 56)));
        rows.push_back(static_cast<int32_t>(random.Int(0, 99)));
      }
      DeviceTensor device_table(b, table), device_positions(b, positions), device_out(b, out);
      DeviceInts device_ids(b, ids), device_rows(b, rows);
      const TokenBatch batch{count, device_ids, nullptr, device_rows};
      b.Embed(Queue::kCompute, batch, device_table, device_out);
      b.AddPositions(Queue::kCompute, batch, device_positions, 2, device_out);
      const TokenBatch host_batch{count, ids.data(), nullptr, rows.data()};
      this->reference().Embed(Queue::kCompute, host_batch, table.weight(), out.view());
      this->reference().AddPositions(Queue::kCompute, host_batch, positions.weight(), 2, out.view());
      ExpectClose(device_out.Fetch(), out, 0, 0);
    }
  }
}

// Bound: another order of the sum changes the scale by a few ulp.
TYPED_TEST(RowwiseTest, Norms) {
  auto& b = this->backend();
  Random random(2);
  for (const int64_t n : {1, 7, 16, 31, 64, 100, 2048, 5000}) {
    for (const float offset : {0.0f, 10.0f}) {
      const int64_t rows = random.Int(1, 20);
      HostTensor x = HostTensor::Normal(random, DType::kF32, rows, n, 1.0f, 5);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < n; ++c) x.Set(r, c, x.At(r, c) + offset);
      HostTensor weight = HostTensor::Normal(random, DType::kF32, 1, n);
      HostTensor bias = HostTensor::Normal(random, DType::kF32, 1, n);
      HostTensor rms(DType::kF32, rows, n, 2), layer(DType::kF32, rows, n, 2);
      DeviceTensor dx(b, x), dw(b, weight), db(b, bias), drms(b, rms), dlayer(b, layer);
      b.RmsNorm(Queue::kCompute, dx, dw, 1e-5f, drms);
      b.LayerNorm(Queue::kCompute, dx, dw, db, 1e-5f, dlayer);
      this->reference().RmsNorm(Queue::kCompute, x.view(), weight.view(), 1e-5f, rms.view());
      this->reference().LayerNorm(Queue::kCompute, x.view(), weight.view(), bias.view(), 1e-5f, layer.view());
      ExpectClose(drms.Fetch(), rms, 2e-5f, 1e-6f);
      // A single element has no variance: (x - mean) is rounding noise divided by √eps.
      ExpectClose(dlayer.Fetch(), layer, 2e-5f, n == 1 ? 1e-3f : 2e-4f);
    }
  }
}

TYPED_TEST(RowwiseTest, NormWorksInPlace) {
  auto& b = this->backend();
  Random random(3);
  HostTensor x = HostTensor::Normal(random, DType::kF32, 3, 77);
  HostTensor weight = HostTensor::Normal(random, DType::kF32, 1, 77);
  DeviceTensor dx(b, x), dw(b, weight);
  b.RmsNorm(Queue::kCompute, dx, dw, 1e-6f, dx);
  this->reference().RmsNorm(Queue::kCompute, x.view(), weight.view(), 1e-6f, x.view());
  ExpectClose(dx.Fetch(), x, 2e-5f, 1e-6f);
}

// The angle is one f32 product, so cos and sin must agree to the last bits even at position 131,071.
TYPED_TEST(RowwiseTest, RopeAtLargePositions) {
  auto& b = this->backend();
  Random random(4);
  for (const int64_t wanted : {8, 20, 64, 80, 128}) {
    const int64_t dim = TypeParam::HeadDim(wanted), count = 9, heads = 3;
    HostTensor frequencies(DType::kF32, 1, dim / 2);
    for (int64_t i = 0; i < dim / 2; ++i)
      frequencies.Set(0, i, std::pow(500000.0f, -2.0f * static_cast<float>(i) / static_cast<float>(dim)));
    const std::vector<int32_t> rows = {0, 1, 2, 255, 256, 4097, 65535, 131071, 131072};
    HostTensor table(DType::kF32, count, dim);
    HostTensor x = HostTensor::Normal(random, DType::kF32, count, heads * dim, 1.0f, 7);
    DeviceTensor df(b, frequencies), dtable(b, table), dx(b, x);
    DeviceInts drows(b, rows);
    b.RopeTable(Queue::kCompute, {count, nullptr, nullptr, drows}, df, 1, dtable);
    b.Rope(Queue::kCompute, dtable, {.head_dim = dim}, dx);
    this->reference().RopeTable(Queue::kCompute, {count, nullptr, nullptr, rows.data()}, frequencies.view(), 1,
                                table.view());
    this->reference().Rope(Queue::kCompute, table.view(), {.head_dim = dim}, x.view());
    ExpectClose(dtable.Fetch(), table, 2e-7f, 1e-7f);
    ExpectClose(dx.Fetch(), x, 4e-7f, 2e-6f);
  }
}

// Complex numbers are the oracle: plane i of position p is multiplied by factor · e^(i·p·frequency).
TYPED_TEST(RowwiseTest, RotatesPlanesInBothOrders) {
  auto& b = this->backend();
  Random random(14);
  for (const bool adjacent : {false, true}) {
    for (const auto& [dim, rotated] : {std::pair{8, 8}, {20, 20}, {64, 64}, {80, 32}, {96, 72}, {128, 2}}) {
      const int64_t planes = rotated / 2, count = 5, heads = 3;
      HostTensor frequencies(DType::kF32, 1, planes), table(DType::kF32, count, rotated, 3);
      for (int64_t i = 0; i < planes; ++i) frequencies.Set(0, i, 1.0f / static_cast<float>(1 + i));
      const std::vector<int32_t> rows = {0, 1, 2, 50, 999};
      HostTensor x = HostTensor::Normal(random, DType::kF32, count, heads * dim, 1.0f, 7), want = x;
      for (int64_t r = 0; r < count; ++r) {
        for (int64_t head = 0; head < heads * dim; head += dim) {
          for (int64_t i = 0; i < planes; ++i) {
            const int64_t real = head + (adjacent ? 2 * i : i), imaginary = real + (adjacent ? 1 : planes);
            const float angle = static_cast<float>(rows[static_cast<size_t>(r)]) * frequencies.At(0, i);
            const std::complex<double> turned =
                std::complex<double>(x.At(r, real), x.At(r, imaginary)) * std::polar(1.5, static_cast<double>(angle));
            want.Set(r, real, static_cast<float>(turned.real()));
            want.Set(r, imaginary, static_cast<float>(turned.imag()));
          }
        }
      }
      DeviceTensor df(b, frequencies), dtable(b, table), dx(b, x);
      DeviceInts drows(b, rows);
      b.RopeTable(Queue::kCompute, {count, nullptr, nullptr, drows}, df, 1.5f, dtable);
      b.Rope(Queue::kCompute, dtable, {.head_dim = dim, .adjacent = adjacent}, dx);
      ExpectClose(dx.Fetch(), want, 1e-6f, 4e-6f);
    }
  }
}

TYPED_TEST(RowwiseTest, SiluMul) {
  auto& b = this->backend();
  Random random(5);
  for (const int64_t n : {1, 5, 16, 50, 700}) {
    HostTensor gate = HostTensor::Normal(random, DType::kF32, 6, n, 8.0f, 1);
    HostTensor up = HostTensor::Normal(random, DType::kF32, 6, n, 1.0f, 4);
    const float extremes[] = {0.0f, -0.0f, -80.0f, -90.0f, -200.0f, 100.0f, 3e38f, -3e38f};
    for (int64_t i = 0; i < std::min<int64_t>(n, 8); ++i) gate.Set(0, i, extremes[i]);
    for (int64_t i = 0; i < n; ++i) up.Set(0, i, 0.5f);
    DeviceTensor dgate(b, gate), dup(b, up);
    b.SiluMul(Queue::kCompute, dgate, dup);
    this->reference().SiluMul(Queue::kCompute, gate.view(), up.view());
    ExpectClose(dgate.Fetch(), gate, 1e-6f, 1e-30f);
  }
}

TYPED_TEST(RowwiseTest, GeluMul) {
  auto& b = this->backend();
  Random random(15);
  for (const DType type : TypeParam::kActivations) {
    for (const int64_t n : {1, 5, 16, 50, 700}) {
      HostTensor gate = HostTensor::Normal(random, type, 6, n, 3.0f, 1);
      HostTensor up = HostTensor::Normal(random, type, 6, n, 1.0f, 4);
      const float extremes[] = {0.0f, -0.0f, -9.0f, -30.0f, -200.0f, 100.0f, 3e4f, -3e4f};
      for (int64_t i = 0; i < std::min<int64_t>(n, 8); ++i) gate.Set(0, i, extremes[i]);
      HostTensor wide = gate.As(DType::kF32), wide_up = up.As(DType::kF32);
      DeviceTensor dgate(b, gate), dup(b, up);
      b.GeluMul(Queue::kCompute, dgate, dup);
      this->reference().GeluMul(Queue::kCompute, wide.view(), wide_up.view());
      // Where GELU is almost 0, the reference's 1 + tanh has an absolute error; so has e^x of a large x.
      ExpectClose(dgate.Fetch(), wide, 2e-5f, 1e-6f);
    }
  }
}

TYPED_TEST(RowwiseTest, AddScaleAndSoftCap) {
  auto& b = this->backend();
  Random random(16);
  for (const int64_t n : {1, 7, 64, 1001}) {
    HostTensor x = HostTensor::Normal(random, DType::kF32, 5, n, 20.0f, 3);
    HostTensor y = HostTensor::Normal(random, DType::kF32, 5, n, 1.0f, 2);
    x.Set(0, 0, 1e30f);
    if (n > 1) x.Set(1, 1, -1e30f);
    DeviceTensor dx(b, x), dy(b, y);
    b.Add(Queue::kCompute, dy, dx);
    this->reference().Add(Queue::kCompute, y.view(), x.view());
    ExpectClose(dx.Fetch(), x, 0, 0);
    b.Scale(Queue::kCompute, 59.87f, dx);
    this->reference().Scale(Queue::kCompute, 59.87f, x.view());
    ExpectClose(dx.Fetch(), x, 0, 0);
    b.SoftCap(Queue::kCompute, 30.0f, dx);
    this->reference().SoftCap(Queue::kCompute, 30.0f, x.view());
    ExpectClose(dx.Fetch(), x, 1e-6f, 30 * 2e-7f);
    for (int64_t c = 0; c < n; ++c) EXPECT_LE(std::fabs(dx.Fetch().At(0, c)), 30.0f);
  }
}

// The additions have one order, so f32 results have the bits of the reference; the output may be the input.
TYPED_TEST(RowwiseTest, TurnsHeads) {
  auto& b = this->backend();
  Random random(12);
  for (const DType type : TypeParam::kActivations) {
    for (const int64_t dim : {1, 4, 7, 8, 20, 64, 75, 80, 96, 128, 256, 512}) {
      const int64_t rows = random.Int(1, 20), heads = random.Int(1, 5);
      HostTensor x = HostTensor::Normal(random, type, rows, heads * dim, 1.0f, 3);
      HostTensor wide(DType::kF32, rows, heads * dim), want(DType::kF32, rows, heads * dim);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < heads * dim; ++c) wide.Set(r, c, x.At(r, c));
      this->reference().TurnHeads(Queue::kCompute, wide.view(), dim, want.view());
      HostTensor out(type, rows, heads * dim, 1);
      DeviceTensor dx(b, x), dout(b, out);
      b.TurnHeads(Queue::kCompute, dx, dim, dout);
      ExpectClose(dout.Fetch(), want, 0, 0);
      b.TurnHeads(Queue::kCompute, dx, dim, dx);
      ExpectClose(dx.Fetch(), want, 0, 0);
    }
  }
}

TYPED_TEST(RowwiseTest, AppendRoundsLikeTheReference) {
  auto& b = this->backend();
  Random random(6);
  for (const StoreType type : kStoreTypes) {
    for (const int64_t wanted : {8, 20, 64, 75, 192}) {
      const int64_t dim = TypeParam::HeadDim(wanted);
      const EntryLayout layout{type, 3, dim};
      TestEntries mine(b, layout, 2, 600, random);
      TestEntries theirs(this->reference(), layout, 2, 600, random);
      const std::vector<int32_t> slots = {0, 0, 1, 1, 0}, rows = {0, 255, 256, 511, 599};
      HostTensor keys = HostTensor::Normal(random, DType::kF32, 5, 3 * dim, 1.0f, 9);
      HostTensor values = HostTensor::Normal(random, DType::kF32, 5, 3 * dim, 1e-4f, 2);
      keys.Set(0, 0, -0.0f);
      keys.Set(0, 1, 65519.0f);  // the largest number that rounds to a finite half
      DeviceTensor dkeys(b, keys), dvalues(b, values);
      DeviceInts dslots(b, slots), drows(b, rows);
      b.Append(Queue::kCompute, {5, nullptr, dslots, drows}, dkeys, dvalues, mine.view());
      this->reference().Append(Queue::kCompute, {5, nullptr, slots.data(), rows.data()}, keys.view(), values.view(),
                               theirs.view());
      for (size_t t = 0; t < rows.size(); ++t)
        for (int64_t head = 0; head < 3; ++head)
          ASSERT_EQ(mine.Bytes(slots[t], head, rows[t]), theirs.Bytes(slots[t], head, rows[t]));
      ASSERT_EQ(mine.Bytes(0, 1, 1)[0], std::byte{0xff}) << "a row that was not appended was written";
    }
  }
}

// Codes and headers equal the oracle's bit for bit, also for NaN, infinities and numbers beyond the range of f16.
TYPED_TEST(RowwiseTest, AppendQuantisesLikeTheReference) {
  auto& b = this->backend();
  Random random(7);
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const float odd[] = {inf, -inf, nan, -nan, 1e38f, -1e38f, 65520.0f, 1e-45f, -1e-45f, -1e-8f, 0.0f, -0.0f};
  for (const StoreType type : {StoreType::kInt8, StoreType::kInt4}) {
    for (const int64_t wanted : {1, 7, 64, 75, 128}) {
      const int64_t dim = TypeParam::HeadDim(wanted), rows = 300;
      TestEntries mine(b, {type, 1, dim}, 1, rows, random);
      TestEntries theirs(this->reference(), {type, 1, dim}, 1, rows, random);
      HostTensor keys(DType::kF32, rows, dim), values(DType::kF32, rows, dim, 3);
      std::vector<int32_t> slots(static_cast<size_t>(rows), 0), at(slots);
      for (int64_t r = 0; r < rows; ++r) {
        at[static_cast<size_t>(r)] = static_cast<int32_t>(r);
        const float scale = std::pow(10.0f, static_cast<float>(random.Int(-9, 6)));
        const float offset = scale * static_cast<float>(random.Int(-3, 3));
        for (int64_t c = 0; c < dim; ++c) {
          keys.Set(r, c, random.Normal(scale) + offset);
          // Few distinct numbers: constant groups, zeros, steps that end in exact halves.
          values.Set(r, c, static_cast<float>(random.Int(0, r % 5)) * 0.5f);
        }
        if (r % 3 == 0) keys.Set(r, random.Int(0, dim - 1), odd[random.Int(0, std::ssize(odd) - 1)]);
        if (r % 7 == 0) values.Set(r, random.Int(0, dim - 1), odd[random.Int(0, std::ssize(odd) - 1)]);
      }
      DeviceTensor dkeys(b, keys), dvalues(b, values);
      DeviceInts dslots(b, slots), dat(b, at);
      b.Append(Queue::kCompute, {rows, nullptr, dslots, dat}, dkeys, dvalues, mine.view());
      this->reference().Append(Queue::kCompute, {rows, nullptr, slots.data(), at.data()}, keys.view(), values.view(),
                               theirs.view());
      for (int64_t r = 0; r < rows; ++r)
        ASSERT_EQ(mine.Bytes(0, 0, r), theirs.Bytes(0, 0, r)) << Name(type) << " dim " << dim << " row " << r;
    }
  }
}

// ---- Activations of every type that the backend supports; other operands keep their type

TYPED_TEST(RowwiseTest, EmbedsToEveryType) {
  auto& b = this->backend();
  Random random(8);
  for (const DType to : TypeParam::kActivations) {
    for (const DType from : kTypes) {
      HostTensor table = HostTensor::Normal(random, from, 30, 75), want(DType::kF32, 20, 75), out(to, 20, 75, 3);
      std::vector<int32_t> ids;
      for (int i = 0; i < 20; ++i) ids.push_back(static_cast<int32_t>(random.Int(0, 29)));
      DeviceTensor dtable(b, table), dout(b, out);
      DeviceInts dids(b, ids);
      b.Embed(Queue::kCompute, {20, dids, nullptr, nullptr}, dtable, dout);
      this->reference().Embed(Queue::kCompute, {20, ids.data(), nullptr, nullptr}, table.weight(), want.view());
      ExpectClose(dout.Fetch(), want, 0, 0);
    }
  }
}

// The input is the residual stream, which is f32.
TYPED_TEST(RowwiseTest, NormsToEveryType) {
  auto& b = this->backend();
  Random random(9);
  for (const DType to : TypeParam::kActivations) {
    for (const int64_t n : {7, 64, 768, 4096}) {
      HostTensor x = HostTensor::Normal(random, DType::kF32, 5, n, 3.0f, 5);
      HostTensor weight = HostTensor::Normal(random, DType::kF32, 1, n);
      HostTensor bias = HostTensor::Normal(random, DType::kF32, 1, n);
      HostTensor rms(DType::kF32, 5, n), layer(DType::kF32, 5, n), out(to, 5, n, 2);
      DeviceTensor dx(b, x), dw(b, weight), db(b, bias), drms(b, out), dlayer(b, out);
      b.RmsNorm(Queue::kCompute, dx, dw, 1e-5f, drms);
      b.LayerNorm(Queue::kCompute, dx, dw, db, 1e-5f, dlayer);
      this->reference().RmsNorm(Queue::kCompute, x.view(), weight.view(), 1e-5f, rms.view());
      this->reference().LayerNorm(Queue::kCompute, x.view(), weight.view(), bias.view(), 1e-5f, layer.view());
      ExpectClose(drms.Fetch(), rms, 2e-5f, 1e-6f);
      ExpectClose(dlayer.Fetch(), layer, 2e-5f, 2e-4f);
    }
  }
}

TYPED_TEST(RowwiseTest, RotatesEveryType) {
  auto& b = this->backend();
  Random random(10);
  for (const DType type : TypeParam::kActivations) {
    for (const int64_t dim : {8, 64, 128}) {
      const int64_t count = 6;
      HostTensor table = HostTensor::Normal(random, DType::kF32, count, dim);
      HostTensor x = HostTensor::Normal(random, type, count, 3 * dim, 1.0f, 7), want = x.As(DType::kF32);
      DeviceTensor dtable(b, table), dx(b, x);
      b.Rope(Queue::kCompute, dtable, {.head_dim = dim}, dx);
      this->reference().Rope(Queue::kCompute, table.view(), {.head_dim = dim}, want.view());
      ExpectClose(dx.Fetch(), want, 4e-7f, 2e-6f);
    }
  }
}

TYPED_TEST(RowwiseTest, SiluMulOfEveryType) {
  auto& b = this->backend();
  Random random(11);
  for (const DType type : TypeParam::kActivations) {
    for (const int64_t n : {1, 50, 700, 4096}) {
      HostTensor gate = HostTensor::Normal(random, type, 6, n, 8.0f, 1), wide = gate.As(DType::kF32);
      HostTensor up = HostTensor::Normal(random, type, 6, n, 1.0f, 4), wide_up = up.As(DType::kF32);
      DeviceTensor dgate(b, gate), dup(b, up);
      b.SiluMul(Queue::kCompute, dgate, dup);
      this->reference().SiluMul(Queue::kCompute, wide.view(), wide_up.view());
      ExpectClose(dgate.Fetch(), wide, 1e-6f, 1e-30f);
    }
  }
}

TYPED_TEST(RowwiseTest, CopiesEveryTypeAsItIs) {
  auto& b = this->backend();
  Random random(12);
  for (const DType type : TypeParam::kActivations) {
    for (const int64_t n : {1, 33, 512, 3000}) {
      HostTensor x = HostTensor::Normal(random, type, 9, n, 1.0f, 5), out(type, 9, n, 2);
      DeviceTensor dx(b, x), dout(b, out);
      b.Copy(Queue::kCompute, dx, dout);
      const HostTensor got = dout.Fetch();
      for (int64_t r = 0; r < x.rows; ++r) {
        for (int64_t c = 0; c < n; ++c) ASSERT_EQ(got.At(r, c), x.At(r, c)) << r << "," << c;
        for (int64_t c = n; c < got.stride; ++c) ASSERT_TRUE(std::isnan(got.At(r, c))) << "gap written";
      }
    }
  }
}

// A different row for each head, as in layers that evict.
TYPED_TEST(RowwiseTest, AppendsEveryType) {
  auto& b = this->backend();
  Random random(13);
  for (const DType from : TypeParam::kActivations) {
    for (const StoreType type : kStoreTypes) {
      const int64_t dim = 72;
      TestEntries mine(b, {type, 2, dim}, 2, 300, random);
      TestEntries theirs(this->reference(), {type, 2, dim}, 2, 300, random);
      const std::vector<int32_t> slots = {1, 0, 1}, rows = {299, 299, 299}, own_rows = {3, 280, 255, 256, 0, 3};
      HostTensor keys = HostTensor::Normal(random, from, 3, 2 * dim, 1.0f, 9), wide_keys = keys.As(DType::kF32);
      HostTensor values = HostTensor::Normal(random, from, 3, 2 * dim, 3.0f, 2), wide_values = values.As(DType::kF32);
      DeviceTensor dkeys(b, keys), dvalues(b, values);
      DeviceInts dslots(b, slots), drows(b, rows), device_own_rows(b, own_rows);
      b.Append(Queue::kCompute, {3, nullptr, dslots, drows, nullptr, device_own_rows, 2}, dkeys, dvalues, mine.view());
      this->reference().Append(Queue::kCompute, {3, nullptr, slots.data(), rows.data(), nullptr, own_rows.data(), 2},
                               wide_keys.view(), wide_values.view(), theirs.view());
      for (int64_t slot = 0; slot < 2; ++slot)
        for (int64_t head = 0; head < 2; ++head)
          for (const int64_t row : {0, 3, 255, 256, 280, 299})
            ASSERT_EQ(mine.Bytes(slot, head, row), theirs.Bytes(slot, head, row))
                << Name(type) << " from " << Name(from);
    }
  }
}

}  // namespace
}  // namespace infinigen
