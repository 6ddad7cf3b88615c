#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "engine/sampler.h"
#include "model/decoder.h"

namespace infinigen {
namespace {

using Clock = std::chrono::steady_clock;

Status CheckKv(const RequestKv& kv, const KvMethod& method) {
  if (kv.full) {
    if (method.evicts()) return Unsupported("kv {} gives entries up, so no request can attend to all", method.preset);
    if (method.select == SelectKind::kAll || method.LargestCap() >= 1) return Ok();
    return Unsupported("a request asks for all entries, there is room for {:.4g}% of them", 100 * method.LargestCap());
  }
  if (!kv.alpha && !kv.cap) return Ok();
  if (method.select == SelectKind::kAll)
    return Unsupported("kv {} attends to everything, a request's alpha and cap have no meaning", method.preset);
  if (kv.alpha && !(*kv.alpha >= 0)) return Invalid("alpha is {}, it must not be negative", *kv.alpha);
  if (kv.cap && !(*kv.cap > 0 && *kv.cap <= 1)) return Invalid("cap is {}, it must be above 0 and at most 1", *kv.cap);
  if (kv.cap.value_or(0) > method.LargestCap())
    return Unsupported("a request asks for a cap of {}, there is room for {}", *kv.cap, method.LargestCap());
  return Ok();
}

SelectRule RuleOf(const RequestKv& kv, SelectRule rule) {
  if (kv.full) {
    rule.alpha = std::numeric_limits<float>::infinity();
    rule.cap = 1.0;
    rule.force_count = 0;
    return rule;
  }
  rule.alpha = kv.alpha.value_or(rule.alpha);
  rule.cap = kv.cap.value_or(rule.cap);
  return rule;
}

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

// A request and what it holds while it is in the engine.
struct Engine::Live {
  RequestId id;
  Request request;
  RequestState state = RequestState::kQueued;
  bool cancel = false;
  Sampler sampler;
  RequestResult result;

  SeqSlot slot;              // from admission on
  int64_t final_tokens = 0;  // rows it may reach
  int64_t rows = 0;          // complete in every layer
  int64_t prefill_units_done = 0;
  int64_t prefill_units = 0;
  std::vector<int32_t> history;  // prompt, then what was generated
  Clock::time_point submitted = Clock::now();
  Clock::time_point admitted;
  Clock::time_point first_token;

  Live(RequestId id_, Request request_, int64_t vocab)
      : id(id_), request(std::move(request_)), sampler(request.sampling, vocab), history(request.prompt) {}

