#include "server/kv_watch.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "server/openai_format.h"

namespace infinigen {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::chrono::milliseconds kBetweenEvents{100};

// First row of a column; ColumnOf is its inverse.
int64_t FirstRow(int64_t column, int64_t columns, int64_t rows) { return (column * rows + columns - 1) / columns; }
int64_t ColumnOf(int64_t row, int64_t columns, int64_t rows) { return row * columns / rows; }

}  // namespace

uint64_t PoolLimit(const Executor& executor) {
  const uint64_t most = PlanMemory(executor.config(), executor.options(), 0).pool_bytes;
  return std::min(executor.options().pool_limit_bytes, most);
}

void KvPicture::Clear() {
  for (Layer& layer : layers_) layer.heads = layer.rows = 0;
}

void KvPicture::Add(LayerId layer, KvHead head, std::span<const int32_t> rows) {
  if (rows.empty()) return;
  Layer& of = layers_[layer.index()];
  if (head.value() == 0 || of.heads == 0) {  // a new step
    of.heads = 0;
    of.rows = rows.back() + 1;
    of.counts.assign(static_cast<size_t>(Columns(of.rows)), 0);
  }
  ++of.heads;
  const int64_t columns = Columns(of.rows);
  for (const int32_t row : rows)
    if (row < of.rows) ++of.counts[static_cast<size_t>(ColumnOf(row, columns, of.rows))];
}

int64_t KvPicture::rows() const {
  int64_t most = 0;
  for (const Layer& layer : layers_) most = std::max(most, layer.rows);
  return most;
}

nlohmann::ordered_json KvPicture::Layers(int64_t rows) const {
  const int64_t columns = Columns(rows);
  Json all = Json::array();
  for (const Layer& layer : layers_) {
    Json shares = Json::array();
    for (int64_t column = 0; column < columns; ++column) {
      if (layer.heads == 0 || column >= static_cast<int64_t>(layer.counts.size())) {
        shares.push_back(layer.heads == 0 ? 255 : 0);
        continue;
      }
      const int64_t width = FirstRow(column + 1, columns, layer.rows) - FirstRow(column, columns, layer.rows);
      const int64_t whole = std::max<int64_t>(width * layer.heads, 1);
      const int64_t count = layer.counts[static_cast<size_t>(column)];
      // Rounded up, so that a single row is visible.
      shares.push_back(std::clamp<int64_t>((count * 255 + whole - 1) / whole, 0, 255));
    }
    all.push_back(std::move(shares));
  }
  return all;
}

KvWatch::KvWatch(Engine& engine, const Metrics& metrics, uint64_t prefix_limit_bytes, bool samples, NowFunction now)
    : engine_(engine),
      metrics_(metrics),
      selects_(engine.executor().options().method.selects()),
      samples_(samples),
      picture_(engine.executor().config().layers),
      now_(std::move(now)),
      pool_limit_bytes_(PoolLimit(engine.executor())),
      prefix_limit_bytes_(prefix_limit_bytes) {}

KvWatch::~KvWatch() { Observe(false); }

void KvWatch::Add(std::shared_ptr<HttpExchange> watcher, std::string tenant, std::shared_ptr<const void> place) {
  if (ending_) return watcher->End();
  watchers_.push_back({std::move(watcher), std::move(tenant), std::move(place)});
  if (watchers_.size() == 1) followed_ = std::nullopt;
  if (!followed_) Follow();
}

bool KvWatch::IsWatched(const std::string& tenant) const {
  return std::ranges::any_of(watchers_, [&](const Watcher& watcher) { return watcher.tenant == tenant; });
}

void KvWatch::EndAll() {
  ending_ = true;
  for (const Watcher& watcher : watchers_) watcher.exchange->End();
  watchers_.clear();
  Observe(false);
}

void KvWatch::Remove(const HttpExchange* watcher) {
  std::erase_if(watchers_, [&](const Watcher& held) { return held.exchange.get() == watcher; });
  if (watchers_.empty()) return Observe(false);
  Follow();
}

void KvWatch::Observe(bool on) {
  const std::optional<SeqSlot> slot = on ? engine_.SlotOf(*followed_) : std::nullopt;
  if (slot)
    engine_.executor().instruments().ObserveSelection(
        [this](LayerId layer, SeqSlot, KvHead head, std::span<const int32_t> rows) {
          picture_.Add(layer, head, rows);
          fresh_ = drawn_ = true;
        },
        slot);
  else if (observing_)
    engine_.executor().instruments().ObserveSelection({});
  observing_ = slot.has_value();
}

KvWatch::Sequence* KvWatch::Find(RequestId id) {
  const auto found = std::find_if(sequences_.begin(), sequences_.end(), [&](const Sequence& s) { return s.id == id; });
  return found == sequences_.end() ? nullptr : &*found;
}

void KvWatch::Started(RequestId id, std::string name, int64_t prompt_tokens, std::string preset, std::string tenant) {
  sequences_.push_back({id, std::move(name), std::move(preset), prompt_tokens, false, std::move(tenant)});
}

