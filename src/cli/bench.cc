// `infinigen bench`: the speed of a model. It runs the executor without an engine, so that every measured step has
// exactly the requested batch and depth. Prompts are random token ids.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/bench_report.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/flags.h"
#include "cli/options.h"
#include "runtime/launch.h"
#include "runtime/model.h"
#include "runtime/plan.h"
#include "runtime/report.h"
#include "runtime/run_options.h"

namespace infinigen {
namespace {

// The last token of a sequence has no row in the pool, and a sequence needs one row.
constexpr int64_t kFewestTokens = 2;

struct BenchFlags {
  std::string model, shape;
  std::string dtype = "bf16", weight_type;
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

// Pseudo-random token ids, uniform over the vocabulary, the same in every run.
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

class Bench {
 public:
  // `synthetic`: entries are random numbers instead of the results of a prefill. `skipping`: --no-fetch or --no-compute
  // is set.
  Bench(const Model& model, Executor& executor, bool synthetic, bool skipping)
      : model_(model), executor_(executor), synthetic_(synthetic), skipping_(skipping), ids_(model.config.vocab) {}

  // Reads every weight once, so that the first measurement does not include reading the files.
  Status WarmUp() {
    RETURN_IF_ERROR(Measure(1, 1, /*zones=*/true));
    return Ok();
  }

  // Prefills `depth` tokens of each sequence, then runs `steps` decode steps of the whole batch. `zones`: afterwards
  // also measures the zones of a step, if the backend can.
  Result<Measurement> Measure(int64_t depth, int64_t steps, bool zones) {
    Measurement measurement;
    measurement.options = executor_.options();
    measurement.depth = depth;
    std::vector<Sequence> sequences;
    RETURN_IF_ERROR(Prefill(depth, steps, measurement, sequences));
    std::vector<StepItem> items;
    for (const Sequence& sequence : sequences) items.push_back({.slot = sequence.slot(), .token = 0, .row = depth});
    Decode(steps, measurement, items);
    if (steps > 0 && zones && !executor_.options().method.evicts()) TimeZones(measurement, items);
    Instruments& instruments = executor_.instruments();
    measurement.device = instruments.device_use();
    measurement.pool = {instruments.pool_bytes(), instruments.pool_peak_bytes()};
    measurement.complete = !Interrupted();
    return measurement;
  }

 private:
  Status Prefill(int64_t depth, int64_t steps, Measurement& measurement, std::vector<Sequence>& sequences) {
    std::vector<float> logits(static_cast<size_t>(model_.config.vocab));
    std::vector<int32_t> prompt(static_cast<size_t>(depth));
    for (int64_t i = 0; i < executor_.options().max_batch; ++i) {
      ASSIGN_OR_RETURN(Sequence sequence, Sequence::Admit(executor_, std::max(depth + steps, kFewestTokens)));
      sequences.push_back(std::move(sequence));
    }
    executor_.instruments().AwaitPool();  // pinning time is reported separately
    for (size_t i = 0; i < sequences.size() && !Interrupted(); ++i) {
      for (int32_t& id : prompt) id = ids_.Next();
      if (synthetic_) {
        executor_.instruments().FillSynthetic(sequences[i].slot(), depth, static_cast<uint64_t>(i) + 1);
        continue;
      }
      const Clock::time_point start = Clock::now();
      const auto goes_on = [](int64_t, int64_t) { return !Interrupted(); };
      ASSIGN_OR_RETURN(const bool whole, sequences[i].Prefill(prompt, PrefillKind::kDense, goes_on));
      if (!whole) return Ok();
      sequences[i].Logits(depth - 1, 1, logits);
      sequences[i].EndPrefill();
      measurement.timing.AddPrefill(Seconds(start), depth);
    }
    return Ok();
  }

  void Decode(int64_t steps, Measurement& measurement, std::vector<StepItem>& items) {
    Timing& timing = measurement.timing;
    std::vector<float> logits(items.size() * static_cast<size_t>(model_.config.vocab));
    // A step that evicted cannot be repeated, so methods that evict have no warm-up, and their zones are measured
    // during the last steps instead of in repeated ones.
    const bool evicts = executor_.options().method.evicts();
    // The first steps on a GPU choose algorithms and record graphs, so they are not measured.
    if (steps > 0 && !evicts && executor_.options().device == Device::kCuda)
      for (int step = 0; step < kWarmSteps && !Interrupted(); ++step) executor_.Step(items, logits);
    const KvStats before = executor_.instruments().Stats();
    uint64_t bytes = 0;
    for (int64_t step = 0; step < steps && !Interrupted(); ++step) {
      if (evicts && step == std::max<int64_t>(0, steps - kTimedSteps)) executor_.instruments().TakeZones(true);
      for (StepItem& item : items) item.token = ids_.Next();
      const Clock::time_point start = Clock::now();
      executor_.Step(items, logits);
      timing.AddStep(Seconds(start), std::ssize(items));
      bytes += static_cast<uint64_t>(model_.weights.BytesPerStep());
      for (StepItem& item : items) bytes += static_cast<uint64_t>(++item.row) * before.sketch_row_bytes;
    }
    if (evicts) TakeZones(measurement, static_cast<int>(std::min<int64_t>(steps, kTimedSteps)));
    measurement.stats = executor_.instruments().Stats() - before;
    bytes += measurement.stats.read_bytes;
    if (!timing.step_ms.empty()) measurement.step_bytes = bytes / timing.step_ms.size();
  }

