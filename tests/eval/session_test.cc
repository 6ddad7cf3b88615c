// Evaluations as clients of runtime: warnings, progress and cancellation go through callbacks, and nothing is written
// to stdout or stderr.
#include "eval/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "eval/choice_run.h"
#include "eval/compare.h"
#include "eval/filler.h"
#include "eval/perplexity.h"
#include "golden/golden_run.h"

namespace infinigen {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::string kSessionModel = INFINIGEN_TEST_DATA "/../models/infinigen-mini";

// What a session reports; cancels after `cancel_after` status texts.
struct Reports {
  std::vector<std::string> warnings, statuses;
  size_t cancel_after = SIZE_MAX;

  Callbacks callbacks() {
    return {.on_warning = [this](std::string_view message) { warnings.emplace_back(message); },
            .on_status = [this](std::string_view text) { statuses.emplace_back(text); },
            .cancelled = [this] { return statuses.size() >= cancel_after; }};
  }
};

EvalSession OpenShipped(Reports& reports) {
  Result<EvalSession> session = EvalSession::Open(
      {.model = kSessionModel, .device = {.threads = 2}, .detail = {}, .callbacks = reports.callbacks()});
  EXPECT_TRUE(session.ok()) << (session.ok() ? "" : session.error().message);
  return std::move(session).value();
}

KvRequest Preset(std::string_view name) {
  KvRequest kv;
  kv.preset = FindPreset(name);
  return kv;
}

PplTask TaskOf(const EvalSession& session, int64_t context, int64_t tokens) {
  StoryWriter writer(3);
  PplSource source{.name = "story", .limit_tokens = tokens};
  while (static_cast<int64_t>(source.bytes.size()) < 8 * tokens)
    for (const std::string& sentence : writer.Paragraph()) source.bytes += sentence + " ";
  return MakePplTask(session.model(), {&source, 1}, {.context = context}).value();
}

TEST(EvalSession, NeedsATokenizer) {
  const Result<EvalSession> session = EvalSession::Open({.model = INFINIGEN_TEST_DATA "/golden/models/llama_gqa_tied"});
  ASSERT_FALSE(session.ok());
  EXPECT_THAT(session.error().message, HasSubstr("no tokenizer"));
}

TEST(EvalSession, WarnsOnceOfAContextBeyondTheTrainedOne) {
  Reports reports;
  EvalSession session = OpenShipped(reports);
  const int64_t beyond = session.model().config.max_positions + 1;
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(session.Start(Preset("full"), beyond, 1, /*compare=*/false).ok());
  EXPECT_THAT(reports.warnings, ElementsAre(HasSubstr("8193 tokens exceed the 8192")));
}

TEST(EvalSession, ComparesWithFullUnlessItIsFull) {
  Reports reports;
  EvalSession session = OpenShipped(reports);
  ASSERT_TRUE(session.Start(Preset("int8"), 128, 1, /*compare=*/true).ok());
  ASSERT_NE(session.other(), nullptr);
  EXPECT_TRUE(session.other()->options().is_full());
  ASSERT_TRUE(session.Start(Preset("full"), 128, 1, /*compare=*/true).ok());
  EXPECT_EQ(session.other(), nullptr);
  EXPECT_THAT(reports.warnings, IsEmpty());
}

TEST(EvalSession, PerplexityReportsThroughCallbacksAlone) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Reports reports;
  EvalSession session = OpenShipped(reports);
  const PplTask task = TaskOf(session, 64, 192);
  ASSERT_EQ(task.windows.size(), 3u);
  ASSERT_TRUE(session.Start(Preset("int4"), task.rows, 1, /*compare=*/true).ok());
  const PplReport report = MeasurePpl(session, task, false, false, /*full_cache_bytes=*/0).value();
  EXPECT_TRUE(report.result.complete());
  EXPECT_GT(report.result.kld, 0);
  EXPECT_THAT(reports.statuses,
              ElementsAre(HasSubstr("window 1 of 3"), HasSubstr("window 2 of 3"), HasSubstr("window 3 of 3"), ""));
  EXPECT_EQ(testing::internal::GetCapturedStdout() + testing::internal::GetCapturedStderr(), "");
}

