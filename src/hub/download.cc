#include "hub/download.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/new_file.h"
#include "base/size.h"
#include "base/utf8.h"
#include "hub/http_client.h"
#include "hub/name.h"

namespace infinigen {
namespace {

using std::chrono::milliseconds;

constexpr int kMaxFailures = 6;  // in a row, without a new byte
constexpr milliseconds kFirstWait{500};
constexpr int64_t kMaxRetryAfterS = 60;
constexpr milliseconds kPollWait{100};
constexpr size_t kHashBytes = size_t{1} << 20;

Error Cancelled(const std::string& what) {
  return IoError("{}: the download was cancelled; the same command continues it", what);
}

// False if the work was cancelled meanwhile.
bool Sleep(milliseconds duration, const HubHooks& hooks) {
  const auto end = std::chrono::steady_clock::now() + duration;
  while (std::chrono::steady_clock::now() < end) {
    if (hooks.Cancelled()) return false;
    std::this_thread::sleep_for(std::min(duration, kPollWait));
  }
  return !hooks.Cancelled();
}

// What a user can do about a reply that is not the file.
Error StatusError(const HttpHead& head, const HubServer& server, const std::string& what) {
  const std::string& reason = head.Get("x-error-code");        // "RepoNotFound", "GatedRepo", "EntryNotFound"
  const bool by_hub = head.host == server.endpoint.authority;  // and not by a host that only keeps files
  const std::string said = fmt::format("{}: {} answered {}", what, head.host, head.status);
  if (reason == "GatedRepo" || (head.status == 403 && by_hub))
    return IoError("{}: access is restricted; accept the model's terms on its page, and set HF_TOKEN to a token {}",
                   said, server.token.empty() ? "that may read it" : "that may read it (the present one may not)");
  if (head.status == 401 && by_hub)
    return IoError("{}: there is no such repository, or it needs a token: check the name, or set HF_TOKEN{}", said,
                   server.token.empty() ? "" : " (the present one was not accepted)");
  if (head.status == 404) return IoError("{}: there is no such repository, revision or file; check the name", said);
  if (head.status == 429)
    return IoError("{}: too many requests; wait some minutes{}", said,
                   server.token.empty() ? ", or set HF_TOKEN for a higher limit" : "");
  if (head.status >= 500)
    return IoError("{}: the server has a problem of its own; try again later (what arrived is kept)", said);
  return IoError("{}, which is not expected", said);
}

// One GET with retries. A user of this class gives `accept`, which sees the head of a reply with status 200 or 206, and
// `take`, which sees its body.
class Retries {
 public:
  Retries(const HubServer& server, std::string what, const HubHooks& hooks)
      : server_(server), what_(std::move(what)), hooks_(hooks) {}

  std::function<Status(const HttpHead&)> on_redirect, accept;
  std::function<Status(std::string_view)> take;
  std::vector<std::pair<std::string, std::string>> headers;
  // Whether a server that cannot be reached is tried again.
  bool retry_connect = true;

  bool unreachable() const { return unreachable_; }
  // A new byte arrived: the server works.
  void Progress() { failures_ = 0; }

  // One attempt. Returns true when the reply is complete, false after a failure that may pass, once it is time to try
  // again.
  Result<bool> Attempt(const std::string& target) {
    std::optional<HttpHead> refused;
    HttpGet get{.url = server_.endpoint,
                .token = server_.token,
                .headers = headers,
                .timeout_s = server_.timeout_s,
                .cancelled = hooks_.cancelled,
                .on_body = take};
    get.url.target = target;
    get.on_head = [&](const HttpHead& head, bool redirect) -> Status {
      unreachable_ = false;
      if (redirect) return on_redirect ? on_redirect(head) : Ok();
      if (head.status == 200 || head.status == 206) return accept ? accept(head) : Ok();
      refused = head;
      return StatusError(head, server_, what_);
    };
    const std::optional<HttpFailure> failure = RunGet(get);
    if (!failure) return true;
    if (failure->kind == HttpFailure::Kind::kCancelled) return Cancelled(what_);
    return refused ? AfterStatus(*refused, failure->error) : AfterFailure(*failure);
  }

 private:
  Result<bool> AfterStatus(const HttpHead& head, const Error& error) {
    const int status = head.status;
    if (status != 408 && status != 429 && status != 500 && status != 502 && status != 503 && status != 504)
      return error;
    int64_t seconds = 0;
    if (const std::string& after = head.Get("retry-after");
        !after.empty() && ParseInteger(after, 0, INT32_MAX, &seconds).empty()) {
      if (seconds > kMaxRetryAfterS) return error;
      return Wait(std::chrono::seconds(seconds), error);
    }
    return Wait(std::nullopt, error);
  }

  Result<bool> AfterFailure(const HttpFailure& failure) {
    const bool connect = failure.kind == HttpFailure::Kind::kConnect;
    const Error error{
        failure.error.kind,
        fmt::format("{}: {}{}", what_, failure.error.message,
                    connect ? "; HF_ENDPOINT=URL names another hub, -m PATH a model on this machine" : "")};
    if (failure.kind == HttpFailure::Kind::kRefused || (connect && !retry_connect)) return error;
    return Wait(std::nullopt, error);
  }

