// GPU-specific tests: copies between memories, queues that wait for each other, and exhausted memory.
#include <algorithm>
#include <limits>
#include <numeric>

#include "backend/backends.h"
#include "backend/operands.h"

namespace infinigen {
namespace {

template <class Factory>
class GpuMemoryTest : public OpTest<Factory> {};
TYPED_TEST_SUITE(GpuMemoryTest, TestedBackends, BackendName);

constexpr Queue kQueues[] = {Queue::kCompute, Queue::kFetch, Queue::kWriteout, Queue::kWeights};
constexpr size_t kQueueCount = std::size(kQueues);

// Memory that every queue may use immediately.
Buffer Allocate(CudaBackend& backend, Allocator& memory, size_t bytes) {
  Result<Buffer> buffer = Buffer::Make(memory, bytes);
  CHECK(buffer.ok());
  backend.AwaitPool();
  backend.Synchronize(backend.Record(Queue::kCompute));  // orders allocations
  return std::move(*buffer);
}

std::vector<std::byte> RandomBytes(Random& random, size_t bytes) {
  std::vector<std::byte> values(bytes);
  for (size_t i = 0; i < bytes; i += 8) {
    const uint64_t number = random.engine()();
    std::memcpy(values.data() + i, &number, std::min<size_t>(8, bytes - i));
  }
  return values;
}

std::vector<std::byte> Fetch(CudaBackend& backend, Queue queue, const std::byte* from, size_t bytes) {
  std::vector<std::byte> values(bytes);
  backend.Synchronize(backend.Download(queue, from, bytes, values.data()));
  return values;
}

TYPED_TEST(GpuMemoryTest, BytesComeBackFromEveryMemory) {
  auto& b = this->backend();
  Random random(80);
  for (const Queue queue : kQueues) {
    for (Allocator* memory : {&b.compute_memory(), &b.pool_memory(), &b.host_memory()}) {
      for (const size_t bytes : {1, 3, 64, 4095, 65536, 1000003}) {
        const Buffer buffer = Allocate(b, *memory, bytes + 7);
        const std::vector<std::byte> sent = RandomBytes(random, bytes);
        b.Upload(queue, sent.data(), bytes, buffer.data() + 7);  // no alignment is required
        ASSERT_EQ(Fetch(b, queue, buffer.data() + 7, bytes), sent) << bytes;
      }
    }
  }
}

// 100 MB through one host buffer that changes after every call: more than any ring holds.
TYPED_TEST(GpuMemoryTest, UploadedBytesMayChangeAtOnce) {
  auto& b = this->backend();
  constexpr size_t kPiece = 250007, kPieces = 400;
  const Buffer buffer = Allocate(b, b.compute_memory(), kPiece * kPieces);
  std::vector<std::byte> piece(kPiece);
  for (size_t i = 0; i < kPieces; ++i) {
    std::fill(piece.begin(), piece.end(), static_cast<std::byte>(i % 251));
    b.Upload(Queue::kCompute, piece.data(), kPiece - i % 5, buffer.data() + i * kPiece);
  }
  std::fill(piece.begin(), piece.end(), std::byte{0xff});
  for (size_t i = 0; i < kPieces; ++i) {
    const std::vector<std::byte> got = Fetch(b, Queue::kCompute, buffer.data() + i * kPiece, kPiece - i % 5);
    ASSERT_EQ(std::count(got.begin(), got.end(), static_cast<std::byte>(i % 251)), std::ssize(got)) << "piece " << i;
  }
}

// Downloads of all sizes in flight at once, on all queues, awaited in any order.
TYPED_TEST(GpuMemoryTest, ManyDownloadsArePending) {
  auto& b = this->backend();
  Random random(81);
  constexpr size_t kBytes = 4 << 20;
  const std::vector<std::byte> sent = RandomBytes(random, kBytes);
  const Buffer buffer = Allocate(b, b.compute_memory(), kBytes);
  b.Upload(Queue::kCompute, sent.data(), kBytes, buffer.data());
  const Ticket there = b.Record(Queue::kCompute);
  for (const Queue queue : kQueues) b.Wait(queue, there);
  struct Pending {
    size_t at, bytes;
    std::vector<std::byte> host;
    Ticket ticket;
  };
  std::vector<Pending> pending;
  for (int i = 0; i < 150; ++i) {
    const int64_t largest[] = {1, 4, 700, 70000, 3000000};
    Pending& p = pending.emplace_back();
    p.bytes = static_cast<size_t>(random.Int(1, largest[i % 5]));
    p.at = static_cast<size_t>(random.Int(0, static_cast<int64_t>(kBytes - p.bytes)));
    p.host.resize(p.bytes);
  }
  for (size_t i = 0; i < pending.size(); ++i)
    pending[i].ticket = b.Download(kQueues[static_cast<size_t>(i) % kQueueCount], buffer.data() + pending[i].at,
                                   pending[i].bytes, pending[i].host.data());
  std::shuffle(pending.begin(), pending.end(), random.engine());
  for (const Pending& p : pending) {
    b.Synchronize(p.ticket);
    ASSERT_TRUE(std::equal(p.host.begin(), p.host.end(), sent.begin() + static_cast<int64_t>(p.at))) << p.bytes;
  }
}

TYPED_TEST(GpuMemoryTest, MovesBetweenMemories) {
  auto& b = this->backend();
  Random random(82);
  constexpr size_t kBytes = 3000000;
  const std::vector<std::byte> sent = RandomBytes(random, kBytes);
  for (const Queue queue : kQueues) {
    const Buffer buffers[] = {Allocate(b, b.compute_memory(), kBytes), Allocate(b, b.pool_memory(), kBytes),
                              Allocate(b, b.host_memory(), kBytes), Allocate(b, b.compute_memory(), kBytes)};
    b.Upload(queue, sent.data(), kBytes, buffers[0].data());
    for (size_t i = 0; i + 1 < std::size(buffers); ++i) {
      std::vector<ByteMove> moves;
      for (size_t at = 0; at < kBytes;) {
        const size_t bytes = std::min<size_t>(kBytes - at, static_cast<size_t>(random.Int(1, 40000)));
        moves.push_back({buffers[i].data() + at, buffers[i + 1].data() + at, bytes});
        at += bytes;
      }
      std::shuffle(moves.begin(), moves.end(), random.engine());
      b.Move(queue, moves);
      b.Move(queue, {});
    }
    ASSERT_EQ(Fetch(b, queue, buffers[3].data(), kBytes), sent);
  }
}

// Strided copies: the bytes between the pieces keep their values.
TYPED_TEST(GpuMemoryTest, MovesOfManyPieces) {
  auto& b = this->backend();
  Random random(84);
  constexpr size_t kBytes = 400000;
  const std::vector<std::byte> sent = RandomBytes(random, kBytes);
  for (const Queue queue : kQueues) {
    const Buffer device = Allocate(b, b.compute_memory(), kBytes), pool = Allocate(b, b.pool_memory(), kBytes);
    std::vector<std::byte> want(kBytes, std::byte{1});
    b.Upload(queue, sent.data(), kBytes, device.data());
    b.Upload(queue, want.data(), kBytes, pool.data());
    const ByteMove moves[] = {{device.data() + 5, pool.data() + 5, 64, 90, 200},
                              {device.data() + 30000, pool.data() + 30000, 1000, 1, 0},
                              {device.data() + 40000, pool.data() + 40000, 4096, 50, 6000}};
    b.Move(queue, moves);
    for (const ByteMove& move : moves)
      for (size_t piece = 0; piece < move.pieces; ++piece) {
        const size_t at = static_cast<size_t>(move.from - device.data()) + piece * move.stride;
        std::copy_n(sent.begin() + static_cast<int64_t>(at), move.bytes, want.begin() + static_cast<int64_t>(at));
      }
    ASSERT_EQ(Fetch(b, queue, pool.data(), kBytes), want);
  }
}

// A number travels from queue to queue and is overwritten as soon as it has been read: a queue that fails to wait sees
// the previous or the next number. Now and then a queue is kept busy beforehand, so that others run ahead.
TYPED_TEST(GpuMemoryTest, QueuesWaitForEachOther) {
  auto& b = this->backend();
  constexpr size_t kNumbers = 4096, kBytes = kNumbers * 4, kRounds = 600, kBusyBytes = 16 << 20;
  const Buffer first = Allocate(b, b.compute_memory(), kBytes), second = Allocate(b, b.compute_memory(), kBytes);
  const Buffer history = Allocate(b, b.pool_memory(), kBytes * kRounds);
  const Buffer slow_from = Allocate(b, b.host_memory(), kBusyBytes),
               slow_to = Allocate(b, b.compute_memory(), kBusyBytes);
  const std::vector<std::byte> zeros(std::max(kBytes * kRounds, kBusyBytes));
  b.Upload(Queue::kWriteout, zeros.data(), kBytes * kRounds, history.data());
  b.Upload(Queue::kWriteout, zeros.data(), kBusyBytes, slow_from.data());  // pinned from here on
  b.Synchronize(b.Record(Queue::kWriteout));
  const ByteMove busy{slow_from.data(), slow_to.data(), kBusyBytes};
  std::vector<int32_t> numbers(kNumbers);
  for (size_t i = 0; i < kRounds; ++i) {
    if (i % 7 == 0) b.Move(kQueues[i / 7 % 3], {&busy, 1});
    std::fill(numbers.begin(), numbers.end(), static_cast<int32_t>(i) + 1);
    b.Upload(Queue::kFetch, numbers.data(), kBytes, first.data());
    b.Wait(Queue::kCompute, b.Record(Queue::kFetch));
    const ByteMove middle{first.data(), second.data(), kBytes};
    b.Move(Queue::kCompute, {&middle, 1});
    const Ticket read = b.Record(Queue::kCompute);
    b.Wait(Queue::kFetch, read);
    b.Wait(Queue::kWriteout, read);
    const ByteMove last{second.data(), history.data() + i * kBytes, kBytes};
    b.Move(Queue::kWriteout, {&last, 1});
    b.Wait(Queue::kCompute, b.Record(Queue::kWriteout));
  }
  const std::vector<std::byte> got = Fetch(b, Queue::kWriteout, history.data(), kBytes * kRounds);
  for (size_t i = 0; i < kRounds * kNumbers; ++i) {
    int32_t number;
    std::memcpy(&number, got.data() + i * 4, 4);
    ASSERT_EQ(number, static_cast<int32_t>(i / kNumbers) + 1) << "number " << i % kNumbers;
  }
}

// More tickets than the ring holds: an old one is complete, or waits for a later one.
TYPED_TEST(GpuMemoryTest, OldTicketsStayValid) {
  auto& b = this->backend();
  const Buffer buffer = Allocate(b, b.compute_memory(), 1 << 20);
  std::vector<std::byte> host(1 << 20, std::byte{7}), got(host.size());
  b.Upload(Queue::kCompute, host.data(), host.size(), buffer.data());
  const Ticket first = b.Record(Queue::kCompute);
  const Ticket download = b.Download(Queue::kCompute, buffer.data(), got.size(), got.data());
  std::vector<Ticket> tickets;
  for (int i = 0; i < 10000; ++i) tickets.push_back(b.Record(kQueues[static_cast<size_t>(i) % kQueueCount]));
  b.Wait(Queue::kFetch, first);
  b.Wait(Queue::kWriteout, {});
  b.Synchronize({});
  for (size_t i = 0; i < tickets.size(); i += 97) b.Synchronize(tickets[i]);
  b.Synchronize(download);
  EXPECT_EQ(got, host);
  b.Synchronize(first);
}

TYPED_TEST(GpuMemoryTest, WeightsAreLoaded) {
  auto& b = this->backend();
  Random random(83);
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    HostTensor weight = HostTensor::Normal(random, type, 37, 129);
    const Result<WeightView> loaded = b.Load(weight.weight());
    ASSERT_TRUE(loaded.ok());
    EXPECT_EQ(loaded->type, WeightTypeOf(type));
    EXPECT_EQ(loaded->rows, 37);
    EXPECT_EQ(loaded->cols, 129);
    for (int64_t r = 0; r < 37; ++r) {
      const std::vector<std::byte> row = Fetch(b, Queue::kCompute, loaded->row(r), 129 * SizeOf(type));
      ASSERT_TRUE(std::equal(row.begin(), row.end(), weight.view().row(r))) << r;
    }
  }
  std::vector<std::byte> blocks(34 * 4);
  for (std::byte& byte : blocks) byte = static_cast<std::byte>(random.Int(0, 255));
  const Result<WeightView> loaded = b.Load(WeightView(blocks.data(), WeightType::kQ8_0, 2, 64));
  ASSERT_TRUE(loaded.ok());
  EXPECT_EQ(loaded->type, WeightType::kQ8_0);
  EXPECT_EQ(Fetch(b, Queue::kCompute, loaded->data, blocks.size()), blocks);
}

class GpuLimitTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!FindCudaDevice().ok()) GTEST_SKIP() << "no GPU";
  }
};

