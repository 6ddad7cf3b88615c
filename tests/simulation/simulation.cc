#include "simulation/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/admission.h"
#include "server/request_memory.h"

namespace infinigen {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// As in server/serving.h.
constexpr double kBetweenBeats_s = 0.25;
constexpr double kStallSlice_s = 0.5;
constexpr int64_t kMostTurns = 100'000;

}  // namespace

std::string SimCounts::Describe() const {
  return fmt::format(
      "{} histories, {} turns, {} requests ({} refused, {} left), {} choices ({} compared, {} not), {} tokens; {} "
      "preemptions, {} tokens replayed, {} reused, {} without room; {} exceptions, {} stalls, {} shutdowns, {} "
      "comments, "
      "{} pictures",
      histories, turns, requests, refused, left, choices, compared, uncompared, tokens, preemptions, replayed_tokens,
      reused_tokens, exhausted, throws, stalls, shutdowns, comments, pictures);
}

Simulation::Simulation(const History& history, Alone& alone, Defect defect, SimCounts* counts)
    : history_(history), alone_(alone), defect_(defect), counts_(*counts), timing_(SplitMix(~history.seed).Next()) {
  account_ = std::make_shared<MemoryAccount>(history.account_bytes);
  clients_.emplace(history.client_share, account_);
  executor_ = std::make_unique<SimExecutor>(
      MakeSimModel(*history.variant, kSimContext, history.batch, history.pool_bytes, history.side_tokens),
      history.faults, defect, [this] { Work(); });
  if (Sharing* sharing = executor_->inner().sharing()) whole_extents_ = sharing->free_extents();
  const int64_t slots = SlotsOfClient(history.batch, history.client_share);
  engine_.emplace(*executor_,
                  EngineOptions{.grows = true,
                                .reuses_prefixes = history.reuses_prefixes,
                                .prefix_limit_bytes = history.prefix_limit_bytes,
                                .turn_prefill_tokens = history.turn_prefill_tokens,
                                .client_running = defect == Defect::kClientLimitIgnored ? history.batch : slots,
                                .now = [this] { return Now(); }});
  // Only requests that hold a slot may end with the turn; those that wait stay.
  executor_->OnThrow([this] {
    for (Flow& flow : flows_)
      for (const RequestId id : flow.ids) flow.faulted = flow.faulted || engine_->SlotOf(id).has_value();
  });
  const NowFunction now = [this] { return Now(); };
  watch_.emplace(*engine_, metrics_, history.prefix_limit_bytes, /*samples=*/history.seed % 2 == 0, now);
  loop_.emplace(
      *engine_, [this] { AfterTurn(); }, [](std::string_view, bool) {}, now);
  WatchdogTimes times;
  times.poll = times.poll.zero();
  watchdog_.emplace(
      loop_->heartbeat(), times,
      [this] {
        last_words_ = true;
        for (const Flow& flow : flows_)
          if (flow.submitted) flow.exchange->Abort({.status = 503});
      },
      [this](std::string_view) { process_ended_ = true; });
  queue_.emplace(*engine_, slots, history.batch);
  for (const SimRequest& request : history.requests) flows_.push_back({.request = &request});
  for (const SimWatcher& watcher : history.watchers) watching_.push_back({.watcher = &watcher});
}

Simulation::~Simulation() = default;

Simulation::Clock::time_point Simulation::Now() const {
  return Clock::time_point(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(1000 + now_s_)));
}

void Simulation::Fail(std::string problem) {
  if (problem_.empty()) problem_ = fmt::format("{} (turn {}, {:.3f} s)", problem, turns_, now_s_);
}

// A unit or a step takes time, and some hang.
void Simulation::Work() {
  now_s_ += 0.0005 + 0.015 * timing_.Unit();
  if (const auto stall = history_.stalls.find(works_++); stall != history_.stalls.end()) Stall(stall->second);
}

void Simulation::Stall(double seconds) {
  ++counts_.stalls;
  for (double passed = 0; passed < seconds; passed += kStallSlice_s) {
    now_s_ += kStallSlice_s;
    const double age = now_s_ - turn_began_s_, bound = std::max(30.0, 5 * longest_turn_s_);
    const bool spoke = last_words_;
    watchdog_->Check(Now());
    // The clock counts nanoseconds, so the bound itself is not checked.
    constexpr double kEdge_s = 1e-6;
    if (std::abs(age - bound) > kEdge_s && watchdog_->stalled(Now()) != (age > bound))
      Fail(fmt::format("the engine is{} called stalled after {} s", age > bound ? " not" : "", age));
    if (std::abs(age - bound - 10) > kEdge_s && !spoke && last_words_ != (age > bound + 10))
      Fail(fmt::format("the watchdog {} after {} s", last_words_ ? "speaks" : "is silent", age));
    if (process_ended_ && age < bound + 12 - kEdge_s) Fail("the watchdog ends the process too early");
  }
}

