// Caches of downloaded models: the hub's own, which other programs fill and which is only read, and ours. Both have one
// layout:
//
//   ROOT/models--ORG--NAME/refs/REVISION             the commit of a branch or tag
//                          blobs/HASH                a file's content
//                          blobs/HASH.incomplete     its beginning, while it is downloaded
//                          snapshots/COMMIT/FILE     a link to its blob; it dangles until the blob is complete
//
// A cache may be read while other processes write to it: files appear complete, by rename. Any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "hub/choice.h"
#include "hub/name.h"

namespace infinigen {

// Value of an environment variable; empty if it is not set.
using ReadVariable = std::function<std::string(const char* name)>;
std::string VariableOfProcess(const char* name);

// $INFINIGEN_CACHE, or `infinigen` in $XDG_CACHE_HOME or ~/.cache: the directory of everything that this program keeps.
// Empty if none of them and no HOME is set.
std::string OwnCacheDirectory(const ReadVariable& variable = VariableOfProcess);
// The `hub` directory that other programs use; empty as above.
std::string ForeignCacheDirectory(const ReadVariable& variable = VariableOfProcess);

class HubCache {
 public:
  explicit HubCache(std::string root) : root_(std::move(root)) {}

  const std::string& root() const { return root_; }  // empty: a cache without content
  std::string Repository(const HubName& name) const { return root_ + "/" + name.directory(); }
  std::string Blob(const HubName& name, const std::string& hash) const { return Repository(name) + "/blobs/" + hash; }
  std::string Snapshot(const HubName& name, const std::string& commit) const {
    return Repository(name) + "/snapshots/" + commit;
  }
  // The commit that the cache has for the name's revision; empty if none.
  std::string Commit(const HubName& name) const;

  // A model that is complete in this cache: the path to open. The error says what is missing, and where. If nothing is
  // wanted by name, GGUF files count only with `accept_guess`: the server may have a file that would be preferred.
  // `needs_tokenizer`: a directory without one counts as incomplete.
  Result<std::string> Find(const HubName& name, bool accept_guess, bool needs_tokenizer) const;

  // ---- writing ----

  // Makes snapshots/COMMIT/PATH lead to `blob`, an absolute path or one in this repository's blobs.
  Status Link(const HubName& name, const std::string& commit, const std::string& path, const std::string& blob) const;
  Status SetCommit(const HubName& name, const std::string& commit) const;

 private:
  std::string root_;
};

// ---- what is there ----

struct CachedModel {
  std::string name;  // to pass to -m
  std::string form;  // "safetensors", "GGUF Q4_K_M", "GGUF"; empty for a partial download
  uint64_t bytes = 0;
  std::string path;
  bool complete = true;
};
// Ascending by name. Repositories without a model (tokenizers, images, data) are left out.
std::vector<CachedModel> ListModels(const HubCache& cache);
// GGUF files directly in `directory` (scripts/get_model.sh puts them into OwnCacheDirectory()/models).
std::vector<CachedModel> ListGgufFiles(const std::string& directory);

// "NAME" for a path …/models--ORG--NAME/snapshots/COMMIT; empty for any other path.
std::string NameOfSnapshot(const std::string& path);
// Whether the path is a snapshot or a file in one.
bool IsInSnapshot(const std::string& path);

}  // namespace infinigen
