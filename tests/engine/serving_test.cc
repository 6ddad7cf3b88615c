// The engine with a real model: whatever a server does to a request (neighbours with other settings, a pool too small
// for all, entries taken over from others), its greedy text is the one it has alone, token for token.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>
#include <random>
#include <set>

#include "engine/engine.h"
#include "model/random_model.h"
#include "sanitized.h"

namespace infinigen {
namespace {

const RandomModelWithBases& Model() {
  static const RandomModelWithBases model(Llama(), 8, 11);
  return model;
}
uint64_t RowBytes() {
  const ModelConfig config = Llama();
  return static_cast<uint64_t>(config.layers * config.kv_heads * 2 * config.head_dim) * sizeof(float);
}

struct Setup {
  KvMethod method;
  int64_t batch = 4;
  int64_t pool_rows = 100000;
  int64_t context = 1500;
  int64_t side_tokens = 0;
};
std::unique_ptr<Executor> MakeModel(const Setup& setup) {
  ExecutorOptions options{.threads = 2,
                          .max_tokens = setup.context,
                          .max_batch = setup.batch,
                          .kv_type = StoreType::kF32,
                          .method = setup.method,
                          .pool_limit_bytes = static_cast<uint64_t>(setup.pool_rows) * RowBytes(),
                          .side_tokens = setup.side_tokens};
  options.method.largest_cap = 1.0;
  return MakeExecutor(Model().config, Model().weights, options, {.bases = Model().bases}).value();
}

struct Client {
  std::map<int64_t, RequestResult> results;
  std::set<int64_t> begun;  // whose prompt was seen to be read