double Simulation::NextEvent() const {
  double next = kNever;
  for (const Flow& flow : flows_) {
    if (flow.exchange == nullptr) next = std::min(next, flow.request->arrives_s);
    if (flow.exchange != nullptr && !flow.exchange->ended && !flow.exchange->gone && flow.request->leaves_s)
      next = std::min(next, *flow.request->leaves_s);
  }
  for (const Watching& watching : watching_) {
    if (watching.exchange == nullptr) next = std::min(next, watching.watcher->arrives_s);
    if (watching.exchange != nullptr && !watching.left) next = std::min(next, watching.watcher->leaves_s);
  }
  if (history_.shutdown_s && !cut_) next = std::min(next, *history_.shutdown_s);
  return next;
}

bool Simulation::PostDue() {
  for (Flow& flow : flows_) {
    const SimRequest& request = *flow.request;
    if (flow.exchange == nullptr && request.arrives_s <= now_s_) Arrive(flow);
    if (flow.exchange == nullptr) continue;
    const bool read_enough = request.leaves_after_writes && flow.exchange->writes >= *request.leaves_after_writes;
    if (read_enough || (request.leaves_s && *request.leaves_s <= now_s_)) Leave(flow);
  }
  for (Watching& watching : watching_) {
    const std::string& tenant = history_.clients[watching.watcher->client];
    if (watching.exchange == nullptr && watching.watcher->arrives_s <= now_s_) {
      watching.exchange = std::make_shared<SimExchange>(now_s_, clients_->Find(""), std::nullopt);
      watching.exchange->Begin({});
      watch_->Add(watching.exchange, defect_ == Defect::kWatchOfAll ? "" : tenant);
    } else if (watching.exchange != nullptr && !watching.left && watching.watcher->leaves_s <= now_s_) {
      watching.left = true;
      watch_->Remove(watching.exchange.get());
    }
  }
  if (history_.shutdown_s && !cut_ && *history_.shutdown_s <= now_s_) {
    cut_ = true;
    ++counts_.shutdowns;
    tasks_.push_back([](Engine& engine) { engine.CancelAll(); });
  }
  return !tasks_.empty();
}

CompletionContext Simulation::ContextOf(const Flow& flow, const std::shared_ptr<Client>& client) {
  CompletionContext context{.metrics = metrics_, .watch = *watch_};
  context.preset = std::string(history_.variant->method.preset);
  context.add_headers = [](HttpReply reply) { return reply; };
  context.log = [](int, const std::string&) {};
  context.tenant = defect_ == Defect::kWatchOfAll ? "" : history_.clients[flow.request->client];
  context.cache_salt = defect_ == Defect::kSaltIgnored ? "" : flow.salt;
  context.client = client->limited ? client->name : std::string();
  if (defect_ == Defect::kWrongClient && !context.client.empty()) context.client = "all";
  context.format = [this](std::function<void()> task) { formats_.push_back(std::move(task)); };
  context.heartbeat_s = history_.heartbeat_s;
  context.now = [this] { return Now(); };
  return context;
}

// What Api::Complete does between a parsed body and the engine's queue.
void Simulation::Arrive(Flow& flow) {
  const SimRequest& request = *flow.request;
  ++counts_.requests;
  const std::shared_ptr<Client> client = clients_->Find(history_.clients[request.client]);
  flow.exchange = std::make_shared<SimExchange>(now_s_, client, request.write_throws);
  flow.salt =
      CacheSalt(history_.shares_prefixes ? std::string() : history_.clients[request.client], request.cache_salt);
  const auto refuse = [&](const ApiError& error) {
    ++counts_.refused;
    flow.exchange->Reply(ErrorReply(error));
  };
  if (cut_) return refuse(ShuttingDown());
  RequestMemory memory(client);
  if (const auto error = memory.Take(KeptBytes(request.body, request.prompts, kSimContext))) return refuse(*error);
  const int64_t choices = std::ssize(request.prompts) * request.body.n;
  const int64_t places = history_.batch + history_.max_waiting;
  ApiResult<QueuePlaces> entered = EnterQueue(&*clients_, metrics_, client, choices, places);
  if (!entered.ok()) return refuse(entered.error());
  entered->all.metrics = nullptr;  // from here on the completion releases its places
  flow.submitted = true;

  CompletionContext context = ContextOf(flow, client);
  context.memory = std::make_shared<const MemoryShare>(memory.TakeShare());
  context.places = std::make_shared<const ClientCount>(std::move(entered->own));
  if (defect_ == Defect::kMemoryKept && history_.seed % 4 == 0) kept_.push_back(context.memory);
  if (defect_ == Defect::kPlaceKept && history_.seed % 4 == 0) kept_.push_back(context.places);
  CompletionRequest body = request.body;
  const std::string client_name = client->limited ? client->name : std::string();
  const std::string name = fmt::format("cmpl-{}", &flow - flows_.data());
  flow_of_[name] = static_cast<size_t>(&flow - flows_.data());
  const AnswerHead head{.kind = body.kind, .id = name, .created = 0, .model = "simulated"};
  if (defect_ == Defect::kSeedIgnored) body.sampling.seed = 0;
  const auto completion = std::make_shared<Completion>(std::move(context), flow.exchange, head, std::move(body),
                                                       request.prompts, std::vector<std::string>());
  tasks_.push_back([this, &flow, completion, choices, client_name](Engine& engine) {
    if (!flow.request->refused)
      for (int64_t i = 0; i < choices; ++i) flow.ids.push_back(queue_->Submitted(client_name));
    completion->Submit(engine);
    if (cut_) return engine.CancelAll();
    if (completion->streams()) streams_.push_back(completion);
  });
  flow.exchange->OnGone([this, completion](HttpGone why) {
    if (defect_ == Defect::kCancelIgnored) return;
    executor_->LeakNextSlot();
    tasks_.push_back([completion, why](Engine& engine) { completion->Cancel(engine, why); });
  });
}

