#include "kv/pool.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace infinigen {
namespace {

constexpr EntryLayout kLayout{.type = StoreType::kF32, .kv_heads = 2, .head_dim = 4};
constexpr int64_t kLayers = 3;
constexpr int64_t kSlots = 4;
constexpr uint64_t kRowBytes = 2 * 2 * 4 * 4 * kLayers;  // one token in every layer

PoolOptions Options(uint64_t limit_rows) {
  return {.layout = kLayout,
          .layers = kLayers,
          .max_sequences = kSlots,
          .max_tokens = 2000,
          .limit_bytes = limit_rows * kRowBytes};
}

// Knows at every moment how much is taken.
class CountingAllocator final : public Allocator {
 public:
  Result<std::byte*> Allocate(size_t bytes) override {
    held += bytes;
    peak = std::max(peak, held);
    ++calls;
    return inner_.Allocate(bytes);
  }
  void Free(std::byte* data, size_t bytes) override {
    held -= bytes;
    inner_.Free(data, bytes);
  }
  size_t held = 0, peak = 0, calls = 0;

 private:
  HostAllocator inner_;
};

TEST(Pool, AdmissionIsTheOnlyPlaceThatRefuses) {
  HostAllocator memory;
  Pool pool(Options(700), memory);
  const SeqSlot a = pool.Admit(512).value();
  const Result<SeqSlot> refused = pool.Admit(189);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kExhausted);
  EXPECT_NE(refused.error().message.find("189 tokens"), std::string::npos) << refused.error().message;
  const SeqSlot b = pool.Admit(188).value();
  pool.SetRows(a, 512);
  pool.SetRows(b, 188);
  EXPECT_EQ(pool.used_bytes(), pool.options().limit_bytes);
  pool.Release(a);
  EXPECT_TRUE(pool.Admit(300).ok());
}

TEST(Pool, QuotasAreExactToTheRow) {
  CountingAllocator memory;
  Pool pool(Options(1), memory);
  EXPECT_FALSE(pool.Admit(2).ok());
  ASSERT_TRUE(pool.Admit(1).ok());
  EXPECT_EQ(memory.held, kRowBytes);
  EXPECT_FALSE(pool.Admit(1).ok());
}

TEST(Pool, ASequenceThatGrowsTakesNothing) {
  CountingAllocator memory;
  Pool pool(Options(5000), memory);
  const SeqSlot slot = pool.Admit(2000).value();
  const size_t calls = memory.calls;
  const uint64_t version = pool.table_version();
  for (int64_t rows = 1; rows <= 2000; ++rows) pool.SetRows(slot, rows);
  EXPECT_EQ(memory.calls, calls);
  EXPECT_EQ(pool.table_version(), version);
  EXPECT_EQ(pool.used_bytes(), 2000 * kRowBytes);
}

TEST(Pool, WhatIsReleasedIsUsedAgain) {
  CountingAllocator memory;
  Pool pool(Options(4096), memory);
  pool.Release(pool.Admit(1024).value());
  const size_t calls = memory.calls;
  for (int i = 0; i < 100; ++i) pool.Release(pool.Admit(1024).value());
  EXPECT_EQ(memory.calls, calls);
}

TEST(Pool, FreeSlabsMakeRoomForLastExtents) {
  CountingAllocator memory;
  Pool pool(Options(1024), memory);
  pool.Release(pool.Admit(1024).value());  // leaves a slab that fills the limit
  const SeqSlot slot = pool.Admit(300).value();
  EXPECT_LE(memory.peak, pool.options().limit_bytes);
  pool.SetRows(slot, 300);
}

// The first layer keeps all, the others 40 rows.
TEST(Pool, LayersThatEvictHaveAQuotaOfTheirOwn) {
  CountingAllocator memory;
  PoolOptions options = Options(1000);
  options.evicting_from = 1;
  Pool pool(options, memory);
  const uint64_t row_bytes = kRowBytes / kLayers;
  for (int round = 0; round < 3; ++round) {
    const SeqSlot slot = pool.Admit({700, 40}).value();
    EXPECT_EQ(pool.mapped_bytes(), (700 + 2 * 40) * row_bytes);
    EXPECT_EQ(memory.held, pool.mapped_bytes());
    EXPECT_EQ(pool.quotas(LayerId(0))[slot.index()], 700);
    EXPECT_EQ(pool.quotas(LayerId(1))[slot.index()], 40);
    pool.SetRows(slot, 30);
    EXPECT_EQ(pool.used_bytes(), 3 * 30 * row_bytes);
    pool.SetRows(slot, 700);
    EXPECT_EQ(pool.used_bytes(), (700 + 2 * 40) * row_bytes);
    // Every row of every layer is a place of its own.
    for (LayerId layer : IdRange<LayerId>(kLayers)) {
      const LayerEntries entries{kLayout, pool.Table(layer).data(), options.extents_per_slot(),
                                 pool.quotas(layer).data()};
      for (int64_t row = 0; row < pool.quotas(layer)[slot.index()]; ++row)
        for (int64_t head = 0; head < 2; ++head)
          std::fill_n(entries.Entry(slot.value(), head, row), kLayout.entry_bytes(),
                      static_cast<std::byte>(layer.value() * 64 + row % 32 * 2 + head));
    }
    for (LayerId layer : IdRange<LayerId>(kLayers)) {
      const LayerEntries entries{kLayout, pool.Table(layer).data(), options.extents_per_slot(),
                                 pool.quotas(layer).data()};
      for (int64_t row = 0; row < pool.quotas(layer)[slot.index()]; ++row)
        for (int64_t head = 0; head < 2; ++head)
          ASSERT_EQ(entries.Entry(slot.value(), head, row)[kLayout.entry_bytes() - 1],
                    static_cast<std::byte>(layer.value() * 64 + row % 32 * 2 + head));
    }
    pool.Release(slot);
    EXPECT_EQ(pool.used_bytes(), 0u);
  }
  EXPECT_EQ(pool.peak_bytes(), (700 + 2 * 40) * row_bytes);
}

