#include "kv/pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "sanitized.h"

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

// Counts the bytes that are allocated.
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

TEST(Pool, OnlyAdmissionCanFail) {
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

TEST(Pool, FillingAQuotaAllocatesNothing) {
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

TEST(Pool, ReleasedExtentsAreReused) {
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
  pool.Release(pool.Admit(1024).value());  // leaves a free slab as large as the limit
  const SeqSlot slot = pool.Admit(300).value();
  EXPECT_LE(memory.peak, pool.options().limit_bytes);
  pool.SetRows(slot, 300);
}

// Layers 1 and 2 have a window of 100 rows, in rings of two extents.
PoolOptions WithWindows(uint64_t limit_rows) {
  PoolOptions options = Options(limit_rows);
  options.window = 100;
  options.windowed = {false, true, true};
  options.ring_rows = PoolOptions::RingFor(100, 64);
  return options;
}

TEST(Pool, LayersWithAWindowHaveRings) {
  static_assert(PoolOptions::RingFor(1, 1) == 512 && PoolOptions::RingFor(100, 64) == 512);
  static_assert(PoolOptions::RingFor(257, 1) == 512 && PoolOptions::RingFor(258, 1) == 768);
  CountingAllocator memory;
  Pool pool(WithWindows(2000), memory);
  const uint64_t row_bytes = kRowBytes / kLayers;
  for (int round = 0; round < 3; ++round) {
    const SeqSlot slot = pool.Admit(1300).value();
    EXPECT_EQ(pool.mapped_bytes(), (1300 + 2 * 512) * row_bytes);
    EXPECT_EQ(memory.held, pool.mapped_bytes());
    EXPECT_EQ(pool.quotas(LayerId(0))[slot.index()], 1300);
    EXPECT_EQ(pool.quotas(LayerId(1))[slot.index()], 1536);
    // While rows are appended, the last 512 can be read, in both rings.
    const auto entry = [&](LayerId layer, int64_t head, int64_t row) {
      const LayerEntries entries{kLayout, pool.Table(layer).data(), pool.options().extents_per_slot(),
                                 pool.quotas(layer).data()};
      return reinterpret_cast<int32_t*>(entries.Entry(slot.value(), head, row));
    };
    for (int32_t row = 0; row < 1300; ++row) {
      for (LayerId layer : IdRange<LayerId>(kLayers))
        for (int32_t head = 0; head < 2; ++head) *entry(layer, head, row) = row * 8 + layer.value() * 2 + head;
      for (int32_t seen = std::max(0, row - 511); seen <= row; seen += 73)
        for (LayerId layer : IdRange<LayerId>(kLayers))
          for (int32_t head = 0; head < 2; ++head)
            ASSERT_EQ(*entry(layer, head, seen), seen * 8 + layer.value() * 2 + head) << "after row " << row;
    }
    pool.Release(slot);
    EXPECT_EQ(pool.used_bytes(), 0u);
  }
}

TEST(Pool, RingsGrowUpToTheirLength) {
  CountingAllocator memory;
  Pool pool(WithWindows(2000), memory);
  const uint64_t row_bytes = kRowBytes / kLayers;
  const SeqSlot slot = pool.Admit(256).value();
  EXPECT_EQ(pool.mapped_bytes(), 3 * 256 * row_bytes);
  ASSERT_TRUE(pool.Grow(slot, 512).ok());
  EXPECT_EQ(pool.mapped_bytes(), 3 * 512 * row_bytes);
  ASSERT_TRUE(pool.Grow(slot, 1280).ok());
  EXPECT_EQ(pool.mapped_bytes(), (1280 + 2 * 512) * row_bytes);
  const std::span<std::byte* const> table = pool.Table(LayerId(2));
  EXPECT_EQ(table[2], table[0]);
  EXPECT_EQ(table[3], table[1]);
  EXPECT_EQ(table[4], table[0]);
  EXPECT_NE(table[1], table[0]);
  EXPECT_EQ(table[5], nullptr);
  // A second sequence has its own.
  EXPECT_NE(
      pool.Table(LayerId(2))[static_cast<size_t>(pool.Admit(256).value().value() * pool.options().extents_per_slot())],
      table[0]);
}

// The first layer retains everything, the others 40 rows.
TEST(Pool, EvictingLayersHaveTheirOwnQuota) {
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
    // All entries have distinct addresses.
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

TEST(Pool, TheErrorNamesTheNumberOfSlots) {
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

TEST(Pool, AQuotaGrowsByWholeExtentsAndToTheLastRow) {
  CountingAllocator memory;
  Pool pool(Options(2000), memory);
  const SeqSlot slot = pool.Admit(256).value();
  pool.SetRows(slot, 256);
  const uint64_t version = pool.table_version();
  ASSERT_TRUE(pool.Grow(slot, 768).ok());
  EXPECT_GT(pool.table_version(), version);
  EXPECT_EQ(pool.quota(slot).rows, 768);
  const SeqSlot other = pool.Admit(1024).value();
  const Status refused = pool.Grow(slot, 1024);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kExhausted);
  EXPECT_NE(refused.error().message.find("1024 tokens"), std::string::npos) << refused.error().message;
  EXPECT_EQ(pool.quota(slot).rows, 768) << "all as before";
  pool.SetRows(slot, 768);
  pool.Release(other);
  EXPECT_EQ(pool.free_extents(), 4);
  ASSERT_TRUE(pool.Grow(slot, 2000).ok());
  EXPECT_EQ(pool.free_extents(), 0);
  pool.SetRows(slot, 2000);
  EXPECT_EQ(pool.used_bytes(), 2000 * kRowBytes);
  pool.Release(slot);
  EXPECT_EQ(pool.used_bytes(), 0u);
}

TEST(Pool, ASharedExtentOutlivesItsSequence) {
  CountingAllocator memory;
  PoolOptions options = Options(1024);
  options.index_bytes = 100;
  options.limit_bytes += 2 * options.index_bytes;
  Pool pool(options, memory);
  const auto at = [&](SeqSlot slot, int64_t row) {
    return LayerEntries{kLayout, pool.Table(LayerId(1)).data(), options.extents_per_slot(),
                        pool.quotas(LayerId(1)).data()}
        .Entry(slot.value(), 1, row);
  };
  const SeqSlot a = pool.Admit(512).value();
  pool.SetRows(a, 300);
  *at(a, 255) = std::byte{77};
  const SharedId id = pool.Share(a, 0).value();
  EXPECT_EQ(pool.used_bytes(), 300 * kRowBytes) << "shared, but no more than before";
  EXPECT_EQ(pool.mapped_bytes(), 512 * kRowBytes + 100);
  EXPECT_EQ(memory.held, 512 * kRowBytes) << "the side is for the host, where the pool's memory may not be";
  pool.index(id)[99] = std::byte{1};
  const SeqSlot b = pool.Admit({512, 512}, std::array{id}).value();
  EXPECT_EQ(at(b, 255), at(a, 255)) << "one place for both";
  EXPECT_NE(at(b, 256), at(a, 256));
  pool.SetRows(b, 300);
  EXPECT_EQ(pool.used_bytes(), (300 + 44) * kRowBytes);
  pool.Release(a);
  EXPECT_EQ(*at(b, 255), std::byte{77});
  EXPECT_EQ(pool.used_bytes(), 300 * kRowBytes);
  pool.Release(b);
  EXPECT_EQ(pool.used_bytes(), 256 * kRowBytes) << "no sequence uses it, but it still exists";
  EXPECT_FALSE(pool.Admit(1024).ok());
  pool.Drop(id);
  EXPECT_EQ(pool.used_bytes(), 0u);
  EXPECT_TRUE(pool.Admit(1024).ok());
}

TEST(Pool, TheSameExtentTwiceBecomesOne) {
  CountingAllocator memory;
  Pool pool(Options(1024), memory);
  const SeqSlot a = pool.Admit(256).value(), b = pool.Admit(512).value();
  pool.SetRows(a, 256);
  pool.SetRows(b, 400);
  const SharedId id = pool.Share(a, 0).value();
  const uint64_t version = pool.table_version();
  pool.Adopt(b, 0, id);
  EXPECT_GT(pool.table_version(), version);
  EXPECT_EQ(pool.used_bytes(), 400 * kRowBytes);
  EXPECT_EQ(pool.free_extents(), 2) << "its own is free again";
  EXPECT_EQ(pool.Table(LayerId(2))[b.index() * 8], pool.Table(LayerId(2))[a.index() * 8]);
  pool.Release(a);
  pool.Release(b);
  pool.Drop(id);
  EXPECT_EQ(pool.used_bytes(), 0u);
}

TEST(PoolDeathTest, ASharedExtentInUseIsNotDropped) {
  HostAllocator memory;
  Pool pool(Options(1000), memory);
  const SeqSlot slot = pool.Admit(256).value();
  pool.SetRows(slot, 256);
  const SharedId id = pool.Share(slot, 0).value();
  EXPECT_DEATH(pool.Drop(id), "users");
}

// Random admissions, growth, sharing and releases, compared with a simple model. Every entry of every admitted sequence
// is stamped with its sequence, which detects extents that are too short or handed out twice. Bytes are counted at the
// allocator.
class RandomPool {
 public:
  explicit RandomPool(unsigned seed) : random_(seed), pool_(MakeOptions(), memory_) {}

  void Run(int steps) {
    for (int step = 0; step < steps && !::testing::Test::HasFatalFailure(); ++step) {
      const uint32_t what = random_() % 12;
      if (what < 3)
        Admit();
      else if (what < 6)
        Fill();
      else if (what < 8)
        Grow();
      else if (what < 10)
        Share();
      else if (what < 11)
        Release();
      else
        Drop();
      Check();
    }
    // Release everything.
    while (!model_.empty()) Release();
    while (!shared_.empty()) Drop();
    Check();
    EXPECT_TRUE(pool_.Admit(2000).ok());
  }

 private:
  struct Extent {
    std::byte stamp{};
    std::optional<SharedId> shared;
  };
  struct Model {
    int64_t quota, rows;
    std::vector<Extent> extents;

    int64_t shared() const {
      return std::ranges::count_if(extents, [](const Extent& extent) { return extent.shared.has_value(); });
    }
    int64_t own_rows() const { return std::max<int64_t>(0, rows - 256 * shared()); }
  };
  static PoolOptions MakeOptions() {
    PoolOptions options = Options(kLimit);
    options.index_bytes = 1000;
    return options;
  }

  uint64_t Reserved() const {
    uint64_t bytes = shared_.size() * (256 * kRowBytes + 1000);
    for (const auto& [slot, model] : model_)
      bytes += static_cast<uint64_t>(model.quota - 256 * model.shared()) * kRowBytes;
    return bytes;
  }
  void Admit() {
    // Often whole extents or a single row, which are the edge cases.
    int64_t rows = std::uniform_int_distribution<int64_t>(1, 2000)(random_);
    if (random_() % 4 == 0) rows = (rows + 255) / 256 * 256 - (random_() % 2) * 255;
    rows = std::clamp<int64_t>(rows, 1, 2000);
    std::vector<SharedId> prefix;
    Model model{rows, 0, {}};
    for (const auto& [id, stamp] : shared_) {
      if (random_() % 2 == 0 || std::ssize(prefix) == rows / 256) continue;
      prefix.push_back(id);
      model.extents.push_back({stamp, id});
    }
    const uint64_t more = static_cast<uint64_t>(rows - 256 * std::ssize(prefix)) * kRowBytes;
    const bool over = Reserved() + more > pool_.options().limit_bytes;
    Result<SeqSlot> slot = pool_.Admit({rows, rows}, prefix);
    ASSERT_FALSE(slot.ok() && (model_.size() == kSlots || over));
    // An empty pool admits anything within the limit.
    ASSERT_TRUE(slot.ok() || !model_.empty() || !shared_.empty());
    if (!slot.ok()) return;
    ASSERT_TRUE(model_.emplace(*slot, std::move(model)).second);
    StampNew(*slot);
  }
  void Fill() {
    if (model_.empty()) return;
    auto it = Pick();
    it->second.rows = std::uniform_int_distribution<int64_t>(0, it->second.quota)(random_);
    pool_.SetRows(it->first, it->second.rows);
  }
  void Grow() {
    if (model_.empty()) return;
    auto it = Pick();
    Model& model = it->second;
    if (model.quota % 256 != 0) return;
    const int64_t rows = std::uniform_int_distribution<int64_t>(model.quota, 2000)(random_);
    const uint64_t more = static_cast<uint64_t>(rows - model.quota) * kRowBytes;
    const bool over = Reserved() + more > pool_.options().limit_bytes;
    const bool grown = pool_.Grow(it->first, rows).ok();
    ASSERT_FALSE(grown && over);
    if (!grown) return;
    model.quota = rows;
    StampNew(it->first);
  }
  // Shares a full extent, or replaces it by a shared one with the same content.
  void Share() {
    if (model_.empty()) return;
    auto it = Pick();
    for (int64_t extent = 0; extent < it->second.rows / 256; ++extent) {
      Extent& of = it->second.extents[static_cast<size_t>(extent)];
      if (of.shared || random_() % 2 == 0) continue;
      if (!shared_.empty() && random_() % 3 == 0) {
        pool_.Adopt(it->first, extent, shared_.begin()->first);
        of = {shared_.begin()->second, shared_.begin()->first};
        continue;
      }
      const Result<SharedId> id = pool_.Share(it->first, extent);
      if (!id.ok()) return;
      ASSERT_TRUE(shared_.emplace(*id, of.stamp).second);
      of.shared = *id;
      std::fill_n(pool_.index(*id), 1000, of.stamp);
    }
  }
  void Release() {
    if (model_.empty()) return;
    auto it = Pick();
    pool_.Release(it->first);
    model_.erase(it);
  }
  // Drops shared extents that no sequence uses.
  void Drop() {
    std::erase_if(shared_, [&](const auto& shared) {
      for (const auto& [slot, model] : model_)
        for (const Extent& extent : model.extents)
          if (extent.shared == shared.first) return false;
      pool_.Drop(shared.first);
      return true;
    });
  }
  std::map<SeqSlot, Model>::iterator Pick() {
    return std::next(model_.begin(), static_cast<int64_t>(random_() % model_.size()));
  }

  LayerEntries Entries(LayerId layer) const {
    return {kLayout, pool_.Table(layer).data(), pool_.options().extents_per_slot(), pool_.quotas(layer).data()};
  }
  template <class Visit>
  void ForEveryEntry(SeqSlot slot, int64_t first, Visit visit) const {
    for (LayerId layer : IdRange<LayerId>(kLayers))
      for (int64_t head = 0; head < kLayout.kv_heads; ++head)
        for (int64_t row = first; row < model_.at(slot).quota; ++row)
          visit(Entries(layer).Entry(slot.value(), head, row), model_.at(slot).extents[static_cast<size_t>(row / 256)]);
  }
  void StampNew(SeqSlot slot) {
    Model& model = model_.at(slot);
    const int64_t first = 256 * std::ssize(model.extents);
    while (256 * std::ssize(model.extents) < model.quota)
      model.extents.push_back({.stamp = std::byte(++stamp_ % 251), .shared = {}});
    ForEveryEntry(slot, first, [&](std::byte* entry, const Extent& extent) {
      std::fill_n(entry, kLayout.entry_bytes(), extent.stamp);
    });
  }

  void Check() {
    uint64_t used = 256 * kRowBytes * shared_.size();
    for (const auto& [slot, model] : model_) {
      used += static_cast<uint64_t>(model.own_rows()) * kRowBytes;
      int64_t wrong = 0;
      ForEveryEntry(slot, 0, [&](std::byte* entry, const Extent& extent) {
        wrong += entry[0] != extent.stamp || entry[kLayout.entry_bytes() - 1] != extent.stamp;
      });
      ASSERT_EQ(wrong, 0);
    }
    for (const auto& [id, stamp] : shared_) ASSERT_EQ(pool_.index(id)[999], stamp);
    peak_ = std::max(peak_, used);
    ASSERT_EQ(pool_.used_bytes(), used);
    ASSERT_GE(pool_.peak_bytes(), peak_);
    const uint64_t indexes = shared_.size() * pool_.options().index_bytes;
    ASSERT_EQ(pool_.mapped_bytes(), memory_.held + indexes);
    ASSERT_GE(memory_.held + indexes, Reserved());
    ASSERT_LE(memory_.peak, pool_.options().limit_bytes);
  }

  static constexpr int64_t kLimit = 4000;
  std::mt19937 random_;
  CountingAllocator memory_;
  Pool pool_;
  std::map<SeqSlot, Model> model_;
  std::map<SharedId, std::byte> shared_;
  uint64_t peak_ = 0;
  int stamp_ = 0;
};

// INFINIGEN_KV_STRESS=SECONDS tries further seeds for so long; INFINIGEN_KV_STRESS_SEED is the first.
TEST(Pool, RandomOperationsKeepTheInvariants) {
  using Clock = std::chrono::steady_clock;
  const char *const seconds = std::getenv("INFINIGEN_KV_STRESS"), *const given =
                                                                      std::getenv("INFINIGEN_KV_STRESS_SEED");
  // 6 failed once: an extent was shared of a sequence that had fewer rows by then.
  const unsigned first = given == nullptr ? 6 : static_cast<unsigned>(std::atoi(given));
  const unsigned enough = first + (kSanitized ? 1 : 4);
  const auto end = Clock::now() + std::chrono::duration<double>(seconds == nullptr ? 0 : std::atof(seconds));
  unsigned seed = first;
  for (; seed < enough || Clock::now() < end; ++seed) {
    SCOPED_TRACE(testing::Message() << "INFINIGEN_KV_STRESS_SEED=" << seed);
    RandomPool(seed).Run(250);
    ASSERT_FALSE(HasFailure());
  }
  if (seconds != nullptr) std::printf("seeds %u to %u, 250 operations each\n", first, seed - 1);
}

}  // namespace
}  // namespace infinigen