  Result<bool> Wait(std::optional<milliseconds> asked, const Error& error) {
    if (++failures_ >= kMaxFailures) return error;
    if (!Sleep(asked.value_or(kFirstWait * (1 << (failures_ - 1))), hooks_)) return Cancelled(what_);
    return false;
  }

  const HubServer& server_;
  const std::string what_;
  const HubHooks& hooks_;
  int failures_ = 0;
  bool unreachable_ = true;
};

// SHA-256, or the SHA-1 of a git blob, which also covers a header with the size.
class ContentHash {
 public:
  explicit ContentHash(const HubFile& file) : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    CHECK(context_ != nullptr);
    CHECK(EVP_DigestInit_ex(context_.get(), file.is_sha256() ? EVP_sha256() : EVP_sha1(), nullptr) == 1);
    if (file.is_sha256()) return;
    const std::string head = fmt::format("blob {}", file.bytes);
    Add({head.c_str(), head.size() + 1});  // with the zero byte
  }
  void Add(std::string_view bytes) { CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1); }
  std::string Hex() {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int size = 0;
    CHECK(EVP_DigestFinal_ex(context_.get(), digest, &size) == 1);
    std::string hex;
    for (unsigned int i = 0; i < size; ++i) hex += fmt::format("{:02x}", digest[i]);
    return hex;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context_;
};

// `blob`.incomplete, locked for this process. Invariant after Lock: hash_ covers bytes [0, size_) of the file.
class PartialFile {
 public:
  PartialFile(const HubFile& file, std::string blob)
      : file_(file), blob_(std::move(blob)), path_(blob_ + ".incomplete"), hash_(file) {}
  ~PartialFile() {
    if (fd_ >= 0) ::close(fd_);  // and unlocks
  }
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  uint64_t size() const { return size_; }
  // Bytes that were there when this process took over.
  uint64_t inherited() const { return inherited_; }
  const std::string& path() const { return path_; }

  // Opens and locks the file. Waits while another process holds it. Returns false if the blob exists: nothing to do.
  Result<bool> Lock(const std::string& what, const HubHooks& hooks) {
    for (bool told = false;;) {
      fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
      if (fd_ < 0) return Problem("open");
      while (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) return Problem("lock");
        if (!std::exchange(told, true)) hooks.Notice(fmt::format("{}: another process downloads it; waiting", what));
        if (!Sleep(kPollWait, hooks)) return Cancelled(what);
      }
      struct stat ours {
      }, named{};
      const bool same = ::fstat(fd_, &ours) == 0 && ::lstat(path_.c_str(), &named) == 0 &&
                        ours.st_ino == named.st_ino && ours.st_dev == named.st_dev;
      struct stat blob {};
      if (same && ::stat(blob_.c_str(), &blob) == 0 && static_cast<uint64_t>(blob.st_size) == file_.bytes) {
        ::unlink(path_.c_str());
        return false;
      }
      if (same) return true;
      ::close(std::exchange(fd_, -1));  // the process before us finished and renamed it
    }
  }

  // Takes over the bytes that are there.
  Status Resume(const std::string& what, const HubHooks& hooks, const std::function<void(uint64_t)>& on_bytes) {
    struct stat info {};
    if (::fstat(fd_, &info) != 0) return Problem("examine");
    if (static_cast<uint64_t>(info.st_size) > file_.bytes) return Restart();
    std::vector<char> piece(kHashBytes);
    while (size_ < static_cast<uint64_t>(info.st_size)) {
      const ssize_t read = ::pread(fd_, piece.data(), piece.size(), static_cast<off_t>(size_));
      if (read < 0 && errno == EINTR) continue;
      if (read < 0) return Problem("read");
      if (read == 0) break;
      hash_.Add({piece.data(), static_cast<size_t>(read)});
      size_ += static_cast<uint64_t>(read);
      on_bytes(size_);
      if (hooks.Cancelled()) return Cancelled(what);
    }
    inherited_ = size_;
    return Ok();
  }

  Status Restart() {
    if (::ftruncate(fd_, 0) != 0) return Problem("truncate");
    size_ = inherited_ = 0;
    hash_ = ContentHash(file_);
    return Ok();
  }

  Status Append(std::string_view bytes) {
    if (bytes.size() > file_.bytes - size_)
      return Invalid("the server sends more than the {} bytes that it lists", file_.bytes);
    hash_.Add(bytes);
    while (!bytes.empty()) {
      const ssize_t written = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(size_));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return Problem("write");
      bytes.remove_prefix(static_cast<size_t>(written));
      size_ += static_cast<uint64_t>(written);
    }
    return Ok();
  }

  // Precondition: complete. False if the content is not what was listed.
  bool Matches() { return hash_.Hex() == file_.hash; }
  Status Publish() {
    if (::fsync(fd_) != 0 || std::rename(path_.c_str(), blob_.c_str()) != 0) return Problem("complete");
    return SyncDirectoryOf(blob_);
  }
  void Remove() { ::unlink(path_.c_str()); }

 private:
  Error Problem(std::string_view what) const { return IoError("{}: cannot {}: {}", path_, what, std::strerror(errno)); }

  const HubFile& file_;
  const std::string blob_, path_;
  int fd_ = -1;
  uint64_t size_ = 0, inherited_ = 0;
  ContentHash hash_;
};

