// The eviction state of a cache, as plain structs for both kv (which decides) and the backends (which keep the state).
//
// An evicting layer retains at most `quota` rows of a sequence. Until the cache is full, row = position. From then on
// every new token overwrites the row of an evicted entry, chosen separately for each KV head, so rows are no longer in
// the order of positions and heads differ. Each row of each KV head has two numbers: the position of the token that it
// holds, and a priority. The unprotected row with the smallest priority is evicted; policies (kv/retain.h) differ in
// how priorities are set.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kv/index_view.h"
#include "kv/view.h"

namespace infinigen {

// The priority of a new entry.
enum class InitialPriority : uint8_t {
  kZero,       // raised later, by selections or attention
  kPosition,   // newer entries have higher priority
  kScrambled,  // pseudo-random, a fixed function of the position
};
// How the priority of a row changes when the row is selected by score.
enum class PriorityUpdate : uint8_t {
  kKeep,   // not at all
  kCount,  // + 1; when one exceeds kPriorityLimit, all priorities of the head are halved
  kStamp,  // set to the current position
};
inline constexpr float kPriorityLimit = 255.0f;  // as published: counters of one byte

struct RetainRule {
  InitialPriority on_append = InitialPriority::kPosition;
  PriorityUpdate on_select = PriorityUpdate::kKeep;
  bool sums_attention = false;  // every step adds its attention weights to the priorities
  int32_t sinks = 0;            // first tokens, which are never evicted
};

// The eviction state of one layer for every slot; memory of the compute device. Null positions: the layer retains
// everything, and row = position.
struct EvictionState {
  int32_t* positions = nullptr;  // [slots][kv_heads][capacity]
  float* priorities = nullptr;   // [slots][kv_heads][capacity]
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

// The positions that are exempt from eviction when the token at `position` is appended to a cache of `quota` rows: the
// newest ⌊quota / 2⌋, and the sinks, limited so that at least one row can be evicted.
struct Protection {
  constexpr Protection(int64_t position, int64_t quota, int64_t asked_sinks)
      : sinks(std::min(asked_sinks, quota - quota / 2 - 1)), newest(position - quota / 2) {}
  constexpr bool Covers(int64_t of) const { return of < sinks || of >= newest; }

  int64_t sinks;   // positions [0, sinks)
  int64_t newest;  // positions from here on
};

// NaN, which a broken model can produce, counts as the smallest priority.
constexpr float ComparablePriority(float priority) {
  return priority == priority ? priority : -std::numeric_limits<float>::infinity();
}

// The priority for kScrambled: exact in f32, so it is the same on every device.
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

// One layer's cache for every slot: the parts that eviction must change together. Sketches and eviction state are
// optional.
struct LayerCache {
  LayerEntries entries;
  LayerSketches sketches;
  EvictionState retained;
};

}  // namespace infinigen
