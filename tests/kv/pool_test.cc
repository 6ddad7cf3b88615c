#include "kv/pool.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace infinigen {
namespace {

constexpr EntryLayout kLayout{.type = DType::kF32, .kv_heads = 2, .head_dim = 4};

PoolOptions Options(uint64_t limit_extents) {
  return {.layout = kLayout,
          .layers = 3,
          .max_sequences = 4,
          .max_tokens = 2000,
          .limit_bytes = limit_extents * kLayout.extent_bytes()};
}

TEST(Pool, AdmissionIsTheOnlyPlaceThatRefuses) {
  HostAllocator memory;
  Pool pool(Options(3 * 3), memory);  // three extents in each of three layers
  const SeqSlot a = pool.Admit(512).value();
  const Result<SeqSlot> refused = pool.Admit(257);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kExhausted);
  EXPECT_NE(refused.error().message.find("257 tokens"), std::string::npos) << refused.error().message;
  const SeqSlot b = pool.Admit(256).value();
  EXPECT_TRUE(pool.Grow(a, 512).ok());
  EXPECT_TRUE(pool.Grow(b, 256).ok());
  EXPECT_EQ(pool.allocated_bytes(), pool.options().limit_bytes);
  pool.Release(a);
  EXPECT_TRUE(pool.Admit(300).ok());
}

class CountingAllocator final : public Allocator {
 public:
  Result<std::byte*> Allocate(size_t bytes) override {
    taken += bytes;
    return inner_.Allocate(bytes);
  }
  void Free(std::byte* data, size_t bytes) override { inner_.Free(data, bytes); }
  size_t taken = 0;

 private:
  HostAllocator inner_;
};

TEST(Pool, NeverMapsMoreThanTheLimit) {
  CountingAllocator memory;
  Pool pool(Options(3 * 5), memory);  // 15 extents of 16 KiB: far below a slab
  const SeqSlot a = pool.Admit(3 * 256).value();
  const SeqSlot b = pool.Admit(2 * 256).value();
  ASSERT_TRUE(pool.Grow(a, 3 * 256).ok());
  ASSERT_TRUE(pool.Grow(b, 2 * 256).ok());
  EXPECT_EQ(memory.taken, pool.options().limit_bytes);
}

TEST(Pool, SlotsRunOutByName) {
  HostAllocator memory;
  Pool pool(Options(1000), memory);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(pool.Admit(1).ok());
  EXPECT_NE(pool.Admit(1).error().message.find("4 sequence slots"), std::string::npos);
}

TEST(PoolDeathTest, GrowingBeyondTheQuotaIsABug) {
  HostAllocator memory;
  Pool pool(Options(1000), memory);
  const SeqSlot slot = pool.Admit(256).value();
  EXPECT_DEATH({ [[maybe_unused]] bool ok = pool.Grow(slot, 257).ok(); }, "quota");
}

// Random admissions, growth and releases against a plain model: extents are never shared, tables list exactly what a
// sequence holds, the byte counts are right and never above the limit.
TEST(Pool, RandomOperationsKeepTheInvariants) {
  std::mt19937 random(7);
  HostAllocator memory;
  Pool pool(Options(3 * 12), memory);
  struct Model {
    int64_t quota, rows;
  };
  std::map<SeqSlot, Model> model;
  uint64_t peak = 0;
  for (int step = 0; step < 4000; ++step) {
    const int64_t number = std::uniform_int_distribution<int64_t>(1, 2000)(random);
    if (random() % 3 == 0) {
      int64_t reserved = 0;
      for (const auto& [slot, sequence] : model) reserved += (sequence.quota + 255) / 256;
      const bool fits = model.size() < 4 && reserved + (number + 255) / 256 <= 12;
      Result<SeqSlot> slot = pool.Admit(number);
      ASSERT_EQ(slot.ok(), fits);
      if (fits) {
        ASSERT_TRUE(model.emplace(*slot, Model{number, 0}).second);
      }
    } else if (!model.empty()) {
      auto it = std::next(model.begin(), static_cast<int64_t>(random() % model.size()));
      if (random() % 4 == 0) {
        pool.Release(it->first);
        model.erase(it);
      } else {
        it->second.rows = std::max(it->second.rows, number % (it->second.quota + 1));
        ASSERT_TRUE(pool.Grow(it->first, it->second.rows).ok());
      }
    }

    std::set<std::byte*> extents;
    uint64_t expected = 0;
    for (LayerId layer : IdRange<LayerId>(3)) {
      for (int64_t slot = 0; slot < 4; ++slot) {
        const auto found = model.find(SeqSlot(slot));
        const int64_t held = found == model.end() ? 0 : (found->second.rows + 255) / 256;
        for (int64_t e = 0; e < pool.extents_per_slot(); ++e) {
          std::byte* extent = pool.Table(layer)[static_cast<size_t>(slot * pool.extents_per_slot() + e)];
          ASSERT_EQ(extent != nullptr, e < held);
          if (extent != nullptr) {
            ASSERT_TRUE(extents.insert(extent).second);
            *extent = std::byte{1};  // under ASan: it is ours to write
            ++expected;
          }
        }
      }
    }
    ASSERT_EQ(pool.allocated_bytes(), expected * kLayout.extent_bytes());
    ASSERT_LE(pool.allocated_bytes(), pool.options().limit_bytes);
    peak = std::max(peak, pool.allocated_bytes());
    ASSERT_EQ(pool.peak_bytes(), peak);
  }
}

}  // namespace
}  // namespace infinigen
