// MemoryAccount: the bytes that requests make the server hold beside its memory plan: input, bodies, parse trees,
// tokenizer scratch, replies (docs/serving-safety.md). The server has one; every client has a smaller one inside it.
// Any thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace infinigen {

class MemoryAccount {
 public:
  // What is taken from this account is taken from `parent` too, if there is one.
  explicit MemoryAccount(uint64_t limit_bytes, std::shared_ptr<MemoryAccount> parent = nullptr)
      : limit_(limit_bytes), parent_(std::move(parent)) {}
  MemoryAccount(const MemoryAccount&) = delete;
  MemoryAccount& operator=(const MemoryAccount&) = delete;

  uint64_t limit() const { return limit_; }
  uint64_t used() const { return used_; }
  bool overdrawn() const { return used_ > limit_ || (parent_ != nullptr && parent_->overdrawn()); }
  // The most that one request may take: half of the server's account, and never more than the client's.
  uint64_t request_limit() const {
    return parent_ == nullptr ? limit_ / 2 : std::min(limit_, parent_->request_limit());
  }

  // Takes `bytes` if they fit.
  bool TryTake(uint64_t bytes) {
    uint64_t used = used_;
    do {
      if (bytes > limit_ || used > limit_ - bytes) return false;
    } while (!used_.compare_exchange_weak(used, used + bytes));
    Raise(used + bytes);
    if (parent_ == nullptr || parent_->TryTake(bytes)) return true;
    used_ -= bytes;
    return false;
  }
  // Takes bytes that exist already; the account may be overdrawn afterwards.
  void Take(uint64_t bytes) {
    Raise(used_ += bytes);
    if (parent_ != nullptr) parent_->Take(bytes);
  }
  void GiveBack(uint64_t bytes) {
    used_ -= bytes;
    if (parent_ != nullptr) parent_->GiveBack(bytes);
  }
  // Whether it has fallen by `bytes` from its peak since the last call that returned true.
  bool FellBy(uint64_t bytes) {
    const uint64_t used = used_;
    uint64_t peak = peak_;
    return peak >= used + bytes && peak_.compare_exchange_strong(peak, used);
  }

 private:
  void Raise(uint64_t used) {
    uint64_t peak = peak_;
    while (peak < used && !peak_.compare_exchange_weak(peak, used)) {
    }
  }

  const uint64_t limit_;
  const std::shared_ptr<MemoryAccount> parent_;
  std::atomic<uint64_t> used_{0}, peak_{0};
};

// A part of an account, given back with the object. Without an account it counts nothing. One thread at a time.
class MemoryShare {
 public:
  MemoryShare() = default;
  explicit MemoryShare(std::shared_ptr<MemoryAccount> account) : account_(std::move(account)) {}
  MemoryShare(MemoryShare&& other) noexcept
      : account_(std::move(other.account_)), bytes_(std::exchange(other.bytes_, 0)), highest_(other.highest_) {}
  MemoryShare& operator=(MemoryShare&& other) noexcept {
    std::swap(account_, other.account_);
    std::swap(bytes_, other.bytes_);
    std::swap(highest_, other.highest_);
    return *this;
  }
  ~MemoryShare() { Set(0); }

  bool has_account() const { return account_ != nullptr; }
  uint64_t bytes() const { return bytes_; }
  uint64_t highest() const { return highest_; }  // of bytes() so far

  // Adds `bytes` if they fit into the account; otherwise nothing changes.
  bool TryAdd(uint64_t bytes) {
    if (account_ == nullptr) return true;
    if (!account_->TryTake(bytes)) return false;
    Count(bytes_ + bytes);
    return true;
  }
  // Sets the part to bytes that exist already. False: the account is overdrawn.
  bool Set(uint64_t bytes) {
    if (account_ == nullptr) return true;
    if (bytes > bytes_) account_->Take(bytes - bytes_);
    if (bytes < bytes_) account_->GiveBack(bytes_ - bytes);
    Count(bytes);
    return !account_->overdrawn();
  }
  // Moves the part to another account.
  void MoveTo(std::shared_ptr<MemoryAccount> account) {
    const uint64_t bytes = bytes_;
    Set(0);
    account_ = std::move(account);
    Set(bytes);
  }

 private:
  void Count(uint64_t bytes) {
    bytes_ = bytes;
    highest_ = std::max(highest_, bytes);
  }

  std::shared_ptr<MemoryAccount> account_;
  uint64_t bytes_ = 0, highest_ = 0;
};

}  // namespace infinigen
