// A small random model for tests that run an engine with a real executor, and the texts that requests have when they
// run alone.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "model/random_model.h"
#include "sanitized.h"

namespace infinigen {

inline const RandomModelWithBases& Model() {
  static const RandomModelWithBases model(Llama(), 8, 11);
  return model;
}
inline uint64_t RowBytes() {
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
inline std::unique_ptr<Executor> MakeModel(const Setup& setup) {
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
  std::set<int64_t> begun;  // requests with at least one prefill unit

  Request Make(std::vector<int32_t> prompt, int64_t n, RequestKv kv = {}) {
    Request request{.prompt = std::move(prompt), .max_new_tokens = n, .sampling = {.temperature = 0}, .kv = kv};
    request.on_prefill = [this](RequestId id, const PrefillProgress&) { begun.insert(id.value()); };
    request.on_token = [this](RequestId id, int32_t) {
      EXPECT_TRUE(begun.contains(id.value())) << "a token before the first prefill unit";
      return true;
    };
    request.on_done = [this](RequestId id, const RequestResult& result) {
      EXPECT_TRUE(results.emplace(id.value(), result).second) << "done twice";
    };
    return request;
  }
};

inline RequestResult ResultAlone(const KvMethod& method, const std::vector<int32_t>& prompt, int64_t n,
                                 RequestKv kv = {}) {
  const std::unique_ptr<Executor> executor = MakeModel({.method = method, .batch = 1});
  Engine engine(*executor);
  Client client;
  EXPECT_TRUE(engine.Submit(client.Make(prompt, n, kv)).ok());
  while (engine.RunOnce()) {
  }
  return client.results[0];
}
inline std::vector<int32_t> Alone(const KvMethod& method, const std::vector<int32_t>& prompt, int64_t n,
                                  RequestKv kv = {}) {
  return ResultAlone(method, prompt, n, kv).tokens;
}

inline KvMethod Infinigen(GuessSource from = GuessSource::kPrevMid) { return Sparse(from); }

struct Text {
  std::vector<int32_t> prompt;
  int64_t n = 0;
  RequestKv kv;
  std::vector<int32_t> alone;
};
// A text with its expected continuation, computed once for many engines.
inline Text MakeText(const KvMethod& method, size_t prompt, int64_t n, uint32_t seed, RequestKv kv = {}) {
  Text text{.prompt = Model().Ids(prompt, seed), .n = n, .kv = kv};
  text.alone = Alone(method, text.prompt, n, kv);
  EXPECT_EQ(std::ssize(text.alone), n);
  return text;
}

inline std::vector<KvMethod> Methods() {
  if (kSanitized) return {Infinigen(GuessSource::kPrevStep)};
  return {KvMethod{},
          Infinigen(GuessSource::kSelf),
          Infinigen(GuessSource::kPrevLayer),
          Infinigen(GuessSource::kPrevMid),
          Infinigen(GuessSource::kPrevStep),
          Sparse(GuessSource::kSelf, &kSelectQuest),
          Sparse(GuessSource::kSelf, &kSelectPageMean)};
}

}  // namespace infinigen