  bool finished() const { return state == RequestState::kDone || state == RequestState::kCancelled; }
  void Become(RequestState next) {
    CHECK(MayFollow(state, next));
    state = next;
  }
};

Engine::Engine(Executor& executor) : executor_(executor) {
  const size_t batch = static_cast<size_t>(executor.options().max_batch);
  batch_.reserve(batch);
  items_.reserve(batch);
  stats_.step_ms.reserve(kStepSamples);  // a step allocates nothing
  logits_.resize(batch * static_cast<size_t>(executor.config().vocab));
}

Engine::~Engine() {
  for (const std::unique_ptr<Live>& live : requests_) {
    const bool holds_slot = !live->finished() && live->state != RequestState::kQueued;
    if (holds_slot) executor_.Release(live->slot);
  }
  DropKept();
}

void Engine::DropKept() {
  if (kept_) executor_.Release(kept_->slot);
  kept_.reset();
}

Result<RequestId> Engine::Submit(Request request) {
  const ModelConfig& config = executor_.config();
  const int64_t context = executor_.options().max_tokens;
  const int64_t prompt = static_cast<int64_t>(request.prompt.size());
  if (prompt == 0) return Invalid("the prompt has no tokens");
  if (prompt > context) return Invalid("the prompt has {} tokens, the context holds {}", prompt, context);
  for (size_t i = 0; i < request.prompt.size(); ++i)
    if (request.prompt[i] < 0 || request.prompt[i] >= config.vocab)
      return Invalid("prompt token {} has the id {}, the vocabulary has {}", i, request.prompt[i], config.vocab);
  CHECK(request.max_new_tokens >= 0);
  RETURN_IF_ERROR(CheckKv(request.kv, executor_.options().method));

  const RequestId id(next_id_++);
  auto live = std::make_unique<Live>(id, std::move(request), config.vocab);
  // The last generated token is never attended to, so it needs no row.
  live->final_tokens = std::min(context, prompt + std::max<int64_t>(live->request.max_new_tokens - 1, 0));
  live->history.reserve(static_cast<size_t>(live->final_tokens + 1));
  live->result.tokens.reserve(static_cast<size_t>(live->final_tokens + 1 - prompt));
  requests_.push_back(std::move(live));
  return id;
}

void Engine::Cancel(RequestId id) {
  for (const std::unique_ptr<Live>& live : requests_)
    if (live->id == id) live->cancel = true;
}

void Engine::CancelAll() {
  for (const std::unique_ptr<Live>& live : requests_) live->cancel = true;
}

bool Engine::RunOnce() {
  DropCancelled();
  Admit();
  RunPrefillUnit();
  RunDecodeStep();
  SweepFinished();
  return !requests_.empty();
}

void Engine::DropCancelled() {
  for (const std::unique_ptr<Live>& live : requests_)
    if (live->cancel && !live->finished()) Finish(*live, FinishReason::kCancelled);
}

void Engine::Admit() {
  const auto holds_slot = [](const std::unique_ptr<Live>& live) {
    return !live->finished() && live->state != RequestState::kQueued;
  };
  bool others = std::any_of(requests_.begin(), requests_.end(), holds_slot);
  for (const std::unique_ptr<Live>& live : requests_) {
    if (live->state != RequestState::kQueued) continue;
    Result<SeqSlot> slot = AdmitOne(*live);
    if (!slot.ok() && !others) {  // the pool is empty and still too small: waiting cannot help
      Finish(*live, FinishReason::kError, slot.error().message);
      continue;
    }
    if (!slot.ok()) return;  // first come, first served: nobody overtakes
    live->slot = *slot;
    const KvMethod& method = executor_.options().method;
    if (method.select != SelectKind::kAll) executor_.SetRule(live->slot, RuleOf(live->request.kv, method.rule));
    live->Become(RequestState::kAdmitted);
    live->admitted = Clock::now();
    live->result.queue_s = Seconds(live->admitted - live->submitted);
    others = true;
  }
}

// Kept rows make room for whoever comes; a conversation gets the whole context, to be able to go on in its place.
Result<SeqSlot> Engine::AdmitOne(Live& live) {
  if (live.request.keep_rows && TakeOverKept(live)) return live.slot;
  const int64_t quota = live.request.keep_rows ? executor_.options().max_tokens : live.final_tokens;
  Result<SeqSlot> slot = executor_.Admit(quota);
  if (slot.ok() || !kept_) return slot;
  DropKept();
  return executor_.Admit(quota);
}

bool Engine::TakeOverKept(Live& live) {
  if (!kept_) return false;
  const std::vector<int32_t>& prompt = live.request.prompt;
  const std::vector<int32_t>& tokens = kept_->tokens;
  const auto differ = std::mismatch(tokens.begin(), tokens.end(), prompt.begin(), prompt.end()).first;
  // At least one token runs, for its logits.
  live.rows = std::min<int64_t>(differ - tokens.begin(), static_cast<int64_t>(prompt.size()) - 1);
  // What was evicted on the way cannot be brought back.
  if (executor_.options().method.evicts()) live.rows = 0;
  live.result.kept_tokens = live.rows;
  live.slot = kept_->slot;
  kept_.reset();
  return true;
}

void Engine::RunPrefillUnit() {
  const auto oldest = std::find_if(requests_.begin(), requests_.end(), [](const auto& live) {
    return live->state == RequestState::kPrefilling || live->state == RequestState::kAdmitted;
  });
  if (oldest == requests_.end()) return;
  Live& live = **oldest;
  if (live.state == RequestState::kAdmitted) {
    // Only now: the residual stream of one prompt at a time is what the memory plan counts.
    const std::span<const int32_t> tokens = std::span(live.request.prompt).subspan(static_cast<size_t>(live.rows));
    if (Status begun = executor_.BeginPrefill(live.slot, live.rows, tokens); !begun.ok())
      return Finish(live, FinishReason::kError, begun.error().message);
    live.prefill_units = executor_.PrefillUnits(live.slot);
    live.Become(RequestState::kPrefilling);
  }
  const Clock::time_point start = Clock::now();
  const bool finished = executor_.RunPrefillUnit(live.slot);
  const int64_t prompt = static_cast<int64_t>(live.request.prompt.size());
  const std::span<float> logits = std::span(logits_).first(static_cast<size_t>(executor_.config().vocab));
  if (finished) executor_.PrefillLogits(live.slot, prompt - 1 - live.rows, 1, logits);
  stats_.prefill_s += Seconds(Clock::now() - start);
  ++live.prefill_units_done;
  if (live.request.on_prefill)
    live.request.on_prefill(live.id, {live.prefill_units_done, live.prefill_units, prompt - live.rows});
  if (!finished) return;

  stats_.prefill_tokens += prompt - live.rows;
  live.rows = prompt;
  executor_.EndPrefill(live.slot);
  live.first_token = Clock::now();
  live.result.prefill_s = Seconds(live.first_token - live.admitted);
  live.Become(RequestState::kDecoding);
  if (live.request.max_new_tokens == 0)
    Finish(live, FinishReason::kLength);
  else
    Accept(live, logits);
}

void Engine::RunDecodeStep() {
  batch_.clear();
  items_.clear();
  for (const std::unique_ptr<Live>& live : requests_) {
    if (live->state != RequestState::kDecoding) continue;
    const int64_t row = static_cast<int64_t>(live->history.size()) - 1;
    batch_.push_back(live.get());
    items_.push_back({.slot = live->slot, .token = live->history.back(), .row = row});
  }
  if (batch_.empty()) return;

  const size_t vocab = static_cast<size_t>(executor_.config().vocab);
  const Clock::time_point start = Clock::now();
  executor_.Step(items_, std::span(logits_).first(batch_.size() * vocab));
  const double elapsed = Seconds(Clock::now() - start);
  stats_.decode_s += elapsed;
  const float step_ms = static_cast<float>(elapsed * 1e3);
  if (stats_.step_ms.size() < kStepSamples)
    stats_.step_ms.push_back(step_ms);
  else
    stats_.step_ms[static_cast<size_t>(stats_.decode_steps) % kStepSamples] = step_ms;
  ++stats_.decode_steps;
  stats_.decode_tokens += static_cast<int64_t>(batch_.size());
  for (size_t i = 0; i < batch_.size(); ++i) {
    batch_[i]->rows = items_[i].row + 1;
    Accept(*batch_[i], std::span(logits_).subspan(i * vocab, vocab));
  }
}

// Samples the next token of a decoding request and decides whether it goes on.
void Engine::Accept(Live& live, std::span<float> logits) {
  const std::optional<int32_t> token = live.sampler.Sample(logits, live.history);
  if (!token) return Finish(live, FinishReason::kError, "the model gave no finite logit");
  const std::vector<int64_t>& eos = executor_.config().eos_ids;
  if (!live.request.ignore_eos && std::find(eos.begin(), eos.end(), *token) != eos.end())
    return Finish(live, FinishReason::kEos);
  live.history.push_back(*token);
  live.result.tokens.push_back(*token);
  if (live.request.on_token && !live.request.on_token(live.id, *token)) return Finish(live, FinishReason::kStopped);
  const bool enough = static_cast<int64_t>(live.result.tokens.size()) >= live.request.max_new_tokens;
  const bool full = static_cast<int64_t>(live.history.size()) > live.final_tokens;
  if (enough || full) Finish(live, FinishReason::kLength);
}

void Engine::Finish(Live& live, FinishReason reason, std::string error) {
  if (live.state != RequestState::kQueued) {
    if (live.request.keep_rows && reason != FinishReason::kError && !kept_) {
      executor_.EndPrefill(live.slot);
      live.history.resize(static_cast<size_t>(live.rows));
      kept_ = Kept{live.slot, std::move(live.history)};
    } else {
      executor_.Release(live.slot);
    }
  }
  if (live.state == RequestState::kDecoding) live.result.decode_s = Seconds(Clock::now() - live.first_token);
  live.Become(reason == FinishReason::kCancelled ? RequestState::kCancelled : RequestState::kDone);
  live.result.reason = reason;
  live.result.error = std::move(error);
  if (live.request.on_done) live.request.on_done(live.id, live.result);
}

void Engine::SweepFinished() {
  std::erase_if(requests_, [](const std::unique_ptr<Live>& live) { return live->finished(); });
}

}  // namespace infinigen
