// Engine::Live: a request with its state, from Submit until it is finished. Private to engine.cc and admission.cc.
#pragma once

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/prefix_cache.h"
#include "engine/request.h"
#include "engine/sampler.h"

namespace infinigen {

using EngineClock = std::chrono::steady_clock;

inline double Seconds(EngineClock::duration duration) { return std::chrono::duration<double>(duration).count(); }

struct Engine::Live {
  RequestId id;
  Request request;
  RequestState state = RequestState::kQueued;
  bool cancel = false;
  int64_t rank = 0;  // in the queue; the smallest is admitted first
  Sampler sampler;
  RequestResult result;

  SeqSlot slot;                  // valid while holds_slot()
  int64_t final_tokens = 0;      // the most rows that it may reach
  int64_t rows = 0;              // rows that are complete in every layer
  std::vector<int32_t> history;  // prompt (moved from request.prompt), then the generated tokens
  int64_t prompt_count = 0;

  // The prefill in progress: of the prompt, or after a preemption of generated tokens.
  int64_t prefill_end = 0;  // the row after its last
  int64_t prefill_units_done = 0;
  int64_t prefill_units = 0;
  int64_t unit_tokens = 0;
  bool computed = false;  // all its units ran; predictions of the prompt may be left to score
  int64_t scored = 0;     // prompt tokens before this index have their logprobs, or need none

  // Prefix cache.
  PrefixCache::Setting setting;          // of its selection
  bool shares = true;                    // uses the prefix cache
  PrefixCache::Path path;                // cached nodes of its text, pinned: a prefix of its complete extents
  std::vector<PrefixCache::Kind> kinds;  // kinds of the path that it had when it was preempted

  KvStats kv_before;       // statistics of its slot when its latest decode phase began
  bool preempted = false;  // at least once
  bool counted = false;    // its prompt is included in EngineStats
  EngineClock::time_point submitted = EngineClock::now();
  EngineClock::time_point admitted;
  EngineClock::time_point first_token;

  Live(RequestId id_, Request request_, int64_t vocab)
      : id(id_),
        request(std::move(request_)),
        sampler(request.sampling, vocab),
        history(std::move(request.prompt)),
        prompt_count(std::ssize(history)) {
    // No token is before the first.
    scored = request.score.scores ? std::clamp<int64_t>(request.score.first, 1, prompt_count) : prompt_count;
    if (request.score.scores) shares = request.hold_rows = false;
  }

  int64_t prompt_tokens() const { return prompt_count; }
  // Rows that must exist before the next step, which appends the newest token.
  int64_t rows_before_step() const { return result.tokens.empty() ? prompt_tokens() : std::ssize(history) - 1; }
  // The first row that is computed as a decode step. A first token is prefilled: it attends to itself alone.
  int64_t steps_from() const {
    return request.score.scores ? std::clamp<int64_t>(request.score.steps_from, 1, prompt_count) : prompt_count;
  }
  bool finished() const { return state == RequestState::kDone || state == RequestState::kCancelled; }
  bool never_admitted() const { return state == RequestState::kQueued && !preempted; }
  bool prefills() const { return state == RequestState::kAdmitted || state == RequestState::kPrefilling; }
  bool holds_slot() const { return !finished() && state != RequestState::kQueued; }
  void Become(RequestState next) {
    CHECK(MayFollow(state, next));
    state = next;
  }
};

}  // namespace infinigen
