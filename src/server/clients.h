// Clients: who sends requests, and how much of the server each may hold. A client is an API key, else an address
// (docs/serving-safety.md). A client exists while something of it does. Any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "server/memory_account.h"

namespace infinigen {

// A range of addresses in CIDR notation: "10.0.0.0/8", "fd00::/8", or one address. IPv4 is stored as ::ffff:a.b.c.d.
class AddressRange {
 public:
  static Result<AddressRange> Parse(std::string_view text);
  bool Contains(std::string_view address) const;

 private:
  std::array<uint8_t, 16> bytes_{};
  int bits_ = 128;
};

// The address that a request came from: `peer`, or where that is a trusted proxy, the last address in `forwarded`
// (X-Forwarded-For: "client, proxy1, proxy2") that is not one; entries may have ports. "unknown" where that entry is
// not an address: all such requests are one client.
std::string ClientAddress(std::string_view peer, std::string_view forwarded, const std::vector<AddressRange>& proxies);
// The client of an address: itself, or for IPv6 its /64 network. Empty for loopback addresses: the machine's own user,
// whose share is not limited.
std::string ClientOf(const std::string& address);

struct Client {
  std::string name;
  bool limited = false;
  std::shared_ptr<MemoryAccount> memory;
  std::atomic<int64_t> connections{0}, places{0}, watchers{0};
};

// Counts one of something for a client while it exists.
class ClientCount {
 public:
  ClientCount() = default;
  ClientCount(std::shared_ptr<Client> client, std::atomic<int64_t> Client::*what, int64_t count)
      : client_(std::move(client)), what_(what), count_(count) {}
  ClientCount(ClientCount&& other) noexcept { *this = std::move(other); }
  ClientCount& operator=(ClientCount&& other) noexcept {
    std::swap(client_, other.client_);
    std::swap(what_, other.what_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~ClientCount() {
    if (client_ != nullptr) (*client_).*what_ -= count_;
  }
  explicit operator bool() const { return client_ != nullptr; }
  bool counts_for(const std::shared_ptr<Client>& client) const { return client_ == client; }

 private:
  std::shared_ptr<Client> client_;
  std::atomic<int64_t> Client::*what_ = nullptr;
  int64_t count_ = 0;
};

class Clients {
 public:
  // `share`: of everything, from 0 to 1, that one client may hold; 1: no limit. `all`: the server's account.
  Clients(double share, std::shared_ptr<MemoryAccount> all) : share_(share), all_(std::move(all)) {}

  // The client with this name; "" is not limited.
  std::shared_ptr<Client> Find(const std::string& name);
  // Counts `count` more for the client if it then holds at most its share of `total`, or has nothing else: one request
  // is never refused for its client's sake.
  ClientCount TryCount(const std::shared_ptr<Client>& client, std::atomic<int64_t> Client::*what, int64_t count,
                       int64_t total) const;
  double share() const { return share_; }

 private:
  const double share_;
  const std::shared_ptr<MemoryAccount> all_;
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<Client>> clients_;
};

}  // namespace infinigen
