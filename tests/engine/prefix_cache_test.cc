// PrefixCache over a real pool with synthetic entries.
#include "engine/prefix_cache.h"

#include <gtest/gtest.h>

#include <array>
#include <unordered_map>

#include "model/random_model.h"

namespace infinigen {
namespace {

using Kind = PrefixCache::Kind;

class PrefixCacheTest : public testing::Test {
 protected:
  static constexpr PrefixCache::Setting kSetting{.selects = true, .alpha = 4, .cap = 0.1};
  static constexpr PrefixCache::Setting kOther{.selects = true, .alpha = 4, .cap = 0.2};

  // A sequence of 768 rows in its own slot.
  SeqSlot Sequence(std::span<const SharedId> prefix = {}) {
    const SeqSlot slot = executor->sharing()->AdmitGrowing(768, prefix).value();
    if (prefix.empty()) executor->instruments().FillSynthetic(slot, 768, 1);
    return slot;
  }
  static std::vector<int32_t> Stretch(int32_t token) { return std::vector<int32_t>(kExtentTokens, token); }
  static std::vector<int32_t> Text(std::initializer_list<int32_t> stretches) {
    std::vector<int32_t> tokens;
    for (const int32_t token : stretches) tokens.insert(tokens.end(), kExtentTokens, token);
    return tokens;
  }
  // Caches a text with the given kinds of nodes; unpinned afterwards.
  void Add(std::initializer_list<std::pair<int32_t, Kind>> stretches) {
    const SeqSlot slot = Sequence();
    PrefixCache::Path path;
    for (const auto& [token, kind] : stretches) ASSERT_TRUE(cache.Extend(path, slot, Stretch(token), kind));
    executor->Release(slot);
    cache.Release(path);
  }
  size_t Found(std::span<const int32_t> tokens, const PrefixCache::Setting& setting = {}) {
    PrefixCache::Path path = cache.Find(tokens, setting);
    const size_t found = path.size();
    cache.Release(path);
    return found;
  }

