// A wrapper header: src/json/wrapper stands before the library's directory in the include path, so this file is found
// for <nlohmann/json.hpp> and includes the library's own. It must be seen by every file that uses the library, because
// it specialises std::allocator for JSON values, which the library names and gives no way to choose.
//
// Why: the destructor of an array or object in nlohmann::json allocates a list of what it frees, also for the pairs of
// an initialiser list. Where memory is short, that exception would leave a destructor and end the process. So arrays of
// JSON values come from an allocator that has 256 KiB in reserve, for lists of up to 16,384 values. Larger trees are
// freed by FreeJson (json/parse.h), which allocates nothing. Any thread.
#pragma once
#pragma GCC system_header  // include_next is an extension

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <nlohmann/json_fwd.hpp>

namespace infinigen {

// 64 blocks of 4 KiB; a bit says whether a block is used. Lock-free.
class JsonReserve {
 public:
  // Null if so many adjacent blocks are not free.
  void* Take(std::size_t bytes) noexcept {
    const std::size_t blocks = (bytes + kBlockBytes - 1) / kBlockBytes;
    if (blocks > 64) return nullptr;
    std::uint64_t used = used_.load();
    for (unsigned at = 0; at + blocks <= 64;) {
      const std::uint64_t wanted = Mask(blocks) << at;
      if ((used & wanted) != 0)
        ++at;
      else if (used_.compare_exchange_weak(used, used | wanted))
        return memory_.data() + at * kBlockBytes;
      else
        at = 0;
    }
    return nullptr;
  }
  // False: `data` is not of this reserve.
  bool GiveBack(const void* data, std::size_t bytes) noexcept {
    const auto offset = reinterpret_cast<std::uintptr_t>(data) - reinterpret_cast<std::uintptr_t>(memory_.data());
    if (offset >= memory_.size()) return false;
    used_.fetch_and(~(Mask((bytes + kBlockBytes - 1) / kBlockBytes) << offset / kBlockBytes));
    return true;
  }

 private:
  static constexpr std::size_t kBlockBytes = 4096;
  static std::uint64_t Mask(std::size_t blocks) noexcept { return blocks == 64 ? ~0ull : (1ull << blocks) - 1; }

  std::atomic<std::uint64_t> used_{0};
  alignas(64) std::array<std::byte, 64 * kBlockBytes> memory_{};
};
inline constinit JsonReserve json_reserve;

template <class Json>
struct JsonAllocator {
  using value_type = Json;
  using size_type = std::size_t;
  using difference_type = std::ptrdiff_t;
  using propagate_on_container_move_assignment = std::true_type;
  using is_always_equal = std::true_type;

  constexpr JsonAllocator() noexcept = default;

  Json* allocate(std::size_t count) {
    if (count > SIZE_MAX / sizeof(Json)) throw std::bad_array_new_length();
    if (void* data = ::operator new(count * sizeof(Json), std::nothrow)) return static_cast<Json*>(data);
    if (void* data = json_reserve.Take(count * sizeof(Json))) return static_cast<Json*>(data);
    throw std::bad_alloc();
  }
  void deallocate(Json* data, std::size_t count) noexcept {
    if (!json_reserve.GiveBack(data, count * sizeof(Json))) ::operator delete(data);
  }
};

}  // namespace infinigen

// The library names std::allocator; these are its specialisations for the two kinds of JSON values.
template <>
class std::allocator<nlohmann::json> : public infinigen::JsonAllocator<nlohmann::json> {
 public:
  constexpr allocator() noexcept = default;
  template <class Other>
  constexpr allocator(const std::allocator<Other>&) noexcept {}
  friend constexpr bool operator==(const allocator&, const allocator&) noexcept { return true; }
};
template <>
class std::allocator<nlohmann::ordered_json> : public infinigen::JsonAllocator<nlohmann::ordered_json> {
 public:
  constexpr allocator() noexcept = default;
  template <class Other>
  constexpr allocator(const std::allocator<Other>&) noexcept {}
  friend constexpr bool operator==(const allocator&, const allocator&) noexcept { return true; }
};

#include_next <nlohmann/json.hpp>
