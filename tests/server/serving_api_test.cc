// The API over a fake executor: what clients get when the engine hangs or throws, memory is short, a key is another's.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <nlohmann/json.hpp>
#include <thread>

#include "engine/fake_executor.h"
#include "server/api.h"

namespace infinigen {
namespace {

using Json = nlohmann::json;

// Records what a handler replies. Any thread.
class Exchange : public HttpExchange {
 public:
  Exchange(std::string method, std::string path, std::string body, std::string key) {
    request_.method = std::move(method);
    request_.path = std::move(path);
    request_.body = std::move(body);
    if (!key.empty()) request_.authorization = "Bearer " + key;
  }
  const HttpRequest& request() const override {
    if (no_memory_once.exchange(false)) throw std::bad_alloc();
    return request_;
  }
  const std::shared_ptr<Client>& client() const override {
    if (no_memory_for_route) throw std::bad_alloc();
    return client_;
  }
  void Reply(HttpReply reply) override {
    if (no_memory_at_all) throw std::bad_alloc();
    Settle(std::move(reply));
  }
  void Begin(HttpReply head) override {
    if (no_memory_at_all) throw std::bad_alloc();
    const std::lock_guard lock(mutex_);
    body_ += head.body;
    status_ = head.status;
  }
  void Write(std::string bytes) override {
    if (no_memory_at_all) throw std::bad_alloc();
    if (no_memory_for_writes && bytes.find("\"error\"") == bytes.npos) throw std::bad_alloc();
    const std::lock_guard lock(mutex_);
    body_ += bytes;
  }
  void End() override { Settle({}); }
  void Abort(HttpReply error) override {
    if (no_memory_at_all) throw std::bad_alloc();
    Settle(std::move(error));
  }
  void OnGone(std::function<void(HttpGone why)>) override {}
  void Abandon() noexcept override { abandoned = true; }

  bool done() const {
    const std::lock_guard lock(mutex_);
    return done_;
  }
  int status() const { return status_; }
  std::string body() const {
    const std::lock_guard lock(mutex_);
    return body_;
  }
  std::thread::id replier() const { return replier_; }

  bool no_memory_for_route = false, no_memory_for_writes = false;
  std::atomic<bool> no_memory_at_all{false}, abandoned{false};
  mutable std::atomic<bool> no_memory_once{false};

 private:
  void Settle(HttpReply reply) {
    const std::lock_guard lock(mutex_);
    if (done_) return;
    if (status_ == 0) status_ = reply.status;
    body_ += reply.body;
    replier_ = std::this_thread::get_id();
    done_ = true;
  }

