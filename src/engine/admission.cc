// The engine's memory decisions: admission, growth, preemption, and reuse of held rows and cached prefixes.
#include <algorithm>
#include <limits>
#include <utility>

#include "engine/live.h"

namespace infinigen {
namespace {

// Rows that a request gets beyond those it needs at once. Growing is cheap, but a request should not be preempted for
// its first tokens right after its prefill.
constexpr int64_t kGrowthTokens = kExtentTokens;

SelectRule RuleOf(const RequestKv& kv, SelectRule rule, double largest_cap) {
  if (kv.full) {
    rule.alpha = std::numeric_limits<float>::infinity();
    rule.cap = 1.0;
    rule.force_count = 0;
    rule.mass = 0;
    rule.tail = false;
    return rule;
  }
  // A request that sets only one of alpha and mass replaces the other.
  if (kv.mass) rule.alpha = std::numeric_limits<float>::infinity(), rule.cap = std::min(kMassCap, largest_cap);
  if (kv.alpha) rule.mass = 0;
  rule.alpha = kv.alpha.value_or(rule.alpha);
  rule.cap = kv.cap.value_or(rule.cap);
  if (kv.mass) rule.mass = SelectRule::MassOf(*kv.mass);
  rule.tail = kv.tail.value_or(rule.tail);
  return rule;
}

// Steps that attend to everything give the same entries as a prefill. The other fields of rules are the same for all
// requests of an engine.
PrefixCache::Setting SettingOf(const SelectRule& rule, const KvMethod& method) {
  const bool everything = rule.alpha == std::numeric_limits<float>::infinity() && rule.cap >= 1.0 &&
                          rule.force_count == 0 && rule.mass == 0;
  if (!method.selects() || everything) return {};
  return {.selects = true,
          .alpha = rule.alpha,
          .cap = rule.cap,
          .mass = rule.mass,
          .tail = rule.tail,
          .late = rule.LateRows()};
}

}  // namespace

int64_t Engine::Running() const {
  return std::ranges::count_if(requests_, [](const auto& live) { return live->holds_slot(); });
}
int64_t Engine::Waiting() const {
  return std::ranges::count_if(requests_, [](const auto& live) { return live->state == RequestState::kQueued; });
}

// Preempted requests come first, in their order. Of the others, the one with the smallest rank whose client may run one
// more; null if there is none.
Engine::Live* Engine::NextToAdmit() {
  Live* next = nullptr;
  for (const std::unique_ptr<Live>& live : requests_) {
    if (live->state != RequestState::kQueued) continue;
    if (live->preempted) return live.get();
    if (next != nullptr && next->rank <= live->rank) continue;
    if (!AtLimit(live->request.client)) next = live.get();
  }
  return next;
}

// Whether the client runs in as many slots as it may.
bool Engine::AtLimit(const std::string& client) const {
  const int64_t batch = executor_.options().max_batch;
  if (client.empty() || options_.client_running >= batch) return false;
  const bool shared = std::ranges::any_of(
      seen_, [&](const Seen& seen) { return seen.client != client && turn_ - seen.turn <= kSharedTurns; });
  const int64_t most = shared ? std::min((batch + 1) / 2, options_.client_running) : options_.client_running;
  return std::ranges::count_if(requests_, [&](const auto& other) {
           return other->holds_slot() && other->request.client == client;
         }) >= most;
}

// Called with every client that has requests, at their arrival and in every turn.
void Engine::See(const std::string& client) {
  if (client.empty()) return;
  const auto found = std::ranges::find(seen_, client, &Seen::client);
  if (found != seen_.end()) {
    found->turn = turn_;
    return;
  }
  std::erase_if(seen_, [&](const Seen& seen) { return turn_ - seen.turn > kSharedTurns; });
  seen_.push_back({client, turn_});
}

// Moves a request that was never admitted before the others that were not.
void Engine::MoveUp(const Live& live) {
  const auto first = std::ranges::find_if(requests_, [](const auto& each) { return each->never_admitted(); });
  const auto own = std::ranges::find_if(requests_, [&](const auto& each) { return each.get() == &live; });
  if (first < own) std::rotate(first, own, own + 1);
}

void Engine::Admit() {
  int64_t running = Running();
  const KvMethod& method = executor_.options().method;
  while (running < executor_.options().max_batch) {
    Live* const live = NextToAdmit();
    if (live == nullptr) return;
    Result<SeqSlot> slot = AdmitOne(*live, running == 0);
    if (!slot.ok() && running == 0) {  // no request holds memory, so waiting cannot help
      Finish(*live, FinishReason::kError, slot.error().message);
      continue;
    }
    if (!slot.ok()) return;  // later requests must not overtake
    if (!live->preempted) MoveUp(*live);
    live->slot = *slot;
    live->Become(RequestState::kAdmitted);
    ++running;
    const SelectRule rule = RuleOf(live->request.kv, method.rule, method.LargestCap());
    if (method.selects()) executor_.SetRule(live->slot, rule);
    // Not earlier, because it may be the whole context: a queued request holds only its prompt.
    live->history.reserve(static_cast<size_t>(live->final_tokens + 1));
    live->result.tokens.reserve(static_cast<size_t>(live->final_tokens + 1 - live->prompt_tokens()));
    if (live->preempted) continue;
    live->admitted = EngineClock::now();
    live->result.queue_s = Seconds(live->admitted - live->submitted);
  }
}

// Held rows are released if the request does not fit beside them. A request with hold_rows gets room for the whole
// context, so that the conversation can continue in its slot.
Result<SeqSlot> Engine::AdmitOne(Live& live, bool alone) {
  if (sharing_ != nullptr) return AdmitGrowing(live, alone);
  if (live.request.hold_rows && AdoptHeldRows(live)) return live.slot;
  const int64_t quota = live.request.hold_rows ? executor_.options().max_tokens : live.final_tokens;
  Result<SeqSlot> slot = executor_.Admit(quota);
  if (slot.ok() || !held_) return slot;
  DropHeld();
  return executor_.Admit(quota);
}

bool Engine::AdoptHeldRows(Live& live) {
  if (!held_) return false;
  const std::vector<int32_t>& prompt = live.history;  // no token was generated yet
  const std::vector<int32_t>& tokens = held_->tokens;
  const auto differ = std::mismatch(tokens.begin(), tokens.end(), prompt.begin(), prompt.end()).first;
  // At least one token must be computed, for its logits.
  live.rows = std::min<int64_t>(differ - tokens.begin(), live.prompt_tokens() - 1);
  const KvMethod& method = executor_.options().method;
  // Evicted entries cannot be restored.
  if (method.evicts()) live.rows = 0;
  // Nor can rows that a window has left.
  if (live.rows < executor_.FirstRestart(held_->slot)) live.rows = 0;
  // An index that cannot lose a row is rebuilt from the start of its page.
  if (!method.select->rewrites_rows) live.rows -= live.rows % method.select->page_rows;
  live.slot = held_->slot;
  held_.reset();
  return true;
}

// The cached path of the request's tokens. At least one token is left to compute: for its logits, or as the guess of
// the next.
PrefixCache::Path Engine::FindPrefix(Live& live) {
  if (!prefixes_ || !live.shares) return {};
  const KvMethod& method = executor_.options().method;
  live.setting = SettingOf(RuleOf(live.request.kv, method.rule, method.LargestCap()), method);
  const std::span<const int32_t> tokens = live.history;
  const std::string& salt = live.request.cache_salt;
  if (!live.preempted) return prefixes_->Find(tokens.first(tokens.size() - 1), live.setting, salt);
  // After a preemption only entries that are bit-identical to the lost ones may be used. Rows of steps are excluded for
  // kPrevStep, whose guess needs the step before.
  const bool steps_too = !method.selects() || method.from != GuessSource::kPrevStep;
  const int64_t rows = steps_too ? live.rows_before_step() : live.prompt_tokens();
  return prefixes_->FindAgain(tokens.first(static_cast<size_t>(rows - 1)), live.kinds, salt);
}

// While the request waited for its lane, other prefills may have cached more of its prefix.
void Engine::AdoptPrefix(Live& live) {
  PrefixCache::Path found = FindPrefix(live);
  if (std::ranges::mismatch(live.path, found).in1 == live.path.end()) {
    for (size_t extent = live.path.size(); extent < found.size(); ++extent)
      sharing_->Adopt(live.slot, static_cast<int64_t>(extent), PrefixCache::Extents(found)[extent]);
    std::swap(live.path, found);
    live.rows = std::ssize(live.path) * kExtentTokens;
  }
  prefixes_->Release(found);
}

// `alone`: no other request runs. If the request then does not fit together with a cached prefix, whose saved index
// also takes memory, it is admitted without it.
Result<SeqSlot> Engine::AdmitGrowing(Live& live, bool alone) {
  const int64_t rows = std::min(live.final_tokens, live.rows_before_step() + kGrowthTokens);
  live.path = FindPrefix(live);
  for (;;) {
    const std::vector<SharedId> prefix = PrefixCache::Extents(live.path);
    Result<SeqSlot> slot = sharing_->AdmitGrowing(rows, prefix);
    if (slot.ok()) {
      live.rows = std::ssize(prefix) * kExtentTokens;
      return slot;
    }
    if (slot.error().kind == ErrorKind::kExhausted) {
      if (MakeRoom(rows / kExtentTokens - std::ssize(prefix))) continue;  // rounded down: the last may be shorter
      if (alone && !prefix.empty()) {
        prefixes_->Release(live.path);
        continue;
      }
    }
    if (prefixes_) prefixes_->Release(live.path);
    return slot;
  }
}

// Drops one unused prefix, unless dropping all of them would still leave fewer than `extents` extents.
bool Engine::MakeRoom(int64_t extents) {
  if (!prefixes_ || sharing_->free_extents() + prefixes_->unpinned() < extents) return false;
  return prefixes_->DropOldest();
}

// Called before a step, so that its new rows have memory. In order of arrival: older requests grow first.
void Engine::GrowAll() {
  if (sharing_ == nullptr) return;
  for (const std::unique_ptr<Live>& live : requests_)
    if (live->state == RequestState::kDecoding && live->rows == sharing_->Quota(live->slot)) Grow(*live);
}

void Engine::Grow(Live& live) {
  for (;;) {
    const Status grown = sharing_->Grow(live.slot, live.rows + 1);
    if (grown.ok()) return;
    if (grown.error().kind != ErrorKind::kExhausted) return Finish(live, FinishReason::kError, grown.error().message);
    if (MakeRoom(1)) continue;
    Live* newest = Newest();
    if (newest != &live) {
      Preempt(*newest);
    } else if (Running() > 1) {
      return Preempt(live);
    } else {
      // It is alone and may still fit: without the saved indexes of its shared extents, or without the free extents
      // that lie between its own and cannot become its last, shorter one. The empty pool decides (AdmitGrowing).
      live.shares = false;
      return Preempt(live);
    }
  }
}

Engine::Live* Engine::Newest() const {
  const auto last =
      std::find_if(requests_.rbegin(), requests_.rend(), [](const auto& live) { return live->holds_slot(); });
  CHECK(last != requests_.rend());
  return last->get();
}

void Engine::Preempt(Live& live) {
  live.kinds = PrefixCache::Kinds(live.path);
  CountSteps(live);
  ReleaseSlot(live);
  live.rows = live.prefill_units = live.prefill_units_done = 0;
  live.computed = false;
  live.preempted = true;
  live.Become(RequestState::kPreempted);
  live.Become(RequestState::kQueued);
  ++stats_.preemptions;
}

// Adds the request's complete extents to the prefix cache.
void Engine::Publish(Live& live) {
  if (!prefixes_ || !live.shares) return;
  for (;;) {
    const int64_t first = std::ssize(live.path) * kExtentTokens;
    if (first + kExtentTokens > live.rows) return;
    const std::span<const int32_t> tokens = std::span(live.history).subspan(static_cast<size_t>(first), kExtentTokens);
    const PrefixCache::Kind kind = PrefixCache::NextKind(live.path, live.setting, live.prompt_tokens() - first);
    if (!prefixes_->Extend(live.path, live.slot, tokens, kind, live.request.cache_salt)) return;
  }
}

// Releases the slot; published extents stay in the prefix cache.
void Engine::ReleaseSlot(Live& live) {
  executor_.Release(live.slot);
  if (prefixes_) prefixes_->Release(live.path);
}

}  // namespace infinigen