void Simulation::Leave(Flow& flow) {
  if (!flow.exchange->Leave(flow.request->why)) return;
  ++counts_.left;
  flow.left_turn = turns_;
}

// As Api::Serving::AfterTurn.
void Simulation::AfterTurn() {
  watch_->Turn();
  if (now_s_ - last_beat_s_ < kBetweenBeats_s && metrics_.running() > 0) return;
  last_beat_s_ = now_s_;
  if (defect_ != Defect::kNoHeartbeat)
    std::erase_if(streams_, [&](const std::weak_ptr<Completion>& held) {
      const std::shared_ptr<Completion> stream = held.lock();
      return stream == nullptr || !stream->Beat(Now());
    });
  if (history_.heartbeat_s == 0 || cut_) return;
  for (const Flow& flow : flows_) {
    if (!flow.submitted || flow.ids.empty() || !flow.request->body.stream) continue;
    const SimExchange& exchange = *flow.exchange;
    if (exchange.ended || exchange.gone || exchange.threw) continue;
    if (now_s_ - exchange.last_sent_s > history_.heartbeat_s + 1e-6)
      Fail(fmt::format("a stream was silent for {:.3f} s", now_s_ - exchange.last_sent_s));
  }
}

void Simulation::Turn() {
  const int64_t throws = executor_->throws(), works = works_;
  turn_began_s_ = now_s_;
  loop_->Pass(tasks_);
  longest_turn_s_ = std::max(longest_turn_s_, now_s_ - turn_began_s_);
  const bool threw = executor_->throws() > throws;
  CheckTurn(threw, works_ > works);
  ++turns_;
  // The formatter is a thread of its own: it may lag behind.
  if (!formats_.empty() && timing_.Below(3) == 0)
    for (const auto& format : std::exchange(formats_, {})) format();
  for (const Flow& flow : flows_)
    if (flow.exchange != nullptr && flow.exchange->ended) flow.exchange->on_gone = {};
}

void Simulation::CheckTurn(bool threw, bool worked) {
  if (!executor_->misuse().empty()) Fail(executor_->misuse());
  if (std::string broken = queue_->AfterTurn(threw, worked); !broken.empty()) Fail(std::move(broken));
  const EngineStats& stats = engine_->stats();
  if (std::ssize(executor_->held()) != queue_->running())
    Fail(fmt::format("{} slots are held by {} running requests", executor_->held().size(), queue_->running()));
  if (stats.running != queue_->running() || stats.running + stats.waiting != queue_->unfinished())
    Fail("the statistics count other requests than there are");
  if (executor_->pool_bytes() > history_.pool_bytes) Fail("the pool is larger than its limit");
  if (stats.prefix_bytes > history_.prefix_limit_bytes) Fail("more prefixes are cached than the limit");
  for (const Flow& flow : flows_) {
    if (!flow.left_turn || *flow.left_turn > turns_) continue;
    for (const RequestId id : flow.ids)
      if (engine_->StateOf(id)) Fail(fmt::format("request {} goes on without its client", id.value()));
  }
}

// A tenant's watcher sees pictures of the tenant's own requests.
void Simulation::CheckWatchers() {
  for (const Watching& watching : watching_) {
    if (watching.exchange == nullptr) continue;
    const std::string& events = watching.exchange->body;
    for (size_t at = events.find("\"request\":\""); at != events.npos; at = events.find("\"request\":\"", at + 1)) {
      const size_t begin = at + 11;
      const std::string name = events.substr(begin, events.find('"', begin) - begin);
      ++counts_.pictures;
      const auto found = flow_of_.find(name);
      if (found == flow_of_.end())
        Fail("a picture of an unknown request");
      else if (history_.clients[flows_[found->second].request->client] != history_.clients[watching.watcher->client])
        Fail("a watcher sees a request of another tenant");
    }
  }
}

