// Request: a prompt to be completed, its options and callbacks. The engine drives every request through one state
// machine; command line and server are both clients.
//
//        ┌─────────── preempted ◄────┬─────────────┐
//        ▼                ▲          │             │
//     queued ──► admitted ┴─► prefilling ──► decoding ──► done
//        │           │             │             │
//        └───────────┴─────────────┴─────────────┴──────► cancelled
//
//   admitted          has a slot and memory in the pool: for its final length, or if quotas grow, for its prompt and
//   the
//                     next tokens
//   preempted         has released slot and memory for an older request, and returns to the queue
//   done, cancelled   final; slot and memory are released, or held for the next request of the conversation
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "engine/constraint.h"
#include "kv/stats.h"

namespace infinigen {

// Counts submissions from 0. Not a StrongIndex, because a server may see more than fit into 32 bits.
class RequestId {
 public:
  RequestId() = default;
  explicit constexpr RequestId(int64_t value) : value_(value) { DCHECK(value >= 0); }
  constexpr int64_t value() const { return value_; }
  auto operator<=>(const RequestId&) const = default;

 private:
  int64_t value_ = 0;
};

enum class RequestState : uint8_t { kQueued, kAdmitted, kPrefilling, kDecoding, kPreempted, kDone, kCancelled };

// Whether the diagram above has this transition.
bool MayFollow(RequestState from, RequestState to);

enum class FinishReason : uint8_t {
  kEos,        // the model ended the text
  kStopped,    // on_token returned false (a stop string, a limit of the client)
  kLength,     // max_new_tokens was reached, or the context is full
  kCancelled,  // Cancel() was called
  kError,      // see RequestResult::error
};
std::string_view Name(FinishReason reason);

struct SamplingOptions {
  float temperature = 0.8f;     // 0: always the most likely token
  int32_t top_k = 40;           // keep the k most likely; 0: all
  float top_p = 0.95f;          // keep the smallest set with this much probability; 1: all
  float min_p = 0.05f;          // drop tokens less likely than this share of the most likely; 0: none
  float repeat_penalty = 1.0f;  // > 1: tokens among the last `repeat_window` become less likely
  int32_t repeat_window = 64;
  float presence_penalty = 0;   // subtracted from the logit of every token that was generated
  float frequency_penalty = 0;  // subtracted from it once for each time
  // (token, number added to its logit); tokens are valid and unique. Shared by all choices of a request; null: none.
  std::shared_ptr<const std::vector<std::pair<int32_t, float>>> logit_bias;
  int32_t top_logprobs = -1;  // >= 0: on_logprobs gets each token's, and those of this many alternatives
  uint64_t seed = 0;
};

// Natural logarithm of a probability, before bias, penalties and temperature.
struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
};
struct TokenLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  // most likely first
};

// A request's own selection rule, in an engine that selects.
struct RequestKv {
  bool full = false;           // attend to everything; the rest is ignored
  std::optional<float> alpha;  // default: the engine's, as for all below
  std::optional<double> cap;
  std::optional<double> mass;  // replaces alpha
  std::optional<bool> tail;

  bool any() const { return alpha || cap || mass || tail; }
};

// Which of a prompt's own tokens are given their logprobs, and how they are computed.
struct PromptScore {
  bool scores = false;
  // Tokens from this index on run as decode steps, so that the KV method predicts what follows them; those before are
  // prefilled, as all are by default.
  int64_t steps_from = INT64_MAX;
  int64_t first = 1;  // tokens before this index get no logprobs
};

struct RequestResult {
  FinishReason reason = FinishReason::kError;
  std::string error;            // one line, if reason is kError
  std::vector<int32_t> tokens;  // generated tokens, without a final EOS
  int64_t reused_tokens = 0;    // prompt tokens with entries that existed already: held rows or cached prefixes
  KvStats kv;                   // of this request's decode steps
  double queue_s = 0;
  double prefill_s = 0;  // from admission to the first token's logits
  double decode_s = 0;
};

struct PrefillProgress {
  int64_t units_done = 0, units = 0;
  int64_t tokens = 0;  // tokens to compute, without reused ones
  int64_t reused = 0;  // tokens of the prompt with entries that existed already
};

struct Request {
  std::vector<int32_t> prompt;
  int64_t max_new_tokens = 0;
  SamplingOptions sampling;
  RequestKv kv;
  // Such a request reuses no entries of others: all its predictions are needed.
  PromptScore score;
  bool ignore_eos = false;  // a constraint that allows EOS alone still ends the text
  // The tokens that the text may have; null: all. Belongs to this request alone.
  std::shared_ptr<TokenConstraint> constraint;
  // Prefixes are reused among requests with the same salt only.
  std::string cache_salt;
  // Waiting requests of different clients are admitted in turn, those of one client in order of arrival.
  std::string client;
  // For conversations: when the request is done, its rows stay in the engine, and the next request with hold_rows
  // reuses those that its prompt begins with. The engine holds the rows of one request, and releases them when another
  // request needs the memory. Ignored if quotas grow (EngineOptions::grows), because the prefix cache serves the same
  // purpose.
  bool hold_rows = false;

  // Callbacks, called on the engine's thread; each may be empty. on_token: returning false stops the request.
  std::function<bool(RequestId, int32_t token)> on_token;
  // The logits that a token is drawn from, before mask, bias and penalties; also those of a final EOS.
  std::function<void(RequestId, std::span<const float> logits)> on_logits;
  // Before on_token, if top_logprobs >= 0; with `score` also of a final EOS.
  std::function<void(RequestId, const TokenLogprobs&)> on_logprobs;
  // With `score`: the logprobs of prompt token `index`, from score.first on in order, each once; alternatives as in
  // SamplingOptions::top_logprobs.
  std::function<void(RequestId, int64_t index, const TokenLogprobs&)> on_scored;
  std::function<void(RequestId, const PrefillProgress&)> on_prefill;
  std::function<void(RequestId, const RequestResult&)> on_done;
};

}  // namespace infinigen
