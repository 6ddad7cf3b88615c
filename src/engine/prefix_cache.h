// PrefixCache: the shared extents of earlier requests, found by their tokens. A tree: a node is 256 tokens with their
// entries in all layers and their sketches; its parent is the 256 tokens before, so a path from the root is a text.
//
//     root ── "You are a helpful…" ──┬── "…Monday" ── …
//                                    └── "…Tuesday"
//
// A running sequence pins the path of its own text, and reuses the nodes that existed when it began. Unpinned nodes
// stay until a request needs their memory or there are more than `max_unpinned`; the least recently used leaf is
// dropped first.
//
// Prefilled entries serve every request. Entries of decode steps that select depend slightly on the selection's
// setting, so such a node, and all nodes below it, carry the setting and are found only by requests with the same one.
// The entries of a node are a bit-exact function of its parent, tokens and kind; a second sequence that arrives at the
// same node replaces its own entries by the node's.
//
// Tokens are compared, not only their hash, so a request can never get the entries of another text. So are salts: a
// text begins with a salt, which is no token, and texts with different salts share nothing.
//
// Called from the engine's thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "model/executor.h"

namespace infinigen {

class PrefixCache {
 public:
  struct Node;
  using Path = std::vector<Node*>;

  // `sharing` outlives the cache. Precondition: sharing.can_share(). `max_unpinned`: limit of nodes that no sequence
  // uses.
  explicit PrefixCache(Sharing& sharing, int64_t max_unpinned = INT64_MAX);
  // Precondition: nothing is pinned.
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // The selection setting of decode steps.
  struct Setting {
    bool selects = false;  // false: steps attend to everything, and the rest is 0
    float alpha = 0;
    double cap = 0;
    float mass = 0;
    bool tail = false;
    int32_t late = 0;
    bool operator==(const Setting&) const = default;
  };
  // How a node's entries were computed.
  struct Kind {
    Setting setting;                     // selects: if this node or one above has rows of steps that select
    int64_t steps_from = kExtentTokens;  // first row that a decode step computed, if setting.selects
    bool operator==(const Kind&) const = default;
  };
  // Pins and returns the longest path of `tokens` that a request with this setting can use.
  Path Find(std::span<const int32_t> tokens, const Setting& setting, std::string_view salt = {});
  // Pins and returns the longest path of `tokens` whose nodes have exactly these kinds.
  Path FindAgain(std::span<const int32_t> tokens, std::span<const Kind> kinds, std::string_view salt = {});
  // Extends a pinned path by the sequence's next 256 tokens, as a pinned node. False when there is no memory.
  bool Extend(Path& path, SeqSlot slot, std::span<const int32_t> tokens, const Kind& kind, std::string_view salt = {});
  // Unpins a path whose sequence was released, clears it, and drops nodes beyond max_unpinned.
  void Release(Path& path);

  // Drops the least recently used unpinned leaf. False when all nodes are pinned.
  bool DropOldest();
  // Removes all nodes without dropping their extents, which the executor has freed (Executor::Reset). Paths that were
  // pinned must be cleared.
  void Forget();
  // Drops all nodes that are not pinned.
  void DropAll() {
    while (DropOldest()) {
    }
  }

  static std::vector<SharedId> Extents(const Path& path);
  static std::vector<Kind> Kinds(const Path& path);
  // The kind of the 256 tokens after the path if decode steps compute those from `steps_from` on.
  static Kind NextKind(const Path& path, const Setting& setting, int64_t steps_from);
  // Hash of a text with hash `before` that continues with `tokens`. Fast, but not collision-resistant.
  static uint64_t HashOf(uint64_t before, const Setting& setting, std::span<const int32_t> tokens);
  int64_t nodes() const { return static_cast<int64_t>(nodes_.size()); }
  int64_t unpinned() const { return nodes() - pinned_; }
  int64_t max_unpinned() const { return max_unpinned_; }

 private:
  // The child with these tokens and this setting, and of this kind unless `kind` is null. The salt matters where
  // `parent` is null.
  Node* Child(const Node* parent, const Setting& setting, std::span<const int32_t> tokens, const Kind* kind,
              std::string_view salt) const;
  template <class Choose>
  Path Walk(std::span<const int32_t> tokens, Choose choose);
  void Pin(Node& node);

  Sharing& sharing_;
  const int64_t max_unpinned_;
  std::unordered_multimap<uint64_t, std::unique_ptr<Node>> nodes_;  // by hash of text and setting
  std::set<std::pair<uint64_t, Node*>> droppable_;                  // (last use, node): the unpinned leaves
  int64_t pinned_ = 0;
  uint64_t now_ = 0;  // logical time: number of Find, FindAgain and Extend calls
};

}  // namespace infinigen