std::string Simulation::Run() {
  ++counts_.histories;
  while (problem_.empty() && !process_ended_) {
    const bool posted = PostDue();
    if (!posted && queue_->unfinished() == 0) {
      const double next = NextEvent();
      if (next == kNever) break;
      now_s_ = std::max(now_s_, next);
      continue;
    }
    Turn();
    if (turns_ > kMostTurns) Fail("the history does not end");
  }
  if (problem_.empty()) CheckEnd();
  counts_.turns += turns_;
  return problem_;
}

void Simulation::CheckEnd() {
  loop_->End();
  if (engine_->stats().running + engine_->stats().waiting > 0) Fail("requests are left at the end");
  for (const auto& format : std::exchange(formats_, {})) format();
  CheckWatchers();
  const EngineStats& stats = engine_->stats();
  counts_.preemptions += stats.preemptions;
  counts_.replayed_tokens += stats.replayed_tokens;
  counts_.reused_tokens += stats.reused_tokens;
  counts_.throws += executor_->throws();
  AnswerCheck check(history_, alone_, &counts_);
  for (const Flow& flow : flows_) {
    if (flow.exchange == nullptr || !flow.submitted) continue;
    counts_.comments += flow.exchange->comments;
    AnswerCheck::Excuses excuses{.faulted = flow.faulted, .shut_down = cut_, .last_words = last_words_};
    excuses.most_cached = 0;
    for (const std::vector<int32_t>& prompt : flow.request->prompts) excuses.most_cached += MostCached(flow, prompt);
    if (std::string wrong = check.Check(*flow.request, *flow.exchange, excuses); !wrong.empty())
      Fail(fmt::format("request {}: {}", &flow - flows_.data(), wrong));
  }
  // Everything that a request holds is given back with it.
  if (metrics_.running() != 0 || metrics_.waiting() != 0) Fail("places in the queue are left");
  for (Watching& watching : watching_)
    if (watching.exchange != nullptr && !watching.left) watch_->Remove(watching.exchange.get());
  watching_.clear();
  tasks_.clear();
  for (Flow& flow : flows_)
    if (flow.exchange != nullptr) flow.exchange->on_gone = {};
  for (const std::string& name : history_.clients)
    if (const std::shared_ptr<Client> client = clients_->Find(name);
        client->places != 0 || (client->limited && client->memory->used() != 0))
      Fail(
          fmt::format("client '{}' holds {} places and {} bytes", name, client->places.load(), client->memory->used()));
  if (account_->used() != 0) Fail(fmt::format("{} bytes of the account are left", account_->used()));
  engine_->DropHeld();
  if (!executor_->held().empty()) Fail("slots are left");
  if (executor_->pool_bytes() != 0) Fail(fmt::format("{} bytes of entries are left", executor_->pool_bytes()));
  Sharing* sharing = executor_->inner().sharing();
  if (sharing != nullptr && sharing->free_extents() != whole_extents_)
    Fail(fmt::format("{} of {} extents are free at the end", sharing->free_extents(), whole_extents_));
}

// Tokens of a prompt that whole extents of earlier texts with the same salt can hold.
int64_t Simulation::MostCached(const Flow& flow, const std::vector<int32_t>& prompt) {
  const SimVariant& variant = *history_.variant;
  if (!history_.reuses_prefixes || variant.windowed || variant.method.evicts()) return 0;
  int64_t most = 0;
  for (const Flow& other : flows_) {
    if (!other.submitted || other.salt != flow.salt) continue;
    for (size_t i = 0; i < other.request->prompts.size(); ++i) {
      const bool own = &other == &flow && &other.request->prompts[i] == &prompt;
      if (own && flow.request->body.n == 1) continue;
      for (int64_t choice = 0; choice < other.request->body.n && !other.request->refused; ++choice) {
        std::vector<int32_t> text = other.request->prompts[i];
        const std::vector<int32_t>& said = alone_.Run(variant, SimChoice(variant, *other.request, i, choice)).tokens;
        // A continued text may differ from the one alone: then any text may follow.
        if (other.request->continues) most = std::ssize(prompt);
        text.insert(text.end(), said.begin(), said.end());
        const auto differ = std::ranges::mismatch(text, prompt).in2;
        most = std::max<int64_t>(most, differ - prompt.begin());
      }
    }
  }
  most = std::min<int64_t>(most, std::ssize(prompt) - 1);
  return most / kExtentTokens * kExtentTokens;
}

}  // namespace infinigen
