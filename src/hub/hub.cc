#include "hub/hub.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/size.h"
#include "base/utf8.h"
#include "hub/choice.h"
#include "hub/listing.h"

namespace infinigen {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDefaultEndpoint = "https://huggingface.co";
constexpr int kDefaultTimeoutS = 30;
constexpr size_t kMaxTokenBytes = 4096;
constexpr uint64_t kSpareDiskBytes = uint64_t{64} << 20;  // stays free

std::string Trimmed(std::string text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
  while (!text.empty() && is_space(text.back())) text.pop_back();
  size_t begin = 0;
  while (begin < text.size() && is_space(text[begin])) ++begin;
  return text.substr(begin);
}

bool IsTrue(const std::string& value) {
  const std::string lower = LowerCase(Trimmed(value));
  return lower == "1" || lower == "true" || lower == "yes" || lower == "on";
}

// HF_TOKEN, or the file that `hf auth login` writes.
Result<std::string> ReadToken(const ReadVariable& variable, const HubCache& foreign) {
  std::string where = "HF_TOKEN", token = Trimmed(variable("HF_TOKEN"));
  if (token.empty()) {
    where = variable("HF_TOKEN_PATH");
    if (where.empty() && !variable("HF_HOME").empty()) where = variable("HF_HOME") + "/token";
    if (where.empty() && !foreign.root().empty()) where = (fs::path(foreign.root()).parent_path() / "token").string();
    std::ifstream file(where, std::ios::binary);
    token.resize(kMaxTokenBytes + 1);
    file.read(token.data(), static_cast<std::streamsize>(token.size()));
    token.resize(static_cast<size_t>(std::max<std::streamsize>(file.gcount(), 0)));
    token = Trimmed(std::move(token));
  }
  // It becomes part of a header.
  const bool printable = std::all_of(token.begin(), token.end(), [](char c) { return c > 0x20 && c < 0x7f; });
  if (token.size() > kMaxTokenBytes || !printable)
    return Invalid("{}: not a token: one line without spaces is expected", where);
  return token;
}

// One model being put together in our cache.
class Fetch {
 public:
  Fetch(const HubName& name, const HubEnvironment& environment, const HubHooks& hooks, const CheckHubConfig& check)
      : name_(name), environment_(environment), hooks_(hooks), check_(check) {}

  // `unreachable`: no reply came from the server.
  Status List(bool* unreachable) {
    const std::string target = Prefix() + fmt::format("/api/models/{}/revision/{}?blobs=true", name_.repository(),
                                                      PercentEncode(name_.revision, /*keep_slash=*/false));
    const std::string what = name_.repository();
    ASSIGN_OR_RETURN(const std::string reply,
                     DownloadText(environment_.server, target, what, kMaxListingBytes, hooks_, unreachable));
    ASSIGN_OR_RETURN(
        listing_, ParseListing(reply, fmt::format("{}: listing of {}", what, environment_.server.endpoint.authority)));
    return Ok();
  }

  Result<std::string> Run() {
    std::vector<std::string> paths;
    for (const HubFile& file : listing_.files) paths.push_back(file.path);
    ASSIGN_OR_RETURN(const HubChoice choice, ChooseFiles(paths, name_.wanted, name_.repository()));
    if (own().root().empty())
      return IoError("{}: no place for downloads: set INFINIGEN_CACHE to a directory", name_.repository());
    std::error_code error;
    fs::create_directories(own().Repository(name_) + "/blobs", error);
    if (error) return IoError("{}: cannot create: {}", own().Repository(name_), error.message());

    // The configuration comes first: a model that is not supported is refused before its weights are downloaded. The
    // index is next, because it says which shards there are. From then on all is known.
    if (choice.gguf.empty() && check_) {
      RETURN_IF_ERROR(FetchFirst(kConfigFile));
      RETURN_IF_ERROR(check_(own().Snapshot(name_, listing_.commit)));
    }
    std::vector<std::string> shards;
    if (!choice.index.empty()) {
      ASSIGN_OR_RETURN(shards, FetchShardNames(choice.index));
    }
    RETURN_IF_ERROR(Add(choice.files));
    RETURN_IF_ERROR(Add(shards));
    RETURN_IF_ERROR(CheckRoom());
    // The first download of a revision sets its reference at once, so that `infinigen models` can name it. Otherwise
    // the reference leads to the complete older commit until the new one is complete.
    if (own().Commit(name_).empty()) RETURN_IF_ERROR(own().SetCommit(name_, listing_.commit));
    RETURN_IF_ERROR(Complete());
    RETURN_IF_ERROR(own().SetCommit(name_, listing_.commit));
    const std::string snapshot = own().Snapshot(name_, listing_.commit);
    return choice.gguf.empty() ? snapshot : snapshot + "/" + choice.gguf;
  }