// Refuses a reply with status 206 to a request for bytes from `begin` that cannot be the right ones.
Status CheckRange(const std::string& range, uint64_t begin, const HubFile& file) {
  const std::string expected = fmt::format("bytes {}-{}/", begin, file.bytes - 1);
  if (range == fmt::format("{}{}", expected, file.bytes) || range == expected + "*") return Ok();
  return Invalid("asked for the bytes from {} of {}, the server sends {}", begin, file.bytes, Quoted(range));
}

Status CheckLength(const std::string& length, const HubFile& file) {
  if (length.empty() || length == fmt::format("{}", file.bytes)) return Ok();
  return Invalid("the server sends {} bytes, but lists {}", Escaped(length), file.bytes);
}

// What a redirect to the content says about it: a server that contradicts its own listing is found out before the
// bytes.
Status CheckLinked(const HttpHead& head, const HubFile& file) {
  const std::string& size = head.Get("x-linked-size");
  std::string etag = head.Get("x-linked-etag");
  etag.erase(std::remove(etag.begin(), etag.end(), '"'), etag.end());
  if ((!size.empty() && size != fmt::format("{}", file.bytes)) ||
      (file.is_sha256() && IsHex(etag, 64) && etag != file.hash))
    return Invalid("the server offers another file than it lists ({} bytes, {})", Escaped(size), Escaped(etag));
  return Ok();
}

}  // namespace

Result<std::string> DownloadText(const HubServer& server, const std::string& target, const std::string& what,
                                 size_t limit, const HubHooks& hooks, bool* unreachable) {
  std::string text;
  Retries retries(server, what, hooks);
  retries.retry_connect = false;
  retries.accept = [&](const HttpHead&) {
    text.clear();
    return Ok();
  };
  retries.take = [&](std::string_view bytes) -> Status {
    if (bytes.size() > limit - text.size())
      return Invalid("the reply of {} has more than {}", server.endpoint.authority, FormatSize(limit));
    text += bytes;
    return Ok();
  };
  for (bool done = false; !done;) {
    Result<bool> attempt = retries.Attempt(target);
    *unreachable = retries.unreachable();
    if (!attempt.ok()) return attempt.error();
    done = *attempt;
  }
  return text;
}

uint64_t PartialBytes(const std::string& blob) {
  struct stat info {};
  return ::stat((blob + ".incomplete").c_str(), &info) == 0 ? static_cast<uint64_t>(info.st_size) : 0;
}

Status DownloadBlob(const HubServer& server, const std::string& target, const std::string& what, const HubFile& file,
                    const std::string& blob, const HubHooks& hooks, const std::function<void(uint64_t)>& on_bytes) {
  PartialFile partial(file, blob);
  ASSIGN_OR_RETURN(const bool missing, partial.Lock(what, hooks));
  if (!missing) return Ok();
  RETURN_IF_ERROR(partial.Resume(what, hooks, on_bytes));
  Retries retries(server, what, hooks);
  uint64_t best = partial.size();  // the most bytes that were on disk so far
  retries.on_redirect = [&](const HttpHead& head) { return CheckLinked(head, file); };
  retries.accept = [&](const HttpHead& head) -> Status {
    if (head.status == 206) return CheckRange(head.Get("content-range"), partial.size(), file);
    RETURN_IF_ERROR(CheckLength(head.Get("content-length"), file));
    return partial.size() == 0 ? Ok() : partial.Restart();  // the server ignores ranges
  };
  retries.take = [&](std::string_view bytes) -> Status {
    RETURN_IF_ERROR(partial.Append(bytes));
    if (partial.size() > best) retries.Progress();
    best = std::max(best, partial.size());
    on_bytes(partial.size());
    return Ok();
  };
  while (true) {
    while (partial.size() < file.bytes) {
      retries.headers.clear();
      if (partial.size() > 0) retries.headers.emplace_back("Range", fmt::format("bytes={}-", partial.size()));
      const uint64_t before = partial.size();
      ASSIGN_OR_RETURN(const bool complete, retries.Attempt(target));
      if (complete && partial.size() < file.bytes)
        return Invalid("{}: the server ends after {} of {} bytes", what, partial.size() - before, file.bytes - before);
    }
    if (partial.Matches()) return partial.Publish();
    // The beginning may be damaged: an older run's disk was full, or its machine lost power.
    if (partial.inherited() == 0) {
      partial.Remove();
      return Invalid("{}: the content does not have the listed {} {}; it was removed", what,
                     file.is_sha256() ? "SHA-256" : "SHA-1", file.hash);
    }
    RETURN_IF_ERROR(partial.Restart());
    best = 0;
    on_bytes(0);
  }
}

}  // namespace infinigen
