// `infinigen generate`: prompts in, text out.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/flags.h"
#include "cli/options.h"
#include "cli/prompts.h"
#include "runtime/generation.h"
#include "runtime/launch.h"
#include "runtime/model.h"
#include "runtime/plan.h"
#include "runtime/report.h"

namespace infinigen {
namespace {

struct GenerateFlags {
  std::string model;
  PromptFlags prompts;
  DeviceRequest device;
  KvFlags kv;
  SamplingFlags sampling;
  int64_t predict = 256;
  int64_t context = 0;  // 0: not given
  int64_t batch = 0;    // 0: not given
  std::vector<std::string> stops;
  bool ignore_eos = false;
  bool dry_run = false;
  bool json = false;
};

void AddFlags(Flags& flags, GenerateFlags* values) {
  flags.Group("Prompt (at most one of these; default: standard input)");
  AddTextFlags(flags, &values->prompts);
  AddTokenFlags(flags, &values->prompts);
  flags.Exclusive({"prompt", "file", "prompt-ids", "prompts"});
  flags.Group("Model and machine");
  AddModelFlag(flags, &values->model);
  AddDeviceFlags(flags, &values->device);
  flags.Integer(
      "-c,--ctx", &values->context, 1, kMaxContext,
      "context: tokens of prompt and generated text together; memory is planned for all of them (default: the model's "
      "context, with memory only for the tokens that can occur)");
  flags.Integer("--batch", &values->batch, 1, 4096, "run at most N prompts at once (default: all, up to 8)");
  flags.Switch("--dry-run", &values->dry_run, "print the memory plan and exit; standard input is not read");
  AddKvFlags(flags, &values->kv, /*list=*/false);
  AddSamplingFlags(flags, &values->sampling);
  flags.Group("Output");
  flags.Integer("-n,--predict", &values->predict, -1, INT32_MAX,
                "tokens to generate; -1: until the model ends the text or the context is full (default 256)");
  flags.TextList("--stop", &values->stops, "TEXT", "stop before this text; repeatable");
  flags.Switch("--ignore-eos", &values->ignore_eos, "do not stop when the model ends the text");
  flags.Switch("--json", &values->json, "print one JSON object instead of text");
}

// ---- from prompts to jobs ----

std::string Place(const GenerateFlags& flags, const PromptSpec& prompt) {
  return prompt.line > 0 ? fmt::format("{}:{}: ", flags.prompts.lines_file, prompt.line) : std::string();
}

Result<std::vector<int32_t>> Encode(const Model& model, const PromptSpec& prompt) {
  if (prompt.has_ids) return prompt.ids;
  if (model.tokenizer == nullptr)
    return Invalid("{}: the model has no tokenizer; pass --prompt-ids", model.config.name);
  return model.tokenizer->Encode(prompt.text);
}

Status CheckPrompt(const ModelConfig& config, const std::vector<int32_t>& ids, int64_t context) {
  if (ids.empty()) return Invalid("the prompt has no tokens");
  if (static_cast<int64_t>(ids.size()) > context)
    return Invalid("the prompt has {} tokens, but the context holds {}; shorten it{}", ids.size(), context,
                   context < config.max_positions ? " or raise --ctx" : "");
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= config.vocab)
      return Invalid("token {} of the prompt has the id {}, but the model's vocabulary ends at {}", i, ids[i],
                     config.vocab - 1);
  return Ok();
}

Result<std::vector<Job>> MakeJobs(const GenerateFlags& flags, const SamplingOptions& sampling, const Model& model,
                                  const std::vector<PromptSpec>& prompts, int64_t context) {
  std::vector<Job> jobs;
  jobs.reserve(prompts.size());
  for (const PromptSpec& prompt : prompts) {
    const auto named = [&](const Error& error) { return Error{error.kind, Place(flags, prompt) + error.message}; };
    Result<std::vector<int32_t>> ids = Encode(model, prompt);
    if (!ids.ok()) return named(ids.error());
    if (Status fits = CheckPrompt(model.config, *ids, context); !fits.ok()) return named(fits.error());
    Job& job = jobs.emplace_back();
    job.prompt = std::move(*ids);
    const int64_t n = prompt.n.value_or(flags.predict);
    job.max_new_tokens = n >= 0 ? n : INT32_MAX;
    job.sampling = sampling;
    if (prompt.seed) job.sampling.seed = *prompt.seed;
  }
  return jobs;
}

// Rows of the longest job. The last generated token needs no row, because no step attends to it.
int64_t RowsNeeded(const std::vector<Job>& jobs, int64_t context) {
  int64_t rows = 1;
  for (const Job& job : jobs)
    rows = std::max(rows, static_cast<int64_t>(job.prompt.size()) + std::max<int64_t>(job.max_new_tokens - 1, 0));
  return std::min(rows, context);
}

// ---- output ----

// Prints the text of a single prompt as it is generated; the texts of many prompts whole and in order.
class TextPrinter {
 public:
  TextPrinter(const GenerateFlags& flags, const std::vector<PromptSpec>& prompts, Output& output)
      : output_(output), many_(!flags.prompts.lines_file.empty()), pieces_(prompts.size()), done_(prompts.size()) {}

