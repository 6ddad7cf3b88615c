// A request and what it holds while it is in the engine. Part of the engine, for its own files only.
#pragma once

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
  Sampler sampler;
  RequestResult result;

  SeqSlot slot;                  // from admission on
  int64_t final_tokens = 0;      // rows it may reach
  int64_t rows = 0;              // complete in every layer
  std::vector<int32_t> history;  // prompt, then what was generated; request.prompt moved here
  int64_t prompt_count = 0;

  // Of the part that is prefilled at the moment: the prompt, or after a preemption what was generated.
  int64_t prefill_end = 0;
  int64_t prefill_units_done = 0;
  int64_t prefill_units = 0;
  int64_t unit_tokens = 0;

  // Where entries are shared.
  PrefixCache::Setting setting;          // of its selection
  bool shares = true;                    // it may, with what that costs
  PrefixCache::Path path;                // of the extents that are complete, as far as they are in the cache
  std::vector<PrefixCache::Kind> kinds;  // of the path that a preemption took

  KvStats kv_before;       // of its place, when its latest run of steps began
  bool preempted = false;  // ever
  bool counted = false;    // its prompt, in the statistics
  EngineClock::time_point submitted = EngineClock::now();
  EngineClock::time_point admitted;
  EngineClock::time_point first_token;

  Live(RequestId id_, Request request_, int64_t vocab)
      : id(id_),
        request(std::move(request_)),
        sampler(request.sampling, vocab),
        history(std::move(request.prompt)),
        prompt_count(std::ssize(history)) {}

  int64_t prompt_tokens() const { return prompt_count; }
  // Rows of everything but the newest token, which the next step brings.
  int64_t rows_before_step() const { return result.tokens.empty() ? prompt_tokens() : std::ssize(history) - 1; }
  bool finished() const { return state == RequestState::kDone || state == RequestState::kCancelled; }
  bool reads() const { return state == RequestState::kAdmitted || state == RequestState::kPrefilling; }
  bool holds_slot() const { return !finished() && state != RequestState::kQueued; }
  void Become(RequestState next) {
    CHECK(MayFollow(state, next));
    state = next;
  }
};

}  // namespace infinigen