  Request Make(std::vector<int32_t> prompt, int64_t n, RequestKv kv = {}) {
    Request request{.prompt = std::move(prompt), .max_new_tokens = n, .sampling = {.temperature = 0}, .kv = kv};
    request.on_prefill = [this](RequestId id, const PrefillProgress&) { begun.insert(id.value()); };
    request.on_token = [this](RequestId id, int32_t) {
      EXPECT_TRUE(begun.contains(id.value())) << "a token of a request that nobody saw begin";
      return true;
    };
    request.on_done = [this](RequestId id, const RequestResult& result) {
      EXPECT_TRUE(results.emplace(id.value(), result).second) << "done twice";
    };
    return request;
  }
};

RequestResult ResultAlone(const KvMethod& method, const std::vector<int32_t>& prompt, int64_t n, RequestKv kv = {}) {
  const std::unique_ptr<Executor> executor = MakeModel({.method = method, .batch = 1});
  Engine engine(*executor);
  Client client;
  EXPECT_TRUE(engine.Submit(client.Make(prompt, n, kv)).ok());
  while (engine.RunOnce()) {
  }
  return client.results[0];
}
std::vector<int32_t> Alone(const KvMethod& method, const std::vector<int32_t>& prompt, int64_t n, RequestKv kv = {}) {
  return ResultAlone(method, prompt, n, kv).tokens;
}

KvMethod Infinigen(GuessSource from = GuessSource::kPrevMid) { return Sparse(from); }

// ---- kv per request ----

TEST(RequestKvTest, FullAmongNeighboursThatSelectIsFullAndNobodyElseNotices) {
  for (const SelectMethod* select : {&kSelectSketch, &kSelectQuest}) {
    const KvMethod method = Sparse(GuessSource::kPrevMid, select);
    const std::unique_ptr<Executor> executor = MakeModel({.method = method, .batch = 3});
    Engine engine(*executor);
    Client client;
    const RequestKv settings[] = {{}, {.full = true}, {.alpha = 0.5f, .cap = 0.5}};
    std::vector<std::vector<int32_t>> prompts;
    // Twice, in other slots: what a slot was told before is forgotten.
    for (size_t i = 0; i < 6; ++i) {
      prompts.push_back(Model().Ids(300 + 20 * i, static_cast<uint32_t>(40 + i)));
      ASSERT_TRUE(engine.Submit(client.Make(prompts[i], 30 + static_cast<int64_t>(i), settings[(i + i / 3) % 3])).ok());
    }
    while (engine.RunOnce()) {
    }
    size_t unlike = 0;
    for (size_t i = 0; i < 6; ++i) {
      const RequestKv& kv = settings[(i + i / 3) % 3];
      const auto n = static_cast<int64_t>(30 + i);
      const std::vector<int32_t> full = Alone({}, prompts[i], n);
      const std::vector<int32_t>& got = client.results[static_cast<int32_t>(i)].tokens;
      EXPECT_EQ(got, kv.full ? full : Alone(method, prompts[i], n, kv)) << i;
      unlike += !kv.full && got != full;
    }
    EXPECT_GT(unlike, 0u) << "selection must matter, or this shows nothing";
  }
}

// A conversation that is taken back to the middle of a page: that page knows nothing of the rows that are gone.
TEST(ConversationTest, ATakenBackPageIsReadAgain) {
  for (const SelectMethod* select : {&kSelectQuest, &kSelectPageMean}) {
    const KvMethod method = Sparse(GuessSource::kSelf, select);
    const std::unique_ptr<Executor> executor = MakeModel({.method = method, .batch = 1});
    Engine engine(*executor);
    Client client;
    std::vector<int32_t> prompt = Model().Ids(200, 60);
    const auto run = [&](int64_t n) {
      Request request = client.Make(prompt, n);
      request.hold_rows = true;
      const int64_t id = engine.Submit(std::move(request)).value().value();
      while (engine.RunOnce()) {
      }
      return client.results[id];
    };
    run(1);
    for (size_t row = 151; row < 200; ++row) prompt[row] = (prompt[row] + 1) % 61;
    const RequestResult result = run(40);
    EXPECT_EQ(result.reused_tokens, 144) << select->name << ": row 151 is in the page of rows 144 to 159";
    EXPECT_EQ(result.tokens, Alone(method, prompt, 40)) << select->name;
  }
}

// Neighbours in the same steps, those who had the slot before, and being preempted and read again: none of it shows.
TEST(RequestKvTest, StatsAreOfTheRequestsOwnSteps) {
  const KvMethod method = Infinigen();
  const RequestKv settings[] = {{}, {.full = true}, {.alpha = 0.5f, .cap = 0.5}};
  const std::unique_ptr<Executor> executor = MakeModel({.method = method, .batch = 2, .pool_rows = 5 * 256});
  Engine engine(*executor, {.grows = true});
  Client client;
  std::vector<std::vector<int32_t>> prompts;
  for (size_t i = 0; i < 4; ++i) {
    prompts.push_back(Model().Ids(240 + 40 * i, static_cast<uint32_t>(70 + i)));
    ASSERT_TRUE(engine.Submit(client.Make(prompts[i], 330 + static_cast<int64_t>(i), settings[i % 3])).ok());
  }
  while (engine.RunOnce()) {
  }
  EXPECT_GT(engine.stats().preemptions, 0);
  for (size_t i = 0; i < 4; ++i) {
    const KvStats& got = client.results[static_cast<int64_t>(i)].kv;
    const KvStats want = ResultAlone(method, prompts[i], static_cast<int64_t>(330 + i), settings[i % 3]).kv;
    EXPECT_EQ(got.steps, static_cast<int64_t>(329 + i));
    EXPECT_EQ(got.steps, want.steps);
    EXPECT_EQ(got.All().totals.attended, want.All().totals.attended) << i;
    EXPECT_EQ(got.Selecting().totals.chosen, want.Selecting().totals.chosen) << i;
    EXPECT_EQ(got.All().seen, want.All().seen) << i;
    EXPECT_EQ(got.fetched_bytes, want.fetched_bytes) << i;
    EXPECT_EQ(got.All().attended_ratio() == 1, settings[i % 3].full) << i;
  }
}

TEST(RequestKvTest, WhatCannotBeHadIsRefusedByName) {
  Client client;
  const auto submit = [&](const KvMethod& method, double largest, RequestKv kv) -> std::string {
    ExecutorOptions options{
        .max_tokens = 64, .max_batch = 1, .kv_type = StoreType::kF32, .method = method, .pool_limit_bytes = 1 << 30};
    options.method.largest_cap = largest;
    const std::unique_ptr<Executor> executor =
        MakeExecutor(Model().config, Model().weights, options, {.bases = Model().bases}).value();
    Engine engine(*executor);
    const Result<RequestId> id = engine.Submit(client.Make({1}, 1, kv));
    return id.ok() ? "" : id.error().message;
  };
  EXPECT_EQ(submit({}, 0, {.full = true}), "");
  EXPECT_EQ(submit({}, 0, {.cap = 0.5}), "kv full attends to everything, a request's alpha and cap have no meaning");
  EXPECT_EQ(submit(Infinigen(), 1, {.full = true}), "");
  EXPECT_EQ(submit(Infinigen(), 0, {.full = true}), "a request asks for all entries, there is room for 20% of them");
  EXPECT_EQ(submit(Infinigen(), 0, {.cap = 0.5}), "a request asks for a cap of 0.5, there is room for 0.2");
  EXPECT_EQ(submit(Infinigen(), 0, {.alpha = 3, .cap = 0.1}), "");
  EXPECT_NE(submit(Infinigen(), 1, {.cap = 1.5}), "");
  EXPECT_NE(submit(Infinigen(), 1, {.cap = 0}), "");
  EXPECT_NE(submit(Infinigen(), 1, {.alpha = -1}), "");
  EXPECT_NE(submit(Infinigen(), 1, {.alpha = std::nanf("")}), "");
}

// ---- a pool that is too small for all ----

struct Text {
  std::vector<int32_t> prompt;
  int64_t n = 0;
  RequestKv kv;
  std::vector<int32_t> alone;
};
// The same texts are wanted of many engines.
Text MakeText(const KvMethod& method, size_t prompt, int64_t n, uint32_t seed, RequestKv kv = {}) {
  Text text{.prompt = Model().Ids(prompt, seed), .n = n, .kv = kv};
  text.alone = Alone(method, text.prompt, n, kv);
  EXPECT_EQ(std::ssize(text.alone), n);
  return text;
}

std::vector<KvMethod> Methods() {
  if (kSanitized) return {Infinigen(GuessSource::kPrevStep)};
  return {KvMethod{},
          Infinigen(GuessSource::kSelf),
          Infinigen(GuessSource::kPrevLayer),
          Infinigen(GuessSource::kPrevMid),
          Infinigen(GuessSource::kPrevStep),
          Sparse(GuessSource::kSelf, &kSelectQuest),
          Sparse(GuessSource::kSelf, &kSelectPageMean)};
}

// Four texts of which two and a half fit.
void PreemptAndCompare(const KvMethod& method, const std::vector<Text>& texts, bool reuse) {
  const std::unique_ptr<Executor> executor = MakeModel({.method = method, .batch = 4, .pool_rows = 9 * 256});
  Client client;
  {
    Engine engine(*executor, {.grows = true, .reuses_prefixes = reuse});
    for (const Text& text : texts) ASSERT_TRUE(engine.Submit(client.Make(text.prompt, text.n)).ok());
    while (engine.RunOnce()) {
    }
    EXPECT_GT(engine.stats().preemptions, 0);
    EXPECT_GT(engine.stats().replayed_tokens, 0);
    EXPECT_EQ(engine.stats().running, 0);
    EXPECT_EQ(engine.stats().pool_bytes, 0u);
  }
  EXPECT_EQ(executor->instruments().pool_bytes(), 0u);
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(client.results[static_cast<int32_t>(i)].tokens, texts[i].alone) << i;
    EXPECT_EQ(client.results[static_cast<int32_t>(i)].reason, FinishReason::kLength) << i;
  }
}

TEST(Preemption, GreedyTextIsTheOneItIsAlone) {
  for (const KvMethod& method : Methods()) {
    std::vector<Text> texts;
    for (uint32_t i = 0; i < 4; ++i) texts.push_back(MakeText(method, 150 + 170 * i, 400 + 10 * i, 60 + i));
    for (const bool reuse : {false, true}) PreemptAndCompare(method, texts, reuse);
  }
}

// More than half of the context is replayed: in parts.
TEST(Preemption, ALongReplayHasNoSeam) {
  for (const KvMethod& method : {Infinigen(), Infinigen(GuessSource::kPrevStep)}) {
    const std::unique_ptr<Executor> executor =
        MakeModel({.method = method, .batch = 2, .pool_rows = 6 * 256, .context = 1024});
    Client client;
    Engine engine(*executor, {.grows = true});
    std::vector<Text> texts;
    for (const uint32_t seed : {160u, 161u}) {
      texts.push_back(MakeText(method, 20, 900, seed));
      ASSERT_TRUE(engine.Submit(client.Make(texts.back().prompt, 900)).ok());
    }
    while (engine.RunOnce()) {
    }
    EXPECT_EQ(engine.stats().preemptions, 1);
    EXPECT_GT(engine.stats().replayed_tokens, 512 + 20);
    for (int32_t i = 0; i < 2; ++i) EXPECT_EQ(client.results[i].tokens, texts[static_cast<size_t>(i)].alone) << i;
  }
}

TEST(Preemption, TheLastToComeGoesAndTheFirstNeverWaits) {
  const std::unique_ptr<Executor> executor = MakeModel({.batch = 4, .pool_rows = 6 * 256});
  Client client;
  Engine engine(*executor, {.grows = true});
  std::vector<int64_t> done;
  std::map<int64_t, int64_t> said;
  for (uint32_t i = 0; i < 3; ++i) {
    Request request = client.Make(Model().Ids(200, 70 + i), 600);
    request.on_token = [&](RequestId id, int32_t) { return ++said[id.value()] > 0; };
    request.on_done = [&](RequestId id, const RequestResult&) { done.push_back(id.value()); };
    ASSERT_TRUE(engine.Submit(std::move(request)).ok());
  }
  while (done.empty()) {
    const int64_t before = said[0];
    engine.RunOnce();
    ASSERT_TRUE(before == 0 || said[0] > before) << "a turn without a token for the oldest, at " << before;
  }
  while (engine.RunOnce()) {
  }
  EXPECT_EQ(done, (std::vector<int64_t>{0, 1, 2}));
  EXPECT_GT(engine.stats().preemptions, 0);
}

// The first grows while the second's long prompt is read: the third has its place, but nothing of it was read yet.
TEST(Preemption, WhoWaitsForItsFirstUnitIsSeenToBeginLater) {
  const std::unique_ptr<Executor> executor = MakeModel({.batch = 3, .pool_rows = 7 * 256});  // 2 + 4 + 1
  Client client;
  Engine engine(*executor, {.grows = true});
  int64_t said = 0;
  Request first = client.Make(Model().Ids(250, 75), 400);  // two extents until it has said 262
  first.on_token = [&](RequestId, int32_t) { return ++said > 0; };
  ASSERT_TRUE(engine.Submit(std::move(first)).ok());
  while (said < 260) ASSERT_TRUE(engine.RunOnce());
  ASSERT_TRUE(engine.Submit(client.Make(Model().Ids(1000, 76), 5)).ok());
  ASSERT_TRUE(engine.Submit(client.Make(Model().Ids(100, 77), 5)).ok());
  while (engine.stats().preemptions == 0) ASSERT_TRUE(engine.RunOnce());
  ASSERT_FALSE(client.begun.contains(2)) << "or this shows nothing";
  while (engine.RunOnce()) {
  }
  EXPECT_EQ(std::ssize(client.results[2].tokens), 5);
}

TEST(Preemption, WhoIsAloneAndCannotGrowIsToldTheNumbers) {
  for (const bool reuse : {false, true}) {
    const std::unique_ptr<Executor> executor = MakeModel({.method = Infinigen(), .pool_rows = 2 * 256 + 100});
    Client client;
    Engine engine(*executor, {.grows = true, .reuses_prefixes = reuse});
    ASSERT_TRUE(engine.Submit(client.Make(Model().Ids(100, 80), 1000)).ok());
    ASSERT_TRUE(engine.Submit(client.Make(Model().Ids(700, 81), 5)).ok());
    ASSERT_TRUE(engine.Submit(client.Make(Model().Ids(90, 82), 5)).ok());
    while (engine.RunOnce()) {
    }
    EXPECT_EQ(client.results[0].reason, FinishReason::kError);
    EXPECT_EQ(std::ssize(client.results[0].tokens), 512 - 100 + 1) << "two extents are filled, whatever is shared";
    EXPECT_NE(client.results[0].error.find("768 tokens"), std::string::npos) << client.results[0].error;
    EXPECT_NE(client.results[0].error.find("612"), std::string::npos) << client.results[0].error;
    EXPECT_EQ(client.results[1].reason, FinishReason::kError);
    EXPECT_EQ(client.results[2].reason, FinishReason::kLength);
  }
}

TEST(Preemption, TheContextIsFilledToItsLastRow) {
  const std::vector<int32_t> prompt = Model().Ids(290, 83);
  for (const bool reuse : {false, true}) {
    // 300 is no whole number of extents, and the pool has not a row more.
    const std::unique_ptr<Executor> executor = MakeModel({.batch = 1, .pool_rows = 300, .context = 300});
    Client client;
    Engine engine(*executor, {.grows = true, .reuses_prefixes = reuse});
    const std::vector<int32_t> other = Model().Ids(280, 87);
    for (int32_t i = 0; i < 3; ++i) {  // what the one before left in the cache is in the way
      const std::vector<int32_t>& text = i == 1 ? other : prompt;
      ASSERT_TRUE(engine.Submit(client.Make(text, 1000)).ok());
      while (engine.RunOnce()) {
      }
      EXPECT_EQ(client.results[i].reason, FinishReason::kLength) << client.results[i].error;
      EXPECT_EQ(client.results[i].tokens, Alone({}, text, 301 - std::ssize(text)));
    }
  }
}

TEST(Growth, CancellationFreesRowsBeforeTheNextStep) {
  const std::unique_ptr<Executor> executor = MakeModel({.batch = 2, .pool_rows = 1024});
  Client client;
  Engine engine(*executor, {.grows = true});
  const RequestId a = engine.Submit(client.Make(Model().Ids(700, 84), 300)).value();
  const RequestId b = engine.Submit(client.Make(Model().Ids(700, 85), 5)).value();
  while (engine.stats().decode_steps < 3) engine.RunOnce();
  EXPECT_EQ(engine.stats().running, 1) << "the second does not fit beside the first";
  EXPECT_EQ(engine.stats().waiting, 1);
  uint64_t bytes_at_done = 1;
  const int64_t steps = engine.stats().decode_steps;
  engine.Cancel(a);
  engine.RunOnce();
  bytes_at_done = executor->instruments().pool_bytes();
  EXPECT_EQ(engine.stats().decode_steps, steps) << "no step was run for the one that left";
  EXPECT_EQ(bytes_at_done, 700 * RowBytes()) << "the second has its place in the same turn, and the first has none";
  while (engine.RunOnce()) {
  }
  EXPECT_EQ(client.results[a.value()].reason, FinishReason::kCancelled);
  EXPECT_EQ(client.results[b.value()].tokens.size(), 5u);
}

TEST(Growth, MethodsThatEvictAreAdmittedWholeAndShareNothing) {
  KvMethod method = Infinigen(GuessSource::kSelf);
  method.retain = &kRetainCounter;
  method.limit.share = 0.4;
  const std::unique_ptr<Executor> executor = MakeModel({.method = method, .batch = 2});
  Client client;
  Engine engine(*executor, {.grows = true, .reuses_prefixes = true});
  const std::vector<int32_t> prompt = Model().Ids(600, 86);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(engine.Submit(client.Make(prompt, 50)).ok());
  while (engine.RunOnce()) {
  }
  for (int32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(client.results[i].reused_tokens, 0);
    EXPECT_EQ(client.results[i].tokens.size(), 50u);
    EXPECT_EQ(client.results[i].tokens, client.results[0].tokens);
  }
  EXPECT_EQ(executor->instruments().pool_bytes(), 0u);
}

// ---- prefixes ----

class Prefixes : public testing::Test {
 protected:
  // Runs one request to its end.
  RequestResult Run(Engine& engine, const std::vector<int32_t>& prompt, int64_t n, RequestKv kv = {}) {
    const RequestId id = engine.Submit(client.Make(prompt, n, kv)).value();
    while (engine.RunOnce()) {
    }
    return client.results.at(id.value());
  }
  static std::vector<int32_t> Join(std::vector<int32_t> a, const std::vector<int32_t>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }
  static std::vector<int32_t> First(const std::vector<int32_t>& tokens, int64_t count) {
    return {tokens.begin(), tokens.begin() + count};
  }
  Client client;
  static constexpr EngineOptions kReuse{.grows = true, .reuses_prefixes = true};
};

TEST_F(Prefixes, SharedExtentsGiveTheSameTextWhereverPromptsPart) {
  for (const KvMethod& method : Methods()) {
    client.results.clear();
    const std::unique_ptr<Executor> executor = MakeModel({.method = method});
    const std::vector<int32_t> base = Model().Ids(900, 90);
    {
      Engine engine(*executor, kReuse);
      EXPECT_EQ(Run(engine, base, 3).reused_tokens, 0);
      // Prompts that part inside an extent, at its edge, and one before; the whole prompt again.
      for (const auto& [same, kept] : std::vector<std::pair<int64_t, int64_t>>{
               {100, 0}, {255, 0}, {256, 256}, {257, 256}, {511, 256}, {512, 512}, {800, 768}, {900, 768}}) {
        std::vector<int32_t> prompt = base;
        if (same < 900) {
          prompt = Join(First(base, same), Model().Ids(40, static_cast<uint32_t>(same)));
          prompt[static_cast<size_t>(same)] = (base[static_cast<size_t>(same)] + 1) % 61;
        }
        const RequestResult result = Run(engine, prompt, 20);
        EXPECT_EQ(result.reused_tokens, kept) << same;
        EXPECT_EQ(result.tokens, Alone(method, prompt, 20)) << same;
      }
      // Exactly whole extents: the last one is computed, for the logits of its last token.
      EXPECT_EQ(Run(engine, First(base, 768), 4).reused_tokens, 512);
      EXPECT_EQ(Run(engine, First(base, 769), 4).tokens, Alone(method, First(base, 769), 4));
      EXPECT_EQ(engine.stats().pool_bytes, 0u);
      EXPECT_GT(engine.stats().cached_bytes, 0u);
      EXPECT_EQ(engine.stats().cached_bytes, executor->instruments().pool_bytes());
      engine.DropHeld();
      EXPECT_EQ(executor->instruments().pool_bytes(), 0u);
      EXPECT_EQ(Run(engine, base, 3).reused_tokens, 0);
    }
    EXPECT_EQ(executor->instruments().pool_bytes(), 0u) << "every count came back to zero";
  }
}

TEST_F(Prefixes, PrefilledRowsServeEverySettingAndThoseOfStepsTheirOwn) {
  const KvMethod method = Infinigen();
  const std::unique_ptr<Executor> executor = MakeModel({.method = method});
  Engine engine(*executor, kReuse);
  const std::vector<int32_t> prompt = Model().Ids(300, 91);
  const RequestKv full{.full = true}, other{.cap = 0.5};
  const std::vector<int32_t> answer = Run(engine, prompt, 300).tokens;  // 599 rows: 256 prefilled, 256 with steps
  const std::vector<int32_t> next = Join(Join(prompt, answer), {1, 2, 3});
  EXPECT_EQ(Run(engine, prompt, 5, full).reused_tokens, 256);
  EXPECT_EQ(Run(engine, prompt, 5, full).tokens, Alone(method, prompt, 5, full));
  EXPECT_EQ(Run(engine, First(next, 520), 1, other).reused_tokens, 256);
  engine.DropHeld();
  Run(engine, prompt, 300);
  EXPECT_EQ(Run(engine, First(next, 520), 1).reused_tokens, 512) << "its own setting's, asked for or not";
  engine.DropHeld();
  Run(engine, prompt, 300);
  EXPECT_EQ(Run(engine, First(next, 520), 1, {.alpha = method.rule.alpha, .cap = method.rule.cap}).reused_tokens, 512);
  // Steps that attend to everything make what a prefill makes.
  const std::vector<int32_t> full_next = Join(prompt, Run(engine, prompt, 300, full).tokens);
  const RequestResult again = Run(engine, First(full_next, 520), 8);
  EXPECT_EQ(again.reused_tokens, 512);
  EXPECT_EQ(again.tokens, Alone(method, First(full_next, 520), 8));
}

TEST_F(Prefixes, AConversationIsReadOnce) {
  const std::unique_ptr<Executor> executor = MakeModel({});
  Engine engine(*executor, kReuse);
  std::vector<int32_t> conversation = Model().Ids(200, 92);
  int64_t computed = 0;
  for (uint32_t turn = 0; turn < 5; ++turn) {
    const RequestResult result = Run(engine, conversation, 130);
    EXPECT_EQ(result.tokens, Alone({}, conversation, 130)) << turn;
    EXPECT_EQ(result.reused_tokens, turn == 0 ? 0 : (std::ssize(conversation) - 20) / 256 * 256) << turn;
    computed += std::ssize(conversation) - result.reused_tokens;
    conversation = Join(Join(conversation, result.tokens), Model().Ids(20, 93 + turn));
  }
  EXPECT_EQ(engine.stats().prompt_tokens - engine.stats().reused_tokens, computed);
  EXPECT_EQ(engine.stats().prefill_tokens, computed);
}

TEST_F(Prefixes, TheLongestUnusedLeavesFirst) {
  // Room for six extents; each of these leaves two behind.
  const std::unique_ptr<Executor> executor = MakeModel({.batch = 1, .pool_rows = 6 * 256});
  Engine engine(*executor, kReuse);
  std::vector<std::vector<int32_t>> prompts;
  for (uint32_t i = 0; i < 4; ++i) prompts.push_back(Model().Ids(600, 100 + i));
  Run(engine, prompts[0], 2);
  Run(engine, prompts[1], 2);
  EXPECT_EQ(Run(engine, prompts[0], 2).reused_tokens, 512);  // used again: now 1 is older
  Run(engine, prompts[2], 2);                                // needs three: one of 1 has to go
  EXPECT_EQ(Run(engine, prompts[1], 2).reused_tokens, 256) << "its end went first";
  Run(engine, prompts[3], 2);
  EXPECT_EQ(Run(engine, prompts[3], 2).reused_tokens, 512);
  EXPECT_EQ(Run(engine, prompts[0], 2).tokens, Alone({}, prompts[0], 2));
}

TEST_F(Prefixes, WhatStaysIsBoundedAndCounted) {
  const std::unique_ptr<Executor> executor = MakeModel({.method = Infinigen(), .batch = 1});
  const uint64_t extent = 256 * (RowBytes() + executor->instruments().Stats().sketch_row_bytes);
  ASSERT_GT(extent, 256 * RowBytes()) << "sketches are part of it";
  EngineOptions options = kReuse;
  options.prefix_limit_bytes = 5 * extent + extent / 2;
  Engine engine(*executor, options);
  std::vector<std::vector<int32_t>> prompts;
  for (uint32_t i = 0; i < 4; ++i) {
    prompts.push_back(Model().Ids(600, 130 + i));
    Run(engine, prompts[i], 2);  // leaves two extents
    EXPECT_EQ(engine.stats().prefix_bytes, std::min<uint64_t>(2 * (i + 1), 5) * extent);
    EXPECT_LE(engine.stats().prefix_bytes, options.prefix_limit_bytes);
  }
  EXPECT_EQ(Run(engine, prompts[3], 2).reused_tokens, 512);
  EXPECT_EQ(Run(engine, prompts[1], 2).reused_tokens, 256) << "its end went";
  EXPECT_EQ(Run(engine, prompts[0], 2).reused_tokens, 0) << "the oldest";
}

// Neighbours among floats, of which an equal hash would be easily made.
TEST_F(Prefixes, SettingsAreComparedToTheLastBit) {
  const std::unique_ptr<Executor> executor = MakeModel({.method = Infinigen()});
  Engine engine(*executor, kReuse);
  const RequestKv kv{.alpha = 4.0f, .cap = 0.1};
  const std::vector<int32_t> prompt = Model().Ids(100, 140);
  const auto kept = [&](const RequestKv& next) {
    engine.DropHeld();  // who finds nothing reads all, and that serves everybody
    const std::vector<int32_t> text = Join(Join(prompt, Run(engine, prompt, 200, kv).tokens), {1, 2, 3});
    return Run(engine, text, 1, next).reused_tokens;
  };
  EXPECT_EQ(kept(kv), 256);
  EXPECT_EQ(kept({.alpha = std::nextafter(4.0f, 5.0f), .cap = 0.1}), 0);
  EXPECT_EQ(kept({.alpha = 4.0f, .cap = std::nextafter(0.1, 1.0)}), 0);
}

TEST_F(Prefixes, RequestsThatComeTogetherReadWhatTheyShareOnce) {
  for (const KvMethod& method : {KvMethod{}, Infinigen()}) {
    client.results.clear();
    const std::unique_ptr<Executor> executor = MakeModel({.method = method, .batch = 4});
    Engine engine(*executor, kReuse);
    const std::vector<int32_t> base = Model().Ids(520, 110);
    std::vector<std::vector<int32_t>> prompts;
    for (uint32_t i = 0; i < 4; ++i) {
      prompts.push_back(Join(base, Model().Ids(10 + i, 111 + i)));
      ASSERT_TRUE(engine.Submit(client.Make(prompts[i], 30)).ok());
    }
    while (engine.stats().decode_steps < 25) engine.RunOnce();
    ASSERT_EQ(engine.stats().running, 4) << "all were admitted before the first had anything to give";
    EXPECT_LT(executor->instruments().pool_bytes(), (512 + 4 * 60) * RowBytes());
    while (engine.RunOnce()) {
    }
    for (int32_t i = 0; i < 4; ++i) {
      EXPECT_EQ(client.results.at(i).reused_tokens, i == 0 ? 0 : 512);
      EXPECT_EQ(client.results.at(i).tokens, Alone(method, prompts[static_cast<size_t>(i)], 30)) << i;
    }
  }
}

TEST_F(Prefixes, TheSameAnswersAreKeptOnce) {
  for (const KvMethod& method : {KvMethod{}, Infinigen()}) {
    client.results.clear();
    const std::unique_ptr<Executor> executor = MakeModel({.method = method, .batch = 2});
    Engine engine(*executor, kReuse);
    const std::vector<int32_t> prompt = Model().Ids(100, 117);
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(engine.Submit(client.Make(prompt, 450)).ok());
    uint64_t most = 0;
    while (engine.RunOnce()) most = std::max(most, executor->instruments().pool_bytes());
    EXPECT_LT(most, (512 + 2 * 256) * RowBytes());
    EXPECT_EQ(client.results.at(0).tokens, Alone(method, prompt, 450));
    EXPECT_EQ(client.results.at(1).tokens, client.results.at(0).tokens);
    EXPECT_EQ(executor->instruments().pool_bytes(), 512 * RowBytes());
  }
}

// ---- the queue ----

TEST(Queue, IsBoundedAndSaysSo) {
  const std::unique_ptr<Executor> executor = MakeModel({.batch = 2});
  Client client;
  Engine engine(*executor, {.grows = true, .max_waiting = 3});
  for (uint32_t i = 0; i < 5; ++i) ASSERT_TRUE(engine.Submit(client.Make({1, 2}, 4)).ok()) << i;
  Result<RequestId> refused = engine.Submit(client.Make({1, 2}, 4));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kExhausted);
  EXPECT_EQ(refused.error().message, "5 requests are waiting, the queue holds 3");
  engine.RunOnce();
  EXPECT_EQ(engine.stats().running, 2);
  EXPECT_EQ(engine.stats().waiting, 3);
  EXPECT_FALSE(engine.Submit(client.Make({1, 2}, 4)).ok());
  while (client.results.empty()) engine.RunOnce();
  EXPECT_TRUE(engine.Submit(client.Make({1, 2}, 4)).ok());
  while (engine.RunOnce()) {
  }
  EXPECT_EQ(client.results.size(), 6u);
}

