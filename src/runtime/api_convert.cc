#include "runtime/api_convert.h"

#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "runtime/report.h"

namespace infinigen::v1 {

infinigen::Callbacks Inner(const Callbacks& outer) {
  infinigen::Callbacks inner{.on_warning = outer.on_warning, .on_notice = outer.on_notice};
  if (outer.on_progress)
    inner.on_progress = [show = outer.on_progress](const WorkProgress& progress) {
      show(progress.done, progress.total);
    };
  inner.cancelled = outer.cancelled;
  return inner;
}

TokenLogprobs LogprobsOf(const infinigen::TokenLogprobs& given) {
  TokenLogprobs result{.chosen = {given.chosen.token, given.chosen.logprob}, .top = {}};
  for (const infinigen::TokenLogprob& one : given.top) result.top.push_back({one.token, one.logprob});
  return result;
}

KvStatistics StatisticsOf(const KvStats& stats) {
  const LayerKvStats selecting = stats.Selecting(), all = stats.All();
  KvStatistics result{.steps = stats.steps,
                      .selected_ratio = selecting.selected_ratio(),
                      .extra_ratio = selecting.extra_ratio(),
                      .attended_ratio = all.attended_ratio(),
                      .read_bytes = stats.read_bytes,
                      .fetched_bytes = stats.fetched_bytes,
                      .evicted = stats.evicted};
  if (stats.fetches) result.hit_ratio = stats.hit_ratio();
  return result;
}

SamplingOptions SamplingOf(const Request& request) {
  const Sampling& sampling = request.sampling;
  using Bias = std::vector<std::pair<int32_t, float>>;
  return {.temperature = sampling.temperature,
          .top_k = sampling.top_k,
          .top_p = sampling.top_p,
          .min_p = sampling.min_p,
          .repeat_penalty = sampling.repeat_penalty,
          .repeat_window = sampling.repeat_window,
          .presence_penalty = sampling.presence_penalty,
          .frequency_penalty = sampling.frequency_penalty,
          .logit_bias = request.logit_bias.empty() ? nullptr : std::make_shared<const Bias>(request.logit_bias),
          .top_logprobs = request.top_logprobs,
          .seed = sampling.seed ? *sampling.seed : std::random_device()()};
}

namespace {

void CheckSampling(const Sampling& s) {
  const auto refuse = [](const char* what) { Throw(Invalid("sampling: {}", what)); };
  if (!(s.temperature >= 0 && s.temperature <= 1000)) refuse("temperature must be between 0 and 1000");
  if (s.top_k < 0) refuse("top_k must not be negative");
  if (!(s.top_p > 0 && s.top_p <= 1)) refuse("top_p must be above 0 and at most 1");
  if (!(s.min_p >= 0 && s.min_p <= 1)) refuse("min_p must be between 0 and 1");
  if (!(s.repeat_penalty > 0 && s.repeat_penalty <= 1000)) refuse("repeat_penalty must be above 0 and at most 1000");
  if (s.repeat_window < 0) refuse("repeat_window must not be negative");
  for (const float penalty : {s.presence_penalty, s.frequency_penalty})
    if (!(penalty >= -1000 && penalty <= 1000))
      refuse("presence_penalty and frequency_penalty must be between -1000 and 1000");
}

void CheckBias(const std::vector<std::pair<int32_t, float>>& biases, int64_t vocabulary) {
  std::set<int32_t> seen;
  for (const auto& [token, bias] : biases) {
    if (token < 0 || token >= vocabulary)
      Throw(Invalid("logit_bias: token {} is outside the vocabulary of {} tokens", token, vocabulary));
    if (!(bias >= -1000 && bias <= 1000)) Throw(Invalid("logit_bias: {} is not between -1000 and 1000", bias));
    if (!seen.insert(token).second) Throw(Invalid("logit_bias: token {} appears twice", token));
  }
}

}  // namespace

void CheckRequest(const Request& request, const infinigen::Model& model, const KvMethod& method) {
  CheckSampling(request.sampling);
  if (request.max_tokens < 0) Throw(Invalid("max_tokens is {}, it must not be negative", request.max_tokens));
  if (model.tokenizer == nullptr && !request.stop.empty())
    Throw(Invalid("stop strings need a tokenizer, and this model has none"));
  if (request.prompt.empty() && request.tokens.empty()) Throw(Invalid("the request has neither prompt nor tokens"));
  const int64_t vocabulary = model.config.vocab;
  if (request.top_logprobs > vocabulary)
    Throw(Invalid("top_logprobs is {}, but the vocabulary has {} tokens", request.top_logprobs, vocabulary));
  CheckBias(request.logit_bias, vocabulary);
  if (request.keep_kv_map && method.evicts())
    Throw(Unsupported("kv {} evicts entries, so that a row is no position: there is no map", method.preset));
}

Plan PlanOf(const ModelConfig& config, const RunPlan& plan) {
  const MemoryPlan& parts = plan.parts;
  const uint64_t prefix = plan.extra_prefix_bytes();
  return {.fits = plan.refusal.empty(),
          .refusal = plan.refusal,
          .text = DescribePlan(config, plan),
          .context = plan.options.max_tokens,
          .batch = plan.options.max_batch,
          .largest_context = plan.largest_context,
          .weights_bytes = parts.weights_bytes,
          .pool_bytes = parts.pool_bytes,
          .sketch_bytes = parts.sketch_bytes,
          .hot_bytes = parts.hot_bytes,
          .workspace_bytes = parts.workspace_bytes,
          .prefill_bytes = parts.prefill_bytes,
          .total_bytes = parts.total_bytes() + prefix,
          .host_bytes = parts.host_bytes() + (parts.pool_on_device ? 0 : prefix),
          .device_bytes = parts.device_bytes() + (parts.pool_on_device ? prefix : 0),
          .available_bytes = plan.available_bytes,
          .prefix_bytes = prefix};
}

}  // namespace infinigen::v1
