// Runs golden models on an executor, for the tests of this directory.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "golden/golden_file.h"
#include "model/decoder.h"
#include "model/executor.h"

namespace infinigen {

// A model ready to run. Later members refer to earlier ones, so it is allocated on the heap and never moved.
struct LoadedModel {
  ModelConfig config;
  Weights weights;
  std::unique_ptr<Executor> executor;
};

inline std::unique_ptr<LoadedModel> LoadModel(const std::string& directory, ExecutorOptions options) {
  auto model = std::make_unique<LoadedModel>();
  Result<ModelConfig> config = LoadModelConfig(directory);
  EXPECT_TRUE(config.ok()) << (config.ok() ? "" : config.error().message);
  if (!config.ok()) return nullptr;
  model->config = std::move(config).value();
  Result<Weights> weights = LoadWeights(directory, model->config);
  EXPECT_TRUE(weights.ok()) << (weights.ok() ? "" : weights.error().message);
  if (!weights.ok()) return nullptr;
  model->weights = std::move(weights).value();
  if (options.max_tokens == 0) options.max_tokens = model->config.max_positions;
  Result<std::unique_ptr<Executor>> executor = MakeExecutor(model->config, model->weights, options);
  EXPECT_TRUE(executor.ok()) << (executor.ok() ? "" : executor.error().message);
  if (!executor.ok()) return nullptr;
  model->executor = std::move(executor).value();
  return model;
}

// Logits [count][vocab] after tokens [first, first + count) of `ids`, by one prefill.
inline std::vector<float> PrefillSome(Executor& executor, std::span<const int32_t> ids, int64_t first, int64_t count) {
  const SeqSlot slot = executor.Admit(static_cast<int64_t>(ids.size())).value();
  EXPECT_TRUE(executor.BeginPrefill(slot, 0, ids).ok());
  while (!executor.RunPrefillUnit(slot)) {
  }
  std::vector<float> logits(static_cast<size_t>(count * executor.config().vocab));
  executor.PrefillLogits(slot, first, count, logits);
  executor.Release(slot);
  return logits;
}

// Logits after all tokens of `ids`, by one prefill.
inline std::vector<float> PrefillAll(Executor& executor, std::span<const int32_t> ids) {
  return PrefillSome(executor, ids, 0, static_cast<int64_t>(ids.size()));
}

// Logits after all tokens of `ids`, by a prefill of `prefill` tokens and a decode step for each of the others.
inline std::vector<float> DecodeAll(Executor& executor, std::span<const int32_t> ids, size_t prefill) {
  const size_t vocab = static_cast<size_t>(executor.config().vocab);
  const SeqSlot slot = executor.Admit(static_cast<int64_t>(ids.size())).value();
  EXPECT_TRUE(executor.BeginPrefill(slot, 0, ids.first(prefill)).ok());
  while (!executor.RunPrefillUnit(slot)) {
  }
  std::vector<float> logits(ids.size() * vocab);
  executor.PrefillLogits(slot, 0, static_cast<int64_t>(prefill), std::span(logits).first(prefill * vocab));
  executor.EndPrefill(slot);
  for (size_t i = prefill; i < ids.size(); ++i) {
    const StepItem item{.slot = slot, .token = ids[i], .row = static_cast<int64_t>(i)};
    executor.Step({&item, 1}, std::span(logits).subspan(i * vocab, vocab));
  }
  executor.Release(slot);
  return logits;
}

// Greedy continuations of all prompts, batched as far as the executor allows. End-of-text ids are ignored.
inline std::vector<std::vector<int32_t>> Greedy(Executor& executor, const std::vector<std::vector<int32_t>>& prompts,
                                                int64_t n) {
  Engine engine(executor);
  std::vector<std::vector<int32_t>> texts(prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    Request request{.prompt = prompts[i], .max_new_tokens = n, .sampling = {.temperature = 0}, .ignore_eos = true};
    request.on_done = [&texts, i](RequestId, const RequestResult& result) {
      EXPECT_EQ(result.error, "");
      texts[i] = result.tokens;
    };
    EXPECT_TRUE(engine.Submit(std::move(request)).ok());
  }
  while (engine.RunOnce()) {
  }
  return texts;
}

}  // namespace infinigen