TEST(Queue, ShortPromptsAreReadInFewTurnsWhereATurnMayReadMore) {
  const std::unique_ptr<Executor> executor = MakeModel({.batch = 4});
  const int64_t layers = Llama().layers;
  for (const int64_t tokens : {int64_t{0}, 2 * 32 * layers}) {
    Client client;
    Engine engine(*executor, {.grows = true, .turn_prefill_tokens = tokens});
    for (uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(engine.Submit(client.Make({1, 2}, 100)).ok());
    int64_t turns = 0;
    while (engine.stats().prefill_tokens < 8) engine.RunOnce(), ++turns;
    EXPECT_EQ(turns, tokens == 0 ? 4 * layers : 2);
    engine.CancelAll();
    engine.RunOnce();
  }
}

// ---- two prompts at once ----

std::vector<KvMethod> MethodsThatEvictToo() {
  std::vector<KvMethod> methods = Methods();
  methods.push_back(Infinigen(GuessSource::kSelf));
  methods.back().retain = &kRetainCounter;
  methods.back().limit.share = 0.4;
  if (kSanitized) return methods;
  methods.push_back({.retain = &kRetainH2o, .limit = {.share = 0.5}});
  return methods;
}

TEST(TwoLanes, ShortPromptsAreReadBesideALongOneAndNobodysTextChanges) {
  constexpr int64_t kSide = 200;
  for (const KvMethod& method : MethodsThatEvictToo()) {
    const std::unique_ptr<Executor> executor = MakeModel({.method = method, .batch = 3, .side_tokens = kSide});
    Client client;
    Engine engine(*executor, {.grows = true, .reuses_prefixes = true});
    std::vector<Text> texts;
    for (const size_t prompt : {size_t{1400}, size_t{kSide}, size_t{90}}) {
      texts.push_back(MakeText(method, prompt, 40, static_cast<uint32_t>(prompt)));
      ASSERT_TRUE(engine.Submit(client.Make(texts.back().prompt, 40)).ok());
      for (int turn = 0; turn < 3; ++turn) ASSERT_TRUE(engine.RunOnce());
    }
    while (engine.RunOnce() && client.results.size() < 2) {
    }
    EXPECT_FALSE(client.results.contains(0)) << "the short ones are through first";
    while (engine.RunOnce()) {
    }
    for (int32_t i = 0; i < 3; ++i)
      EXPECT_EQ(client.results.at(i).tokens, texts[static_cast<size_t>(i)].alone) << method.preset << i;

    ExecutorOptions options = executor->options();
    const uint64_t both = PlanMemory(Model().config, options, 0).prefill_bytes;
    options.side_tokens = 0;
    const uint64_t one = PlanMemory(Model().config, options, 0).prefill_bytes;
    EXPECT_EQ(one, executor->PrefillBytes(0, options.max_tokens));
    EXPECT_EQ(both - one, executor->PrefillBytes(0, kSide));
  }
}

// What is cached of a prompt is not read: few tokens after a long text are a short prompt.
TEST(TwoLanes, AShortQuestionAboutACachedTextIsShort) {
  const std::unique_ptr<Executor> executor = MakeModel({.method = Infinigen(), .side_tokens = 200});
  Client client;
  Engine engine(*executor, {.grows = true, .reuses_prefixes = true});
  std::vector<int32_t> text = Model().Ids(1030, 150);
  ASSERT_TRUE(engine.Submit(client.Make(text, 1)).ok());
  while (engine.RunOnce()) {
  }
  const std::vector<int32_t> other = Model().Ids(1400, 151), question = Model().Ids(30, 152);
  text.insert(text.end(), question.begin(), question.end());
  ASSERT_TRUE(engine.Submit(client.Make(other, 1)).ok());
  engine.RunOnce();
  ASSERT_TRUE(engine.Submit(client.Make(text, 1)).ok());
  while (client.results.size() < 2) ASSERT_TRUE(engine.RunOnce());
  ASSERT_TRUE(client.results.contains(2)) << "the question was answered first";
  EXPECT_EQ(client.results.at(2).reused_tokens, 1024);
  EXPECT_EQ(client.results.at(2).tokens, Alone(Infinigen(), text, 1));
  while (engine.RunOnce()) {
  }
  EXPECT_EQ(client.results.at(1).tokens, Alone(Infinigen(), other, 1));
}

// ---- everything at once ----

// Requests come and go at random: shared beginnings, settings, cancellations, a pool for a third of them. Whoever is
// not cancelled ends with the text it has alone.
TEST(Serving, RandomTrafficChangesNobodysText) {
  const KvMethod method = Infinigen();
  std::vector<Text> texts;
  const std::vector<int32_t> base = Model().Ids(700, 120);
  for (uint32_t i = 0; i < 12; ++i) {
    Text text;
    text.prompt.assign(base.begin(), base.begin() + std::array{0, 256, 300, 600}[i % 4]);
    const std::vector<int32_t> more = Model().Ids(20 + 10 * i, 121 + i);
    text.prompt.insert(text.prompt.end(), more.begin(), more.end());
    text.n = 290 + 20 * i;
    text.kv.full = i % 3 == 1;
    text.alone = Alone(method, text.prompt, text.n, text.kv);
    texts.push_back(text);
  }
  int64_t preemptions = 0, reused = 0;
  for (uint32_t seed = 1; seed <= (kSanitized ? 1 : 3); ++seed) {
    std::mt19937 random(seed);
    const std::unique_ptr<Executor> executor =
        MakeModel({.method = method, .batch = 5, .pool_rows = 2000, .side_tokens = seed == 3 ? 0 : 100});
    Client client;
    std::map<int32_t, size_t> asked;
    {
      Engine engine(*executor, {.grows = true, .reuses_prefixes = seed % 2 == 1, .turn_prefill_tokens = 200});
      size_t submitted = 0;
      bool busy = false;
      while (submitted < 12 || busy) {
        if (submitted < 12 && random() % 3 == 0) {
          const size_t which = random() % texts.size();
          const Text& text = texts[which];
          asked[engine.Submit(client.Make(text.prompt, text.n, text.kv)).value().value()] = which;
          ++submitted;
        }
        if (random() % 200 == 0 && submitted > 0) engine.Cancel(RequestId(static_cast<int64_t>(random() % submitted)));
        busy = engine.RunOnce();
        ASSERT_LE(executor->instruments().pool_bytes(), executor->options().pool_limit_bytes);
        ASSERT_LE(engine.stats().running, 5);
      }
      preemptions += engine.stats().preemptions;
      reused += engine.stats().reused_tokens;
      EXPECT_EQ(engine.stats().pool_bytes, 0u);
    }
    EXPECT_EQ(executor->instruments().pool_bytes(), 0u);
    ASSERT_EQ(client.results.size(), 12u);
    for (const auto& [id, result] : client.results) {
      const Text& text = texts[asked.at(id)];
      if (result.reason == FinishReason::kCancelled) {
        EXPECT_TRUE(std::equal(result.tokens.begin(), result.tokens.end(), text.alone.begin())) << id;
      } else {
        ASSERT_EQ(result.reason, FinishReason::kLength) << result.error;
        EXPECT_EQ(result.tokens, text.alone) << id << ", seed " << seed;
      }
    }
  }
  EXPECT_GT(preemptions, 0);
  EXPECT_GT(reused, 0);
}

}  // namespace
}  // namespace infinigen
