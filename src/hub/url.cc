#include "hub/url.h"

#include <algorithm>
#include <cstdint>

#include "base/size.h"
#include "base/utf8.h"
#include "hub/name.h"

namespace infinigen {
namespace {

// Signed addresses of large files have about 1,500 bytes.
constexpr size_t kMaxUrlBytes = 8192;

bool IsClean(std::string_view text) {
  return text.size() <= kMaxUrlBytes && std::all_of(text.begin(), text.end(), [](char c) {
           return static_cast<unsigned char>(c) > 0x20 && c != 0x7f && c != '\\';
         });
}

// Splits "host", "host:port" or "[v6]:port".
bool ParseAuthority(std::string_view text, Url* url) {
  std::string_view host = text, port;
  if (!text.empty() && text[0] == '[') {
    const size_t end = text.find(']');
    if (end == text.npos) return false;
    host = text.substr(1, end - 1);
    const std::string_view rest = text.substr(end + 1);
    if (!rest.empty() && rest[0] != ':') return false;
    if (!rest.empty()) port = rest.substr(1);
  } else if (const size_t colon = text.find(':'); colon != text.npos) {
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
  }
  if (host.empty() || host.size() > 253 || host.find_first_of("@[]<>\"'") != host.npos) return false;
  int64_t number = url->tls ? 443 : 80;
  if (!port.empty() && !ParseInteger(port, 1, 65535, &number).empty()) return false;
  url->host = LowerCase(host);
  url->port = fmt::format("{}", number);
  url->authority = LowerCase(text);
  return true;
}

}  // namespace

Result<Url> ParseUrl(std::string_view text) {
  const auto refuse = [&] { return Invalid("{}: not an address of the form https://HOST/PATH", Quoted(text)); };
  if (!IsClean(text)) return refuse();
  Url url;
  const std::string scheme = LowerCase(text.substr(0, 8));
  if (scheme == "https://")
    url.tls = true;
  else if (scheme.substr(0, 7) != "http://")
    return refuse();
  std::string_view rest = text.substr(url.tls ? 8 : 7);
  rest = rest.substr(0, rest.find('#'));
  const size_t end = std::min(rest.find_first_of("/?"), rest.size());
  if (!ParseAuthority(rest.substr(0, end), &url)) return refuse();
  url.target = rest.substr(end);
  if (url.target.empty() || url.target[0] != '/') url.target.insert(0, "/");
  return url;
}

Result<Url> ResolveRedirect(const Url& from, std::string_view location) {
  if (!IsClean(location) || location.empty())
    return Invalid("{}: the server redirects to a malformed address", from.authority);
  if (location.find("://") != location.npos && location[0] != '/' && location[0] != '?') {
    ASSIGN_OR_RETURN(const Url to, ParseUrl(location));
    if (from.tls && !to.tls)
      return Invalid("{}: the server redirects from https to http ({}), which is refused", from.authority,
                     to.authority);
    return to;
  }
  if (location.substr(0, 2) == "//") return ParseUrl((from.tls ? "https:" : "http:") + std::string(location));
  Url to = from;
  location = location.substr(0, location.find('#'));
  const std::string path = from.target.substr(0, from.target.find('?'));
  if (location.empty())
    return to;
  else if (location[0] == '/')
    to.target = location;
  else if (location[0] == '?')
    to.target = path + std::string(location);
  else
    to.target = path.substr(0, path.rfind('/') + 1) + std::string(location);
  return to;
}

std::string PercentEncode(std::string_view text, bool keep_slash) {
  constexpr std::string_view kPlain = "-._~";
  std::string encoded;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       kPlain.find(c) != kPlain.npos || (keep_slash && c == '/');
    if (plain)
      encoded += c;
    else
      encoded += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return encoded;
}

}  // namespace infinigen
