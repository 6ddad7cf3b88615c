// The engine with a real model: a request has the same greedy text as when it runs alone, token for token, whatever
// other requests run: with other settings, in a pool too small for all, or with shared prefixes.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <set>

#include "engine/engine.h"
#include "engine/serving_model.h"

namespace infinigen {
namespace {

// ---- kv per request ----

TEST(RequestKvTest, AFullRequestAndSelectingOnesDoNotAffectEachOther) {
  for (const SelectMethod* select : {&kSelectSketch, &kSelectQuest}) {
    const KvMethod method = Sparse(GuessSource::kPrevMid, select);
    const std::unique_ptr<Executor> executor = MakeModel({.method = method, .batch = 3});
    Engine engine(*executor);
    Client client;
    const RequestKv settings[] = {{}, {.full = true}, {.alpha = 0.5f, .cap = 0.5}};
    std::vector<std::vector<int32_t>> prompts;
    // Twice, in other slots: a slot must not keep the rule of its previous request.
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

// A conversation rewound to the middle of a page: nothing of the removed rows is left in the page.
TEST(ConversationTest, ARewoundPageIsReadAgain) {
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

// A request's statistics do not include others in the same steps, earlier users of its slot, or a replay.
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

TEST(RequestKvTest, UnsupportedSettingsAreRejectedByName) {
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
  EXPECT_EQ(submit({}, 0, {.cap = 0.5}),
            "kv full attends to everything, so a request cannot set alpha, cap, mass or tail");
  EXPECT_EQ(submit(Infinigen(), 1, {.full = true}), "");
  EXPECT_EQ(submit(Infinigen(), 0, {.full = true}),
            "a request asks for all entries, but there is room for only 20% of them");
  EXPECT_EQ(submit(Infinigen(), 0, {.cap = 0.5}), "a request asks for a cap of 0.5, but there is room for only 0.2");
  EXPECT_EQ(submit(Infinigen(), 0, {.alpha = 3, .cap = 0.1}), "");
  EXPECT_NE(submit(Infinigen(), 1, {.cap = 1.5}), "");
  EXPECT_NE(submit(Infinigen(), 1, {.cap = 0}), "");
  EXPECT_NE(submit(Infinigen(), 1, {.alpha = -1}), "");
  EXPECT_NE(submit(Infinigen(), 1, {.alpha = std::nanf("")}), "");
}

// ---- broken numbers ----

// One layer's weight is NaN in the row of one token's embedding: only requests with this token are broken.
TEST(BrokenNumbers, EndARequestWithTheLayerAndNoOther) {
  const RandomModelWithBases model(Llama(), 8, 11);
  constexpr int32_t kBroken = 17;
  const WeightView& embedding = model.weights.embedding;
  std::byte* const row = const_cast<std::byte*>(embedding.row(kBroken));  // the test's own memory
  const float infinity = kInfinity;
  std::memcpy(row + 4 * sizeof(float), &infinity, sizeof(infinity));
  ExecutorOptions options{.threads = 2, .max_tokens = 600, .max_batch = 2, .kv_type = StoreType::kF32};
  options.pool_limit_bytes = 1 << 30;
  const std::unique_ptr<Executor> executor = MakeExecutor(model.config, model.weights, options).value();
  Engine engine(*executor, {.grows = true, .reuses_prefixes = true});
  Client client;
  std::vector<int32_t> good = Model().Ids(300, 40), bad = good;
  for (int32_t& id : good) id = id == kBroken ? 1 : id;
  bad = good;
  bad[280] = kBroken;
  ASSERT_TRUE(engine.Submit(client.Make(good, 30)).ok());
  ASSERT_TRUE(engine.Submit(client.Make(bad, 30)).ok());
  while (engine.RunOnce()) {
  }
  EXPECT_EQ(client.results[1].reason, FinishReason::kError);
  EXPECT_TRUE(client.results[1].tokens.empty());
  EXPECT_NE(client.results[1].error.find("NaN or infinite"), std::string::npos) << client.results[1].error;
  EXPECT_NE(client.results[1].error.find("layer 0 of 4"), std::string::npos) << client.results[1].error;
  EXPECT_EQ(client.results[0].reason, FinishReason::kLength) << client.results[0].error;
  EXPECT_EQ(client.results[0].tokens, Alone({}, good, 30));
}

// ---- a pool that is too small for all ----

// Four texts in a pool with room for two and a half.
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

TEST(Preemption, GreedyTextIsTheSameAsAlone) {
  for (const KvMethod& method : Methods()) {
    std::vector<Text> texts;
    for (uint32_t i = 0; i < 4; ++i) texts.push_back(MakeText(method, 150 + 170 * i, 400 + 10 * i, 60 + i));
    for (const bool reuse : {false, true}) PreemptAndCompare(method, texts, reuse);
  }
}

// More than half of the context is replayed, which takes several prefills.
TEST(Preemption, ALongReplayInPartsChangesNothing) {
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

TEST(Preemption, TheNewestIsPreemptedAndTheOldestNeverWaits) {
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

// The first request grows while the second's long prompt is prefilled; the third is admitted but not yet prefilled.
TEST(Preemption, ARequestPreemptedBeforeItsFirstUnitReportsProgressLater) {
  const std::unique_ptr<Executor> executor = MakeModel({.batch = 3, .pool_rows = 7 * 256});  // 2 + 4 + 1
  Client client;
  Engine engine(*executor, {.grows = true});
  int64_t said = 0;
  Request first = client.Make(Model().Ids(250, 75), 400);  // two extents until 262 tokens are generated
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

TEST(Preemption, ARequestThatCannotGrowAloneFailsWithTheNumbers) {
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

// The prefix of an earlier request leaves free extents between those of the next. Only whole extents fit there, but the
// request's last one is shorter: the pool must be emptied.
TEST(Preemption, ARequestThatFitsTheEmptyPoolGrowsInADividedOne) {
  const std::unique_ptr<Executor> executor = MakeModel({.batch = 1, .pool_rows = 1024, .context = 900});
  Client client;
  Engine engine(*executor, {.grows = true, .reuses_prefixes = true});
  const std::vector<int32_t> prompt = Model().Ids(511, 87);
  ASSERT_TRUE(engine.Submit(client.Make(Model().Ids(522, 86), 40)).ok());
  ASSERT_TRUE(engine.Submit(client.Make(prompt, 290)).ok());
  while (engine.RunOnce()) {
  }
  EXPECT_EQ(client.results[1].reason, FinishReason::kLength) << client.results[1].error;
  EXPECT_EQ(client.results[1].tokens, Alone({}, prompt, 290));
}

TEST(Preemption, TheContextIsFilledToItsLastRow) {
  const std::vector<int32_t> prompt = Model().Ids(290, 83);
  for (const bool reuse : {false, true}) {
    // 300 rows are not whole extents, and the pool has no more.
    const std::unique_ptr<Executor> executor = MakeModel({.batch = 1, .pool_rows = 300, .context = 300});
    Client client;
    Engine engine(*executor, {.grows = true, .reuses_prefixes = reuse});
    const std::vector<int32_t> other = Model().Ids(280, 87);
    for (int32_t i = 0; i < 3; ++i) {  // the cached prefix of the request before must be dropped
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

// ---- the queue ----

TEST(Queue, IsBounded) {
  const std::unique_ptr<Executor> executor = MakeModel({.batch = 2});
  Client client;
  Engine engine(*executor, {.grows = true, .max_waiting = 3});
  for (uint32_t i = 0; i < 5; ++i) ASSERT_TRUE(engine.Submit(client.Make({1, 2}, 4)).ok()) << i;
  Result<RequestId> refused = engine.Submit(client.Make({1, 2}, 4));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kExhausted);
  EXPECT_EQ(refused.error().message, "the queue is full: 5 requests are waiting, the limit is 3");
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

TEST(Queue, ShortPromptsNeedFewTurnsIfATurnMayPrefillMore) {
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

TEST(TwoLanes, ShortPromptsBesideALongOneChangeNoText) {
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

// Cached tokens are not prefilled, so a long prompt with few uncached tokens counts as short.
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

// Random requests with shared prefixes, settings and cancellations, in a pool for a third of them. Every request that
// is not cancelled ends with the text that it has alone.
TEST(Serving, RandomTrafficChangesNoText) {
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