 private:
  const HubCache& own() const { return environment_.own; }

  // The endpoint's own path, without a slash at its end.
  std::string Prefix() const {
    std::string path = environment_.server.endpoint.target;
    while (!path.empty() && path.back() == '/') path.pop_back();
    return path;
  }

  // Links the files, and notes those whose blobs are in neither cache.
  Status Add(const std::vector<std::string>& paths) {
    for (const std::string& path : paths) {
      const HubFile* file = listing_.Find(path);
      if (file == nullptr) return Invalid("{}: the repository has no file {}", name_.repository(), Quoted(path));
      const std::string blob = own().Blob(name_, file->hash);
      const std::string other = environment_.foreign.root().empty() ? "" : environment_.foreign.Blob(name_, file->hash);
      const bool is_foreign = !HasSize(blob, file->bytes) && !other.empty() && HasSize(other, file->bytes);
      RETURN_IF_ERROR(own().Link(name_, listing_.commit, path, is_foreign ? other : blob));
      total_bytes_ += file->bytes;
      if (is_foreign || HasSize(blob, file->bytes))
        done_bytes_ += file->bytes;
      else if (std::find(missing_.begin(), missing_.end(), file) == missing_.end())
        missing_.push_back(file);
    }
    return Ok();
  }

  // Downloads a file that decides about the others.
  Status FetchFirst(const std::string& path) {
    if (const HubFile* file = listing_.Find(path); file != nullptr && file->bytes > kMaxIndexBytes)
      return Invalid("{}: {} has {}, more than is supported", name_.repository(), path, FormatSize(file->bytes));
    RETURN_IF_ERROR(Add({path}));
    RETURN_IF_ERROR(Complete());
    done_bytes_ = total_bytes_ = 0;  // it is counted again with the other files
    return Ok();
  }

