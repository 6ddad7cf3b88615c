// A request: a prompt on its way to text. One state machine, driven by the engine's loop; the command line is a client
// of it like a server.
//
//        ┌─────────── preempted ◄────┬─────────────┐
//        ▼                ▲          │             │
//     queued ──► admitted ┴─► prefilling ──► decoding ──► done
//        │           │             │             │
//        └───────────┴─────────────┴─────────────┴──────► cancelled
//
// admitted: has a slot and room in the pool: for all it may say, or in an engine that grows, for its prompt and the
// next tokens. preempted: gave both up for somebody older, and waits again. done, cancelled: final; slot and rows are
// back in the pool, or kept for the conversation's next request.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kv/stats.h"

namespace infinigen {

// In order of submission, from 0. No index: a server may see more than fit into 32 bits.
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

// Whether the picture above has this arrow.
bool MayFollow(RequestState from, RequestState to);

enum class FinishReason : uint8_t {
  kEos,        // the model ended the text
  kStopped,    // the client's on_token said so (a stop string, a limit of its own)
  kLength,     // max_new_tokens, or the context is full
  kCancelled,  // Cancel()
  kError,      // see RequestResult::error
};
std::string_view Name(FinishReason reason);

struct SamplingOptions {
  float temperature = 0.8f;     // 0: the most likely token, always
  int32_t top_k = 40;           // keep the k most likely; 0: all
  float top_p = 0.95f;          // keep the smallest set with this much probability; 1: all
  float min_p = 0.05f;          // drop what is less likely than this share of the most likely; 0: none
  float repeat_penalty = 1.0f;  // > 1: tokens among the last `repeat_window` become less likely
  int32_t repeat_window = 64;
  float presence_penalty = 0;   // subtracted once from every token that was generated
  float frequency_penalty = 0;  // and for every time it was
  // (token, added to its logit), tokens of the vocabulary, each once. Shared by all choices of a request; null: none.
  std::shared_ptr<const std::vector<std::pair<int32_t, float>>> logit_bias;
  int32_t top_logprobs = -1;  // >= 0: on_logprobs is told each token's, and those of so many alternatives
  uint64_t seed = 0;
};

// Natural logarithms of probabilities as the model gave them: before bias, penalties and temperature.
struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
};
struct TokenLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  // most likely first
};

// What a request asks of selection, in an engine that selects.
struct RequestKv {
  bool full = false;           // attend to everything; the others are ignored
  std::optional<float> alpha;  // not given, here and below: as the engine was started
  std::optional<double> cap;
};

struct RequestResult {
  FinishReason reason = FinishReason::kError;
  std::string error;            // one line, with kError
  std::vector<int32_t> tokens;  // generated; an ending EOS is not among them
  int64_t reused_tokens = 0;    // of the prompt, whose rows were there already: from before, or another's
  KvStats kv;                   // what its own steps attended to
  double queue_s = 0;
  double prefill_s = 0;  // from admission to the first token's logits
  double decode_s = 0;
};

struct PrefillProgress {
  int64_t units_done = 0, units = 0;
  int64_t tokens = 0;  // those that are computed
};

struct Request {
  std::vector<int32_t> prompt;
  int64_t max_new_tokens = 0;
  SamplingOptions sampling;
  RequestKv kv;
  bool ignore_eos = false;
  // A conversation: when it is done its rows stay in the engine, and the next such request starts after those that its
  // prompt shares with them. The engine keeps one, and gives it up when another request needs the room. Ignored by an
  // engine that grows: it has prefixes.
  bool hold_rows = false;

  // All called on the engine's thread. on_token: false stops the request after this token. Each may be empty.
  std::function<bool(RequestId, int32_t token)> on_token;
  std::function<void(RequestId, const TokenLogprobs&)> on_logprobs;  // just before on_token, where they are asked for
  std::function<void(RequestId, const PrefillProgress&)> on_prefill;
  std::function<void(RequestId, const RequestResult&)> on_done;
};

}  // namespace infinigen