TEST_F(GpuLimitTest, TheDeviceIsDescribed) {
  const Result<GpuInfo> device = FindCudaDevice();
  ASSERT_TRUE(device.ok());
  EXPECT_FALSE(device->name.empty());
  EXPECT_GT(device->free_bytes, 0u);
  EXPECT_LE(device->free_bytes, device->total_bytes);
}

TEST_F(GpuLimitTest, MoreThanTheLimitIsRefused) {
  constexpr uint64_t kLimit = 512 << 20, kBlock = 64 << 20;
  const std::unique_ptr<CudaBackend> opened =
      CudaBackend::Open({.pool_on_device = true, .memory_limit_bytes = kLimit}).value();
  CudaBackend& b = *opened;
  const uint64_t before = b.used_bytes();
  for (Allocator* memory : {&b.compute_memory(), &b.pool_memory()}) {
    const Result<Buffer> all = Buffer::Make(*memory, kLimit + 1);
    ASSERT_FALSE(all.ok());
    EXPECT_EQ(all.error().kind, ErrorKind::kExhausted);
    EXPECT_FALSE(all.error().message.empty());
    EXPECT_EQ(b.used_bytes(), before) << "refused memory must not be counted";
    std::vector<Buffer> blocks;
    while (true) {
      Result<Buffer> block = Buffer::Make(*memory, kBlock);
      if (!block.ok()) break;
      blocks.push_back(std::move(*block));
      ASSERT_GE(b.used_bytes(), before + blocks.size() * kBlock);
      ASSERT_LE(b.used_bytes(), kLimit);
    }
    EXPECT_GE(b.used_bytes() + kBlock, kLimit) << "the whole limit can be allocated";
    const uint64_t most = b.used_bytes();
    blocks.clear();
    EXPECT_EQ(b.used_bytes(), before);
    EXPECT_GE(b.peak_bytes(), most);
  }
}

// More memory than any device has, whatever the limit.
TEST_F(GpuLimitTest, MoreThanTheDeviceIsRefused) {
  const std::unique_ptr<CudaBackend> opened = CudaBackend::Open({.pool_on_device = false}).value();
  CudaBackend& b = *opened;
  const Result<Buffer> all = Buffer::Make(b.compute_memory(), size_t{1} << 50);
  ASSERT_FALSE(all.ok());
  EXPECT_EQ(all.error().kind, ErrorKind::kExhausted);
  EXPECT_FALSE(all.error().message.empty());
  const Buffer little = Allocate(b, b.compute_memory(), 1 << 20);  // the backend still works
  const std::vector<std::byte> sent(1 << 20, std::byte{3});
  b.Upload(Queue::kCompute, sent.data(), sent.size(), little.data());
  EXPECT_EQ(Fetch(b, Queue::kCompute, little.data(), sent.size()), sent);
}

}  // namespace
}  // namespace infinigen
