#include "cli/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "cli/console.h"
#include "cli/interrupt.h"
#include "runtime/launch.h"

namespace infinigen {
namespace {

// With how many windows at once full runs: as many as it can keep in `bytes`.
int64_t WindowsWithin(uint64_t bytes, const Model& model, ExecutorOptions options, int64_t windows) {
  for (options.max_batch = windows; options.max_batch > 1; --options.max_batch) {
    const MemoryPlan plan = PlanMemory(model.config, options, static_cast<uint64_t>(model.weights.TotalBytes()));
    // A plan has one residual stream; every window that is kept has its own.
    const uint64_t streams = static_cast<uint64_t>(options.max_batch - 1) * plan.prefill_bytes;
    if (plan.total_bytes() + streams + kMarginBytes <= bytes) break;
  }
  return options.max_batch;
}

}  // namespace

Result<CompareResult> Comparison::Run() {
  RETURN_IF_ERROR(Resolve());
  if (task_.steps > 0) {
    ForEach(&Comparison::MeasureSpeed);
    for (const CompareRow& row : result_.rows)
      if (row.full && row.speed) result_.full.speed = row.speed;
    // Where it is not among the rows, or --kv-limit refused it there.
    if (!result_.full.speed && GoesOn()) {
      if (const Status status = MeasureSpeed(result_.full); !status.ok() && !Interrupted())
        Warn(fmt::format("no speed of --kv full to compare with: {}", status.error().message));
      session_.executor.reset();
    }
  }
  if (maker_ != nullptr) ForEach(&Comparison::PlantFacts);
  if (task_.perplexity && GoesOn()) {
    const Status status = StartFull();
    result_.compared = status.ok();
    if (!status.ok()) reader_.reset(), full_.reset();
    if (!status.ok() && !Interrupted()) Warn(fmt::format("no comparison with --kv full: {}", status.error().message));
    ForEach(&Comparison::ReadText);
  }
  result_.complete = !Interrupted();
  return std::move(result_);
}

bool Comparison::GoesOn() const {
  const auto fine = [](const CompareRow& row) { return row.error.empty(); };
  return !Interrupted() && std::any_of(result_.rows.begin(), result_.rows.end(), fine);
}

Status Comparison::Resolve() {
  const KvRequest& asked = flags_.kv.request;
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
  for (const KvPreset* preset : flags_.kv.presets) {
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
    if (Interrupted()) return;
    if (!row.error.empty()) continue;
    const Status status = (this->*part)(row);
    session_.executor.reset();
    if (!status.ok() && !Interrupted()) row.error = status.error().message;
  }
}

Status Comparison::Start(CompareRow& row, int64_t rows, int64_t batch) {
  session_.kv = *row.kv;
  RETURN_IF_ERROR(StartExecutor(flags_, rows, batch, /*compare=*/false, &session_));
  row.options = session_.executor->options();
  result_.device = DeviceJson(*session_.executor);
  return Ok();
}

Status Comparison::MeasureSpeed(CompareRow& row) {
  const std::vector<int32_t> tokens = FedTokens(task_.text.text, task_.text.windows[0]);
  const int64_t length = static_cast<int64_t>(tokens.size());
  if (length < 2) return Invalid("{} tokens are too few to measure a step", length);
  RETURN_IF_ERROR(Start(row, task_.text.rows, 1));
  StatusLine line;
  const auto show = [&](int64_t unit, int64_t units) {
    line.Draw(fmt::format("{}: speed, {} % of {} tokens read", row.preset, 100 * unit / units, length));
  };
  ASSIGN_OR_RETURN(DecodeSpeed speed,
                   MeasureDecode(*session_.executor, tokens, std::min(task_.steps, length - 1), show));
  if (speed.complete) row.speed = std::move(speed);
  return Ok();
}

Status Comparison::PlantFacts(CompareRow& row) {
  RETURN_IF_ERROR(Start(row, task_.facts.lengths[0], task_.facts.n));
  NeedleTable table(task_.facts, session_, *maker_, row.preset + ": ");
  ASSIGN_OR_RETURN(NeedleResult facts, table.Run());
  if (facts.complete) row.facts = std::move(facts);
  row.facts_stats = session_.executor->instruments().Stats();
  return Ok();
}

Status Comparison::ReadText(CompareRow& row) {
  RETURN_IF_ERROR(CheckScorable(*row.kv));
  RETURN_IF_ERROR(Start(row, task_.text.rows, 1));
  if (row.full && result_.compared) {
    row.ppl = result_.full.ppl;
    row.ppl_stats = result_.full.ppl_stats;
    return Ok();
  }
  const PplRunners runners{session_.executor.get(), full_.get(), reader_.get()};
  ASSIGN_OR_RETURN(PplResult ppl, Score(row, runners, task_.text.options.mode));
  if (ppl.complete()) row.ppl = std::move(ppl);
  row.ppl_stats = session_.executor->instruments().Stats();
  return Ok();
}

Status Comparison::StartFull() {
  const Model& model = *session_.model;
  const int64_t windows = static_cast<int64_t>(task_.text.windows.size());
  ASSIGN_OR_RETURN(
      const RunPlan plan,
      PlanRun(model, {.device = session_.device, .kv = *result_.full.kv, .max_tokens = task_.text.rows, .batch = 1}));
  if (!plan.refusal.empty()) return Exhausted("{}", plan.refusal);
  ExecutorOptions options = plan.options;
  options.pool_limit_bytes = UINT64_MAX;
  // The other half is for the methods, which are planned with what is free when they come.
  options.max_batch = WindowsWithin(plan.available_bytes / 2, model, options, windows);
  ASSIGN_OR_RETURN(full_, MakeExecutor(model.config, model.weights, options));
  const int64_t keep = options.max_batch == windows ? windows : options.max_batch - 1;
  reader_ = std::make_unique<WindowReader>(*full_, static_cast<size_t>(keep));
  // Its windows stay, so it is read in bulk in either mode; the bits are the same.
  ASSIGN_OR_RETURN(PplResult ppl, Score(result_.full, {full_.get(), nullptr, reader_.get()}, PplMode::kBatched));
  if (ppl.complete()) result_.full.ppl = std::move(ppl);
  result_.full.ppl_stats = full_->instruments().Stats();
  return Ok();
}

Result<PplResult> Comparison::Score(const CompareRow& row, const PplRunners& runners, PplMode mode) const {
  StatusLine line;
  line.Draw(fmt::format("{}: text, window 1 of {}", row.preset, task_.text.windows.size()));
  const auto show = [&](const PplResult& sofar) {
    line.Draw(fmt::format("{}: text, window {} of {}  ppl {:.3f}", row.preset, sofar.window_nll.size(), sofar.windows,
                          sofar.ppl()));
  };
  PplOptions options = task_.text.options;
  options.mode = mode;
  return ScoreText(runners, task_.text.text, options, show);
}

}  // namespace infinigen
