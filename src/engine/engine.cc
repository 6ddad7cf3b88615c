#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/live.h"
#include "engine/logprobs.h"
#include "tensor/finite.h"

namespace infinigen {
namespace {

Status CheckKv(const RequestKv& kv, const KvMethod& method) {
  if (kv.full) {
    if (method.evicts())
      return Unsupported("kv {} evicts entries, so a request cannot attend to all of them", method.preset);
    if (!method.selects() || method.LargestCap() >= 1) return Ok();
    return Unsupported("a request asks for all entries, but there is room for only {:.4g}% of them",
                       100 * method.LargestCap());
  }
  if (!kv.any()) return Ok();
  if (!method.selects())
    return Unsupported("kv {} attends to everything, so a request cannot set alpha, cap, mass or tail", method.preset);
  if (kv.mass && !method.select->uses_basis)
    return Unsupported("kv {} has no sketches, so a request cannot set mass", method.preset);
  if (kv.tail == true && !method.has_tail())
    return Unsupported("kv {} keeps no sketches of values here, so a request cannot set tail", method.preset);
  if (kv.mass && !(*kv.mass > 0 && *kv.mass <= 1))
    return Invalid("mass is {}, but must be above 0 and at most 1", *kv.mass);
  if (kv.mass && kv.alpha) return Invalid("alpha and mass cannot be combined: mass decides how many entries it needs");
  if (kv.alpha && !(*kv.alpha >= 0)) return Invalid("alpha is {}, but must not be negative", *kv.alpha);
  if (kv.cap && !(*kv.cap > 0 && *kv.cap <= 1)) return Invalid("cap is {}, but must be above 0 and at most 1", *kv.cap);
  if (kv.cap.value_or(0) > method.LargestCap())
    return Unsupported("a request asks for a cap of {}, but there is room for only {}", *kv.cap, method.LargestCap());
  return Ok();
}

// A unit of fewer tokens costs nearly as much as one of this many, because it reads all weights of a layer.
constexpr int64_t kLeastUnitTokens = 32;
// For each unfinished request of its client, a request comes so many arrivals later in the queue. So clients take
// turns, and none waits for more than so many later arrivals of others for each request of its own.
constexpr int64_t kOwnCost = 128;
// Steps of a turn for the clients that decode few requests, at most. Where one took over 3/4 of a common step,
// they are tried again in the next turn, then after 2, 4, … turns: a single slow step may be the machine's doing.
constexpr int kMostLightSteps = 16;
constexpr int64_t kLongestLightPause = 64;
// Prompt tokens scored in one unit: as many predictions read the output matrix once.
constexpr int64_t kScoredTogether = 16;
constexpr const char* kConstraintFailed = "the grammar of the answer could not be followed any further";

}  // namespace

Engine::Engine(Executor& executor, const EngineOptions& options)
    : executor_(executor), sharing_(options.grows ? executor.sharing() : nullptr), options_(options) {
  const size_t batch = static_cast<size_t>(executor.options().max_batch);
  batch_.reserve(batch);
  items_.reserve(batch);
  stats_.step_ms.reserve(kStepSamples);  // a step allocates nothing
  logits_.resize(batch * static_cast<size_t>(executor.config().vocab));
  if (const int64_t side = executor.options().planned_side_tokens(); side > 0)
    side_bytes_ = executor.PrefillBytes(0, side);
  if (!options_.reuses_prefixes || sharing_ == nullptr || !sharing_->can_share()) return;
  prefix_extent_bytes_ = sharing_->shared_extent_bytes() + sharing_->shared_index_bytes();
  const uint64_t most = std::min<uint64_t>(options_.prefix_limit_bytes / prefix_extent_bytes_, INT64_MAX);
  prefixes_ = std::make_unique<PrefixCache>(*sharing_, static_cast<int64_t>(most));
}

Engine::~Engine() {
  for (const std::unique_ptr<Live>& live : requests_)
    if (live->holds_slot()) ReleaseSlot(*live);
  DropHeld();
}

void Engine::DropHeld() {
  if (held_) executor_.Release(held_->slot);
  held_.reset();
  if (prefixes_) prefixes_->DropAll();
}

Result<RequestId> Engine::Submit(Request request) {
  const ModelConfig& config = executor_.config();
  const int64_t context = executor_.options().max_tokens;
  const int64_t prompt = static_cast<int64_t>(request.prompt.size());
  if (prompt == 0) return Invalid("the prompt has no tokens");
  if (prompt > context) return Invalid("the prompt has {} tokens, the context holds {}", prompt, context);
  for (size_t i = 0; i < request.prompt.size(); ++i)
    if (request.prompt[i] < 0 || request.prompt[i] >= config.vocab)
      return Invalid("prompt token {} has id {}, but the vocabulary has {} tokens", i, request.prompt[i], config.vocab);
  CHECK(request.max_new_tokens >= 0);
  RETURN_IF_ERROR(CheckKv(request.kv, executor_.options().method));

  const int64_t room = executor_.options().max_batch - Running();
  if (const int64_t waiting = Waiting(); waiting >= room && waiting - room >= options_.max_waiting)
    return Exhausted("the queue is full: {} requests are waiting, the limit is {}", waiting, options_.max_waiting);

  const RequestId id(next_id_++);
  auto live = std::make_unique<Live>(id, std::move(request), config.vocab);
  // The last generated token gets no row, because no token attends to it.
  const int64_t new_rows = std::max<int64_t>(live->request.max_new_tokens - 1, 0);
  live->final_tokens = prompt + std::min(new_rows, context - prompt);  // their plain sum may overflow
  const std::string& client = live->request.client;
  const int64_t own = client.empty() ? 0 : std::ranges::count_if(requests_, [&](const auto& other) {
    return other->request.client == client;
  });
  live->rank = id.value() + own * kOwnCost;
  See(client);
  requests_.push_back(std::move(live));
  return id;
}

void Engine::Cancel(RequestId id) {
  for (const std::unique_ptr<Live>& live : requests_)
    if (live->id == id) live->cancel = true;
}

std::optional<SeqSlot> Engine::SlotOf(RequestId id) const {
  for (const std::unique_ptr<Live>& live : requests_)
    if (live->id == id && live->holds_slot()) return live->slot;
  return std::nullopt;
}

std::optional<RequestState> Engine::StateOf(RequestId id) const {
  for (const std::unique_ptr<Live>& live : requests_)
    if (live->id == id && !live->finished())
      return live->state == RequestState::kQueued && live->preempted ? RequestState::kPreempted : live->state;
  return std::nullopt;
}

void Engine::CancelAll() {
  for (const std::unique_ptr<Live>& live : requests_) live->cancel = true;
}

bool Engine::RunOnce() {
  ++turn_;
  DropCancelled();
  Admit();
  RunPrefill();
  RunDecodeSteps();
  SweepFinished();
  UpdateStats();
  return !requests_.empty();
}

void Engine::DropCancelled() {
  for (const std::unique_ptr<Live>& live : requests_)
    if (live->cancel && !live->finished()) Finish(*live, FinishReason::kCancelled);
}

// Short: the rest of its prefill fits the memory of the side lane.
bool Engine::IsShort(const Live& live) const {
  return executor_.PrefillBytes(live.rows, live.rows_before_step() - live.rows) <= side_bytes_;
}

// At most two prefills are in progress, and one of them is short: the memory plan relies on it. Requests that replay
// steps after a preemption, or score their prompt by steps, stay out of the side lane, because that takes more memory.
Engine::Lanes Engine::FindLanes() const {
  Lanes lanes;
  bool main_is_short = false;  // then no other prefill begins
  for (const std::unique_ptr<Live>& live : requests_) {
    if (!live->prefills()) continue;
    if (lanes.main == nullptr) {
      lanes.main = live.get();
      if (side_bytes_ == 0) break;
      main_is_short = IsShort(*live);
    } else if (live->prefill_units > 0) {
      CHECK(IsShort(*live));    // a long prefill begins only in the main lane, and no older request can overtake it
      lanes.side = live.get();  // a prefill in progress continues
      break;
    } else if (!main_is_short && lanes.side == nullptr && live->result.tokens.empty() &&
               live->steps_from() == live->prompt_tokens() && IsShort(*live)) {
      lanes.side = live.get();
    }
  }
  return lanes;
}

// When a prefill ends and tokens of the turn are left, the next request of the lane continues.
void Engine::RunPrefill() {
  Lanes lanes = FindLanes();
  side_turn_ = lanes.side != nullptr && !side_turn_;
  int64_t left = options_.turn_prefill_tokens;
  while (lanes.main != nullptr) {
    Live& live = side_turn_ && lanes.side != nullptr ? *lanes.side : *lanes.main;
    RunPrefillUnit(live);
    left -= std::max(live.unit_tokens, kLeastUnitTokens);
    if (left <= 0) return;
    lanes = FindLanes();
  }
}

// Begins the prefill of the prompt's missing rows; where these are complete, of the rows that are steps: tokens that
// are scored so, and after a preemption the generated tokens.
Status Engine::BeginPrefill(Live& live) {
  if (prefixes_ && live.state == RequestState::kAdmitted) AdoptPrefix(live);
  if (!std::exchange(live.counted, true)) {
    live.result.reused_tokens = live.rows;
    stats_.prompt_tokens += live.prompt_tokens();
    stats_.reused_tokens += live.rows;
  }
  const bool steps = live.rows >= live.steps_from();
  // A token that runs as a step needs up to twice the memory, for its guess. Half a context at a time needs no more
  // than the longest prompt.
  const int64_t part = std::max<int64_t>(1, executor_.options().max_tokens / 2);
  live.prefill_end = steps ? std::min(live.rows_before_step(), live.rows + part) : live.steps_from();
  if (steps && live.rows == live.steps_from()) live.kv_before = executor_.instruments().SlotStats(live.slot);
  const std::span<const int32_t> tokens =
      std::span(live.history)
          .subspan(static_cast<size_t>(live.rows), static_cast<size_t>(live.prefill_end - live.rows));
  RETURN_IF_ERROR(
      executor_.BeginPrefill(live.slot, live.rows, tokens, steps ? PrefillKind::kSteps : PrefillKind::kDense));
  live.prefill_units = executor_.PrefillUnits(live.slot);
  live.prefill_units_done = 0;
  live.unit_tokens = std::ssize(tokens) * executor_.config().layers / live.prefill_units;
  return Ok();
}

void Engine::RunPrefillUnit(Live& live) {
  if (live.prefill_units == 0) {
    // Not earlier, so that a request that waits for its lane holds no memory for a residual stream.
    if (Status begun = BeginPrefill(live); !begun.ok())
      return Finish(live, FinishReason::kError, begun.error().message);
    if (live.state == RequestState::kAdmitted) live.Become(RequestState::kPrefilling);
  }
  const EngineClock::time_point start = EngineClock::now();
  const int64_t tokens = live.prefill_end - live.rows;
  const std::span<float> logits = std::span(logits_).first(static_cast<size_t>(executor_.config().vocab));
  if (!live.computed) {
    live.computed = executor_.RunPrefillUnit(live.slot);
    ++live.prefill_units_done;
  } else {
    ScorePrompt(live);
    if (live.finished()) return;
  }
  const bool finished = live.computed && live.scored >= std::min(live.prefill_end + 1, live.prompt_tokens());
  if (finished && live.result.tokens.empty()) executor_.PrefillLogits(live.slot, tokens - 1, 1, logits);
  stats_.prefill_s += Seconds(EngineClock::now() - start);
  if (live.request.on_prefill && (!live.preempted || live.result.tokens.empty()))
    live.request.on_prefill(live.id, {live.prefill_units_done, live.prefill_units, tokens, live.result.reused_tokens});
  if (finished) EndPrefill(live, logits);
}

// Gives the next tokens of the prompt their logprobs, a few at a time: predictions of a long prompt take seconds, and
// other requests go on in between. Precondition: the prefill is computed and a prediction of it is left.
void Engine::ScorePrompt(Live& live) {
  const size_t vocab = static_cast<size_t>(executor_.config().vocab);
  const int64_t end = std::min(live.prefill_end + 1, live.prompt_tokens());
  const int64_t count = std::min(kScoredTogether, end - live.scored);
  score_logits_.resize(static_cast<size_t>(kScoredTogether) * vocab);
  const std::span<float> logits = std::span(score_logits_).first(static_cast<size_t>(count) * vocab);
  executor_.PrefillLogits(live.slot, live.scored - 1 - live.rows, count, logits);
  for (int64_t i = 0; i < count; ++i, ++live.scored) {
    const int32_t token = live.history[static_cast<size_t>(live.scored)];
    const std::span<const float> row = logits.subspan(static_cast<size_t>(i) * vocab, vocab);
    if (!AllFinite(row)) {
      const int64_t last = live.scored - 1;
      executor_.EndPrefill(live.slot);
      return FinishBroken(live, {.slot = live.slot, .token = live.history[static_cast<size_t>(last)], .row = last});
    }
    if (live.request.on_scored)
      live.request.on_scored(live.id, live.scored, LogprobsOf(row, token, live.request.sampling.top_logprobs));
  }
}

void Engine::EndPrefill(Live& live, std::span<float> logits) {
  const int64_t tokens = live.prefill_end - live.rows;
  stats_.prefill_tokens += tokens;
  if (live.preempted) stats_.replayed_tokens += tokens;
  live.rows = live.prefill_end;
  live.prefill_units = live.prefill_units_done = 0;
  live.computed = false;
  executor_.EndPrefill(live.slot);
  // Before the rows are published: other requests must not reuse broken entries.
  if (live.result.tokens.empty() && live.rows == live.prompt_tokens() && !AllFinite(logits))
    return FinishBroken(live, {.slot = live.slot, .token = live.history.back(), .row = live.rows - 1});
  Publish(live);
  if (live.rows < live.rows_before_step()) return;
  live.Become(RequestState::kDecoding);
  // Steps of a replay were counted before; those that score the prompt are the request's own.
  if (live.steps_from() == live.prompt_tokens() || !live.result.tokens.empty())
    live.kv_before = executor_.instruments().SlotStats(live.slot);
  if (!live.result.tokens.empty()) return;  // a replay: the next token is known
  live.first_token = EngineClock::now();
  live.result.prefill_s = Seconds(live.first_token - live.admitted);
  if (live.request.max_new_tokens == 0)
    Finish(live, FinishReason::kLength);
  else
    Accept(live, logits);
}

void Engine::RunDecodeSteps() {
  std::chrono::nanoseconds common{0}, further{0};
  if (!RunDecodeStep(/*light=*/false, &common)) return;
  if (options_.client_running >= executor_.options().max_batch || turn_ < next_light_turn_) return;
  for (int steps = 1; steps <= kMostLightSteps; ++steps) {
    const std::chrono::nanoseconds before = further;
    if (!RunDecodeStep(/*light=*/true, &further)) return;
    const std::chrono::nanoseconds step = further - before;
    const bool pays = 4 * step <= 3 * common;
    if (!pays) next_light_turn_ = turn_ + light_pause_;
    light_pause_ = pays ? 1 : std::min(2 * light_pause_, kLongestLightPause);
    if (!pays || further + step > common) return;
  }
}

// Whether another client decodes at least twice as many requests.
bool Engine::IsLight(const std::string& client) const {
  const auto decoding = [&](const std::string& name) {
    return std::ranges::count_if(requests_, [&](const auto& live) {
      return live->state == RequestState::kDecoding && live->request.client == name;
    });
  };
  const int64_t own = decoding(client);
  return std::ranges::any_of(seen_, [&](const Seen& seen) { return decoding(seen.client) >= 2 * own; });
}

bool Engine::RunDecodeStep(bool light, std::chrono::nanoseconds* taken) {
  const auto began = options_.now();
  GrowAll();
  batch_.clear();
  items_.clear();
  for (const std::unique_ptr<Live>& live : requests_) {
    if (live->state != RequestState::kDecoding || (light && !IsLight(live->request.client))) continue;
    batch_.push_back(live.get());
    items_.push_back({.slot = live->slot, .token = live->history.back(), .row = live->rows});
  }
  if (batch_.empty()) return false;

  const size_t vocab = static_cast<size_t>(executor_.config().vocab);
  const EngineClock::time_point start = EngineClock::now();
  executor_.Step(items_, std::span(logits_).first(batch_.size() * vocab));
  const double elapsed = Seconds(EngineClock::now() - start);
  stats_.decode_s += elapsed;
  const float step_ms = static_cast<float>(elapsed * 1e3);
  if (stats_.step_ms.size() < kStepSamples)
    stats_.step_ms.push_back(step_ms);
  else
    stats_.step_ms[static_cast<size_t>(stats_.decode_steps) % kStepSamples] = step_ms;
  ++stats_.decode_steps;
  stats_.decode_tokens += static_cast<int64_t>(batch_.size());
  for (size_t i = 0; i < batch_.size(); ++i) {
    const std::span<float> logits = std::span(logits_).subspan(i * vocab, vocab);
    ++batch_[i]->rows;
    if (!AllFinite(logits)) {
      FinishBroken(*batch_[i], items_[i]);
      continue;
    }
    if (batch_[i]->rows % kExtentTokens == 0) Publish(*batch_[i]);
    Accept(*batch_[i], logits);
  }
  *taken += options_.now() - began;
  return true;
}

void Engine::FinishBroken(Live& live, const StepItem& item) {
  const std::string where = executor_.ExplainBreak(item);
  Finish(live, FinishReason::kError,
         fmt::format("the model computed numbers that are NaN or infinite{}{}", where.empty() ? "" : ": ", where));
}

// Samples the next token of a decoding request, and finishes the request if that was its last.
void Engine::Accept(Live& live, std::span<float> logits) {
  if (live.request.on_logits) live.request.on_logits(live.id, logits);
  const std::span<const int32_t> history = live.history;
  TokenConstraint* const constraint = live.request.constraint.get();
  std::span<uint32_t> mask;
  if (constraint != nullptr) {
    mask_.resize(TokenConstraint::MaskWords(executor_.config().vocab));
    mask = mask_;
    if (!constraint->Fill(mask)) return Finish(live, FinishReason::kError, kConstraintFailed);
  }
  const std::optional<int32_t> token =
      live.sampler.Sample(logits, history, history.subspan(static_cast<size_t>(live.prompt_tokens())), mask);
  if (!token)
    return Finish(live, FinishReason::kError,
                  constraint != nullptr ? "no token of the vocabulary continues the text as its grammar asks"
                                        : "the model produced no finite logit (are its weights damaged?)");
  const std::vector<int64_t>& eos = executor_.config().eos_ids;
  const bool ends =
      std::find(eos.begin(), eos.end(), *token) != eos.end() && (constraint != nullptr || !live.request.ignore_eos);
  if (live.request.on_logprobs && live.sampler.logprobs() != nullptr && (!ends || live.request.score.scores))
    live.request.on_logprobs(live.id, *live.sampler.logprobs());
  if (ends) return Finish(live, FinishReason::kEos);
  if (constraint != nullptr && !constraint->Accept(*token))
    return Finish(live, FinishReason::kError, kConstraintFailed);
  live.history.push_back(*token);
  live.result.tokens.push_back(*token);
  if (live.request.on_token && !live.request.on_token(live.id, *token)) return Finish(live, FinishReason::kStopped);
  const bool enough = static_cast<int64_t>(live.result.tokens.size()) >= live.request.max_new_tokens;
  const bool full = static_cast<int64_t>(live.history.size()) > live.final_tokens;
  if (enough || full) Finish(live, FinishReason::kLength);
}

// Adds the statistics of its latest decode phase to the result, before the slot is released.
void Engine::CountSteps(Live& live) {
  if (live.state == RequestState::kDecoding)
    live.result.kv.Add(executor_.instruments().SlotStats(live.slot) - live.kv_before);
}

void Engine::Finish(Live& live, FinishReason reason, std::string error) {
  if (live.holds_slot()) {
    CountSteps(live);
    if (live.request.hold_rows && sharing_ == nullptr && reason != FinishReason::kError && !held_) {
      executor_.EndPrefill(live.slot);
      live.history.resize(static_cast<size_t>(live.rows));
      held_ = Held{live.slot, std::move(live.history)};
    } else {
      ReleaseSlot(live);
    }
  }
  if (!live.result.tokens.empty()) live.result.decode_s = Seconds(EngineClock::now() - live.first_token);
  live.Become(reason == FinishReason::kCancelled ? RequestState::kCancelled : RequestState::kDone);
  live.result.reason = reason;
  live.result.error = std::move(error);
  if (live.request.on_done) live.request.on_done(live.id, live.result);
}

void Engine::SweepFinished() {
  for (const std::unique_ptr<Live>& live : requests_) See(live->request.client);
  std::erase_if(requests_, [](const std::unique_ptr<Live>& live) { return live->finished(); });
}

void Engine::Recover(std::string_view error) {
  for (const std::unique_ptr<Live>& live : requests_) live->path.clear();
  held_.reset();
  if (prefixes_) prefixes_->Forget();
  executor_.Reset();
  for (const std::unique_ptr<Live>& live : requests_) {
    if (!live->holds_slot()) continue;
    live->result.error = error;         // first, because it may throw
    live->Become(RequestState::kDone);  // its slot is free already
    live->result.reason = FinishReason::kError;
    if (live->request.on_done) live->request.on_done(live->id, live->result);
  }
  SweepFinished();
  UpdateStats();
}

void Engine::UpdateStats() {
  stats_.running = Running();
  stats_.waiting = Waiting();
  const uint64_t cached = prefixes_ ? static_cast<uint64_t>(prefixes_->unpinned()) : 0;
  stats_.cached_bytes = cached > 0 ? cached * sharing_->shared_extent_bytes() : 0;
  stats_.prefix_bytes = cached * prefix_extent_bytes_;
  stats_.pool_bytes = executor_.instruments().pool_bytes() - stats_.cached_bytes;
}

}  // namespace infinigen
