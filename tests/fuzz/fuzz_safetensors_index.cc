// Parses the input as a shard index. No accepted shard name leads out of the directory.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "loader/checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace infinigen;
  const Result<ShardIndex> index =
      ParseShardIndex(std::string_view(reinterpret_cast<const char*>(data), size), "f.json");
  if (!index.ok()) {
    CHECK(index.error().message.find('\n') == std::string::npos);
    return 0;
  }
  for (const std::string& shard : index->shards) CHECK(!shard.empty() && shard.find('/') == std::string::npos);
  for (const ShardIndex::Entry& entry : index->entries) CHECK(entry.shard < index->shards.size());
  return 0;
}