  HttpRequest request_;
  std::shared_ptr<Client> client_ = Clients(1, std::make_shared<MemoryAccount>(256 << 20)).Find("");
  mutable std::mutex mutex_;
  std::atomic<int> status_{0};
  std::string body_;
  std::thread::id replier_;
  bool done_ = false;
};

template <class F>
bool Eventually(F condition) {
  for (int i = 0; i < 2000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

struct Served {
  explicit Served(ApiOptions options = {}, std::vector<std::string> keys = {}) {
    options.log_requests = false;
    api.emplace(AccessOptions{.keys = std::move(keys)}, std::move(options));
    api->Serve({.name = "fake", .executor = &executor, .heartbeat_s = 0});
  }
  ~Served() {
    api->Stop();
    EXPECT_TRUE(executor.clean());
  }
  std::shared_ptr<Exchange> Make(const std::string& path, const std::string& body) {
    return std::make_shared<Exchange>(body.empty() ? "GET" : "POST", path, body, "");
  }
  std::shared_ptr<Exchange> Ask(const std::string& path, const std::string& body = {}) {
    const std::shared_ptr<Exchange> exchange = Make(path, body);
    api->handler().handle(exchange);
    return exchange;
  }
  static std::string Prompt(int64_t tokens, bool stream = false, const std::string& more = {}) {
    return fmt::format(R"({{"prompt":[1,2,3],"max_tokens":{},"ignore_eos":true,"temperature":0,"stream":{}{}}})",
                       tokens, stream, more);
  }

  FakeExecutor executor{1000, 4, 100000};
  std::optional<Api> api;
};

TEST(Stall, TheHeartbeatKnowsHowLongATurnLasts) {
  using std::chrono::seconds;
  const Heartbeat::Clock::time_point start = Heartbeat::Clock::now();
  Heartbeat heartbeat;
  EXPECT_EQ(heartbeat.Age(start).count(), 0);
  heartbeat.Begin(start);
  EXPECT_EQ(heartbeat.Age(start + seconds(7)), seconds(7));
  heartbeat.End(start + seconds(9));
  EXPECT_EQ(heartbeat.Age(start + seconds(100)).count(), 0) << "idle";
  EXPECT_EQ(heartbeat.longest(), seconds(9));
}

TEST(Stall, TheWatchdogWaitsSpeaksAndEnds) {
  using std::chrono::seconds;
  const Heartbeat::Clock::time_point start = Heartbeat::Clock::now();
  Heartbeat heartbeat;
  heartbeat.Begin(start);
  heartbeat.End(start + seconds(8));  // five times as long: 40 s
  int words = 0;
  std::vector<std::string> ends;
  WatchdogTimes times;
  times.poll = std::chrono::hours(1);  // this test calls Check itself
  Watchdog watchdog(
      heartbeat, times, [&] { ++words; }, [&](std::string_view message) { ends.emplace_back(message); });
  const auto at = [&](int second) { return start + seconds(1000 + second); };
  watchdog.Check(at(0));
  EXPECT_FALSE(watchdog.stalled(at(0))) << "an idle engine is healthy, however long";
  heartbeat.Begin(at(0));
  EXPECT_FALSE(watchdog.stalled(at(40)));
  EXPECT_TRUE(watchdog.stalled(at(41)));
  watchdog.Check(at(50));
  EXPECT_EQ(words, 0);
  watchdog.Check(at(51));
  EXPECT_EQ(words, 1);
  watchdog.Check(at(52));
  EXPECT_TRUE(ends.empty()) << "the last words take two seconds";
  watchdog.Check(at(53));
  watchdog.Check(at(54));
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_NE(ends[0].find("hung for 53 s"), std::string::npos) << ends[0];
  EXPECT_EQ(words, 1);
}

TEST(Stall, AtTheEndItWaitsLess) {
  using std::chrono::seconds;
  const Heartbeat::Clock::time_point start = Heartbeat::Clock::now();
  Heartbeat heartbeat;
  heartbeat.Begin(start);
  int words = 0;
  WatchdogTimes times;
  times.poll = std::chrono::hours(1);
  Watchdog watchdog(
      heartbeat, times, [&] { ++words; }, [](std::string_view) {});
  watchdog.Check(start + seconds(20));
  EXPECT_EQ(words, 0);
  watchdog.SetStopping();
  watchdog.Check(start + seconds(20));
  EXPECT_EQ(words, 1);
}

// A step that does not return, as a hung kernel: /health fails, streams end with an error, the process would end.
TEST(Stall, AHungStepIsNoticedAndTold) {
  using std::chrono::milliseconds;
  std::atomic<bool> hung{true}, ended{false};
  ApiOptions options;
  options.watchdog = {.least_bound = milliseconds(100),
                      .longest_factor = 0,
                      .end_after = milliseconds(100),
                      .last_words = milliseconds(1),
                      .poll = milliseconds(10)};
  options.end_process = [&](std::string_view) { ended = true; };
  Served served(std::move(options));
  EXPECT_EQ(served.Ask("/health")->status(), 200);
  served.executor.on_step = [&] {
    while (hung) std::this_thread::sleep_for(milliseconds(1));
  };
  const auto stream = served.Ask("/v1/completions", Served::Prompt(10, /*stream=*/true));
  EXPECT_TRUE(Eventually([&] { return served.Ask("/health")->status() == 503; }));
  EXPECT_NE(served.Ask("/health")->body().find("engine_stalled"), std::string::npos);
  EXPECT_TRUE(Eventually([&] { return stream->done(); }));
  EXPECT_EQ(stream->status(), 200) << "the stream had begun";
  EXPECT_NE(stream->body().find("engine_stalled"), std::string::npos);
  EXPECT_TRUE(Eventually([&] { return ended.load(); }));
  hung = false;
  EXPECT_TRUE(Eventually([&] { return served.Ask("/health")->status() == 200; }));
}

TEST(Exceptions, AStepThatThrowsEndsItsRequestsAndNoLaterOne) {
  Served served;
  std::atomic<int> steps{0};
  served.executor.on_step = [&] {
    if (++steps == 3) throw std::bad_alloc();
  };
  const auto whole = served.Ask("/v1/completions", Served::Prompt(10));
  ASSERT_TRUE(Eventually([&] { return whole->done(); }));
  EXPECT_EQ(whole->status(), 500);
  EXPECT_NE(whole->body().find("out of memory"), std::string::npos) << whole->body();
  const auto next = served.Ask("/v1/completions", Served::Prompt(10));
  ASSERT_TRUE(Eventually([&] { return next->done(); }));
  EXPECT_EQ(next->status(), 200);
  EXPECT_EQ(Json::parse(next->body())["usage"]["completion_tokens"], 10);
  EXPECT_EQ(served.Ask("/health")->status(), 200);
}

TEST(BrokenNumbers, EndTheirRequestWithTheLayerAndNoOther) {
  Served served;
  served.executor.broken_token = 40;
  const std::string body = Served::Prompt(10);
  const auto alone = served.Ask("/v1/completions", body);
  ASSERT_TRUE(Eventually([&] { return alone->done(); }));
  const auto neighbour = served.Ask("/v1/completions", body);
  const auto broken = served.Ask("/v1/completions", R"({"prompt":[1,2,40],"max_tokens":10,"n":2})");
  ASSERT_TRUE(Eventually([&] { return neighbour->done() && broken->done(); }));
  EXPECT_EQ(broken->status(), 500);
  const Json error = Json::parse(broken->body())["error"];
  EXPECT_EQ(error["code"], "generation_failed");
  EXPECT_EQ(error["message"], "the model computed numbers that are NaN or infinite: layer 1 of 3");
  EXPECT_EQ(neighbour->status(), 200);
  EXPECT_EQ(Json::parse(neighbour->body())["choices"], Json::parse(alone->body())["choices"]);
}

TEST(Exceptions, ARouteOrAStreamWithoutMemoryEndsAlone) {
  Served served;
  const auto route = served.Make("/v1/completions", Served::Prompt(10));
  route->no_memory_for_route = true;
  served.api->handler().handle(route);
  EXPECT_EQ(route->status(), 503);
  EXPECT_NE(route->body().find("out_of_memory"), std::string::npos);

  const auto stream = served.Make("/v1/completions", Served::Prompt(900, /*stream=*/true));
  const auto other = served.Ask("/v1/completions", Served::Prompt(50));
  stream->no_memory_for_writes = true;
  served.api->handler().handle(stream);
  ASSERT_TRUE(Eventually([&] { return stream->done() && other->done(); }));
  EXPECT_NE(stream->body().find("out_of_memory"), std::string::npos) << stream->body();
  EXPECT_EQ(other->status(), 200);
  EXPECT_EQ(Json::parse(other->body())["usage"]["completion_tokens"], 50);
}

// A request that cannot even be told so is abandoned: its connection closes.
TEST(Exceptions, WhoCannotBeToldIsAbandoned) {
  Served served;
  for (const bool stream : {false, true}) {
    for (const char* more : {"", ",\"logprobs\":2"}) {
      const auto exchange = served.Make("/v1/completions", Served::Prompt(20, stream, more));
      std::atomic<int> steps{0};
      served.executor.on_step = [&] {
        if (++steps == 3) exchange->no_memory_at_all = true;
      };
      served.api->handler().handle(exchange);
      EXPECT_TRUE(Eventually([&] { return exchange->abandoned.load(); })) << stream << more;
      EXPECT_FALSE(exchange->done());
    }
  }
  served.executor.on_step = {};
  const auto next = served.Ask("/v1/completions", Served::Prompt(5));
  ASSERT_TRUE(Eventually([&] { return next->done(); }));
  EXPECT_EQ(next->status(), 200);
}

// An answer is made after its last token, and there may be no memory for it.
TEST(Exceptions, AnAnswerThatCannotBeMadeIsCountedAsWhatIsSent) {
  for (const char* more : {"", ",\"logprobs\":2"}) {
    Served served;
    const auto exchange = served.Make("/v1/completions", Served::Prompt(5, /*stream=*/false, more));
    std::atomic<int> steps{0};
    served.executor.on_step = [&] {
      if (++steps == 3) exchange->no_memory_once = true;
    };
    served.api->handler().handle(exchange);
    ASSERT_TRUE(Eventually([&] { return exchange->done(); }));
    EXPECT_EQ(exchange->status(), 503);
    const std::string counted = served.Ask("/metrics")->body();
    EXPECT_NE(counted.find("http_replies_total{code=\"503\"} 1\n"), std::string::npos) << counted;
    EXPECT_EQ(counted.find("http_replies_total{code=\"200\"} 1\n"), std::string::npos);
  }
}

TEST(Answers, LogprobsAreFormattedOnAThreadOfTheirOwn) {
  Served served;
  std::thread::id engine;
  served.executor.on_step = [&] { engine = std::this_thread::get_id(); };
  const auto plain = served.Ask("/v1/completions", Served::Prompt(4));
  ASSERT_TRUE(Eventually([&] { return plain->done(); }));
  EXPECT_EQ(plain->replier(), engine);
  const auto logged = served.Ask("/v1/completions", Served::Prompt(4, false, ",\"logprobs\":2"));
  ASSERT_TRUE(Eventually([&] { return logged->done(); }));
  EXPECT_NE(logged->replier(), engine);
  const Json answer = Json::parse(logged->body());
  EXPECT_EQ(answer["choices"][0]["logprobs"]["tokens"].size(), 4u);
  EXPECT_EQ(answer["choices"][0]["logprobs"]["top_logprobs"][3].size(), 2u);
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(answer["usage"]["completion_tokens"], 4);
}

TEST(Watchers, AreBounded) {
  Served served;
  std::vector<std::shared_ptr<Exchange>> watching;
  for (int i = 0; i < 32; ++i) watching.push_back(served.Ask("/kv"));
  for (const auto& each : watching) EXPECT_EQ(each->status(), 200);
  const auto more = served.Ask("/kv");
  EXPECT_EQ(more->status(), 429);
  EXPECT_NE(more->body().find("too_many_watchers"), std::string::npos);
}

TEST(Options, AreAnsweredWithoutAnOriginToo) {
  Served served;
  const auto ask = [&](const std::string& path, const std::string& host) {
    return served.api->handler().admit({.method = "OPTIONS", .path = path, .host = host});
  };
  const std::unique_ptr<HttpReply> reply = ask("/v1/completions", "localhost");
  ASSERT_NE(reply, nullptr);
  EXPECT_EQ(reply->status, 204);
  EXPECT_NE(std::ranges::find(reply->headers, std::pair<std::string, std::string>("Allow", "POST, OPTIONS")),
            reply->headers.end());
  EXPECT_EQ(ask("*", "localhost")->status, 204);
  EXPECT_EQ(ask("/nothing", "localhost")->status, 404);
  EXPECT_EQ(ask("/v1/completions", "evil.example")->status, 403);
}

}  // namespace
}  // namespace infinigen
