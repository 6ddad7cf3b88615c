// `infinigen bench`: how fast a model runs. Drives the executor itself, so that every measured step has exactly the
// asked batch and depth; prompts are random ids, so the text means nothing.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/bench_report.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/flags.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/plan_output.h"
#include "cli/terminal.h"
#include "model/cuda_executor.h"
#include "runtime/clock.h"
#include "runtime/launch.h"
#include "runtime/model.h"
#include "runtime/plan.h"
#include "runtime/report.h"

namespace infinigen {
namespace {

struct BenchFlags {
  std::string model, shape;
  std::string dtype = "bf16";
  DeviceRequest device;
  KvFlags kv;
  int64_t batch = 1, prompt = 512, gen = 32, repeat = 1;
  std::vector<int64_t> depths;
  std::string fill = "prefill";
  std::string format = "md";
  bool dry_run = false;
  bool json = false;
  bool no_fetch = false, no_compute = false;
};

// Ids in a fixed order that visits the vocabulary evenly; the same for every run.
class RandomIds {
 public:
  explicit RandomIds(int64_t vocab) : vocab_(static_cast<uint64_t>(vocab)) {}
  int32_t Next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int32_t>((state_ >> 33) % vocab_);
  }

 private:
  uint64_t vocab_;
  uint64_t state_ = 1;
};

// Weights that a step reads whole. Of an embedding that is not also the output matrix, and of learned positions, a step
// reads one row each.
uint64_t WeightBytesPerStep(const Model& model) {
  const auto bytes = [](const ConstTensor& matrix) {
    return matrix ? static_cast<int64_t>(SizeOf(matrix.type)) * matrix.rows * matrix.cols : 0;
  };
  int64_t total = model.weights.TotalBytes() - bytes(model.weights.positions);
  if (!model.config.tied_embeddings) total -= bytes(model.weights.embedding);
  return static_cast<uint64_t>(total);
}

class Bench {
 public:
  // `synthetic`: entries are made up instead of computed by a prefill.
  Bench(const Model& model, Executor& executor, bool synthetic, bool skipping)
      : model_(model), executor_(executor), synthetic_(synthetic), skipping_(skipping), ids_(model.config.vocab) {}

  // Touches every weight once, so that the first measurement does not pay for reading the files.
  Status WarmUp() { return Measure(1, 1).status; }

  struct Outcome {
    Status status = Ok();
    Measurement measurement;
  };
  // Prefills `depth` tokens of each sequence, then takes `steps` decode steps of the whole batch. `kinds`: then looks
  // at what a step is made of, where the backend can tell.
  Outcome Measure(int64_t depth, int64_t steps, bool kinds = true) {
    Outcome outcome;
    outcome.measurement.options = executor_.options();
    outcome.measurement.depth = depth;
    std::vector<StepItem> items;
    outcome.status = Prefill(depth, steps, outcome.measurement, items);
    if (outcome.status.ok()) Decode(steps, outcome.measurement, items);
    if (outcome.status.ok() && steps > 0 && kinds && !executor_.options().method.evicts())
      TimeKinds(outcome.measurement, items);
    outcome.measurement.device = executor_.instruments().device_use();
    outcome.measurement.pool = {executor_.instruments().pool_bytes(), executor_.instruments().pool_peak_bytes()};
    outcome.measurement.complete = !Interrupted();
    for (const StepItem& item : items) executor_.Release(item.slot);
    return outcome;
  }

