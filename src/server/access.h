// Access control by API key, Origin and Host. Decisions depend only on a request's head. Immutable; any thread.
//
// With API keys, every route except /health needs one. Without keys the server trusts everyone who can connect. A web
// page in a user's browser could then send requests too: they carry a foreign Origin, or, if the page's domain was
// pointed at this machine (DNS rebinding), a foreign Host. Both are refused.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "server/completion_request.h"
#include "server/http.h"

namespace infinigen {

struct AccessOptions {
  std::vector<std::string> keys;          // empty: no key is needed
  std::vector<std::string> cors_origins;  // "https://example.org"; "*": any
  std::string host;                       // --host
};

// Refuses keys that an Authorization header cannot carry: with control characters, with spaces at an end, too long.
Status CheckKey(std::string_view key);

// Reads keys from a regular file of at most 1 MiB, one per line. Empty lines and lines that begin with # are skipped.
Result<std::vector<std::string>> ReadKeyFile(const std::string& path);

// Whether a text is what browsers send as Origin: "https://name" or "https://name:1", without user, path or slash.
bool IsOrigin(std::string_view text);

class Access {
 public:
  explicit Access(AccessOptions options);

  // nullopt: the request is allowed.
  std::optional<ApiError> Check(const HttpRequest& head) const;
  bool has_keys() const { return !digests_.empty(); }
  // Keys tell clients apart.
  bool has_many_keys() const { return digests_.size() > 1; }

  // Whether a web page of this origin may read replies.
  bool AllowsOrigin(std::string_view origin) const;
  // Adds CORS headers if the origin is allowed.
  void AddCorsHeaders(const HttpRequest& head, HttpReply* reply) const;
  // The reply to a CORS preflight (OPTIONS).
  HttpReply Preflight(const HttpRequest& head) const;

  // Accepts "Bearer KEY", and "Basic …" with the key as password, which a browser can send for the web page. Compares
  // in constant time.
  bool KeyFits(std::string_view authorization) const { return !TenantOf(authorization).empty(); }
  // A name for the key that fits: a part of its digest. Empty if none fits.
  std::string TenantOf(std::string_view authorization) const;
  // Whether a request may name this Host. A malformed one never fits.
  bool HostFits(std::string_view host) const;

 private:
  using Digest = std::array<unsigned char, 32>;

  AccessOptions options_;
  std::vector<Digest> digests_;
  std::string machine_name_;
};

}  // namespace infinigen
