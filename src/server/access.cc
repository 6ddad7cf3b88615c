#include "server/access.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <new>
#include <utility>

namespace infinigen {
namespace {

// A header of 16 KiB must have room for it.
constexpr size_t kMostKeyBytes = 4096;
constexpr uintmax_t kMostKeyFileBytes = 1 << 20;

std::array<unsigned char, 32> Sha256(std::string_view text) {
  std::array<unsigned char, 32> digest{};
  unsigned int length = 0;
  if (EVP_Digest(text.data(), text.size(), digest.data(), &length, EVP_sha256(), nullptr) == 1) return digest;
  ERR_clear_error();
  throw std::bad_alloc();  // nothing else can fail
}

std::string Lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return result;
}

bool IsAddress(int family, const std::string& name) {
  unsigned char bytes[16];
  return ::inet_pton(family, name.c_str(), bytes) == 1;
}

bool IsAddress(const std::string& name) { return IsAddress(AF_INET, name) || IsAddress(AF_INET6, name); }

// What follows a host's name: nothing, or a colon and a port. The port may be missing (RFC 3986, 3.2.3).
bool IsPortPart(std::string_view text) {
  if (text.empty()) return true;
  uint16_t port = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + 1, end, port);
  return text.front() == ':' && (text.size() == 1 || (error == std::errc() && stop == end));
}

bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '-' || c == '_';
}

// "Name:8080" becomes "name", and "[::1]:8080" becomes "::1". Empty for what is neither, such as "name:1@other".
std::string HostName(std::string_view host) {
  const bool bracket = host.starts_with('[');
  const size_t end = bracket ? host.find(']') : std::min(host.find(':'), host.size());
  if (end == host.npos || !IsPortPart(host.substr(bracket ? end + 1 : end))) return {};
  std::string name = bracket ? std::string(host.substr(1, end - 1)) : Lower(host.substr(0, end));
  const bool fine = bracket ? IsAddress(AF_INET6, name) : std::ranges::all_of(name, IsNameCharacter);
  return fine ? name : std::string();
}

// "https://Name:1" to "Name:1".
std::string_view Authority(std::string_view origin) {
  const size_t mark = origin.find("://");
  return mark == std::string_view::npos ? std::string_view() : origin.substr(mark + 3);
}

std::optional<std::string> DecodeBase64(std::string_view text) {
  if (text.size() % 4 != 0 || text.empty() || text.size() > 4096) return std::nullopt;
  std::string bytes(text.size() / 4 * 3, '\0');
  const int length =
      EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                      reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
  if (length < 0) return std::nullopt;
  bytes.resize(static_cast<size_t>(length) - (text[text.size() - 1] == '=') - (text[text.size() - 2] == '='));
  return bytes;
}

std::optional<std::string> KeyOf(std::string_view authorization) {
  const size_t space = authorization.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  const std::string scheme = Lower(authorization.substr(0, space));
  std::string_view rest = authorization.substr(space + 1);
  while (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);
  if (scheme == "bearer") return std::string(rest);
  if (scheme != "basic") return std::nullopt;
  const std::optional<std::string> pair = DecodeBase64(rest);
  if (!pair || pair->find(':') == std::string::npos) return std::nullopt;
  return pair->substr(pair->find(':') + 1);
}

}  // namespace

Status CheckKey(std::string_view key) {
  const auto visible = [](unsigned char c) { return c >= ' ' && c != 0x7F; };
  if (!std::ranges::all_of(key, visible))
    return Invalid("a key must not contain line ends or other control characters");
  if (key.empty() || key.front() == ' ' || key.back() == ' ')
    return Invalid("a key must not be empty, and must neither begin nor end with a space");
  if (key.size() > kMostKeyBytes) return Invalid("a key has {} bytes; at most {} fit", key.size(), kMostKeyBytes);
  return Ok();
}

Result<std::vector<std::string>> ReadKeyFile(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
    return Invalid("--api-key-file {}: is not a regular file", path);
  std::ifstream file(path);
  if (!file) return IoError("--api-key-file {}: cannot be opened", path);
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error || bytes > kMostKeyFileBytes)
    return Invalid("--api-key-file {}: is larger than the {} bytes that a file of keys may have", path,
                   kMostKeyFileBytes);
  std::vector<std::string> keys;
  const std::string_view byte_order_mark = "\xEF\xBB\xBF";  // some editors begin a file with it
  bool first = true;
  for (std::string line; std::getline(file, line);) {
    if (std::exchange(first, false) && line.compare(0, 3, byte_order_mark) == 0) line.erase(0, 3);
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ' || line.back() == '\t')) line.pop_back();
    line.erase(0, line.find_first_not_of(" \t"));
    if (line.empty() || line.front() == '#') continue;
    if (const Status fine = CheckKey(line); !fine.ok())
      return Invalid("--api-key-file {}: {}", path, fine.error().message);
    keys.push_back(line);
  }
  if (keys.empty()) return Invalid("--api-key-file {}: contains no key", path);
  return keys;
}

