// History: everything that happens in one simulated run of the server, drawn from one seed: a model and how it caches,
// sizes and limits, requests with their arrival and departure, faults, stalls, watchers and the shutdown.
//
// Alone answers what a request says when nothing else runs: the oracle of every history. Answers are kept, because the
// texts of histories are drawn from a small number of prompts. Both are used by one thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/split_mix.h"
#include "engine/request.h"
#include "model/executor.h"
#include "server/completion_request.h"
#include "server/http.h"
#include "simulation/sim_executor.h"

namespace infinigen {

// A model with a way to store and select entries.
struct SimVariant {
  std::string_view name;
  bool windowed = false;  // every second layer attends to a window
  KvMethod method;
  StoreType store = StoreType::kF32;

  // Steps compute the same entries as a prefill.
  bool exact_steps() const { return !method.selects() && !method.evicts(); }
};
const std::vector<SimVariant>& SimVariants();
// `pool_bytes`: limit of the pool.
std::unique_ptr<Executor> MakeSimModel(const SimVariant& variant, int64_t context, int64_t batch, uint64_t pool_bytes,
                                       int64_t side_tokens);
// Bytes of one row in all layers, or where layers have a window, at most.
uint64_t SimRowBytes(const SimVariant& variant);

inline constexpr int64_t kSimContext = 900;

struct SimRequest {
  double arrives_s = 0;
  size_t client = 0;       // index into History::clients
  std::string cache_salt;  // of the request itself
  CompletionRequest body;  // max_tokens, sampling, stops, n, logprobs, stream, kv …; no prompts
  std::vector<std::vector<int32_t>> prompts;
  bool refused = false;              // the engine must refuse it: an unsupported kv
  std::optional<int64_t> continues;  // prompt row from which on the prompt repeats an answer
  // The client leaves at this time, or after so many writes of a stream; the later of arrival and time.
  std::optional<double> leaves_s;
  std::optional<int64_t> leaves_after_writes;
  HttpGone why = HttpGone::kLeft;
  std::optional<int64_t> write_throws;  // this write finds no memory
};

struct SimWatcher {
  double arrives_s = 0, leaves_s = 0;
  size_t client = 0;
};

struct History {
  uint64_t seed = 0;
  const SimVariant* variant = nullptr;
  bool crowded = false;  // several long answers at once in a pool for fewer
  int64_t batch = 1;
  uint64_t pool_bytes = 0;
  int64_t side_tokens = 0, turn_prefill_tokens = 0;
  bool reuses_prefixes = true, shares_prefixes = false;
  uint64_t prefix_limit_bytes = UINT64_MAX;
  int64_t max_waiting = 128;
  double client_share = 1;
  uint64_t account_bytes = 1 << 20;
  int heartbeat_s = 0;
  std::vector<std::string> clients;  // names; "" is not limited. Each is a tenant of its own
  std::vector<SimRequest> requests;  // by arrival
  std::vector<SimFault> faults;
  std::map<int64_t, double> stalls;  // unit or step → seconds that it hangs
  std::vector<SimWatcher> watchers;
  std::optional<double> shutdown_s;

  std::string Describe() const;
};

struct AloneAnswer {
  std::vector<int32_t> tokens;
  std::vector<TokenLogprobs> logprobs;  // one a token
  FinishReason reason = FinishReason::kError;
  KvStats kv;
};

class Alone {
 public:
  // `request` has no callbacks. The answer is valid until the next call.
  const AloneAnswer& Run(const SimVariant& variant, const Request& request);
  // The tokens after which the same request finds no room where it is alone in the history's pool; empty: it ends well.
  static std::optional<int64_t> TokensUntilNoRoom(const History& history, const Request& request);
  int64_t runs() const { return runs_; }
  int64_t hits() const { return hits_; }

 private:
  std::map<std::string, AloneAnswer> answers_;  // by everything that an answer depends on
  size_t kept_tokens_ = 0;
  int64_t runs_ = 0, hits_ = 0;
};

// The engine's request for choice `choice` of prompt `prompt`.
Request SimChoice(const SimVariant& variant, const SimRequest& request, size_t prompt, int64_t choice);

// `alone` tells the answers that later prompts continue.
History DrawHistory(uint64_t seed, Alone& alone);

}  // namespace infinigen
