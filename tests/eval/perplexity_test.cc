// Perplexity: windows, the score of a row, both modes bit for bit, and transformers' numbers.
#include "eval/perplexity.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/split_mix.h"
#include "eval/selection_overlap.h"
#include "golden/golden_run.h"

namespace infinigen {
namespace {

const std::string kRoot = INFINIGEN_TEST_DATA "/..";

PplText TextOf(const std::string& golden_directory, std::vector<int32_t> opening) {
  PplText text;
  const GoldenModel golden = LoadGolden(golden_directory).value();
  for (const GoldenPrompt& prompt : golden.prompts)
    if (prompt.ids.size() > text.ids.size()) text.ids = prompt.ids;
  text.opening = std::move(opening);
  return text;
}

PplResult Score(Executor& executor, const PplText& text, const PplOptions& options) {
  Result<PplResult> result = ScoreText({&executor, nullptr}, text, options, {}, [](const PplResult&) {});
  EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message);
  return std::move(result).value();
}

TEST(EvalPpl, WindowsScoreEveryTokenAfterAnOpening) {
  PplText text{.ids = std::vector<int32_t>(20), .opening = {1}};
  std::vector<PplWindow> windows = CutWindows(text, 8);
  ASSERT_EQ(windows.size(), 3u);
  EXPECT_EQ(windows[1].first, 8);
  EXPECT_EQ(windows[1].scored, 8);
  EXPECT_EQ(windows[2].count, 4);
  // A longer opening takes room from the text: rows never exceed the context.
  text.opening = {1, 2, 3};
  windows = CutWindows(text, 8);
  EXPECT_EQ(windows[0].count, 6);
  text = {.ids = std::vector<int32_t>(9), .opening = {1}};
  EXPECT_EQ(CutWindows(text, 8).size(), 2u) << "one token after the opening can be scored";
}

TEST(EvalPpl, WindowsWithoutAnOpeningLeaveOutTheirFirstToken) {
  PplText text{.ids = std::vector<int32_t>(17), .opening = {}};
  std::vector<PplWindow> windows = CutWindows(text, 8);
  ASSERT_EQ(windows.size(), 2u) << "the last token alone has nothing to be scored by";
  EXPECT_EQ(windows[1].scored, 9);
  text.ids.resize(18);
  windows = CutWindows(text, 8);
  ASSERT_EQ(windows.size(), 3u);
  EXPECT_EQ(windows[2].scored, 17);
  EXPECT_EQ(windows[2].end(), 18);
}

TEST(EvalPpl, LikelihoodOfKnownRows) {
  EXPECT_NEAR(NegativeLogLikelihood(std::vector<float>(8, 3.0f), 5), std::log(8.0), 1e-7);
  const std::vector<float> logits = {1.0f, 2.0f, 4.0f};
  const double sum = std::exp(1.0) + std::exp(2.0) + std::exp(4.0);
  for (int32_t i = 0; i < 3; ++i)
    EXPECT_NEAR(NegativeLogLikelihood(logits, i), std::log(sum) - static_cast<double>(logits[static_cast<size_t>(i)]),
                1e-6);
  // Far outside of what exp can hold.
  EXPECT_NEAR(NegativeLogLikelihood(std::vector<float>{1e4f, 1e4f, -1e4f}, 0), std::log(2.0), 1e-7);
  EXPECT_NEAR(NegativeLogLikelihood(std::vector<float>{1e4f, 1e4f, -1e4f}, 2), 2e4 + std::log(2.0), 1e-2);
}

// The same bits, whatever the mode, the batch and the number of threads.
TEST(EvalPpl, StepAndBatchedAreTheSameBits) {
  for (const char* name : {"llama_gqa_tied", "llama_bf16", "opt_pre_norm"}) {
    const std::string directory = kRoot + "/tests/golden/models/" + name;
    for (const std::vector<int32_t>& opening : {std::vector<int32_t>{}, std::vector<int32_t>{3}}) {
      const PplText text = TextOf(directory, opening);
      ASSERT_GT(text.ids.size(), 80u);
      const auto model =
          LoadModel(directory, {.threads = 2, .max_tokens = 32, .max_batch = 1, .kv_type = StoreType::kF32});
      const PplResult batched = Score(*model->executor, text, {.context = 32, .mode = PplMode::kBatched});
      EXPECT_TRUE(batched.complete());
      ASSERT_GE(batched.windows, 3);
      EXPECT_GT(batched.timing.prefill_tokens, 0);
      for (const int64_t batch : {1, 2, 16}) {
        const auto stepper =
            LoadModel(directory, {.threads = 1, .max_tokens = 32, .max_batch = batch, .kv_type = StoreType::kF32});
        const PplResult step = Score(*stepper->executor, text, {.context = 32, .mode = PplMode::kStep});
        EXPECT_EQ(step.tokens, batched.tokens);
        EXPECT_EQ(step.window_nll, batched.window_nll) << name << " batch " << batch;
        EXPECT_EQ(step.timing.decode_tokens, batched.timing.prefill_tokens);
        EXPECT_EQ(stepper->executor->instruments().pool_bytes(), 0u) << "every window gave its rows back";
      }
    }
  }
}

TEST(EvalPpl, WindowsWithAPromptScoreWhatFollowsIt) {
  PplText text{.ids = std::vector<int32_t>(20), .opening = {1}};
  std::vector<PplWindow> windows = CutWindows(text, 8, 5);
  ASSERT_EQ(windows.size(), 2u) << "the last window has 4 rows, all of them prompt";
  // Rows 0 to 4 are fed the opening and tokens 0 to 3; row 5 is fed token 4 and predicts token 5.
  EXPECT_EQ(windows[1].first, 8);
  EXPECT_EQ(windows[1].scored, 13);
  text.opening = {};
  windows = CutWindows(text, 8, 5);
  EXPECT_EQ(windows[0].scored, 6) << "row 5 is fed token 5";
  EXPECT_EQ(CutWindows(text, 8, 0)[0].scored, 1);
  text.ids.resize(5);
  EXPECT_TRUE(CutWindows(text, 8, 5).empty());
}

// With a prompt, full's scores are those of the same positions without one, in either mode and any batch.
TEST(EvalPpl, APromptLeavesOutItsPositionsAndChangesNoOther) {
  const std::string directory = kRoot + "/tests/golden/models/llama_gqa_tied";
  for (const std::vector<int32_t>& opening : {std::vector<int32_t>{}, std::vector<int32_t>{3}}) {
    const PplText text = TextOf(directory, opening);
    const auto model =
        LoadModel(directory, {.threads = 2, .max_tokens = 32, .max_batch = 3, .kv_type = StoreType::kF32});
    std::vector<std::vector<float>> all, later;
    PplOptions options{.context = 32};
    options.on_logits = [&](std::span<const float> row) { all.emplace_back(row.begin(), row.end()); };
    Score(*model->executor, text, options);
    options.from = 20;
    options.on_logits = [&](std::span<const float> row) { later.emplace_back(row.begin(), row.end()); };
    const PplResult result = Score(*model->executor, text, options);
    const std::vector<PplWindow> windows = CutWindows(text, 32, 20);
    ASSERT_GE(windows.size(), 2u);
    const size_t per_window = opening.empty() ? 31 : 32, scored = per_window - 20;
    ASSERT_EQ(result.window_tokens[0], static_cast<int64_t>(scored));
    EXPECT_EQ(std::ssize(later), result.tokens);
    for (size_t w = 0; w < 2; ++w)
      for (size_t i = 0; i < scored; ++i) EXPECT_EQ(later[w * scored + i], all[w * per_window + 20 + i]);
    const PplResult step = Score(*model->executor, text, {.context = 32, .from = 20, .mode = PplMode::kStep});
    EXPECT_EQ(step.window_nll, result.window_nll);
    EXPECT_EQ(step.window_tokens, result.window_tokens);
    EXPECT_EQ(step.timing.prefill_tokens, 20 * step.windows) << "the prompts";
    EXPECT_EQ(step.timing.prefill_tokens + step.timing.decode_tokens, result.timing.prefill_tokens);
  }
}

TEST(EvalPpl, ScoresAreThoseOfTheDefinition) {
  SplitMix random(7);
  for (const size_t vocab : {1u, 7u, 64u, 1003u}) {
    std::vector<float> p(vocab), q(vocab);
    for (size_t i = 0; i < vocab; ++i) {
      p[i] = 8 * static_cast<float>(random.Unit());
      q[i] = p[i] + static_cast<float>(random.Unit());
    }
    double sum_p = 0, sum_q = 0, kld = 0;
    for (size_t i = 0; i < vocab; ++i) sum_p += std::exp(double{p[i]}), sum_q += std::exp(double{q[i]});
    for (size_t i = 0; i < vocab; ++i)
      kld += std::exp(double{p[i]}) / sum_p * (double{p[i]} - std::log(sum_p) - double{q[i]} + std::log(sum_q));
    const auto target = static_cast<int32_t>(vocab / 2);
    const PredictionScore score = ScorePrediction(q, p, target);
    EXPECT_NEAR(score.nll, std::log(sum_q) - double{q[vocab / 2]}, 1e-12 * vocab);
    EXPECT_NEAR(score.other_nll, std::log(sum_p) - double{p[vocab / 2]}, 1e-12 * vocab);
    EXPECT_NEAR(score.kld, kld, 1e-12 * vocab);
    EXPECT_EQ(score.same_top,
              std::max_element(p.begin(), p.end()) - p.begin() == std::max_element(q.begin(), q.end()) - q.begin());
    EXPECT_EQ(ScorePrediction(p, p, target).kld, 0) << "equal bits have no distance at all";
  }
  // The best logit leads by 0.04, then by 0.06; the leading token is the last, past the whole vectors.
  std::vector<float> row(99, 1.0f);
  row[98] = 1.04f;
  EXPECT_FALSE(ScorePrediction(row, row, 0).clear);
  row[98] = 1.06f;
  EXPECT_TRUE(ScorePrediction(row, row, 0).clear);
  EXPECT_FALSE(ScorePrediction(std::vector<float>(99, 1.0f), row, 0).same_top);
}

TEST(EvalPpl, StandardErrorsAreOverWindows) {
  // Means 1, 2, 3 of windows of equal length: deviation 1, divided by √3.
  const std::vector<double> sums = {10, 20, 30};
  Estimate mean = MeanOverWindows(sums, std::vector<int64_t>{10, 10, 10});
  EXPECT_DOUBLE_EQ(mean.value, 2);
  EXPECT_NEAR(mean.stderror, 1 / std::sqrt(3.0), 1e-12);
  // Windows with the same mean have no error, whatever their lengths.
  mean = MeanOverWindows(std::vector<double>{10, 40}, std::vector<int64_t>{5, 20});
  EXPECT_DOUBLE_EQ(mean.value, 2);
  EXPECT_NEAR(mean.stderror, 0, 1e-12);
  EXPECT_TRUE(std::isnan(MeanOverWindows(std::vector<double>{10}, std::vector<int64_t>{5}).stderror));
  EXPECT_TRUE(std::isnan(MeanOverWindows({}, {}).value));
  PplResult result;
  result.window_nll = {10.1, 20.3};
  result.window_other_nll = {10, 20};
  result.window_kld = {1, 2};
  result.window_tokens = {10, 10};
  EXPECT_NEAR(result.ppl_change().value, 100 * (std::exp(0.02) - 1), 1e-9);
  EXPECT_NEAR(result.ppl_change().stderror, 100 * std::exp(0.02) * 0.01, 1e-9);
  EXPECT_NEAR(result.kld_estimate().value, 0.15, 1e-12);
}

// Chunks lie along every window and add up to the whole, in either mode.
TEST(EvalPpl, ChunksAddUp) {
  const std::string directory = kRoot + "/tests/golden/models/llama_gqa_tied";
  for (const std::vector<int32_t>& opening : {std::vector<int32_t>{}, std::vector<int32_t>{3}}) {
    PplText text = TextOf(directory, opening);
    text.ids.resize(80);  // 32, 32 and 16 tokens
    const auto model =
        LoadModel(directory, {.threads = 1, .max_tokens = 32, .max_batch = 4, .kv_type = StoreType::kF32});
    EXPECT_TRUE(Score(*model->executor, text, {.context = 32}).chunks.empty());
    const PplResult result = Score(*model->executor, text, {.context = 32, .chunk = 12});
    ASSERT_EQ(result.chunks.size(), 3u);
    const int64_t unscored = opening.empty() ? 3 : 0;  // the first of every window
    EXPECT_EQ(result.chunks[0].tokens, 36 - unscored);
    EXPECT_EQ(result.chunks[1].tokens, 12 + 12 + 4);
    EXPECT_EQ(result.chunks[2].tokens, 8 + 8) << "the last chunk of a window may be shorter";
    double nll = 0;
    for (const PplChunk& chunk : result.chunks) nll += chunk.nll;
    EXPECT_NEAR(nll / static_cast<double>(result.tokens), result.nll(), 1e-12);
    const PplResult step = Score(*model->executor, text, {.context = 32, .mode = PplMode::kStep, .chunk = 12});
    for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(step.chunks[i].nll, result.chunks[i].nll, 1e-9);
  }
}

// Lists that end with the token's own row; 1 sink and a window of 2, which do not count.
TEST(StepOverlap, CountsWhatWasChosenAtBothTimes) {
  StepOverlap overlap(1, 2);
  const SelectionObserver observe = overlap.Observer();
  const auto see = [&](int64_t layer, const std::vector<int32_t>& rows) {
    observe(LayerId(layer), SeqSlot(0), KvHead(0), rows);
  };
  EXPECT_TRUE(std::isnan(overlap.share(0)));
  see(0, {0, 2, 3, 8, 9, 10});
  see(0, {0, 2, 4, 9, 10, 11});      // of 2 and 4, the step before had 2
  see(0, {0, 2, 4, 9, 10, 11, 12});  // of 2, 4 and 9: 9 was in the window then, 2 and 4 were chosen
  see(1, {0, 5, 9, 10, 11});
  see(1, {0, 6, 10, 11, 12});
  EXPECT_DOUBLE_EQ(overlap.share(0, LayerId(0)), 3.0 / 4);
  EXPECT_DOUBLE_EQ(overlap.share(1, LayerId(0)), 1.0 / 2) << "two steps before: of 2 and 4, 2";
  EXPECT_DOUBLE_EQ(overlap.share(0, LayerId(1)), 0);
  EXPECT_DOUBLE_EQ(overlap.share(0), 3.0 / 5);
  EXPECT_EQ(overlap.layers(), (std::vector<LayerId>{LayerId(0), LayerId(1)}));
  see(0, {0, 2, 4, 9, 10, 11});  // row 11 once more: another sequence, with nothing before it
  EXPECT_DOUBLE_EQ(overlap.share(0, LayerId(0)), 3.0 / 4);
}

// Full's windows may be kept for the next method: the numbers stay, whatever fits, and what is kept is read once.
TEST(EvalPpl, KeptWindowsAreReadOnce) {
  const std::string directory = kRoot + "/tests/golden/models/llama_gqa_tied";
  const PplText text = TextOf(directory, {3});
  const auto method =
      LoadModel(directory, {.threads = 1, .max_tokens = 32, .max_batch = 1, .kv_type = StoreType::kBF16});
  const auto full = LoadModel(directory, {.threads = 1, .max_tokens = 32, .max_batch = 16, .kv_type = StoreType::kF32});
  const auto score = [&](WindowReader* kept, PplMode mode) {
    const auto ignore = [](const PplResult&) {};
    const PplRunners runners{method->executor.get(), full->executor.get(), kept};
    return ScoreText(runners, text, {.context = 32, .mode = mode}, {}, ignore).value();
  };
  int64_t read = 0;  // windows that full began
  full->executor->instruments().ObservePrefill(
      [&](LayerId layer, const PrefillRows& unit) { read += layer.value() == 0 && unit.first_row == 0 ? 1 : 0; });
  const PplResult alone = score(nullptr, PplMode::kBatched);
  ASSERT_EQ(alone.windows, read);
  ASSERT_GE(read, 3);
  EXPECT_GT(alone.kld, 0);
  for (const int64_t keep : {int64_t{0}, int64_t{1}, alone.windows}) {
    WindowReader kept(*full->executor, {}, static_cast<size_t>(keep));
    read = 0;
    for (const PplMode mode : {PplMode::kBatched, PplMode::kStep, PplMode::kBatched}) {
      const PplResult again = score(&kept, mode);
      EXPECT_EQ(again.window_nll, alone.window_nll) << "keep " << keep;
      EXPECT_EQ(again.kld, alone.kld) << "keep " << keep;
      EXPECT_EQ(again.same_top, alone.same_top);
    }
    EXPECT_EQ(read, keep + 3 * (alone.windows - keep));
  }
  EXPECT_EQ(full->executor->instruments().pool_bytes(), 0u) << "the reader gave every window back";
}

// tests/golden/ppl.json, made by tools/make_ppl_reference.py.
TEST(EvalPpl, AgreesWithTransformers) {
  std::ifstream file(kRoot + "/tests/golden/ppl.json");
  const nlohmann::json cases = nlohmann::json::parse(file);
  ASSERT_EQ(cases.size(), 3u);
  for (const nlohmann::json& entry : cases) {
    const PplText text = TextOf(kRoot + "/" + entry["golden"].get<std::string>(), entry["opening"]);
    const int64_t context = entry["context"];
    const auto model = LoadModel(kRoot + "/" + entry["model"].get<std::string>(),
                                 {.threads = 2, .max_tokens = context, .max_batch = 1, .kv_type = StoreType::kF32});
    const PplResult result = Score(*model->executor, text, {.context = context});
    EXPECT_EQ(result.tokens, entry["tokens"].get<int64_t>());
    const std::vector<double> expected = entry["window_nll"];
    ASSERT_EQ(result.window_nll.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(result.window_nll[i], expected[i], 1e-5 * expected[i]) << entry["model"] << " window " << i;
  }
}

}  // namespace
}  // namespace infinigen
