// Downloads from a hub: a small reply into memory, and a file's content into a blob of a cache. Both retry what may
// pass: cuts, time-outs, 429 and 5xx. Any thread; several processes may download the same blob.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "hub/listing.h"
#include "hub/url.h"

namespace infinigen {

// Called on the thread that downloads. Each may be empty.
struct HubHooks {
  std::function<void(std::string_view message)> warn;
  std::function<void(std::string_view message)> notice;
  std::function<void(uint64_t done, uint64_t total)> progress;  // bytes
  std::function<bool()> cancelled;

  void Warn(std::string_view message) const {
    if (warn) warn(message);
  }
  void Notice(std::string_view message) const {
    if (notice) notice(message);
  }
  bool Cancelled() const { return cancelled && cancelled(); }
};

struct HubServer {
  Url endpoint;
  std::string token;  // empty: none
  int timeout_s = 30;
};

// The reply to GET endpoint/`target`, of at most `limit` bytes. `what` begins the messages: "ORG/NAME". `unreachable`
// becomes true if no reply came at all.
Result<std::string> DownloadText(const HubServer& server, const std::string& target, const std::string& what,
                                 size_t limit, const HubHooks& hooks, bool* unreachable);

// Makes `blob`, a path whose directory exists, a file with the content that `file` describes, unless it exists.
// `on_bytes` gets the number of bytes of the file that are on disk. On failure, what arrived stays in
// `blob`.incomplete, unless it is wrong; the next call continues it.
Status DownloadBlob(const HubServer& server, const std::string& target, const std::string& what, const HubFile& file,
                    const std::string& blob, const HubHooks& hooks, const std::function<void(uint64_t)>& on_bytes);

// Bytes of `blob`.incomplete; 0 if there is none.
uint64_t PartialBytes(const std::string& blob);

}  // namespace infinigen
