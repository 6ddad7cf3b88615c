#include "hub/cache.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <utility>

#include "base/gguf_name.h"
#include "base/new_file.h"
#include "base/utf8.h"
#include "hub/listing.h"

namespace infinigen {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPartialSuffix = ".incomplete";
constexpr size_t kCommitDigits = 40;
// Real repositories nest two or three directories deep.
constexpr int kMaxDepth = 8;
constexpr size_t kMaxFiles = 100'000;

fs::path AbsoluteOnly(const std::string& text) { return fs::path(text).is_absolute() ? fs::path(text) : fs::path(); }

// A directory that a variable names, relative to the current one; empty if it names none.
fs::path Directory(const std::string& text) {
  std::error_code error;
  return text.empty() ? fs::path() : fs::absolute(text, error);
}

// The user's cache directory by the XDG specification, which says to ignore a relative XDG_CACHE_HOME.
fs::path UserCache(const ReadVariable& variable) {
  if (fs::path cache = AbsoluteOnly(variable("XDG_CACHE_HOME")); !cache.empty()) return cache;
  const fs::path home = AbsoluteOnly(variable("HOME"));
  return home.empty() ? home : home / ".cache";
}

// At most `limit` bytes of a small file; empty if it cannot be read.
std::string ReadBeginning(const std::string& path, size_t limit) {
  std::ifstream file(path, std::ios::binary);
  std::string text(limit, '\0');
  file.read(text.data(), static_cast<std::streamsize>(limit));
  text.resize(static_cast<size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  return text;
}

std::string ReadCommit(const std::string& path) {
  std::string text = ReadBeginning(path, kCommitDigits + 2);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return IsHex(text, kCommitDigits) ? text : std::string();
}

struct SnapshotFiles {
  std::vector<std::string> there;                             // relative paths, ascending
  std::vector<std::pair<std::string, std::string>> dangling;  // relative path, and name of the missing blob
};

SnapshotFiles FilesOf(const std::string& snapshot) {
  SnapshotFiles files;
  std::error_code error;
  size_t seen = 0;
  for (fs::recursive_directory_iterator entry(snapshot, error), end; !error && entry != end; entry.increment(error)) {
    if (entry.depth() >= kMaxDepth) entry.disable_recursion_pending();
    if (++seen > kMaxFiles) break;
    std::error_code ignored;
    if (entry->path().filename().string()[0] == '.') continue;  // a link in the making
    const std::string path = entry->path().string().substr(snapshot.size() + 1);
    if (entry->is_regular_file(ignored))
      files.there.push_back(path);
    else if (entry->is_symlink(ignored) && !entry->exists(ignored))
      files.dangling.emplace_back(path, fs::read_symlink(entry->path(), ignored).filename().string());
  }
  std::sort(files.there.begin(), files.there.end());
  return files;
}

bool Contains(const std::vector<std::string>& sorted, const std::string& path) {
  return std::binary_search(sorted.begin(), sorted.end(), path);
}

// All files of the choice; an error if a shard is missing.
Result<std::vector<std::string>> CompleteFiles(const std::string& snapshot, const HubChoice& choice,
                                               const std::vector<std::string>& there) {
  std::vector<std::string> files = choice.files;
  if (choice.index.empty()) return files;
  const std::string path = snapshot + "/" + choice.index;
  std::error_code error;
  const uint64_t bytes = fs::file_size(path, error);
  if (error || bytes > kMaxIndexBytes) return IoError("{}: cannot be read, or too large", path);
  ASSIGN_OR_RETURN(const std::vector<std::string> shards, ParseShardNames(ReadBeginning(path, bytes), path));
  for (const std::string& shard : shards) {
    if (!Contains(there, shard)) return IoError("{}: {} is missing", snapshot, Quoted(shard));
    files.push_back(shard);
  }
  return files;
}

uint64_t SumOfSizes(const std::string& directory, const std::vector<std::string>& files) {
  uint64_t bytes = 0;
  for (const std::string& file : files) {
    std::error_code error;
    const uint64_t size = fs::file_size(directory + "/" + file, error);
    if (!error) bytes += size;
  }
  return bytes;
}

std::vector<std::string> EntriesOf(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error))
    if (names.size() < kMaxFiles) names.push_back(entry->path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::string GgufForm(const std::string& path) {
  const std::string quantisation = QuantisationOf(path);
  return quantisation.empty() ? "GGUF" : "GGUF " + quantisation;
}

// ---- listing one repository ----

class RepositoryLister {
 public:
  RepositoryLister(const HubCache& cache, HubName name) : name_(std::move(name)), directory_(cache.Repository(name_)) {
    ReadRefs();
    for (const std::string& blob : EntriesOf(directory_ + "/blobs"))
      if (blob.size() > kPartialSuffix.size() && EndsWithIgnoringCase(blob, kPartialSuffix)) partial_.insert(blob);
  }

  std::vector<CachedModel> List() {
    for (const std::string& commit : EntriesOf(directory_ + "/snapshots"))
      if (IsHex(commit, kCommitDigits)) ListSnapshot(commit);
    if (!partial_.empty()) {  // of no known file: the hub's own cache links files when they are complete
      const std::vector<std::string> blobs(partial_.begin(), partial_.end());
      models_.push_back({.name = name_.Text(),
                         .bytes = SumOfSizes(directory_ + "/blobs", blobs),
                         .path = directory_ + "/blobs/" + blobs[0],
                         .complete = false});
    }
    return std::move(models_);
  }

 private:
  void ReadRefs() {
    const std::string refs = directory_ + "/refs";
    for (const std::string& path : FilesOf(refs).there)
      if (const std::string commit = ReadCommit(refs + "/" + path); !commit.empty() && revisions_[commit] != "main")
        revisions_[commit] = path;
  }

  void ListSnapshot(const std::string& commit) {
    const std::string snapshot = directory_ + "/snapshots/" + commit;
    const SnapshotFiles files = FilesOf(snapshot);
    HubName name = name_;
    name.revision = revisions_.count(commit) != 0 ? revisions_[commit] : commit;
    if (const Result<HubChoice> choice = ChooseFiles(files.there, "", ""); choice.ok() && choice->gguf.empty())
      if (const auto all = CompleteFiles(snapshot, *choice, files.there); all.ok())
        models_.push_back(
            {.name = name.Text(), .form = "safetensors", .bytes = SumOfSizes(snapshot, *all), .path = snapshot});
    for (const GgufGroup& group : GroupGgufFiles(files.there)) {
      if (!group.complete) continue;
      name.wanted = QuantisationOf(group.parts[0]);
      const Result<HubChoice> same = ChooseFiles(files.there, name.wanted, "");
      if (name.wanted.empty() || !same.ok() || same->gguf != group.parts[0]) name.wanted = group.parts[0];
      models_.push_back({.name = name.Text(),
                         .form = GgufForm(group.parts[0]),
                         .bytes = SumOfSizes(snapshot, group.parts),
                         .path = snapshot + "/" + group.parts[0]});
    }
    ListPartial(name, snapshot, files);
  }

  // One entry for all files that are still missing.
  void ListPartial(HubName name, const std::string& snapshot, const SnapshotFiles& files) {
    if (files.dangling.empty()) return;
    CachedModel model{.path = snapshot, .complete = false};
    name.wanted.clear();
    for (const auto& [path, blob] : files.dangling) {
      if (HasGgufSuffix(path) && name.wanted.empty()) name.wanted = path;
      const std::string partial = blob + std::string(kPartialSuffix);
      model.bytes += SumOfSizes(directory_ + "/blobs", {partial});
      partial_.erase(partial);
    }
    if (name.wanted.empty()) model.bytes += SumOfSizes(snapshot, files.there);
    model.name = name.Text();
    models_.push_back(std::move(model));
  }

  const HubName name_;
  const std::string directory_;
  std::map<std::string, std::string> revisions_;  // by commit; main is preferred
  std::set<std::string> partial_;                 // names of incomplete blobs that no snapshot claims
  std::vector<CachedModel> models_;
};

}  // namespace

std::string VariableOfProcess(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string OwnCacheDirectory(const ReadVariable& variable) {
  if (const fs::path own = Directory(variable("INFINIGEN_CACHE")); !own.empty()) return own.string();
  const fs::path cache = UserCache(variable);
  return cache.empty() ? "" : (cache / "infinigen").string();
}

std::string ForeignCacheDirectory(const ReadVariable& variable) {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"})  // the second is the first's old name
    if (const fs::path cache = Directory(variable(name)); !cache.empty()) return cache.string();
  if (const fs::path home = Directory(variable("HF_HOME")); !home.empty()) return (home / "hub").string();
  const fs::path cache = UserCache(variable);
  return cache.empty() ? "" : (cache / "huggingface" / "hub").string();
}

std::string HubCache::Commit(const HubName& name) const {
  if (root_.empty()) return {};
  std::error_code ignored;
  if (IsHex(name.revision, kCommitDigits) && fs::is_directory(Snapshot(name, name.revision), ignored))
    return name.revision;
  return ReadCommit(Repository(name) + "/refs/" + name.revision);
}

Result<std::string> HubCache::Find(const HubName& name, bool accept_guess, bool needs_tokenizer) const {
  const std::string commit = Commit(name);
  if (commit.empty()) return IoError("{}: revision {} is missing", Repository(name), name.revision);
  const std::string snapshot = Snapshot(name, commit);
  const std::vector<std::string> there = FilesOf(snapshot).there;
  ASSIGN_OR_RETURN(const HubChoice choice, ChooseFiles(there, name.wanted, snapshot));
  RETURN_IF_ERROR(CompleteFiles(snapshot, choice, there));
  if (!choice.gguf.empty()) {
    if (name.wanted.empty() && !accept_guess) return IoError("{}: the server may have another file", snapshot);
    return snapshot + "/" + choice.gguf;
  }
  const bool has_tokenizer = std::any_of(std::begin(kTokenizerFiles), std::end(kTokenizerFiles),
                                         [&](const char* file) { return Contains(there, file); });
  if (needs_tokenizer && !has_tokenizer) return IoError("{}: the tokenizer is missing", snapshot);
  return snapshot;
}

Status HubCache::Link(const HubName& name, const std::string& commit, const std::string& path,
                      const std::string& blob) const {
  CHECK(IsSafePath(path));
  const fs::path link = fs::path(Snapshot(name, commit)) / path;
  const std::string blobs = Repository(name) + "/blobs/";
  std::string target = blob;
  if (blob.substr(0, blobs.size()) == blobs) {  // relative, so that the cache may be moved
    target = "../../blobs/" + blob.substr(blobs.size());
    for (const char c : path)
      if (c == '/') target.insert(0, "../");
  }
  std::error_code error;
  if (fs::read_symlink(link, error) == target && !error) return Ok();
  fs::create_directories(link.parent_path(), error);
  // A name that no other process uses, and then a rename: the link is never absent.
  const fs::path fresh = link.parent_path() / fmt::format(".{}.{}", ::getpid(), link.filename().string());
  if (!error) fs::remove(fresh, error);
  if (!error) fs::create_symlink(target, fresh, error);
  if (!error) fs::rename(fresh, link, error);
  if (error) return IoError("{}: cannot link: {}", link.string(), error.message());
  return Ok();
}

Status HubCache::SetCommit(const HubName& name, const std::string& commit) const {
  if (IsHex(name.revision, kCommitDigits) || Commit(name) == commit) return Ok();
  const fs::path ref = fs::path(Repository(name)) / "refs" / name.revision;
  std::error_code error;
  fs::create_directories(ref.parent_path(), error);
  if (error) return IoError("{}: cannot create: {}", ref.parent_path().string(), error.message());
  NewFile file(ref.string());
  RETURN_IF_ERROR(file.Begin());
  RETURN_IF_ERROR(file.Append(commit));
  return file.Finish();
}

std::vector<CachedModel> ListModels(const HubCache& cache) {
  std::vector<CachedModel> models;
  if (cache.root().empty()) return models;
  for (const std::string& directory : EntriesOf(cache.root())) {
    HubName name;
    if (!ParseRepositoryDirectory(directory, &name)) continue;
    std::vector<CachedModel> found = RepositoryLister(cache, std::move(name)).List();
    std::move(found.begin(), found.end(), std::back_inserter(models));
  }
  std::stable_sort(models.begin(), models.end(),
                   [](const CachedModel& a, const CachedModel& b) { return a.name < b.name; });
  return models;
}

std::vector<CachedModel> ListGgufFiles(const std::string& directory) {
  std::vector<CachedModel> models;
  for (const GgufGroup& group : GroupGgufFiles(EntriesOf(directory))) {
    const std::string path = directory + "/" + group.parts[0];
    models.push_back({.name = path,
                      .form = GgufForm(path),
                      .bytes = SumOfSizes(directory, group.parts),
                      .path = path,
                      .complete = group.complete});
  }
  return models;
}

std::string NameOfSnapshot(const std::string& path) {
  fs::path directory(path);
  if (!directory.has_filename()) directory = directory.parent_path();
  HubName name;
  if (directory.parent_path().filename() != "snapshots" ||
      !ParseRepositoryDirectory(directory.parent_path().parent_path().filename().string(), &name))
    return {};
  return name.name;
}

bool IsInSnapshot(const std::string& path) {
  for (fs::path at(path); at.has_relative_path(); at = at.parent_path())
    if (!NameOfSnapshot(at.string()).empty()) return true;
  return false;
}

}  // namespace infinigen