TEST(EvalSession, ACancelledTextHasTheFinishedWindows) {
  Reports whole, cut{.cancel_after = 2};
  std::vector<double> window_nll;
  for (Reports* reports : {&whole, &cut}) {
    EvalSession session = OpenShipped(*reports);
    const PplTask task = TaskOf(session, 64, 192);
    ASSERT_TRUE(session.Start(Preset("full"), task.rows, 1, /*compare=*/true).ok());
    const PplResult result = MeasurePpl(session, task, false, false, /*full_cache_bytes=*/0).value().result;
    EXPECT_EQ(result.complete(), reports == &whole);
    if (reports == &whole) window_nll = result.window_nll;
    if (reports == &cut) {
      EXPECT_THAT(result.window_nll, ElementsAre(window_nll[0], window_nll[1]));
    }
    EXPECT_EQ(session.executor().instruments().pool_bytes(), 0u) << "every window gave its rows back";
  }
}

TEST(EvalSession, CancelledQuestionsKeepTheirAnswers) {
  Reports reports{.cancel_after = 1};
  EvalSession session = OpenShipped(reports);
  ChoiceTask task{.name = "mine", .path = "q"};
  for (int64_t line = 1; line <= 3; ++line)
    task.items.push_back({.contexts = {"One, two,"}, .endings = {"three", "potato"}, .line = line});
  const KvRequest kv = Preset("full");
  const ChoiceInput input = PrepareChoice(session, kv, std::move(task), {}).value();
  ASSERT_TRUE(session.Start(kv, input.rows, input.useful_batch(), /*compare=*/true).ok());
  const ChoiceResult result = AskQuestions(session, input).value();
  EXPECT_EQ(result.n(), 1);
  EXPECT_EQ(result.right, 1);
  EXPECT_FALSE(result.complete());
  EXPECT_THAT(reports.statuses, ElementsAre("mine: question 1 of 3, 1 right", ""));
}

TEST(Comparison, MeasuresWhatIsAskedForAndLeavesOutWhatWasCancelled) {
  for (const bool cancel : {false, true}) {
    Reports reports;
    EvalSession session = OpenShipped(reports);
    CompareTask task{.presets = {FindPreset("full"), FindPreset("int8")}, .facts = {.n = 0}, .steps = 3};
    task.text = TaskOf(session, 64, 128);
    // The status texts of a speed are those of its prefill units: the first method's only, then the text's.
    if (cancel) reports.cancel_after = static_cast<size_t>(session.model().config.layers) + 1;
    Comparison comparison(task, nullptr, &session);
    const CompareResult result = comparison.Run().value();
    EXPECT_EQ(result.complete, !cancel);
    ASSERT_EQ(result.rows.size(), 2u);
    EXPECT_TRUE(result.rows[0].speed.has_value());
    EXPECT_EQ(result.rows[1].speed.has_value(), !cancel);
    EXPECT_EQ(result.rows[1].ppl.has_value(), !cancel);
    EXPECT_THAT(result.rows[0].error + result.rows[1].error, IsEmpty()) << "cancelled is no error";
    if (cancel) continue;
    EXPECT_EQ(result.rows[1].speed->timing.decode_tokens, 3);
    EXPECT_EQ(result.rows[1].speed->depth, 64 - 3);
    EXPECT_EQ(result.rows[0].ppl->window_nll, result.full.ppl->window_nll);
    EXPECT_GT(result.rows[1].ppl->kld, 0);
    EXPECT_EQ(reports.statuses.back(), "");
  }
}

TEST(MeasureDecode, TakesTheLastTokensAsSteps) {
  const auto model = LoadModel(INFINIGEN_TEST_DATA "/golden/models/llama_gqa_tied",
                               {.threads = 1, .max_tokens = 64, .max_batch = 1, .kv_type = StoreType::kF32});
  const std::vector<int32_t> tokens(40, 7);
  int64_t last_unit = 0;
  const auto on_prefill = [&](int64_t unit, int64_t units) { last_unit = unit == units ? unit : 0; };
  const DecodeSpeed speed = MeasureDecode(*model->executor, tokens, 5, {}, on_prefill).value();
  EXPECT_TRUE(speed.complete);
  EXPECT_EQ(speed.depth, 35);
  EXPECT_EQ(speed.timing.prefill_tokens, 35);
  EXPECT_EQ(speed.timing.step_ms.size(), 5u);
  EXPECT_EQ(speed.stats.steps, 5);
  EXPECT_GT(last_unit, 0);
  const Callbacks cancel{.cancelled = [] { return true; }};
  EXPECT_FALSE(MeasureDecode(*model->executor, tokens, 5, cancel, on_prefill)->complete);
  EXPECT_EQ(model->executor->instruments().pool_bytes(), 0u);
}

}  // namespace
}  // namespace infinigen
