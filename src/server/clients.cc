#include "server/clients.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "base/utf8.h"

namespace infinigen {
namespace {

using Address = std::array<uint8_t, 16>;
constexpr Address kMappedIpv4 = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
constexpr int kMappedBits = 96;
// Entries of the table are removed once it has this many.
constexpr size_t kSweepClients = 256;

bool IsIpv4(const Address& address) { return std::equal(address.begin(), address.begin() + 12, kMappedIpv4.begin()); }

// A zone ("fe80::1%eth0") does not matter.
std::optional<Address> ParseAddress(std::string_view text) {
  const std::string name(text.substr(0, text.find('%')));
  Address address = kMappedIpv4;
  if (::inet_pton(AF_INET, name.c_str(), address.data() + 12) == 1) return address;
  if (::inet_pton(AF_INET6, name.c_str(), address.data()) == 1) return address;
  return std::nullopt;
}

// The address of an entry of X-Forwarded-For: "192.0.2.7", "192.0.2.7:80", "2001:db8::1", "[2001:db8::1]:80".
std::string_view WithoutPort(std::string_view entry) {
  if (entry.starts_with('[')) {
    const size_t end = entry.find(']');
    const std::string_view rest = end == entry.npos ? "x" : entry.substr(end + 1);
    return rest.empty() || rest.starts_with(':') ? entry.substr(1, end - 1) : std::string_view();
  }
  return std::ranges::count(entry, ':') == 1 ? entry.substr(0, entry.find(':')) : entry;
}

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

bool IsLoopback(const Address& address) {
  if (IsIpv4(address)) return address[12] == 127;
  return std::all_of(address.begin(), address.end() - 1, [](uint8_t byte) { return byte == 0; }) && address[15] == 1;
}

}  // namespace

Result<AddressRange> AddressRange::Parse(std::string_view text) {
  AddressRange range;
  const size_t slash = text.find('/');
  const std::optional<Address> address = ParseAddress(text.substr(0, slash));
  const Error wrong = Invalid("{} is not a range of addresses such as 10.0.0.0/8, fd00::/8 or 192.0.2.7", Quoted(text));
  if (!address) return wrong;
  range.bytes_ = *address;
  const bool mapped = IsIpv4(*address);
  if (slash == text.npos) return range;
  const std::string_view digits = text.substr(slash + 1);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), range.bits_);
  if (error != std::errc() || end != digits.data() + digits.size()) return wrong;
  if (range.bits_ < 0 || range.bits_ > (mapped ? 32 : 128)) return wrong;
  if (mapped) range.bits_ += kMappedBits;
  return range;
}

bool AddressRange::Contains(std::string_view address) const {
  const std::optional<Address> bytes = ParseAddress(address);
  if (!bytes) return false;
  const size_t whole = static_cast<size_t>(bits_) / 8;
  if (!std::equal(bytes->begin(), bytes->begin() + static_cast<ptrdiff_t>(whole), bytes_.begin())) return false;
  if (bits_ % 8 == 0) return true;
  return (((*bytes)[whole] ^ bytes_[whole]) >> (8 - bits_ % 8)) == 0;
}

std::string ClientAddress(std::string_view peer, std::string_view forwarded, const std::vector<AddressRange>& proxies) {
  const auto trusted = [&](std::string_view address) {
    return std::any_of(proxies.begin(), proxies.end(),
                       [&](const AddressRange& range) { return range.Contains(address); });
  };
  std::string_view address = peer;
  while (trusted(address) && !forwarded.empty()) {
    const size_t comma = forwarded.rfind(',');
    const std::string_view before =
        WithoutPort(Trimmed(comma == forwarded.npos ? forwarded : forwarded.substr(comma + 1)));
    if (!ParseAddress(before)) return "unknown";
    address = before;
    forwarded = comma == forwarded.npos ? std::string_view() : forwarded.substr(0, comma);
  }
  return std::string(address);
}

std::string ClientOf(const std::string& address) {
  const std::optional<Address> bytes = ParseAddress(address);
  if (!bytes) return address;
  if (IsLoopback(*bytes)) return {};
  char text[INET6_ADDRSTRLEN] = {};
  if (IsIpv4(*bytes)) return ::inet_ntop(AF_INET, bytes->data() + 12, text, sizeof(text));
  Address network = *bytes;
  std::fill(network.begin() + 8, network.end(), uint8_t{0});
  return std::string(::inet_ntop(AF_INET6, network.data(), text, sizeof(text))) + "/64";
}

std::shared_ptr<Client> Clients::Find(const std::string& name) {
  const std::lock_guard lock(mutex_);
  std::weak_ptr<Client>& held = clients_[name];
  std::shared_ptr<Client> client = held.lock();
  if (client != nullptr) return client;
  client = std::make_shared<Client>();
  client->name = name;
  client->limited = !name.empty() && share_ < 1;
  const auto most = static_cast<uint64_t>(static_cast<double>(all_->limit()) * share_);
  client->memory = client->limited ? std::make_shared<MemoryAccount>(most, all_) : all_;
  held = client;
  if (clients_.size() >= kSweepClients)
    std::erase_if(clients_, [](const auto& entry) { return entry.second.expired(); });
  return client;
}

ClientCount Clients::TryCount(const std::shared_ptr<Client>& client, std::atomic<int64_t> Client::*what, int64_t count,
                              int64_t total) const {
  const auto most = static_cast<int64_t>(std::ceil(static_cast<double>(total) * share_));
  std::atomic<int64_t>& counted = (*client).*what;
  int64_t now = counted;
  do {
    if (client->limited && now > 0 && now + count > most) return {};
  } while (!counted.compare_exchange_weak(now, now + count));
  return {client, what, count};
}

}  // namespace infinigen
