// The engine with a real model and a prefix cache: requests that reuse the entries of others have the same greedy text
// as when they run alone.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/serving_model.h"

namespace infinigen {
namespace {

class Prefixes : public testing::Test {
 protected:
  // Runs one request until it is done.
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
  static inline const EngineOptions kReuse{.grows = true, .reuses_prefixes = true};
};

// Stopped anywhere, with extents shared and a prefill under way; afterwards texts are as before and nothing is lost.
TEST_F(Prefixes, AfterAnExceptionTheEngineIsAsNew) {
  const KvMethod method = Infinigen();
  const std::unique_ptr<Executor> executor = MakeModel({.method = method, .batch = 3});
  Engine engine(*executor, kReuse);
  const std::vector<int32_t> prompt = Model().Ids(600, 91);
  const std::vector<int32_t> alone = Alone(method, prompt, 20);
  for (const int stop : {1, 7, 19}) {
    Run(engine, prompt, 3);
    int tokens = 0;
    for (uint32_t i = 0; i < 3; ++i) {
      Request request = client.Make(Join(First(prompt, 300), Model().Ids(400, i)), 40);
      request.on_token = [&](RequestId, int32_t) {
        if (++tokens == stop) throw std::bad_alloc();
        return true;
      };
      ASSERT_TRUE(engine.Submit(std::move(request)).ok());
    }
    bool thrown = false;
    try {
      while (engine.RunOnce()) {
      }
    } catch (const std::bad_alloc&) {
      thrown = true;
      engine.Recover("stopped");
    }
    ASSERT_TRUE(thrown);
    while (engine.RunOnce()) {
    }
    const RequestResult result = Run(engine, prompt, 20);
    EXPECT_EQ(result.tokens, alone) << stop;
    EXPECT_EQ(result.reused_tokens, 0) << "prefixes were dropped";
    engine.DropHeld();
    EXPECT_EQ(executor->instruments().pool_bytes(), 0u);
  }
}

TEST_F(Prefixes, AreSharedWithinASaltOnly) {
  const KvMethod method = Infinigen();
  const std::unique_ptr<Executor> executor = MakeModel({.method = method});
  Engine engine(*executor, kReuse);
  const std::vector<int32_t> prompt = Model().Ids(600, 92);
  const auto reused = [&](const std::string& salt) {
    Request request = client.Make(prompt, 5);
    request.cache_salt = salt;
    const RequestId id = engine.Submit(std::move(request)).value();
    while (engine.RunOnce()) {
    }
    return client.results.at(id.value()).reused_tokens;
  };
  EXPECT_EQ(reused("a"), 0);
  EXPECT_EQ(reused("a"), 512);
  EXPECT_EQ(reused("b"), 0);
  EXPECT_EQ(reused(""), 0);
  EXPECT_EQ(reused("b"), 512);
}

TEST_F(Prefixes, SharedExtentsGiveTheSameTextWhereverPromptsDiffer) {
  for (const KvMethod& method : Methods()) {
    client.results.clear();
    const std::unique_ptr<Executor> executor = MakeModel({.method = method});
    const std::vector<int32_t> base = Model().Ids(900, 90);
    {
      Engine engine(*executor, kReuse);
      EXPECT_EQ(Run(engine, base, 3).reused_tokens, 0);
      // Prompts that differ inside an extent, at its end, and one token before; the whole prompt again.
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
      // Exactly whole extents: the last one is computed again, for the logits of its last token.
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
  const std::vector<int32_t> answer =
      Run(engine, prompt, 300).tokens;  // 599 rows: one extent prefilled, one with rows of steps
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
  // Steps that attend to everything give the same entries as a prefill.
  const std::vector<int32_t> full_next = Join(prompt, Run(engine, prompt, 300, full).tokens);
  const RequestResult again = Run(engine, First(full_next, 520), 8);
  EXPECT_EQ(again.reused_tokens, 512);
  EXPECT_EQ(again.tokens, Alone(method, First(full_next, 520), 8));
}

TEST_F(Prefixes, AConversationIsPrefilledOnce) {
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

TEST_F(Prefixes, TheLeastRecentlyUsedIsDroppedFirst) {
  // Room for six extents; each request leaves two in the cache.
  const std::unique_ptr<Executor> executor = MakeModel({.batch = 1, .pool_rows = 6 * 256});
  Engine engine(*executor, kReuse);
  std::vector<std::vector<int32_t>> prompts;
  for (uint32_t i = 0; i < 4; ++i) prompts.push_back(Model().Ids(600, 100 + i));
  Run(engine, prompts[0], 2);
  Run(engine, prompts[1], 2);
  EXPECT_EQ(Run(engine, prompts[0], 2).reused_tokens, 512);  // used again: now 1 is older
  Run(engine, prompts[2], 2);                                // needs three: one of prompt 1 is dropped
  EXPECT_EQ(Run(engine, prompts[1], 2).reused_tokens, 256) << "its end went first";
  Run(engine, prompts[3], 2);
  EXPECT_EQ(Run(engine, prompts[3], 2).reused_tokens, 512);
  EXPECT_EQ(Run(engine, prompts[0], 2).tokens, Alone({}, prompts[0], 2));
}

TEST_F(Prefixes, TheCacheIsBoundedAndCounted) {
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

// Settings that differ by one bit, for which a weak hash might be equal.
TEST_F(Prefixes, SettingsAreComparedToTheLastBit) {
  const std::unique_ptr<Executor> executor = MakeModel({.method = Infinigen()});
  Engine engine(*executor, kReuse);
  const RequestKv kv{.alpha = 4.0f, .cap = 0.1};
  const std::vector<int32_t> prompt = Model().Ids(100, 140);
  const auto kept = [&](const RequestKv& next) {
    engine.DropHeld();  // a request that finds nothing prefills everything, which would serve all settings
    const std::vector<int32_t> text = Join(Join(prompt, Run(engine, prompt, 200, kv).tokens), {1, 2, 3});
    return Run(engine, text, 1, next).reused_tokens;
  };
  EXPECT_EQ(kept(kv), 256);
  EXPECT_EQ(kept({.alpha = std::nextafter(4.0f, 5.0f), .cap = 0.1}), 0);
  EXPECT_EQ(kept({.alpha = 4.0f, .cap = std::nextafter(0.1, 1.0)}), 0);
}

TEST_F(Prefixes, ConcurrentRequestsPrefillTheirSharedPrefixOnce) {
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

TEST_F(Prefixes, IdenticalAnswersAreCachedOnce) {
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

}  // namespace
}  // namespace infinigen