  const RandomModelWithBases model{Llama(), 8, 11};
  const std::unique_ptr<Executor> executor = model.Make(Sparse(GuessSource::kPrevMid), Device::kCpu, 1, 3);
  PrefixCache cache{*executor->sharing()};
};

TEST_F(PrefixCacheTest, TextsWithDifferentSaltsShareNothing) {
  const SeqSlot slot = Sequence();
  PrefixCache::Path path;
  for (const int32_t token : {1, 2}) ASSERT_TRUE(cache.Extend(path, slot, Stretch(token), {}, "one"));
  const auto found = [&](std::string_view salt) {
    PrefixCache::Path other = cache.Find(Text({1, 2}), {}, salt);
    const size_t count = other.size();
    cache.Release(other);
    return count;
  };
  EXPECT_EQ(found("one"), 2u);
  EXPECT_EQ(found("two"), 0u);
  EXPECT_EQ(found(""), 0u);
  const std::vector<Kind> kinds = PrefixCache::Kinds(path);
  PrefixCache::Path again = cache.FindAgain(Text({1, 2}), kinds, "two");
  EXPECT_TRUE(again.empty());
  again = cache.FindAgain(Text({1, 2}), kinds, "one");
  EXPECT_EQ(again.size(), 2u);
  cache.Release(again);
  executor->Release(slot);
  cache.Release(path);
}

TEST_F(PrefixCacheTest, APathIsATextFromTheStart) {
  Add({{1, {}}, {2, {}}, {3, {}}});
  Add({{1, {}}, {4, {}}});
  EXPECT_EQ(cache.nodes(), 4) << "the beginning is there once";
  EXPECT_EQ(Found(Text({1, 2, 3})), 3u);
  EXPECT_EQ(Found(Text({1, 2, 4})), 2u);
  EXPECT_EQ(Found(Text({1, 4})), 2u);
  EXPECT_EQ(Found(Text({2, 3})), 0u) << "the middle of a text is not a beginning";
  EXPECT_EQ(Found(Stretch(1)), 1u);
  EXPECT_EQ(Found(std::vector<int32_t>(255, 1)), 0u);
}

TEST_F(PrefixCacheTest, EntriesOfStepsAreFoundByTheirOwnSettingOnly) {
  Add({{1, {}}, {2, {kSetting, 100}}, {3, {kSetting, 0}}});
  EXPECT_EQ(Found(Text({1, 2, 3})), 1u);
  EXPECT_EQ(Found(Text({1, 2, 3}), kSetting), 3u);
  PrefixCache::Setting late = kSetting;
  late.late = 16;
  EXPECT_EQ(Found(Text({1, 2, 3}), late), 1u);
  EXPECT_EQ(Found(Text({1, 2, 3}), kOther), 1u);
  const auto again = [&](std::vector<Kind> kinds) {
    PrefixCache::Path path = cache.FindAgain(Text({1, 2, 3}), kinds);
    const size_t found = path.size();
    cache.Release(path);
    return found;
  };
  EXPECT_EQ(again({{}, {kSetting, 100}, {kSetting, 0}}), 3u);
  EXPECT_EQ(again({{}, {kSetting, 100}}), 2u);
  EXPECT_EQ(again({{}, {kSetting, 101}, {kSetting, 0}}), 1u);
  EXPECT_EQ(again({{}, {}, {}}), 1u);
  // Entries of another kind are another node.
  Add({{1, {}}, {2, {kSetting, 101}}});
  EXPECT_EQ(cache.nodes(), 4);
}

TEST_F(PrefixCacheTest, NodesAfterASettingCarryIt) {
  PrefixCache::Path none;
  EXPECT_EQ(PrefixCache::NextKind(none, kSetting, 300), Kind{});
  EXPECT_EQ(PrefixCache::NextKind(none, kSetting, 256), Kind{});
  EXPECT_EQ(PrefixCache::NextKind(none, kSetting, 255), (Kind{kSetting, 255}));
  EXPECT_EQ(PrefixCache::NextKind(none, {}, 0), Kind{});
  Add({{1, {kSetting, 10}}});
  PrefixCache::Path path = cache.Find(Stretch(1), kSetting);
  EXPECT_EQ(PrefixCache::NextKind(path, kSetting, 300), (Kind{kSetting, 256})) << "prefilled, but behind such entries";
  EXPECT_EQ(PrefixCache::NextKind(path, kSetting, -20), (Kind{kSetting, 0}));
  cache.Release(path);
}

TEST_F(PrefixCacheTest, DropsLeavesFirstAndNeverPinnedNodes) {
  Add({{1, {}}, {2, {}}});
  Add({{1, {}}, {3, {}}});
  PrefixCache::Path path = cache.Find(Text({1, 3}), {});
  EXPECT_EQ(cache.unpinned(), 1);
  EXPECT_TRUE(cache.DropOldest());
  EXPECT_FALSE(cache.DropOldest());
  EXPECT_EQ(Found(Text({1, 2})), 1u);
  cache.Release(path);
  EXPECT_TRUE(cache.DropOldest());
  EXPECT_EQ(Found(Text({1, 3})), 1u) << "the child went before its parent, though both were used together";
  EXPECT_TRUE(cache.DropOldest());
  EXPECT_FALSE(cache.DropOldest());
  EXPECT_EQ(executor->instruments().pool_bytes(), 0u);
}

TEST_F(PrefixCacheTest, KeepsAtMostTheLimitAndDropsTheLeastRecentlyUsed) {
  PrefixCache small(*executor->sharing(), 3);
  const auto add = [&](std::initializer_list<int32_t> stretches) {
    const SeqSlot slot = Sequence();
    PrefixCache::Path path;
    for (const int32_t token : stretches) ASSERT_TRUE(small.Extend(path, slot, Stretch(token), {}));
    executor->Release(slot);
    small.Release(path);
  };
  const auto found = [&](const std::vector<int32_t>& tokens) {
    PrefixCache::Path path = small.Find(tokens, {});
    const size_t count = path.size();
    small.Release(path);
    return count;
  };
  add({1, 2});
  add({3});
  EXPECT_EQ(small.nodes(), 3);
  EXPECT_EQ(found(Text({1, 2})), 2u);  // used again: now 3 is the oldest
  add({4});
  EXPECT_EQ(small.nodes(), 3);
  EXPECT_EQ(found(Stretch(3)), 0u);
  EXPECT_EQ(found(Text({1, 2})), 2u);
  // Pinned nodes do not count as unpinned.
  PrefixCache::Path path = small.Find(Text({1, 2}), {});
  add({5, 6});
  EXPECT_EQ(small.nodes(), 5);
  EXPECT_EQ(small.unpinned(), 3);
  small.Release(path);
  EXPECT_EQ(small.nodes(), 3);
  EXPECT_EQ(executor->instruments().pool_bytes(), 3 * executor->sharing()->shared_extent_bytes());
}

// Constructs two texts with the same hash: first tokens whose hashes agree in the high half after the second token, and
// a third token that cancels the difference in the low half.
TEST_F(PrefixCacheTest, AnEqualHashIsNotAnEqualText) {
  std::unordered_map<uint64_t, int32_t> seen;
  std::vector<int32_t> a = Stretch(7), b = a;
  for (int32_t token = 0; a[0] == b[0]; ++token) {
    ASSERT_LT(token, 1 << 22);
    const uint64_t hash = PrefixCache::HashOf(0, {}, std::array{token, 7});
    const auto [place, fresh] = seen.emplace(hash >> 32, token);
    if (fresh) continue;
    a[0] = place->second, b[0] = token;
    const uint64_t other = PrefixCache::HashOf(0, {}, std::array{a[0], 7});
    b[2] = static_cast<int32_t>(static_cast<uint32_t>(a[2]) ^ static_cast<uint32_t>(hash ^ other));
  }
  ASSERT_NE(a, b);
  ASSERT_EQ(PrefixCache::HashOf(0, {}, a), PrefixCache::HashOf(0, {}, b));
  const SeqSlot slot = Sequence();
  PrefixCache::Path path;
  ASSERT_TRUE(cache.Extend(path, slot, a, {}));
  EXPECT_EQ(Found(b), 0u);
  executor->Release(slot);
  cache.Release(path);
  EXPECT_EQ(Found(a), 1u);
  EXPECT_EQ(Found(b), 0u);
}

}  // namespace
}  // namespace infinigen