  // Repeats the last step a few times and measures its zones, which would slow the measured steps down.
  void TimeZones(Measurement& measurement, std::vector<StepItem>& items) {
    std::vector<float> logits(items.size() * static_cast<size_t>(model_.config.vocab));
    for (StepItem& item : items) --item.row;
    if (executor_.instruments().TakeZones(true).empty()) return;
    for (int step = 0; step < kTimedSteps && !Interrupted(); ++step) {
      for (StepItem& item : items) item.token = ids_.Next();
      executor_.Step(items, logits);
    }
    TakeZones(measurement, kTimedSteps);
    // Without computing, the queries never change, and a hot set would soon hold everything that they select.
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
    return Unsupported("--no-fetch, --no-compute: need --device cuda, because only a GPU fetches entries");
  Bench bench(model, executor, flags.fill == "synthetic", skips);
  RETURN_IF_ERROR(bench.WarmUp());
  for (const int64_t depth : depths) {
    Measurement all;
    for (int64_t run = 0; run < flags.repeat && !Interrupted(); ++run) {
      ASSIGN_OR_RETURN(Measurement measured, bench.Measure(depth, flags.gen, /*zones=*/run == 0));
      all.Add(std::move(measured));
    }
    if (Interrupted()) break;  // a measurement with missing repetitions is left out
    measurements.push_back(std::move(all));
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
    // Flags accepts the names of stored types only.
    const WeightType type = WeightTypeNamed(flags.weight_type.empty() ? flags.dtype : flags.weight_type).value();
    ASSIGN_OR_RETURN(model, RandomModel(flags.shape, type, device.threads));
  } else {
    ASSIGN_OR_RETURN(const std::string directory, FindModelHere(flags.model));
    ASSIGN_OR_RETURN(model, OpenModel(directory));
  }
  std::vector<int64_t> depths = flags.depths.empty() ? std::vector<int64_t>{flags.prompt} : flags.depths;
  for (int64_t& depth : depths) depth = std::max<int64_t>(depth, 1);
  const int64_t rows = std::max(*std::max_element(depths.begin(), depths.end()) + flags.gen, kFewestTokens);
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
  Flags flags("bench",
              "Measure prefill and decode speed. Every sequence is prefilled with random token ids, then all sequences "
              "decode together. Several --kv presets and --depth values can be compared in one run.");
  flags.Group("Model and machine");
  AddModelFlag(flags, &values.model);
  std::string shapes;
  for (const std::string_view name : ShapeNames()) shapes += fmt::format("{}{}", shapes.empty() ? "" : ", ", name);
  flags.Text("--shape", &values.shape, "NAME",
             "random weights in the shape of a published model, instead of --model: " + shapes);
  flags.Exclusive({"model", "shape"});
  flags.Choice("--dtype", &values.dtype, {"bf16", "f16", "f32"}, "type of the random weights of --shape");
  std::vector<std::string> types;
  for (const WeightFormat& format : kWeightFormats) types.emplace_back(format.name);
  flags.Choice(
      "--weight-type", &values.weight_type, types,
      "the same for every stored type; rows that are not whole blocks of it take the type that quantize gives them");
  flags.Exclusive({"dtype", "weight-type"});
  AddDeviceFlags(flags, &values.device);
  flags.Switch("--dry-run", &values.dry_run, "print the memory plan of each --kv preset and exit");
  AddKvFlags(flags, &values.kv, /*list=*/true);
  flags.Group("What is measured");
  flags.Integer("--batch", &values.batch, 1, 4096, "number of sequences, all run at once (default 1)");
  flags.Integer("--prompt", &values.prompt, 1, kMaxContext, "tokens of each prompt (default 512)");
  flags.Integer("--gen", &values.gen, 0, INT32_MAX, "decode steps to measure (default 32)");
  flags.Integer("--repeat", &values.repeat, 1, 10000,
                "repeat every measurement N times and report the deviation of the speeds (default 1)");
  const auto set_depths = [&](const std::string& text) {
    return ParseIntegerList(text, 0, kMaxContext, &values.depths);
  };
  flags.Custom("--depth", set_depths, "A,B",
               "tokens in the cache when decoding starts, one result for each depth; replaces --prompt");
  flags.Choice("--fill", &values.fill, {"prefill", "synthetic"},
               "how the cache is filled: prefill (computed), synthetic (random numbers, fast)");
  flags.Switch("--no-fetch", &values.no_fetch,
               "decode steps fetch no entries, to measure computing alone (the generated text is meaningless); needs "
               "--device cuda");
  flags.Switch("--no-compute", &values.no_compute,
               "decode steps only select and fetch entries, to measure fetching alone; needs --device cuda");
  flags.Group("Output");
  flags.Choice("--format", &values.format, {"md", "csv", "json"}, "output format: Markdown table, CSV or JSON");
  flags.Switch("--json", &values.json, "same as --format json");
  if (const std::optional<int> exit_code = flags.Parse(arguments)) return *exit_code;
  for (const char* flag : {"dtype", "weight-type"})
    if (flags.Given(flag) && values.shape.empty())
      return FailUsage("bench", fmt::format("--{} needs --shape: a model has the types of its file", flag));
  if (values.json) values.format = "json";
  InstallInterrupt();
  return Finish(RunAll(values));
}

}  // namespace infinigen