 private:
  Status Prefill(int64_t depth, int64_t steps, Measurement& measurement, std::vector<StepItem>& items) {
    std::vector<float> logits(static_cast<size_t>(model_.config.vocab));
    std::vector<int32_t> prompt(static_cast<size_t>(depth));
    for (int64_t i = 0; i < executor_.options().max_batch; ++i) {
      ASSIGN_OR_RETURN(const SeqSlot slot, executor_.Admit(depth + steps));
      items.push_back({.slot = slot, .token = 0, .row = depth});
    }
    executor_.instruments().AwaitPool();  // what it takes is reported apart
    for (size_t i = 0; i < items.size() && !Interrupted(); ++i) {
      const SeqSlot slot = items[i].slot;
      for (int32_t& id : prompt) id = ids_.Next();
      if (synthetic_) {
        executor_.instruments().FillSynthetic(slot, depth, static_cast<uint64_t>(i) + 1);
        continue;
      }
      const Clock::time_point start = Clock::now();
      RETURN_IF_ERROR(executor_.BeginPrefill(slot, 0, prompt));
      bool done = false;
      while (!done && !Interrupted()) done = executor_.RunPrefillUnit(slot);
      if (!done) return Ok();
      executor_.PrefillLogits(slot, depth - 1, 1, logits);
      executor_.EndPrefill(slot);
      measurement.timing.prefill_s += Seconds(start);
      measurement.timing.prefill_tokens += depth;
    }
    return Ok();
  }

  void Decode(int64_t steps, Measurement& measurement, std::vector<StepItem>& items) {
    Timing& timing = measurement.timing;
    std::vector<float> logits(items.size() * static_cast<size_t>(model_.config.vocab));
    // What was evicted for a step cannot be evicted for it again: there the last steps are timed as they come.
    const bool evicts = executor_.options().method.evicts();
    // A GPU's first steps choose algorithms and record graphs: that is no part of a step. They come again.
    if (steps > 0 && !evicts && executor_.options().device == Device::kCuda)
      for (int step = 0; step < kWarmSteps && !Interrupted(); ++step) executor_.Step(items, logits);
    const KvStats before = executor_.instruments().Stats();
    uint64_t bytes = 0;
    for (int64_t step = 0; step < steps && !Interrupted(); ++step) {
      if (evicts && step == std::max<int64_t>(0, steps - kTimedSteps)) executor_.instruments().TakeZones(true);
      for (StepItem& item : items) item.token = ids_.Next();
      const Clock::time_point start = Clock::now();
      executor_.Step(items, logits);
      const double elapsed = Seconds(start);
      timing.decode_s += elapsed;
      timing.step_ms.push_back(static_cast<float>(elapsed * 1e3));
      timing.decode_tokens += static_cast<int64_t>(items.size());
      bytes += WeightBytesPerStep(model_);
      for (StepItem& item : items) bytes += static_cast<uint64_t>(++item.row) * before.sketch_row_bytes;
    }
    if (evicts) TakeZones(measurement, static_cast<int>(std::min<int64_t>(steps, kTimedSteps)));
    measurement.stats = executor_.instruments().Stats() - before;
    bytes += measurement.stats.read_bytes;
    if (!timing.step_ms.empty()) measurement.step_bytes = bytes / timing.step_ms.size();
  }

  // A few more steps in place of the last one, each operation timed, which would disturb the others.
  void TimeKinds(Measurement& measurement, std::vector<StepItem>& items) {
    std::vector<float> logits(items.size() * static_cast<size_t>(model_.config.vocab));
    for (StepItem& item : items) --item.row;
    if (executor_.instruments().TakeZones(true).empty()) return;
    for (int step = 0; step < kTimedSteps && !Interrupted(); ++step) {
      for (StepItem& item : items) item.token = ids_.Next();
      executor_.Step(items, logits);
    }
    TakeZones(measurement, kTimedSteps);
    // Where nothing is computed queries do not change, and a hot set would have all that they want.
    if (!measurement.stats.fetches || skipping_ || executor_.options().hot_rows > 0) return;
    measurement.no_fetch_ms = StepWithout(/*fetch=*/true, /*compute=*/false, items, logits);
    measurement.no_compute_ms = StepWithout(/*fetch=*/false, /*compute=*/true, items, logits);
    executor_.instruments().Skip(false, false);
  }
  double StepWithout(bool fetch, bool compute, std::vector<StepItem>& items, std::vector<float>& logits) {
    constexpr int kSteps = 8;
    executor_.instruments().Skip(fetch, compute);
    Clock::time_point start;
    for (int step = 0; step < kWarmSteps + kSteps && !Interrupted(); ++step) {
      if (step == kWarmSteps) start = Clock::now();
      executor_.Step(items, logits);
    }
    return Seconds(start) * 1e3 / kSteps;
  }
  void TakeZones(Measurement& measurement, int steps) {
    measurement.zones = executor_.instruments().TakeZones(false);
    for (ZoneTime& zone : measurement.zones) zone.ms /= std::max(1, steps);
  }