TEST(Pool, SlotsRunOutByName) {
  HostAllocator memory;
  Pool pool(Options(1000), memory);
  for (int i = 0; i < kSlots; ++i) ASSERT_TRUE(pool.Admit(1).ok());
  EXPECT_NE(pool.Admit(1).error().message.find("4 sequence slots"), std::string::npos);
}

TEST(PoolDeathTest, GrowingBeyondTheQuotaIsABug) {
  HostAllocator memory;
  Pool pool(Options(1000), memory);
  const SeqSlot slot = pool.Admit(256).value();
  EXPECT_DEATH(pool.SetRows(slot, 257), "quotas");
}

// Random admissions, growth and releases against a plain model. Every entry of every admitted sequence is stamped with
// its sequence, so an extent that is shared, too short or handed out twice shows; bytes are counted at the allocator.
class RandomPool {
 public:
  explicit RandomPool(unsigned seed) : random_(seed), pool_(Options(kLimit), memory_) {}

  void Run(int steps) {
    for (int step = 0; step < steps && !::testing::Test::HasFatalFailure(); ++step) {
      const uint32_t what = random_() % 8;
      if (what < 3)
        Admit();
      else if (what < 6)
        Grow();
      else
        Release();
      Check();
    }
  }

 private:
  struct Model {
    int64_t quota, rows;
    std::byte stamp;
  };

  void Admit() {
    // Often whole extents, often a single row: the ends of the arithmetic.
    int64_t rows = std::uniform_int_distribution<int64_t>(1, 2000)(random_);
    if (random_() % 4 == 0) rows = (rows + 255) / 256 * 256 - (random_() % 2) * 255;
    rows = std::clamp<int64_t>(rows, 1, 2000);
    int64_t reserved = 0;
    for (const auto& [slot, sequence] : model_) reserved += sequence.quota;
    Result<SeqSlot> slot = pool_.Admit(rows);
    ASSERT_FALSE(slot.ok() && (model_.size() == kSlots || reserved + rows > kLimit));
    ASSERT_TRUE(slot.ok() || !model_.empty());  // an empty pool admits whatever the limit holds
    if (!slot.ok()) return;
    ASSERT_TRUE(model_.emplace(*slot, Model{rows, 0, std::byte(++stamp_ % 251)}).second);
    Stamp(*slot, model_.at(*slot));
  }
  void Grow() {
    if (model_.empty()) return;
    auto it = Pick();
    it->second.rows = std::uniform_int_distribution<int64_t>(0, it->second.quota)(random_);
    pool_.SetRows(it->first, it->second.rows);
  }
  void Release() {
    if (model_.empty()) return;
    auto it = Pick();
    pool_.Release(it->first);
    model_.erase(it);
  }
  std::map<SeqSlot, Model>::iterator Pick() {
    return std::next(model_.begin(), static_cast<int64_t>(random_() % model_.size()));
  }

  LayerEntries Entries(LayerId layer) const {
    return {kLayout, pool_.Table(layer).data(), pool_.options().extents_per_slot(), pool_.quotas(layer).data()};
  }
  template <class Visit>
  void ForEveryEntry(SeqSlot slot, const Model& model, Visit visit) const {
    for (LayerId layer : IdRange<LayerId>(kLayers))
      for (int64_t head = 0; head < kLayout.kv_heads; ++head)
        for (int64_t row = 0; row < model.quota; ++row) visit(Entries(layer).Entry(slot.value(), head, row));
  }
  void Stamp(SeqSlot slot, const Model& model) {
    ForEveryEntry(slot, model, [&](std::byte* entry) { std::fill_n(entry, kLayout.entry_bytes(), model.stamp); });
  }

  void Check() {
    uint64_t used = 0, reserved = 0;
    for (const auto& [slot, model] : model_) {
      used += static_cast<uint64_t>(model.rows) * kRowBytes;
      reserved += static_cast<uint64_t>(model.quota) * kRowBytes;
      int64_t wrong = 0;
      ForEveryEntry(slot, model, [&, stamp = model.stamp](std::byte* entry) {
        wrong += entry[0] != stamp || entry[kLayout.entry_bytes() - 1] != stamp;
      });
      ASSERT_EQ(wrong, 0);
    }
    peak_ = std::max(peak_, used);
    ASSERT_EQ(pool_.used_bytes(), used);
    ASSERT_EQ(pool_.peak_bytes(), peak_);
    ASSERT_EQ(pool_.mapped_bytes(), memory_.held);
    ASSERT_GE(memory_.held, reserved);
    ASSERT_LE(memory_.peak, pool_.options().limit_bytes);
  }

  static constexpr int64_t kLimit = 4000;
  std::mt19937 random_;
  CountingAllocator memory_;
  Pool pool_;
  std::map<SeqSlot, Model> model_;
  uint64_t peak_ = 0;
  int stamp_ = 0;
};

TEST(Pool, RandomOperationsKeepTheInvariants) {
  for (unsigned seed = 1; seed <= 4; ++seed) RandomPool(seed).Run(250);
}

}  // namespace
}  // namespace infinigen