bool IsOrigin(std::string_view text) {
  const std::string_view authority = Authority(text);
  return authority.find_first_of("/@?# \t") == authority.npos && !HostName(authority).empty();
}

Access::Access(AccessOptions options) : options_(std::move(options)) {
  for (const std::string& key : options_.keys) digests_.push_back(Sha256(key));
  options_.keys.clear();
  char name[256] = {};
  if (::gethostname(name, sizeof(name) - 1) == 0) machine_name_ = Lower(name);
}

std::string Access::TenantOf(std::string_view authorization) const {
  const std::optional<std::string> key = KeyOf(authorization);
  if (!key) return {};
  const Digest digest = Sha256(*key);
  bool fits = false;
  for (const Digest& known : digests_) fits |= CRYPTO_memcmp(known.data(), digest.data(), known.size()) == 0;
  if (!fits) return {};
  return fmt::format("key-{:02x}", fmt::join(digest.begin(), digest.begin() + 16, ""));
}

bool Access::HostFits(std::string_view host) const {
  const std::string name = HostName(host);
  if (name.empty()) return false;
  if (name == "localhost" || name.ends_with(".localhost") || IsAddress(name)) return true;
  if (name == Lower(options_.host) || (!machine_name_.empty() && name == machine_name_)) return true;
  return std::any_of(options_.cors_origins.begin(), options_.cors_origins.end(),
                     [&](const std::string& origin) { return origin == "*" || HostName(Authority(origin)) == name; });
}

bool Access::AllowsOrigin(std::string_view origin) const {
  return std::any_of(options_.cors_origins.begin(), options_.cors_origins.end(),
                     [&](const std::string& allowed) { return allowed == "*" || allowed == origin; });
}

std::optional<ApiError> Access::Check(const HttpRequest& head) const {
  if (head.path == "/health") return std::nullopt;
  if (has_keys()) {
    if (!KeyFits(head.authorization))
      return ApiError{.status = 401,
                      .message = head.authorization.empty() ? "an API key is missing: send Authorization: Bearer KEY"
                                                            : "the API key is not valid for this server",
                      .type = "authentication_error",
                      .code = "invalid_api_key"};
  } else if (!head.host.empty() && !HostFits(head.host)) {
    return ApiError{
        .status = 403,
        .message = fmt::format("the Host '{}' is not allowed; start the server with --cors-origin http://{} or "
                               "with an API key to allow it",
                               head.host.substr(0, 100), head.host.substr(0, 100)),
        .type = "permission_error",
        .code = "host_not_allowed"};
  }
  const bool foreign = !head.origin.empty() && Authority(head.origin) != head.host && !AllowsOrigin(head.origin);
  if (foreign)
    return ApiError{
        .status = 403,
        .message = fmt::format("the origin '{}' is not allowed; start the server with --cors-origin to allow it",
                               head.origin.substr(0, 100)),
        .type = "permission_error",
        .code = "origin_not_allowed"};
  return std::nullopt;
}

void Access::AddCorsHeaders(const HttpRequest& head, HttpReply* reply) const {
  if (head.origin.empty() || !AllowsOrigin(head.origin)) return;
  reply->headers.emplace_back("Access-Control-Allow-Origin", head.origin);
  reply->headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
  reply->headers.emplace_back("Vary", "Origin");
}

HttpReply Access::Preflight(const HttpRequest& head) const {
  HttpReply reply{.status = 204, .type = ""};
  AddCorsHeaders(head, &reply);
  if (head.origin.empty() || !AllowsOrigin(head.origin)) return reply;
  reply.headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
  reply.headers.emplace_back("Access-Control-Allow-Headers",
                             head.cors_headers.empty() ? "Authorization, Content-Type" : head.cors_headers);
  reply.headers.emplace_back("Access-Control-Max-Age", "600");
  return reply;
}

}  // namespace infinigen
