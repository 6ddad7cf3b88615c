// Parses the input as a hub's listing and as a shard index, and chooses files from it. No accepted name leads out of
// its directory.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "hub/choice.h"
#include "hub/listing.h"
#include "hub/name.h"

namespace infinigen {
namespace {

template <class R>
bool Accepted(const R& result) {
  if (!result.ok()) CHECK(result.error().message.find('\n') == std::string::npos);
  return result.ok();
}

void Choose(const HubListing& listing) {
  std::vector<std::string> paths;
  for (const HubFile& file : listing.files) {
    CHECK(IsSafePath(file.path));
    CHECK(IsHex(file.hash, file.is_sha256() ? 64 : 40));
    CHECK(listing.Find(file.path) == &file);
    paths.push_back(file.path);
  }
  for (const char* wanted : {"", "Q8_0", "m.gguf"}) {
    const Result<HubChoice> choice = ChooseFiles(paths, wanted, "f");
    if (!Accepted(choice)) continue;
    CHECK(!choice->files.empty());
    for (const std::string& path : choice->files) CHECK(listing.Find(path) != nullptr);
  }
}

}  // namespace
}  // namespace infinigen

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace infinigen;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Result<HubListing> listing = ParseListing(text, "f");
  if (Accepted(listing)) Choose(*listing);
  const Result<std::vector<std::string>> shards = ParseShardNames(text, "f");
  if (Accepted(shards))
    for (const std::string& shard : *shards) CHECK(IsSafePath(shard) && shard.find('/') == shard.npos);
  return 0;
}
