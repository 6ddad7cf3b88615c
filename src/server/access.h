// Who may ask: keys, origins, hosts. Pure decisions on a request's head; immutable after it is made, any thread.
//
// Keys guard every route but /health. Without keys the server trusts whoever can connect, and then a web page that
// somebody visits must not be able to: its requests name a foreign Origin, or, after a name of its own was pointed at
// this machine (DNS rebinding), a foreign Host. Both are refused.
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
  std::vector<std::string> keys;          // none: everybody
  std::vector<std::string> cors_origins;  // "https://example.org"; "*": any
  std::string host;                       // --host
};

// Keys of a file, one a line; empty lines and lines that begin with # are none.
Result<std::vector<std::string>> ReadKeyFile(const std::string& path);

class Access {
 public:
  explicit Access(AccessOptions options);

  // nullopt: welcome.
  std::optional<ApiError> Check(const HttpRequest& head) const;
  bool has_keys() const { return !digests_.empty(); }

  // Whether a page of this origin may read answers.
  bool AllowsOrigin(std::string_view origin) const;
  // Adds what such a page's browser wants to see.
  void AddCorsHeaders(const HttpRequest& head, HttpReply* reply) const;
  // The answer to a browser that asks before it sends.
  HttpReply Preflight(const HttpRequest& head) const;

  // Compares in time that does not depend on where they differ. "Bearer KEY", or "Basic …" with the key as password,
  // which is what a browser can send for a page.
  bool KeyFits(std::string_view authorization) const;
  bool HostFits(std::string_view host) const;

 private:
  using Digest = std::array<unsigned char, 32>;

  AccessOptions options_;
  std::vector<Digest> digests_;
  std::string machine_name_;
};

}  // namespace infinigen
