#include "eval/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "runtime/report.h"

namespace infinigen {
namespace {

// The number of windows that full can hold within `bytes`: at most `windows`, at least one.
int64_t WindowsWithin(uint64_t bytes, const Model& model, ExecutorOptions options, int64_t windows) {
  for (options.max_batch = windows; options.max_batch > 1; --options.max_batch) {
    const MemoryPlan plan = PlanMemory(model.config, options, static_cast<uint64_t>(model.weights.TotalBytes()));
    // A plan includes one residual stream, but every kept window has its own.
    const uint64_t streams = static_cast<uint64_t>(options.max_batch - 1) * plan.prefill_bytes;
    if (plan.total_bytes() + streams + kMarginBytes <= bytes) break;
  }
  return options.max_batch;
}

}  // namespace

Result<DecodeSpeed> MeasureDecode(Executor& executor, std::span<const int32_t> tokens, int64_t steps,
                                  const Callbacks& callbacks,
                                  const std::function<void(int64_t unit, int64_t units)>& on_prefill) {
  CHECK(steps > 0 && steps < std::ssize(tokens));
  DecodeSpeed speed{.depth = std::ssize(tokens) - steps};
  ASSIGN_OR_RETURN(Sequence sequence, Sequence::Admit(executor, std::ssize(tokens)));
  const auto on_unit = [&](int64_t unit, int64_t units) {
    on_prefill(unit, units);
    return !callbacks.Cancelled();
  };
  const Clock::time_point begun = Clock::now();
  ASSIGN_OR_RETURN(const bool whole,
                   sequence.Prefill(tokens.first(static_cast<size_t>(speed.depth)), PrefillKind::kDense, on_unit));
  sequence.EndPrefill();
  speed.timing.AddPrefill(Seconds(begun), speed.depth);
  std::vector<float> logits(static_cast<size_t>(executor.config().vocab));
  StepItem item{.slot = sequence.slot(), .row = speed.depth};
  for (; whole && item.row < std::ssize(tokens) && !callbacks.Cancelled(); ++item.row) {
    item.token = tokens[static_cast<size_t>(item.row)];
    const Clock::time_point start = Clock::now();
    executor.Step({&item, 1}, logits);
    speed.timing.AddStep(Seconds(start), 1);
  }
  speed.complete = speed.timing.decode_tokens == steps;
  speed.stats = executor.instruments().Stats();
  speed.pool = {executor.instruments().pool_bytes(), executor.instruments().pool_peak_bytes()};
  return speed;
}

Result<CompareResult> Comparison::Run() {
  RETURN_IF_ERROR(Resolve());
  if (task_.steps > 0) MeasureSpeeds();
  if (maker_ != nullptr) ForEach(&Comparison::PlantFacts);
  if (task_.perplexity && GoesOn()) ReadTexts();
  result_.complete = !Cancelled();
  return std::move(result_);
}

bool Comparison::GoesOn() const {
  const auto fine = [](const CompareRow& row) { return row.error.empty(); };
  return !Cancelled() && std::any_of(result_.rows.begin(), result_.rows.end(), fine);
}

Status Comparison::Resolve() {
  const KvRequest& asked = task_.kv;
  const bool untouched =
      (asked.select == nullptr || asked.select == &kSelectAll) && asked.evict.value_or(nullptr) == nullptr;
  KvRequest plain = asked;
  plain.preset = FindPreset("full");
  plain.select = nullptr;
  plain.evict.reset();
  plain.limit_share.reset();
  plain.limit_bytes.reset();
  RETURN_IF_ERROR(CheckKvRequest(plain));
  result_.full.preset = plain.preset->name;
  result_.full.full = true;
  result_.full.kv = plain;
  for (const KvPreset* preset : task_.presets) {
    CompareRow& row = result_.rows.emplace_back();
    row.preset = preset->name;
    row.full = preset == plain.preset && untouched;
    KvRequest one = asked;
    one.preset = preset;
    if (const Status fine = CheckKvRequest(one); fine.ok())
      row.kv = std::move(one);
    else
      row.error = fine.error().message;
  }
  return Ok();
}

void Comparison::ForEach(Status (Comparison::*part)(CompareRow&)) {
  for (CompareRow& row : result_.rows) {
    if (Cancelled()) return;
    if (!row.error.empty()) continue;
    const Status status = (this->*part)(row);
    session_.Stop();
    session_.callbacks().Status("");
    if (!status.ok() && !Cancelled()) row.error = status.error().message;
  }
}

Status Comparison::Start(CompareRow& row, int64_t rows, int64_t useful) {
  RETURN_IF_ERROR(session_.Start(*row.kv, rows, useful, /*compare=*/false));
  row.options = session_.executor().options();
  result_.device = DeviceJson(session_.executor());
  return Ok();
}

void Comparison::MeasureSpeeds() {
  ForEach(&Comparison::MeasureSpeed);
  for (const CompareRow& row : result_.rows)
    if (row.full && row.speed) result_.full.speed = row.speed;
  // If full is not among the rows, or --kv-limit refused it there, it is measured separately.
  if (result_.full.speed || !GoesOn()) return;
  if (const Status status = MeasureSpeed(result_.full); !status.ok() && !Cancelled())
    session_.callbacks().Warn(fmt::format("the speed of --kv full could not be measured: {}", status.error().message));
  session_.Stop();
  session_.callbacks().Status("");
}

Status Comparison::MeasureSpeed(CompareRow& row) {
  const std::vector<int32_t> tokens = FedTokens(task_.text.text, task_.text.windows[0]);
  const int64_t length = std::ssize(tokens);
  if (length < 2) return Invalid("{} tokens are too few to measure a step", length);
  RETURN_IF_ERROR(Start(row, task_.text.rows, 1));
  const Callbacks& callbacks = session_.callbacks();
  const auto show = [&](int64_t unit, int64_t units) {
    callbacks.Status(fmt::format("{}: speed, {} % of {} tokens read", row.preset, 100 * unit / units, length));
  };
  ASSIGN_OR_RETURN(DecodeSpeed speed,
                   MeasureDecode(session_.executor(), tokens, std::min(task_.steps, length - 1), callbacks, show));
  if (speed.complete) row.speed = std::move(speed);
  return Ok();
}

Status Comparison::PlantFacts(CompareRow& row) {
  RETURN_IF_ERROR(Start(row, task_.facts.lengths[0], task_.facts.n));
  NeedleTable table(task_.facts, session_, *maker_, row.preset + ": ");
  ASSIGN_OR_RETURN(NeedleResult facts, table.Run());
  if (facts.complete) row.facts = std::move(facts);
  row.facts_stats = session_.executor().instruments().Stats();
  return Ok();
}

void Comparison::ReadTexts() {
  const Status status = StartFull();
  session_.callbacks().Status("");
  result_.compared = status.ok();
  if (!status.ok()) {
    reader_.reset();
    full_.reset();
    if (!Cancelled())
      session_.callbacks().Warn(fmt::format("predictions are not compared with --kv full: {}", status.error().message));
  }
  ForEach(&Comparison::ReadText);
}

Status Comparison::ReadText(CompareRow& row) {
  RETURN_IF_ERROR(CheckScorable(*row.kv, task_.text.options.from));
  RETURN_IF_ERROR(Start(row, task_.text.rows, 1));
  if (row.full && result_.compared) {
    row.ppl = result_.full.ppl;
    row.ppl_stats = result_.full.ppl_stats;
    return Ok();
  }
  const PplRunners runners{&session_.executor(), full_.get(), reader_.get()};
  ASSIGN_OR_RETURN(PplResult ppl, Score(row, runners, task_.text.options.mode));
  if (ppl.complete()) row.ppl = std::move(ppl);
  row.ppl_stats = session_.executor().instruments().Stats();
  return Ok();
}

Status Comparison::StartFull() {
  const Model& model = session_.model();
  const int64_t windows = std::ssize(task_.text.windows);
  ASSIGN_OR_RETURN(const RunPlan plan, PlanRun(model, {.device = session_.request().device,
                                                       .kv = *result_.full.kv,
                                                       .max_tokens = task_.text.rows,
                                                       .batch = 1}));
  if (!plan.refusal.empty()) return Exhausted("{}", plan.refusal);
  ExecutorOptions options = plan.options;
  options.pool_limit_bytes = UINT64_MAX;
  // The other half stays free for the methods, each of which is planned with the memory that is free when it starts.
  options.max_batch = WindowsWithin(plan.available_bytes / 2, model, options, windows);
  ASSIGN_OR_RETURN(full_, MakeExecutor(model.config, model.weights, options));
  const int64_t keep = options.max_batch == windows ? windows : options.max_batch - 1;
  reader_ =
      std::make_unique<WindowReader>(*full_, session_.callbacks(), static_cast<size_t>(keep), task_.text.options.from);
  // Kept windows are read with kBatched in both modes; the bits are the same.
  ASSIGN_OR_RETURN(PplResult ppl, Score(result_.full, {full_.get(), nullptr, reader_.get()}, PplMode::kBatched));
  if (ppl.complete()) result_.full.ppl = std::move(ppl);
  result_.full.ppl_stats = full_->instruments().Stats();
  return Ok();
}

Result<PplResult> Comparison::Score(const CompareRow& row, const PplRunners& runners, PplMode mode) const {
  const Callbacks& callbacks = session_.callbacks();
  callbacks.Status(fmt::format("{}: text, window 1 of {}", row.preset, task_.text.windows.size()));
  const auto show = [&](const PplResult& sofar) {
    callbacks.Status(fmt::format("{}: text, window {} of {}  ppl {:.3f}", row.preset, sofar.window_nll.size(),
                                 sofar.windows, sofar.ppl()));
  };
  PplOptions options = task_.text.options;
  options.mode = mode;
  return ScoreWindows(runners, task_.text.text, task_.text.windows, options, callbacks, show);
}

}  // namespace infinigen
