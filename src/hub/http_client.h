// One GET request over http or https: redirects, time limits, cancellation. The body is handed out in pieces as it
// arrives, so memory does not depend on what a server announces. Blocks; any thread, one call at a time per request.
//
// TLS: version 1.2 or newer, certificates checked against the system's store (or $SSL_CERT_FILE, $SSL_CERT_DIR), and
// the host name against the certificate.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "hub/url.h"

namespace infinigen {

struct HttpHead {
  std::string host;  // and port, of the server that replied
  int status = 0;
  std::map<std::string, std::string> fields;  // by lower-case name; of repeated ones, the first

  const std::string& Get(const std::string& lower_name) const;  // empty if absent
};

struct HttpGet {
  Url url;
  std::string token;                                         // sent to the origin of `url` only; empty: none
  std::vector<std::pair<std::string, std::string>> headers;  // sent to every host
  int timeout_s = 30;                                        // without a byte, and for each step of a connection
  std::function<bool()> cancelled;                           // asked ten times a second; may be empty
  // Called for every reply, redirects included, before its body. An error ends the request.
  std::function<Status(const HttpHead& head, bool redirect)> on_head;
  std::function<Status(std::string_view bytes)> on_body;  // never called for a redirect
};

struct HttpFailure {
  enum class Kind {
    kCancelled,
    kRefused,  // by on_head, on_body, a redirect or TLS: the same request would fail again
    kConnect,  // the server could not be reached
    kCut,      // the connection ended or stalled before the reply was complete
  };
  Kind kind = Kind::kRefused;
  Error error;
};

// nullopt: on_head accepted the reply and on_body got all of it.
std::optional<HttpFailure> RunGet(const HttpGet& get);

}  // namespace infinigen