  static constexpr int kTimedSteps = 3;
  static constexpr int kWarmSteps = 3;

  const Model& model_;
  Executor& executor_;
  const bool synthetic_, skipping_;
  RandomIds ids_;
};

// ---- the command ----

Status MeasureDepths(const BenchFlags& flags, const Model& model, Executor& executor,
                     const std::vector<int64_t>& depths, std::vector<Measurement>& measurements) {
  const bool skips = flags.no_fetch || flags.no_compute;
  if (skips && !executor.instruments().Skip(flags.no_fetch, flags.no_compute))
    return Unsupported("--no-fetch, --no-compute: only a GPU does both at once; pass --device cuda");
  Bench bench(model, executor, flags.fill == "synthetic", skips);
  RETURN_IF_ERROR(bench.WarmUp());
  for (const int64_t depth : depths) {
    Measurement all;
    for (int64_t run = 0; run < flags.repeat && !Interrupted(); ++run) {
      Bench::Outcome outcome = bench.Measure(depth, flags.gen, /*kinds=*/run == 0);
      RETURN_IF_ERROR(outcome.status);
      all.Add(std::move(outcome.measurement));
    }
    // One with fewer repetitions than it says would be none.
    if (!Interrupted()) measurements.push_back(std::move(all));
    if (Interrupted()) break;
  }
  return Ok();
}

RunRequest RequestFor(const BenchFlags& flags, const DeviceChoice& device, const KvRequest& kv, int64_t context) {
  return {.device = device, .kv = kv, .max_tokens = context, .useful_batch = flags.batch, .batch = flags.batch};
}

Result<int> DryRun(const BenchFlags& flags, const Model& model, const DeviceChoice& device,
                   const std::vector<KvRequest>& requests, int64_t context) {
  std::vector<RunPlan> plans;
  for (const KvRequest& kv : requests) {
    ASSIGN_OR_RETURN(RunPlan plan, PlanRun(model, RequestFor(flags, device, kv, context)));
    plans.push_back(std::move(plan));
  }
  return PrintPlans(model, plans, flags.format == "json");
}

Result<int> RunAll(const BenchFlags& flags) {
  ASSIGN_OR_RETURN(const DeviceChoice device, ChooseDevice(flags.device));
  ASSIGN_OR_RETURN(const std::vector<KvRequest> requests, KvRequests(flags.kv));
  std::unique_ptr<Model> model;
  if (!flags.shape.empty()) {
    const DType type = flags.dtype == "f32" ? DType::kF32 : flags.dtype == "f16" ? DType::kF16 : DType::kBF16;
    ASSIGN_OR_RETURN(model, RandomModel(flags.shape, type, device.threads));
  } else {
    ASSIGN_OR_RETURN(const std::string directory, FindModel(flags.model));
    ASSIGN_OR_RETURN(model, OpenModel(directory));
  }
  std::vector<int64_t> depths = flags.depths.empty() ? std::vector<int64_t>{flags.prompt} : flags.depths;
  for (int64_t& depth : depths) depth = std::max<int64_t>(depth, 1);
  const int64_t rows = *std::max_element(depths.begin(), depths.end()) + flags.gen;
  ASSIGN_OR_RETURN(const int64_t context, ChooseContext(model->config, rows));

  if (flags.dry_run) return DryRun(flags, *model, device, requests, context);
  std::vector<Measurement> measurements;
  nlohmann::ordered_json device_json;
  Terminal terminal;
  for (const KvRequest& kv : requests) {
    if (Interrupted()) break;
    ASSIGN_OR_RETURN(const RunPlan plan, PlanRun(*model, RequestFor(flags, device, kv, context)));
    ASSIGN_OR_RETURN(const std::unique_ptr<Executor> executor, Launch(*model, plan, terminal.callbacks()));
    device_json = DeviceJson(*executor);
    RETURN_IF_ERROR(MeasureDepths(flags, *model, *executor, depths, measurements));
  }
  BenchReport report{.model = *model,
                     .device = std::move(device_json),
                     .batch = flags.batch,
                     .prompt = flags.prompt,
                     .gen = flags.gen,
                     .repeat = flags.repeat,
                     .fill = flags.fill,
                     .detail = {flags.kv.stats_per_layer, flags.kv.request.measure_mass},
                     .measurements = std::move(measurements),
                     .complete = !Interrupted()};
  if (device.device == Device::kCuda && !report.measurements.empty()) {
    ASSIGN_OR_RETURN(report.ceilings, MeasureGpu());
  }
  Output output;
  output.Write(flags.format == "json"  ? Dump(BenchJson(report))
               : flags.format == "csv" ? BenchCsv(report)
                                       : BenchMarkdown(report));
  RETURN_IF_ERROR(output.status());
  return Interrupted() ? kExitInterrupted : kExitOk;
}

}  // namespace

