// The prefix cache: which stretches of 256 tokens have their entries in the pool, by what they say and by everything
// that was said before them. A tree: a stretch is the child of the one before it, so a path from the root is a text.
//
//     root ── "You are a helpful…" ──┬── "…Monday" ── …
//                                    └── "…Tuesday"           each node: 256 tokens, entries in all layers, sketches
//
// A sequence pins the path of its own text while it runs, and begins with the nodes that were there already. A node
// that nobody pins stays until somebody needs its room, or more than a stated number of them would stay; leaves go
// first, the longest unused first.
//
// How entries were made matters: prefilled ones serve everybody. Those of decode steps that select come out a little
// different for every setting of the selection, so their nodes, and all nodes below, carry the setting and are found
// only by requests with the same. A node's entries follow, bit for bit, from its parent, its tokens and its kind; where
// a second sequence comes to the same node, it takes that one's entries for its own.
//
// Tokens are compared, not only their hash: nobody gets another text's entries.
//
// Called from the engine's thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "model/executor.h"

namespace infinigen {

class PrefixCache {
 public:
  struct Node;
  using Path = std::vector<Node*>;

  // `executor` can share, and outlives the cache. `most_unpinned`: nodes that stay though nobody uses them.
  explicit PrefixCache(Sharing& sharing, int64_t most_unpinned = INT64_MAX);
  // Precondition: nothing is pinned.
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // What steps attended by. Compared, as tokens are.
  struct Setting {
    bool selects = false;  // false: everything is attended to, and the others are 0
    float alpha = 0;
    double cap = 0;
    bool operator==(const Setting&) const = default;
  };
  // How a node's entries were made.
  struct Kind {
    Setting setting;                     // of the selection, here or above
    int64_t steps_from = kExtentTokens;  // the first row that a step made, where there is a setting
    bool operator==(const Kind&) const = default;
  };
  // The longest path of `tokens` that a request with this setting can use, pinned.
  Path Find(std::span<const int32_t> tokens, const Setting& setting);
  // The longest path of exactly these kinds, pinned.
  Path FindAgain(std::span<const int32_t> tokens, std::span<const Kind> kinds);
  // Adds the next 256 tokens of a pinned path, which are rows of the sequence; pinned. False when there is no room.
  bool Extend(Path& path, SeqSlot slot, std::span<const int32_t> tokens, const Kind& kind);
  // Unpins, and forgets, a path whose sequence was released. What is too much then leaves.
  void Release(Path& path);

  // Makes room: one node goes. False when all are pinned.
  bool DropOldest();
  // Everything that is not pinned.
  void DropAll() {
    while (DropOldest()) {
    }
  }

  static std::vector<SharedId> Extents(const Path& path);
  static std::vector<Kind> Kinds(const Path& path);
  // Of the 256 tokens after the path, of which steps make those from `steps_from` on.
  static Kind NextKind(const Path& path, const Setting& setting, int64_t steps_from);
  // Of a text that goes on with these tokens; quick, and no defence against who wants two texts to have the same.
  static uint64_t HashOf(uint64_t before, const Setting& setting, std::span<const int32_t> tokens);
  int64_t nodes() const { return static_cast<int64_t>(nodes_.size()); }
  int64_t unpinned() const { return nodes() - pinned_; }
  int64_t most_unpinned() const { return most_unpinned_; }

 private:
  // A child of this setting, and of this kind if it is given.
  Node* Child(const Node* parent, const Setting& setting, std::span<const int32_t> tokens, const Kind* kind) const;
  template <class Choose>
  Path Walk(std::span<const int32_t> tokens, Choose choose);
  void Pin(Node& node);

  Sharing& sharing_;
  const int64_t most_unpinned_;
  std::unordered_multimap<uint64_t, std::unique_ptr<Node>> nodes_;  // by hash of text and setting
  std::set<std::pair<uint64_t, Node*>> leaving_;                    // leaves that nobody pins, the longest unused first
  int64_t pinned_ = 0;
  uint64_t now_ = 0;  // counts Find and Extend
};

}  // namespace infinigen
