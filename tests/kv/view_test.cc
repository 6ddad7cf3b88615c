#include "kv/view.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace infinigen {
namespace {

TEST(LayerEntries, EveryEntryHasItsOwnPlaceAndRowsAscend) {
  const EntryLayout layout{.type = StoreType::kBF16, .kv_heads = 3, .head_dim = 8};
  EXPECT_EQ(layout.entry_bytes(), 32u);
  EXPECT_EQ(layout.row_bytes(), 96u);
  EXPECT_EQ(layout.extent_bytes(), 256u * 96u);

  std::vector<std::byte> memory(4 * layout.extent_bytes());
  // Two sequences, deliberately not in order; the second one's quota ends inside its second extent.
  const std::vector<std::byte*> table = {&memory[2 * layout.extent_bytes()], &memory[0],
                                         &memory[3 * layout.extent_bytes()], &memory[layout.extent_bytes()]};
  const std::vector<int32_t> quotas = {512, 300};
  const LayerEntries entries{.layout = layout, .extents = table.data(), .extents_per_slot = 2, .quotas = quotas.data()};

  std::set<std::byte*> seen;
  for (int64_t slot = 0; slot < 2; ++slot) {
    for (int64_t head = 0; head < 3; ++head) {
      for (int64_t row = 0; row < quotas[static_cast<size_t>(slot)]; ++row) {
        std::byte* entry = entries.Entry(slot, head, row);
        EXPECT_TRUE(seen.insert(entry).second);
        ASSERT_GE(entry, memory.data());
        ASSERT_LE(entry + layout.entry_bytes(), memory.data() + memory.size());
        if (row % kExtentTokens != 0) {
          EXPECT_EQ(entry, entries.Entry(slot, head, row - 1) + layout.entry_bytes());
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), 3u * (512u + 300u));
  // The short extent is dense: its 44 rows of three heads and nothing else.
  EXPECT_EQ(entries.Entry(1, 2, 299) + layout.entry_bytes(), table[3] + 44 * layout.row_bytes());
}

}  // namespace
}  // namespace infinigen
