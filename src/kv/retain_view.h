// Who stays when a cache is full, as plain structs for both kv (which decides) and the backends (which keep the
// eviction state).
//
// A layer that evicts keeps at most `quota` rows of a sequence. Until it is full, row = position. From then on every
// new token takes the row of a victim, one per KV head, so rows are no longer in the order of positions, and each head
// has its own. Two numbers are kept per row and KV head: the position of the token that lives there, and a priority.
// The victim is the row with the smallest priority that is not protected; policies (kv/retain.h) differ in what a
// priority is.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace infinigen {

// The priority of a new entry.
enum class InitialPriority : uint8_t {
  kZero,       // it has still to earn one
  kPosition,   // the order of arrival
  kScrambled,  // a fixed pseudo-random number of the position
};
// What happens to the priority of a row that was selected by score.
enum class PriorityUpdate : uint8_t {
  kKeep,
  kCount,  // + 1; when the largest of a head exceeds kPriorityLimit, all of the head are halved
  kStamp,  // becomes the current position
};
inline constexpr float kPriorityLimit = 255.0f;  // counters of a byte

struct RetainRule {
  InitialPriority on_append = InitialPriority::kPosition;
  PriorityUpdate on_select = PriorityUpdate::kKeep;
  bool sums_attention = false;  // priorities grow by the attention weights of every step
  int32_t sinks = 0;            // first tokens that never leave
};

// The eviction state of one layer for every sequence slot; memory of the compute device. Without positions the layer
// retains everything, and row = position.
struct EvictionState {
  int32_t* positions = nullptr;  // [slots][kv_heads][capacity]
  float* priorities = nullptr;   // the same shape
  int64_t capacity = 0;
  int64_t kv_heads = 0;
  const int32_t* quotas = nullptr;  // [slots]

  constexpr explicit operator bool() const { return positions != nullptr; }
  constexpr int32_t* Positions(int64_t slot, int64_t head) const {
    return positions + (slot * kv_heads + head) * capacity;
  }
  constexpr float* Priorities(int64_t slot, int64_t head) const {
    return priorities + (slot * kv_heads + head) * capacity;
  }
};

// Who cannot be a victim when the token at `position` comes to `quota` rows: the newest ⌊quota / 2⌋, and the sinks as
// far as they leave somebody to evict.
struct Protection {
  constexpr Protection(int64_t position, int64_t quota, int64_t asked_sinks)
      : sinks(std::min(asked_sinks, quota - quota / 2 - 1)), newest(position - quota / 2) {}
  constexpr bool Covers(int64_t of) const { return of < sinks || of >= newest; }

  int64_t sinks;   // positions [0, sinks)
  int64_t newest;  // positions from here on
};

// A priority that is not a number (of a model that makes none) is the least of all.
constexpr float ComparablePriority(float priority) {
  return priority == priority ? priority : -std::numeric_limits<float>::infinity();
}

// The priority of kScrambled: the same on every device, exact in f32.
constexpr float ScrambledPriority(int32_t position, int64_t head) {
  uint64_t x = static_cast<uint64_t>(position) * 0x9e3779b97f4a7c15ull + static_cast<uint64_t>(head) + 1;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return static_cast<float>((x ^ (x >> 31)) >> 40);
}
constexpr float PriorityAtAppend(InitialPriority kind, int32_t position, int64_t head) {
  switch (kind) {
    case InitialPriority::kZero:
      return 0.0f;
    case InitialPriority::kPosition:
      return static_cast<float>(position);
    case InitialPriority::kScrambled:
      return ScrambledPriority(position, head);
  }
  return 0.0f;
}

}  // namespace infinigen