int RunBench(Arguments arguments) {
  BenchFlags values;
  Flags flags("bench", "Measure speed. Every sequence is prefilled with random ids, then all decode together.");
  flags.Group("Model and machine");
  AddModelFlag(flags, &values.model);
  std::string shapes;
  for (const std::string_view name : ShapeNames()) shapes += fmt::format("{}{}", shapes.empty() ? "" : ", ", name);
  flags.Text("--shape", &values.shape, "NAME", "a published shape with random weights: " + shapes);
  flags.Exclusive({"model", "shape"});
  flags.Choice("--dtype", &values.dtype, {"bf16", "f16", "f32"}, "type of random weights");
  AddDeviceFlags(flags, &values.device);
  flags.Switch("--dry-run", &values.dry_run, "print the memory plan of each --kv and end");
  AddKvFlags(flags, &values.kv, /*list=*/true);
  flags.Group("What is measured");
  flags.Integer("--batch", &values.batch, 1, 4096, "sequences, all at once (default 1)");
  flags.Integer("--prompt", &values.prompt, 1, kMaxContext, "tokens of each prompt (default 512)");
  flags.Integer("--gen", &values.gen, 0, INT32_MAX, "decode steps (default 32)");
  flags.Integer("--repeat", &values.repeat, 1, 10000,
                "measure everything N times: speeds get a deviation over the repetitions (default 1)");
  const auto set_depths = [&](const std::string& text) {
    return ParseIntegerList(text, 0, kMaxContext, &values.depths);
  };
  flags.Custom("--depth", set_depths, "A,B",
               "tokens that each sequence has before decode is measured, one result for each; replaces --prompt");
  flags.Choice("--fill", &values.fill, {"prefill", "synthetic"},
               "compute the entries of that depth, or make random ones up, which is quick");
  flags.Switch("--no-fetch", &values.no_fetch, "steps on a GPU fetch no entries: what computing alone takes");
  flags.Switch("--no-compute", &values.no_compute, "steps on a GPU only select and fetch: what that alone takes");
  flags.Group("Output");
  flags.Choice("--format", &values.format, {"md", "csv", "json"}, "how results are printed");
  flags.Switch("--json", &values.json, "the same as --format json");
  if (const std::optional<int> exit_code = flags.Parse(arguments)) return *exit_code;
  if (values.json) values.format = "json";
  InstallInterrupt();
  const Result<int> exit_code = RunAll(values);
  return exit_code.ok() ? *exit_code : Fail(exit_code.error());
}

}  // namespace infinigen