  Result<std::vector<std::string>> FetchShardNames(const std::string& index) {
    RETURN_IF_ERROR(FetchFirst(index));
    std::ifstream stream(own().Snapshot(name_, listing_.commit) + "/" + index, std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
    return ParseShardNames(text, fmt::format("{}: {}", name_.repository(), index));
  }

  // Downloads what is missing.
  Status Complete() {
    for (const HubFile* file : missing_) {
      const std::string target = Prefix() + fmt::format("/{}/resolve/{}/{}", name_.repository(), listing_.commit,
                                                        PercentEncode(file->path, /*keep_slash=*/true));
      const auto show = [&](uint64_t bytes) {
        if (hooks_.progress) hooks_.progress(done_bytes_ + bytes, total_bytes_);
      };
      RETURN_IF_ERROR(DownloadBlob(environment_.server, target,
                                   fmt::format("{}: {}", name_.repository(), Escaped(file->path)), *file,
                                   own().Blob(name_, file->hash), hooks_, show));
      done_bytes_ += file->bytes;
      show(0);
    }
    missing_.clear();
    return Ok();
  }

  // Announces the download, unless the disk is too small for it.
  Status CheckRoom() const {
    if (missing_.empty()) return Ok();
    uint64_t needed = 0;
    for (const HubFile* file : missing_)
      needed += file->bytes - std::min(file->bytes, PartialBytes(own().Blob(name_, file->hash)));
    struct statvfs disk {};
    const std::string directory = own().Repository(name_);
    if (::statvfs(directory.c_str(), &disk) != 0) return Ok();  // the write reports what is wrong
    const uint64_t room = static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize;
    if (needed + kSpareDiskBytes > room)
      return Exhausted("{}: {} are missing, and {} has only {} free; set INFINIGEN_CACHE to a larger disk",
                       name_.repository(), FormatSize(needed), own().root(), FormatSize(room));
    hooks_.Notice(fmt::format("downloading {} ({}) to {}", name_.Text(), FormatSize(needed), own().root()));
    return Ok();
  }

  static bool HasSize(const std::string& path, uint64_t bytes) {
    std::error_code error;
    return fs::is_regular_file(path, error) && fs::file_size(path, error) == bytes;
  }

  const HubName& name_;
  const HubEnvironment& environment_;
  const HubHooks& hooks_;
  const CheckHubConfig& check_;
  HubListing listing_;
  std::vector<const HubFile*> missing_;  // in listing_, in the order of download
  uint64_t done_bytes_ = 0, total_bytes_ = 0;
};

// Looks in both caches; the error has the reason of each. `accept_guess` as in HubCache::Find.
Result<std::string> FindInCaches(const HubName& name, const HubEnvironment& environment, bool accept_guess) {
  std::string reasons;
  for (const HubCache* cache : {&environment.foreign, &environment.own}) {
    if (cache->root().empty()) continue;
    // Another program may have fetched a part of a repository: without a tokenizer the server is asked for more.
    const bool needs_tokenizer = cache == &environment.foreign && !accept_guess;
    Result<std::string> path = cache->Find(name, accept_guess, needs_tokenizer);
    if (path.ok()) return path;
    reasons += (reasons.empty() ? "" : "; ") + path.error().message;
  }
  return IoError("{}", reasons.empty() ? "there is no cache: HOME is not set" : reasons);
}

}  // namespace

Result<HubEnvironment> ReadHubEnvironment(const ReadVariable& variable) {
  HubEnvironment environment;
  environment.foreign = HubCache(ForeignCacheDirectory(variable));
  const std::string own = OwnCacheDirectory(variable);
  environment.own = HubCache(own.empty() ? "" : own + "/hub");
  environment.offline = IsTrue(variable("HF_HUB_OFFLINE"));

  const std::string endpoint = variable("HF_ENDPOINT");
  const Result<Url> url = ParseUrl(endpoint.empty() ? kDefaultEndpoint : endpoint);
  if (!url.ok() || url->target.find('?') != std::string::npos)
    return Invalid("HF_ENDPOINT: {} is not an address of the form https://HOST", Quoted(endpoint));
  environment.server.endpoint = *url;
  Result<std::string> token = ReadToken(variable, environment.foreign);
  if (token.ok())
    environment.server.token = *token;
  else
    environment.token = token.error();
  int64_t timeout = kDefaultTimeoutS;
  if (const std::string text = variable("HF_HUB_DOWNLOAD_TIMEOUT"); !text.empty())
    if (const std::string wrong = ParseInteger(text, 1, 3600, &timeout); !wrong.empty())
      return Invalid("HF_HUB_DOWNLOAD_TIMEOUT: {}: {}", Quoted(text), wrong);
  environment.server.timeout_s = static_cast<int>(timeout);
  return environment;
}

Result<std::string> ResolveHubModel(const HubName& name, const HubEnvironment& environment, const HubHooks& hooks,
                                    const CheckHubConfig& check) {
  Result<std::string> cached = FindInCaches(name, environment, /*accept_guess=*/environment.offline);
  if (cached.ok()) return cached;
  if (environment.offline)
    return IoError("{}: not complete on this machine, and HF_HUB_OFFLINE is set: {}", name.Text(),
                   cached.error().message);
  RETURN_IF_ERROR(environment.token);
  Fetch fetch(name, environment, hooks, check);
  bool unreachable = false;
  if (const Status listed = fetch.List(&unreachable); !listed.ok()) {
    if (!unreachable || hooks.Cancelled()) return listed.error();
    Result<std::string> guess = FindInCaches(name, environment, /*accept_guess=*/true);
    if (!guess.ok()) return listed.error();
    hooks.Warn(fmt::format("{}; using {}", listed.error().message, *guess));
    return guess;
  }
  return fetch.Run();
}

}  // namespace infinigen
