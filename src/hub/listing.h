// What a server says that a repository holds, and the shards that a model's index names. Both come from strangers:
// names are checked (hub/name.h), counts are limited, and memory grows with the bytes that arrived. Pure functions, any
// thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace infinigen {

struct HubFile {
  std::string path;  // relative to the repository; IsSafePath
  uint64_t bytes = 0;
  // 64 digits: SHA-256 of the content (large files). 40 digits: SHA-1 of the git blob. Also the name of its blob in a
  // cache.
  std::string hash;

  bool is_sha256() const { return hash.size() == 64; }
};

struct HubListing {
  std::string commit;          // 40 digits
  std::vector<HubFile> files;  // ascending by path, each once

  const HubFile* Find(std::string_view path) const;
};

// Bytes of a reply that are read at most. A listing of 10,000 files has about 3 MB.
inline constexpr size_t kMaxListingBytes = size_t{32} << 20;
inline constexpr size_t kMaxListedFiles = 100'000;
// As loader/checkpoint.cc.
inline constexpr size_t kMaxIndexBytes = size_t{16} << 20;

// Parses the reply to /api/models/ORG/NAME/revision/REV?blobs=true. `where` begins the messages.
Result<HubListing> ParseListing(std::string_view text, const std::string& where);

// The files that model.safetensors.index.json names, ascending, each once. All are plain names in its directory.
Result<std::vector<std::string>> ParseShardNames(std::string_view text, const std::string& where);

}  // namespace infinigen