void KvWatch::Token(RequestId id) {
  Sequence* sequence = Find(id);
  if (sequence == nullptr) return;
  ++sequence->rows;
  if (!sequence->decoding) {
    sequence->decoding = true;
    Follow();
  }
}

void KvWatch::Finished(RequestId id) {
  const bool followed = followed_ == id;
  if (followed && !watchers_.empty()) Send();  // the last picture, even before the next event is due
  std::erase_if(sequences_, [&](const Sequence& sequence) { return sequence.id == id; });
  if (followed) Follow();
}

// A preempted sequence has no slot; it counts again after its next token.
void KvWatch::Follow(bool next_tenant) {
  std::set<std::string> tenants;  // that watch, and have a sequence to watch
  for (Sequence& sequence : sequences_) {
    if (sequence.decoding && !engine_.SlotOf(sequence.id)) sequence.decoding = false;
    if (sequence.decoding && IsWatched(sequence.tenant)) tenants.insert(sequence.tenant);
  }
  const Sequence* now = followed_ ? Find(*followed_) : nullptr;
  std::optional<std::string> chosen;
  if (next_tenant && now != nullptr && !tenants.empty()) {
    const auto next = tenants.upper_bound(now->tenant);
    chosen = next == tenants.end() ? *tenants.begin() : *next;
  }
  const auto last = std::find_if(sequences_.rbegin(), sequences_.rend(), [&](const Sequence& s) {
    return s.decoding && tenants.contains(s.tenant) && (!chosen || s.tenant == *chosen);
  });
  const std::optional<RequestId> id = last == sequences_.rend() ? std::nullopt : std::optional(last->id);
  if (id == followed_) return;
  const bool first = !followed_ && !watchers_.empty();
  // Before anything changes, because it allocates.
  KvStats now_stats = first ? engine_.executor().instruments().Stats() : KvStats();
  followed_ = id;
  picture_.Clear();
  fresh_ = drawn_ = !selects_;
  if (watchers_.empty()) return;
  if (first) {
    before_ = std::move(now_stats);
    last_event_ = now_();
  }
  Observe(followed_.has_value());
}

void KvWatch::Turn() {
  if (watchers_.empty() || !followed_) return;
  if (!engine_.SlotOf(*followed_)) return Follow();
  const bool due = now_() - last_event_ >= kBetweenEvents;
  if (due && fresh_)
    Send();
  else if (due && !observing_)
    Observe(true);
  else if (!due && samples_ && observing_ && fresh_)
    Rest();
}

// Stops observing until the next event is due. The picture stays, in case the sequence ends before that.
void KvWatch::Rest() {
  Observe(false);
  fresh_ = !selects_;
}

void KvWatch::Send() {
  const Clock::time_point now = now_();
  const Sequence& sequence = *Find(*followed_);
  Executor& executor = engine_.executor();
  const KvStats stats = executor.instruments().Stats(), recent = stats - before_;
  const LayerKvStats selecting = recent.Selecting();
  if (recent.steps == 0 || !drawn_) return;
  const double seconds = std::chrono::duration<double>(now - last_event_).count();
  const auto per_second = [&](uint64_t bytes) { return static_cast<double>(bytes) / std::max(seconds, 1e-6); };
  last_event_ = now;
  before_ = stats;
  // Rows of the step that is shown. Without selection, all rows; the newest token has no entry yet.
  const int64_t rows = selects_ ? picture_.rows() : std::max<int64_t>(sequence.rows - 1, 1);
  const Json event = {
      {"request", sequence.name},
      {"rows", rows},
      {"columns", KvPicture::Columns(rows)},
      {"layers", picture_.Layers(rows)},
      {"selected_ratio", selecting.selected_ratio()},
      {"attended_ratio", recent.All().attended_ratio()},
      {"hit_ratio", recent.fetches ? Json(recent.hit_ratio()) : Json(nullptr)},
      {"tail_mass", selecting.tail_mass.count > 0 ? Json(MeanShare(selecting.tail_mass)) : Json(nullptr)},
      {"bytes_per_s", per_second(recent.read_bytes)},
      {"fetched_bytes_per_s", recent.fetches ? Json(per_second(recent.fetched_bytes)) : Json(nullptr)},
      {"pool_bytes", engine_.stats().pool_bytes},
      {"pool_limit_bytes", pool_limit_bytes_},
      {"prefix_bytes", engine_.stats().prefix_bytes},
      {"prefix_limit_bytes", prefix_limit_bytes_},
      {"kv", sequence.preset},
      {"running", metrics_.running()},
      {"waiting", metrics_.waiting()}};
  const std::string text = Event(event);
  bool others = false;
  for (const Watcher& watcher : watchers_) {
    if (watcher.tenant == sequence.tenant)
      watcher.exchange->Write(text);
    else
      others = true;
  }
  if (samples_)
    Rest();
  else
    fresh_ = !selects_;
  if (others) Follow(/*next_tenant=*/true);
}

}  // namespace infinigen
