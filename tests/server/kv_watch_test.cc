// The events of the KV picture: their timing and their cost. The tests use the real clock, so they run until enough
// events have been sent, and count steps.
#include "server/kv_watch.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/fake_executor.h"

namespace infinigen {
namespace {

class Watcher : public HttpExchange {
 public:
  const HttpRequest& request() const override { return request_; }
  void Reply(HttpReply) override {}
  void Begin(HttpReply) override {}
  void Write(std::string bytes) override { events.push_back(nlohmann::json::parse(bytes.substr(6))); }
  void End() override {}
  void Abort(HttpReply) override {}
  void OnGone(std::function<void(HttpGone why)>) override {}
  void Abandon() noexcept override {}
  const std::shared_ptr<Client>& client() const override { return client_; }

  std::vector<nlohmann::json> events;

 private:
  HttpRequest request_;
  std::shared_ptr<Client> client_;
};

struct Selecting {
  Selecting() { executor.mutable_options().method.select = &kSelectSketch; }
  FakeExecutor executor{1 << 24, 8, int64_t{1} << 40};
};

struct Watched : Selecting {
  explicit Watched(bool samples) : watch(engine, metrics, 0, samples) { watch.Add(watcher); }

  RequestId Submit(int64_t n) {
    Request request{.prompt = {1, 2, 3}, .max_new_tokens = n, .sampling = {.temperature = 0}, .ignore_eos = true};
    request.on_token = [this](RequestId id, int32_t) {
      watch.Token(id);
      return true;
    };
    request.on_done = [this](RequestId id, const RequestResult&) { watch.Finished(id); };
    const RequestId id = engine.Submit(std::move(request)).value();
    watch.Started(id, "r" + std::to_string(id.value()), 3, "infinigen");
    ++submitted;
    return id;
  }
  bool Turn() {
    const bool more = engine.RunOnce();
    watch.Turn();
    return more;
  }
  size_t events() const { return watcher->events.size(); }

  Engine engine{executor};
  Metrics metrics;
  std::shared_ptr<Watcher> watcher = std::make_shared<Watcher>();
  KvWatch watch;
  size_t submitted = 0;
};

constexpr int64_t kForever = 1 << 23;

TEST(KvWatch, OneStepIsObservedForEachEventWhereThatTakesTime) {
  Watched sampling(true), observing(false);
  for (Watched* of : {&sampling, &observing}) {
    of->Submit(kForever);
    while (of->events() < 3) of->Turn();
    for (const nlohmann::json& event : of->watcher->events) EXPECT_GT(event["layers"][0].back(), 0) << "its own row";
  }
  EXPECT_LE(sampling.executor.observed_steps, 4);
  EXPECT_GT(observing.executor.observed_steps, 4);
}

// A new request is shown at once, and is no reason to put the next event off.
TEST(KvWatch, RequestsThatKeepComingAreSampledToo) {
  Watched sampling(true);
  sampling.Submit(kForever);
  for (int64_t turn = 0; sampling.events() < 3; ++turn) {
    if (turn % 50 == 0 && turn > 0) sampling.Submit(60);
    sampling.Turn();
  }
  // Each request when it is followed, and when it is followed again because a later one has ended; each event.
  EXPECT_LE(static_cast<size_t>(sampling.executor.observed_steps), 2 * sampling.submitted + sampling.events() + 1);
}

// Its rows are those of the step that it shows, however many came since.
TEST(KvWatch, TheLastPictureOfAShortAnswerIsSent) {
  Watched sampling(true), observing(false);
  for (Watched* of : {&sampling, &observing}) {
    of->Submit(40);
    while (of->Turn()) {
    }
    ASSERT_EQ(of->events(), 1u);
    const nlohmann::json& event = of->watcher->events[0];
    EXPECT_EQ(event["rows"], of == &sampling ? 4 : 3 + 39);
    EXPECT_EQ(event["layers"][0].size(), event["rows"]);
    EXPECT_EQ(event["layers"][0].back(), 255) << "the step's own row";
  }
  sampling.Submit(1);  // no step, no picture
  while (sampling.Turn()) {
  }
  EXPECT_EQ(sampling.events(), 1u);
}

// Two keys: each sees its own requests, in turn, and nothing of the other's.
TEST(KvWatch, EachTenantSeesItsOwn) {
  Watched one(false);  // its watcher has no key
  const auto keyed = std::make_shared<Watcher>();
  one.watch.Add(keyed, "key");
  const RequestId open = one.Submit(kForever);
  Request request{.prompt = {1, 2, 3}, .max_new_tokens = kForever, .sampling = {.temperature = 0}, .ignore_eos = true};
  request.on_token = [&](RequestId id, int32_t) {
    one.watch.Token(id);
    return true;
  };
  const RequestId closed = one.engine.Submit(std::move(request)).value();
  one.watch.Started(closed, "secret", 3, "infinigen", "key");
  while (one.events() < 3 || keyed->events.size() < 3) one.Turn();
  for (const nlohmann::json& event : one.watcher->events)
    EXPECT_EQ(event["request"], "r" + std::to_string(open.value()));
  for (const nlohmann::json& event : keyed->events) EXPECT_EQ(event["request"], "secret");
  one.watch.Remove(keyed.get());
  const size_t before = keyed->events.size(), own = one.events();
  while (one.events() < own + 2) one.Turn();
  EXPECT_EQ(keyed->events.size(), before);
}

// As one that was preempted, and will be back.
TEST(KvWatch, WhoHasNoPlaceIsNotFollowed) {
  Watched observing(false);
  observing.Submit(kForever);
  while (observing.events() < 1) observing.Turn();
  const RequestId elsewhere(1000);
  observing.watch.Started(elsewhere, "elsewhere", 3, "infinigen");
  observing.watch.Token(elsewhere);
  while (observing.events() < 2) observing.Turn();
  EXPECT_EQ(observing.watcher->events.back()["request"], "r0");
  observing.watch.Finished(elsewhere);
}

}  // namespace
}  // namespace infinigen