  bool OnText(size_t job, std::string_view text) {
    if (many_)
      pieces_[job] += text;
    else
      output_.Write(text);
    return Listening();
  }
  bool OnDone(size_t job) {
    done_[job] = true;
    while (next_ < done_.size() && done_[next_]) {
      if (many_) output_.Write(fmt::format("==> prompt {} <==\n{}", next_ + 1, pieces_[next_]));
      pieces_[next_].clear();
      output_.Write("\n");
      ++next_;
    }
    return Listening();
  }

 private:
  bool Listening() const { return !output_.closed() && output_.status().ok(); }

  Output& output_;
  const bool many_;
  std::vector<std::string> pieces_;
  std::vector<bool> done_;
  size_t next_ = 0;  // first job that is not printed yet
};

nlohmann::ordered_json OutcomeJson(const Job& job, const Outcome& outcome) {
  return {{"prompt_tokens", job.prompt.size()}, {"prompt_ids", job.prompt}, {"generated_tokens", outcome.tokens.size()},
          {"tokens", outcome.tokens},           {"text", outcome.text},     {"finish_reason", Name(outcome.reason)},
          {"seed", job.sampling.seed}};
}

nlohmann::ordered_json ResultJson(const GenerateFlags& flags, const Model& model, Executor& executor,
                                  const std::vector<Job>& jobs, const GenerationResult& result, const KvStats& stats) {
  nlohmann::ordered_json json = {
      {"model", ModelJson(model)}, {"device", DeviceJson(executor)}, {"kv", KvJson(executor.options())}};
  if (flags.prompts.lines_file.empty()) {
    json.update(OutcomeJson(jobs[0], result.outcomes[0]));
  } else {
    nlohmann::ordered_json& list = json["results"] = nlohmann::ordered_json::array();
    for (size_t i = 0; i < jobs.size(); ++i) {
      nlohmann::ordered_json entry = OutcomeJson(jobs[i], result.outcomes[i]);
      entry["timing"] = TimingJson(result.outcomes[i].timing);
      list.push_back(std::move(entry));
    }
  }
  json["timing"] = TimingJson(result.timing);
  json["kv_stats"] = KvStatsJson(result.pool, stats, {flags.kv.stats_per_layer, flags.kv.request.measure_mass});
  json["memory"] = MemoryJson(executor.instruments().device_use());
  return json;
}

// ---- the command ----

// Runs the jobs and prints the results as text or JSON.
Result<int> RunJobs(const GenerateFlags& flags, const Model& model, Executor& executor, const std::vector<Job>& jobs,
                    const std::vector<PromptSpec>& prompts, Terminal& terminal) {
  Output output;
  TextPrinter printer(flags, prompts, output);
  GenerationOptions options{.tokenizer = model.tokenizer.get(),
                            .stops = flags.stops,
                            .ignore_eos = flags.ignore_eos,
                            .callbacks = terminal.callbacks()};
  if (!flags.json) {
    options.on_text = [&](size_t job, std::string_view text) {
      terminal.Erase();
      return printer.OnText(job, text);
    };
    options.on_done = [&](size_t job, const Outcome&) {
      terminal.Erase();
      return printer.OnDone(job);
    };
  }
  GenerationResult result = RunGeneration(executor, jobs, options);
  terminal.Erase();
  result.timing.load_s = model.load_s;
  for (size_t i = 0; i < jobs.size(); ++i)
    if (result.outcomes[i].reason == FinishReason::kError)
      return Invalid("{}{}", Place(flags, prompts[i]), result.outcomes[i].error);
  const KvStats stats = executor.instruments().Stats();
  if (flags.json) output.Write(Dump(ResultJson(flags, model, executor, jobs, result, stats)));
  RETURN_IF_ERROR(output.status());
  if (output.closed()) return kExitOk;  // the pipe's reader is gone
  int64_t generated = 0;
  for (const Outcome& outcome : result.outcomes) generated += static_cast<int64_t>(outcome.tokens.size());
  if (!flags.json)
    PrintStderr("{}{}", StatisticsLines(result.timing, generated, result.pool, stats, executor.options()),
                flags.kv.stats_per_layer ? LayerTable(stats) : "");
  return result.interrupted ? kExitInterrupted : kExitOk;
}

Result<int> Generate(const GenerateFlags& flags, bool has_prompt) {
  ASSIGN_OR_RETURN(const DeviceChoice device, ChooseDevice(flags.device));
  ASSIGN_OR_RETURN(const KvRequest kv, OneKvRequest(flags.kv));
  ASSIGN_OR_RETURN(const std::string directory, FindModelHere(flags.model));
  const SamplingOptions sampling = ResolveSampling(flags.sampling);
  std::vector<PromptSpec> prompts;
  if (has_prompt) {
    ASSIGN_OR_RETURN(prompts, ReadPrompts(flags.prompts));
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, OpenModel(directory));
  if (model->tokenizer == nullptr && !flags.stops.empty())
    return Invalid("--stop: needs a tokenizer, and {} has none", model->config.name);
  ASSIGN_OR_RETURN(const int64_t context, ChooseContext(model->config, flags.context));
  ASSIGN_OR_RETURN(const std::vector<Job> jobs, MakeJobs(flags, sampling, *model, prompts, context));

  const bool whole_context = flags.context > 0 || jobs.empty();
  // A batch larger than the number of prompts would not be used.
  const int64_t useful = jobs.empty() ? std::max<int64_t>(flags.batch, 1) : static_cast<int64_t>(jobs.size());
  ASSIGN_OR_RETURN(const RunPlan plan,
                   PlanRun(*model, {.device = device,
                                    .kv = kv,
                                    .max_tokens = whole_context ? context : RowsNeeded(jobs, context),
                                    .useful_batch = useful,
                                    .batch = flags.batch}));
  if (flags.dry_run) return PrintPlans(*model, {&plan, 1}, flags.json);
  if (!plan.refusal.empty()) return Exhausted("{}", plan.refusal);
  if (context > model->config.max_positions)
    Warn(fmt::format("--ctx {} exceeds the {} tokens that {} was trained for", context, model->config.max_positions,
                     model->config.name));
  Terminal terminal;
  ASSIGN_OR_RETURN(const std::unique_ptr<Executor> executor, Launch(*model, plan, terminal.callbacks()));
  return RunJobs(flags, *model, *executor, jobs, prompts, terminal);
}

}  // namespace

int RunGenerate(Arguments arguments) {
  GenerateFlags values;
  Flags flags("generate",
              "Generate text from a prompt. The text is streamed to standard output; statistics go to stderr.");
  AddFlags(flags, &values);
  if (const std::optional<int> exit_code = flags.Parse(arguments)) return *exit_code;
  const bool terminal = ::isatty(STDIN_FILENO) == 1;
  if (!values.prompts.any() && terminal && !values.dry_run)
    return FailUsage("generate", "a prompt is missing; pass -p, -f, --prompt-ids or --prompts, or pipe text in");
  InstallInterrupt();
  return Finish(Generate(values, values.prompts.any() || !values.dry_run));
}

}  // namespace infinigen
