// Simulation: runs one history through the server's own parts (Completion, Engine, prefix cache, pool, queue, accounts,
// watch, watchdog) on one thread with one simulated clock, and checks what docs/simulation.md lists.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "runtime/engine_thread.h"
#include "server/clients.h"
#include "server/completion.h"
#include "server/kv_watch.h"
#include "server/metrics.h"
#include "server/watchdog.h"
#include "simulation/history.h"
#include "simulation/queue_model.h"
#include "simulation/sim_exchange.h"
#include "simulation/sim_executor.h"

namespace infinigen {

// What happened in the histories so far: a simulation in which nothing happens proves nothing.
struct SimCounts {
  int64_t histories = 0, turns = 0, requests = 0, choices = 0, compared = 0, tokens = 0, refused = 0, left = 0;
  int64_t preemptions = 0, replayed_tokens = 0, reused_tokens = 0, exhausted = 0;
  int64_t throws = 0, stalls = 0, shutdowns = 0, comments = 0, pictures = 0, uncompared = 0;

  std::string Describe() const;
};

class Simulation {
 public:
  Simulation(const History& history, Alone& alone, Defect defect, SimCounts* counts);
  ~Simulation();

  // The first broken promise; empty: none.
  std::string Run();

 private:
  using Clock = std::chrono::steady_clock;
  // A request on its way.
  struct Flow {
    const SimRequest* request = nullptr;
    std::shared_ptr<SimExchange> exchange;  // null: not arrived
    std::string salt;                       // of tenant and request
    bool submitted = false;                 // a Completion has it
    bool faulted = false;                   // a turn threw while it held a slot
    std::vector<RequestId> ids;
    std::optional<int64_t> left_turn;  // the turn before which the engine was told that the client left
  };
  struct Watching {
    const SimWatcher* watcher = nullptr;
    std::shared_ptr<SimExchange> exchange;
    bool left = false;
  };

  Clock::time_point Now() const;
  void Work();
  void Stall(double seconds);
  // Posts what is due at the current time. False: nothing was.
  bool PostDue();
  double NextEvent() const;
  void Arrive(Flow& flow);
  CompletionContext ContextOf(const Flow& flow, const std::shared_ptr<Client>& client);
  void Leave(Flow& flow);
  void AfterTurn();
  void Turn();
  void CheckTurn(bool threw, bool worked);
  void CheckWatchers();
  void CheckEnd();
  int64_t MostCached(const Flow& flow, const std::vector<int32_t>& prompt);
  void Fail(std::string problem);

  const History& history_;
  Alone& alone_;
  const Defect defect_;
  SimCounts& counts_;
  double now_s_ = 0;
  SplitMix timing_;
  std::shared_ptr<MemoryAccount> account_;
  std::optional<Clients> clients_;
  std::unique_ptr<SimExecutor> executor_;
  int64_t whole_extents_ = 0;  // of the empty pool
  Metrics metrics_;
  std::optional<Engine> engine_;
  std::optional<KvWatch> watch_;
  std::optional<EngineLoop> loop_;
  std::optional<Watchdog> watchdog_;
  std::optional<QueueModel> queue_;
  std::vector<Flow> flows_;
  std::vector<Watching> watching_;
  std::map<std::string, size_t> flow_of_;  // by the answer's id
  std::vector<EngineLoop::Task> tasks_;
  std::vector<std::function<void()>> formats_;
  std::vector<std::weak_ptr<Completion>> streams_;
  std::vector<std::shared_ptr<const void>> kept_;  // what a planted defect never gives back
  double last_beat_s_ = -1;
  double turn_began_s_ = 0, longest_turn_s_ = 0;
  int64_t works_ = 0, turns_ = 0;
  bool last_words_ = false, process_ended_ = false, cut_ = false;
  std::string problem_;
};

// What the server must have answered to a request: checks a recorded exchange against the same request alone.
class AnswerCheck {
 public:
  AnswerCheck(const History& history, Alone& alone, SimCounts* counts)
      : history_(history), alone_(alone), counts_(*counts) {}

  // What excuses an answer that is an error or incomplete.
  struct Excuses {
    bool faulted = false, shut_down = false, last_words = false;
    int64_t most_cached = 0;  // tokens that the prompts may have found in the prefix cache
  };
  // Empty: all is well.
  std::string Check(const SimRequest& request, const SimExchange& exchange, const Excuses& excuses);

 private:
  struct Expected;
  Expected Expect(const SimRequest& request);
  std::string CheckError(const SimRequest& request, const SimExchange& exchange, const Excuses& excuses,
                         const Expected& expected, const std::string& error);
  // A choice of `generated` tokens has no room in an empty pool, at its admission or later.
  bool CannotFit(const SimRequest& request, size_t choice, int64_t generated) const;

  const History& history_;
  Alone& alone_;
  SimCounts& counts_;
};

}  // namespace infinigen
