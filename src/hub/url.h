// Url: an http or https address, split into what a connection needs; and where a redirect leads. Pure functions, any
// thread.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace infinigen {

struct Url {
  bool tls = false;
  std::string host;       // without brackets
  std::string port;       // never empty
  std::string target;     // path and query, begins with '/'
  std::string authority;  // host and port as written: the value of the header Host

  std::string Text() const { return (tls ? "https://" : "http://") + authority + target; }
  // Same scheme, host and port: a server that may see the token of the other.
  bool SameOrigin(const Url& other) const { return tls == other.tls && host == other.host && port == other.port; }
};

// Refuses other schemes, user names in the address, spaces, control characters and more than 8,192 bytes. A fragment
// (#…) is dropped. The host becomes lower case.
Result<Url> ParseUrl(std::string_view text);

// Where the header Location of a reply from `from` leads. Refuses a step from https to http.
Result<Url> ResolveRedirect(const Url& from, std::string_view location);

// Every byte but letters, digits and -._~ as %XX; '/' is kept if `keep_slash`.
std::string PercentEncode(std::string_view text, bool keep_slash);

}  // namespace infinigen
