// The engine with a real model: whatever a server does to a request (neighbours with other settings, a pool too small
// for all, entries taken over from others), its greedy text is the one it has alone, token for token.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "engine/engine.h"
#include "model/random_model.h"

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
};
std::unique_ptr<Executor> MakeModel(const Setup& setup) {
  ExecutorOptions options{.threads = 2,
                          .max_tokens = setup.context,
                          .max_batch = setup.batch,
                          .kv_type = StoreType::kF32,
                          .method = setup.method,
                          .pool_limit_bytes = static_cast<uint64_t>(setup.pool_rows) * RowBytes()};
  options.method.largest_cap = 1.0;
  return MakeExecutor(Model().config, Model().weights, options, {.bases = Model().bases}).value();
}

struct Client {
  std::map<int32_t, RequestResult> results;

  Request Make(std::vector<int32_t> prompt, int64_t n, RequestKv kv = {}) {
    Request request{.prompt = std::move(prompt), .max_new_tokens = n, .sampling = {.temperature = 0}, .kv = kv};
    request.on_done = [this](RequestId id, const RequestResult& result) {
      EXPECT_TRUE(results.emplace(id.value(), result).second) << "done twice";
    };
    return request;
  }
};

std::vector<int32_t> Alone(const KvMethod& method, const std::vector<int32_t>& prompt, int64_t n, RequestKv kv = {}) {
  const std::unique_ptr<Executor> executor = MakeModel({.method = method, .batch = 1});
  Engine engine(*executor);
  Client client;
  EXPECT_TRUE(engine.Submit(client.Make(prompt, n, kv)).ok());
  while (engine.RunOnce()) {
  }
  return client.results[0].tokens;
}

KvMethod Infinigen(GuessSource from = GuessSource::kPrevMid) { return Sparse(from); }

// ---- kv per request ----

TEST(RequestKvTest, FullAmongNeighboursThatSelectIsFullAndNobodyElseNotices) {
  for (const SelectKind select : {SelectKind::kSketch, SelectKind::kQuest}) {
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

}  // namespace
}  // namespace infinigen
