#include "runtime/generation.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "engine/engine.h"
#include "runtime/clock.h"
#include "text/text_stream.h"

namespace infinigen {
namespace {

class Run {
 public:
  Run(Engine& engine, const std::vector<Job>& jobs, const GenerationOptions& options)
      : executor_(engine.executor()), jobs_(jobs), options_(options), engine_(engine) {
    result_.outcomes.resize(jobs.size());
  }

  GenerationResult Go() && {
    bool busy = true;
    while (busy || next_ < jobs_.size()) {
      if (!ending_ && options_.callbacks.Cancelled()) {
        result_.interrupted = true;
        ending_ = true;
      }
      if (ending_) {
        engine_.CancelAll();
        next_ = jobs_.size();
      }
      SubmitSome();
      const uint64_t pool_bytes = executor_.instruments().pool_bytes();
      if (pool_bytes > 0) result_.pool.bytes = pool_bytes;
      busy = engine_.RunOnce();
    }
    result_.pool.bytes = std::max(result_.pool.bytes, executor_.instruments().pool_bytes());
    result_.pool.peak_bytes = executor_.instruments().pool_peak_bytes();
    if (result_.pool.bytes == 0) result_.pool.bytes = result_.pool.peak_bytes;  // everything happened in one turn
    const EngineStats& stats = engine_.stats();
    result_.timing = {.load_s = 0,
                      .prefill_tokens = stats.prefill_tokens,
                      .prefill_s = stats.prefill_s,
                      .decode_tokens = stats.decode_tokens,
                      .decode_s = stats.decode_s,
                      .step_ms = stats.step_ms};
    return std::move(result_);
  }

 private:
  struct Live {
    TextStream stream;
    Clock::time_point last_token;
  };

  // A request holds sampling memory of the size of the vocabulary, so none is in the engine before it can run.
  void SubmitSome() {
    const size_t most = static_cast<size_t>(executor_.options().max_batch);
    while (next_ < jobs_.size() && submitted_ - done_ < most) Submit(next_++);
  }

  void Submit(size_t index) {
    const Job& job = jobs_[index];
    ++submitted_;
    auto live = std::make_shared<Live>(Live{TextStream(options_.tokenizer, options_.stops), {}});
    Request request{.prompt = job.prompt,
                    .max_new_tokens = job.max_new_tokens,
                    .sampling = job.sampling,
                    .ignore_eos = options_.ignore_eos,
                    .hold_rows = options_.hold_rows,
                    .on_token = [this, index, live](RequestId, int32_t token) { return OnToken(index, *live, token); },
                    .on_prefill =
                        [this](RequestId, const PrefillProgress& progress) {
                          options_.callbacks.Progress({.kind = WorkKind::kPrefill,
                                                       .done = progress.units_done,
                                                       .total = progress.units,
                                                       .tokens = progress.tokens});
                        },
                    .on_done = [this, index, live](RequestId, const RequestResult& r) { OnDone(index, *live, r); }};
    if (Result<RequestId> id = engine_.Submit(std::move(request)); !id.ok()) {
      result_.outcomes[index].reason = FinishReason::kError;
      result_.outcomes[index].error = id.error().message;
      ++done_;
      ending_ = true;
    }
  }

  bool OnToken(size_t index, Live& live, int32_t token) {
    Outcome& outcome = result_.outcomes[index];
    const Clock::time_point now = Clock::now();
    if (!outcome.tokens.empty())
      outcome.timing.step_ms.push_back(std::chrono::duration<float, std::milli>(now - live.last_token).count());
    live.last_token = now;
    outcome.tokens.push_back(token);
    // The last turn gives the rows back before it is over.
    result_.pool.bytes = std::max(result_.pool.bytes, executor_.instruments().pool_bytes());
    Show(index, live.stream.Push(token));
    return !ending_ && !live.stream.stopped();
  }

  void OnDone(size_t index, Live& live, const RequestResult& done) {
    Outcome& outcome = result_.outcomes[index];
    Show(index, live.stream.Finish());
    outcome.reason = done.reason;
    outcome.error = done.error;
    outcome.timing.prefill_s = done.prefill_s;
    outcome.reused_tokens = done.reused_tokens;
    const int64_t computed = static_cast<int64_t>(jobs_[index].prompt.size()) - done.reused_tokens;
    outcome.timing.prefill_tokens = done.prefill_s > 0 ? computed : 0;
    outcome.timing.decode_s = done.decode_s;
    outcome.timing.decode_tokens = static_cast<int64_t>(outcome.timing.step_ms.size());
    ++done_;
    if (options_.on_done && !options_.on_done(index, outcome)) ending_ = true;
    if (done.reason == FinishReason::kError) ending_ = true;
  }

  void Show(size_t index, const std::string& text) {
    if (text.empty()) return;
    if (options_.tokenizer != nullptr) result_.outcomes[index].text += text;
    if (!options_.on_text) return;
    if (!options_.on_text(index, text)) ending_ = true;
  }

  Executor& executor_;
  const std::vector<Job>& jobs_;
  const GenerationOptions& options_;
  Engine& engine_;
  GenerationResult result_;
  size_t next_ = 0;  // first job that was not submitted
  size_t submitted_ = 0;
  size_t done_ = 0;
  bool ending_ = false;
};

}  // namespace

GenerationResult RunGeneration(Executor& executor, const std::vector<Job>& jobs, const GenerationOptions& options) {
  Engine engine(executor);
  return RunGeneration(engine, jobs, options);
}

GenerationResult RunGeneration(Engine& engine, const std::vector<Job>& jobs, const GenerationOptions& options) {
  return Run(engine, jobs, options).Go();
}

}  // namespace infinigen
