#include "engine/prefix_cache.h"

#include <algorithm>
#include <bit>

namespace infinigen {

// Invariant: a sequence that pins a node also pins its parent. So an unpinned node has no pinned child.
struct PrefixCache::Node {
  Node* parent = nullptr;  // null at the beginning of a text
  uint64_t hash = 0;
  Kind kind;
  std::vector<int32_t> tokens;  // [256]
  std::string salt;             // of a node without parent
  SharedId extent;
  int64_t children = 0;
  int64_t pins = 0;
  uint64_t used = 0;  // time of the last use

  bool is_droppable() const { return pins == 0 && children == 0; }
};

namespace {

uint64_t Mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
  return hash ^ hash >> 32;
}

// What the hash of a text begins with.
uint64_t HashOfSalt(std::string_view salt) {
  uint64_t hash = 0;
  for (const char c : salt) hash = Mix(hash, static_cast<unsigned char>(c));
  return hash;
}

}  // namespace

uint64_t PrefixCache::HashOf(uint64_t before, const Setting& setting, std::span<const int32_t> tokens) {
  uint64_t hash = Mix(before, setting.selects);
  hash = Mix(Mix(hash, std::bit_cast<uint32_t>(setting.alpha)), std::bit_cast<uint64_t>(setting.cap));
  hash = Mix(Mix(hash, std::bit_cast<uint32_t>(setting.mass)), setting.tail);
  hash = Mix(hash, static_cast<uint32_t>(setting.late));
  for (const int32_t token : tokens) hash = Mix(hash, static_cast<uint32_t>(token));
  return hash;
}

PrefixCache::PrefixCache(Sharing& sharing, int64_t max_unpinned) : sharing_(sharing), max_unpinned_(max_unpinned) {
  CHECK(max_unpinned >= 0);
}

PrefixCache::~PrefixCache() {
  DropAll();
  CHECK(nodes_.empty());
}

PrefixCache::Node* PrefixCache::Child(const Node* parent, const Setting& setting, std::span<const int32_t> tokens,
                                      const Kind* kind, std::string_view salt) const {
  const uint64_t before = parent == nullptr ? HashOfSalt(salt) : parent->hash;
  const auto [first, last] = nodes_.equal_range(HashOf(before, setting, tokens));
  const auto same = std::find_if(first, last, [&](const auto& child) {
    const Node& node = *child.second;
    return node.parent == parent && (parent != nullptr || node.salt == salt) &&
           (kind == nullptr ? node.kind.setting == setting : node.kind == *kind) &&
           std::ranges::equal(node.tokens, tokens);
  });
  return same == last ? nullptr : same->second.get();
}

template <class Choose>
PrefixCache::Path PrefixCache::Walk(std::span<const int32_t> tokens, Choose choose) {
  ++now_;
  Path path;
  for (size_t end = kExtentTokens; end <= tokens.size(); end += kExtentTokens) {
    Node* node = choose(path, tokens.subspan(end - kExtentTokens, kExtentTokens));
    if (node == nullptr) break;
    Pin(*node);
    path.push_back(node);
  }
  return path;
}

PrefixCache::Path PrefixCache::Find(std::span<const int32_t> tokens, const Setting& setting, std::string_view salt) {
  return Walk(tokens, [&](const Path& path, std::span<const int32_t> chunk) {
    const Node* parent = path.empty() ? nullptr : path.back();
    Node* node = Child(parent, {}, chunk, nullptr, salt);
    return node != nullptr || !setting.selects ? node : Child(parent, setting, chunk, nullptr, salt);
  });
}

PrefixCache::Path PrefixCache::FindAgain(std::span<const int32_t> tokens, std::span<const Kind> kinds,
                                         std::string_view salt) {
  return Walk(tokens, [&](const Path& path, std::span<const int32_t> chunk) -> Node* {
    if (path.size() == kinds.size()) return nullptr;
    const Kind& kind = kinds[path.size()];
    return Child(path.empty() ? nullptr : path.back(), kind.setting, chunk, &kind, salt);
  });
}

PrefixCache::Kind PrefixCache::NextKind(const Path& path, const Setting& setting, int64_t steps_from) {
  const bool selected_before = !path.empty() && path.back()->kind.setting.selects;
  if (!setting.selects || (!selected_before && steps_from >= kExtentTokens)) return {};
  return {setting, std::clamp<int64_t>(steps_from, 0, kExtentTokens)};
}

bool PrefixCache::Extend(Path& path, SeqSlot slot, std::span<const int32_t> tokens, const Kind& kind,
                         std::string_view salt) {
  CHECK(std::ssize(tokens) == kExtentTokens);
  ++now_;
  Node* parent = path.empty() ? nullptr : path.back();
  Node* node = Child(parent, kind.setting, tokens, &kind, salt);
  if (node != nullptr) {
    sharing_.Adopt(slot, std::ssize(path), node->extent);
  } else {
    Result<SharedId> extent = sharing_.Share(slot, std::ssize(path));
    while (!extent.ok()) {
      if (!DropOldest()) return false;
      extent = sharing_.Share(slot, std::ssize(path));
    }
    auto made = std::make_unique<Node>();
    node = made.get();
    node->parent = parent;
    node->hash = HashOf(parent == nullptr ? HashOfSalt(salt) : parent->hash, kind.setting, tokens);
    if (parent == nullptr) node->salt = salt;
    node->kind = kind;
    node->tokens.assign(tokens.begin(), tokens.end());
    node->extent = *extent;
    if (parent != nullptr) ++parent->children;
    nodes_.emplace(node->hash, std::move(made));
  }
  Pin(*node);
  path.push_back(node);
  return true;
}

// Invariant: droppable_ contains exactly the nodes with is_droppable().
void PrefixCache::Pin(Node& node) {
  if (node.is_droppable()) droppable_.erase({node.used, &node});
  if (node.pins++ == 0) ++pinned_;
  node.used = now_;
}

void PrefixCache::Release(Path& path) {
  for (Node* node : path) {
    CHECK(node->pins > 0);
    if (--node->pins == 0) --pinned_;
    if (node->is_droppable()) droppable_.emplace(node->used, node);
  }
  path.clear();
  while (unpinned() > max_unpinned_) CHECK(DropOldest());
}

bool PrefixCache::DropOldest() {
  if (droppable_.empty()) return false;
  Node* node = droppable_.extract(droppable_.begin()).value().second;
  sharing_.DropShared(node->extent);
  if (Node* parent = node->parent; parent != nullptr) {
    --parent->children;
    if (parent->is_droppable()) droppable_.emplace(parent->used, parent);
  }
  const auto [first, last] = nodes_.equal_range(node->hash);
  nodes_.erase(std::find_if(first, last, [&](const auto& child) { return child.second.get() == node; }));
  return true;
}

void PrefixCache::Forget() {
  droppable_.clear();
  nodes_.clear();
  pinned_ = 0;
}

std::vector<SharedId> PrefixCache::Extents(const Path& path) {
  std::vector<SharedId> extents;
  for (const Node* node : path) extents.push_back(node->extent);
  return extents;
}

std::vector<PrefixCache::Kind> PrefixCache::Kinds(const Path& path) {
  std::vector<Kind> kinds;
  for (const Node* node : path) kinds.push_back(node->kind);
  return kinds;
}

}  // namespace infinigen
