#include "server/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace infinigen {
namespace {

// Bounds in seconds, the same as in vLLM, so that its dashboards work.
const std::vector<double> kFirstToken = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5,
                                         0.75,  1,     2.5,  5,    7.5,  10,   20,   40,  80,   160};
const std::vector<double> kGap = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15,
                                  0.2,   0.3,    0.4,   0.5,  0.75,  1,    2.5,   5,   10};
const std::vector<double> kWhole = {0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480};

void Head(const char* name, const char* type, const char* help, std::string* text) {
  *text += fmt::format("# HELP infinigen_{} {}\n# TYPE infinigen_{} {}\n", name, help, name, type);
}

void Value(const char* name, const char* type, const char* help, double value, std::string* text) {
  Head(name, type, help, text);
  *text += std::isnan(value) ? fmt::format("infinigen_{} NaN\n", name) : fmt::format("infinigen_{} {}\n", name, value);
}

}  // namespace

void Histogram::Observe(double value) {
  ++counts_[static_cast<size_t>(std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin())];
  sum_ += value;
}

void Histogram::Render(const char* name, const char* help, std::string* text) const {
  Head(name, "histogram", help, text);
  uint64_t count = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    count += counts_[i];
    const std::string bound = i < bounds_.size() ? fmt::format("{}", bounds_[i]) : "+Inf";
    *text += fmt::format("infinigen_{}_bucket{{le=\"{}\"}} {}\n", name, bound, count);
  }
  *text += fmt::format("infinigen_{}_sum {}\ninfinigen_{}_count {}\n", name, sum_, name, count);
}

Metrics::Metrics() : first_token_(kFirstToken), gap_(kGap), whole_(kWhole) {}

bool Metrics::TryEnter(int64_t count, int64_t limit) {
  const std::lock_guard lock(mutex_);
  if (inside_ + count > limit) return false;
  inside_ += count;
  return true;
}

void Metrics::Leave(int64_t count) {
  const std::lock_guard lock(mutex_);
  inside_ -= count;
}

void Metrics::Started(int64_t prompt_tokens, int64_t cached_tokens) {
  const std::lock_guard lock(mutex_);
  ++running_;
  prompt_tokens_ += static_cast<uint64_t>(prompt_tokens);
  cached_tokens_ += static_cast<uint64_t>(cached_tokens);
}

void Metrics::FirstToken(double seconds) {
  const std::lock_guard lock(mutex_);
  first_token_.Observe(seconds);
  ++generated_tokens_;
}

void Metrics::NextToken(double gap_seconds) {
  const std::lock_guard lock(mutex_);
  gap_.Observe(gap_seconds);
  ++generated_tokens_;
}

void Metrics::Finished(FinishReason reason, bool started, double seconds) {
  const std::lock_guard lock(mutex_);
  --inside_;
  if (started) --running_;
  const bool failed = reason == FinishReason::kCancelled || reason == FinishReason::kError;
  ++(failed ? failed_ : succeeded_)[std::string(Name(reason))];
  if (!failed) whole_.Observe(seconds);
}

void Metrics::Replied(int status) {
  const std::lock_guard lock(mutex_);
  ++replies_[status];
}

void Metrics::Update(EngineSnapshot snapshot) {
  const std::lock_guard lock(mutex_);
  engine_ = std::move(snapshot);
}

int64_t Metrics::running() const {
  const std::lock_guard lock(mutex_);
  return running_;
}

int64_t Metrics::waiting() const {
  const std::lock_guard lock(mutex_);
  return inside_ - running_;
}

std::string Metrics::Render(const HttpCounters& http, uint64_t dropped_log_lines) const {
  const std::lock_guard lock(mutex_);
  std::string text;
  const auto real = [](auto value) { return static_cast<double>(value); };
  Value("num_requests_running", "gauge", "Sequences whose prefill has begun, including preempted ones.", real(running_),
        &text);
  Value("num_requests_waiting", "gauge", "Sequences in the queue whose prefill has not begun.",
        real(inside_ - running_), &text);
  const double limit = real(engine_.pool_limit_bytes);
  Value("kv_cache_usage_perc", "gauge", "Share of the KV pool that running sequences hold; 1 is full.",
        limit > 0 ? real(engine_.pool_bytes) / limit : 0, &text);
  Value("prefix_cache_bytes", "gauge", "Entries and sketches of cached prefixes that no sequence uses now.",
        real(engine_.prefix_bytes), &text);
  Value("prefix_cache_limit_bytes", "gauge", "Limit of the prefix cache.", real(engine_.prefix_limit_bytes), &text);
  Value("num_preemptions_total", "counter", "Preemptions: sequences that released their entries for an older one.",
        real(engine_.preemptions), &text);
  Value("replayed_tokens_total", "counter", "Tokens computed again after a preemption.", real(engine_.replayed_tokens),
        &text);
  Value("prompt_tokens_total", "counter", "Prompt tokens of requests whose prefill has begun.", real(prompt_tokens_),
        &text);
  Value("prompt_tokens_cached_total", "counter", "Prompt tokens taken from the prefix cache.", real(cached_tokens_),
        &text);
  Value("prefilled_tokens_total", "counter", "Tokens that were prefilled, including repeats after preemptions.",
        real(engine_.prefilled_tokens), &text);
  Value("generation_tokens_total", "counter", "Generated tokens.", real(generated_tokens_), &text);
  first_token_.Render("time_to_first_token_seconds", "Time from a request's arrival to its first token.", &text);
  gap_.Render("inter_token_latency_seconds", "Time between two tokens of a sequence.", &text);
  whole_.Render("e2e_request_latency_seconds", "Time from a request's arrival to its last token.", &text);
  Head("request_success_total", "counter", "Sequences that finished, by finish reason.", &text);
  for (const auto& [reason, count] : succeeded_)
    text += fmt::format("infinigen_request_success_total{{finished_reason=\"{}\"}} {}\n", reason, count);
  Head("request_failures_total", "counter", "Sequences that failed or were cancelled, by reason.", &text);
  for (const auto& [reason, count] : failed_)
    text += fmt::format("infinigen_request_failures_total{{reason=\"{}\"}} {}\n", reason, count);
  Value("kv_fetched_bytes_total", "counter", "Bytes of KV entries that attention fetched or read from the pool.",
        real(engine_.kv.fetched_bytes), &text);
  const LayerKvStats selecting = engine_.kv.Selecting();
  const double unknown = std::numeric_limits<double>::quiet_NaN();
  Value("kv_selected_ratio", "gauge", "Share of the cache chosen by score, over all decode steps.",
        engine_.kv.layers.empty() ? 1.0 : selecting.selected_ratio(), &text);
  Value("kv_tail_mass", "gauge",
        "Estimated share of the attention outside selections, over all decode steps; NaN without a tail.",
        selecting.tail_mass.count > 0 ? MeanShare(selecting.tail_mass) : unknown, &text);
  Value("kv_hit_ratio", "gauge", "Share of selected entries found in the hot set; NaN if nothing is fetched.",
        engine_.kv.fetches ? engine_.kv.hit_ratio() : unknown, &text);
  Value("kv_fetch_stall_seconds_total", "counter",
        "Time that steps waited for fetched entries, summed over layers; 0 if nothing is fetched.",
        real(engine_.kv.stall_ns) * 1e-9, &text);
  Value("http_connections", "gauge", "Open connections.", real(http.connections), &text);
  Value("http_connections_refused_total", "counter", "Connections refused because the limit was reached.",
        real(http.refused), &text);
  Value("http_slow_readers_total", "counter", "Connections dropped because the client read too slowly.",
        real(http.dropped_slow), &text);
  Value("http_memory_bytes", "gauge", "Memory that requests hold: input, bodies, parse trees, replies.",
        real(http.memory_bytes), &text);
  Value("log_lines_dropped_total", "counter", "Lines of the log that were dropped because it was not read.",
        real(dropped_log_lines), &text);
  Head("http_replies_total", "counter", "Replies, by status.", &text);
  for (const auto& [status, count] : replies_)
    text += fmt::format("infinigen_http_replies_total{{code=\"{}\"}} {}\n", status, count);
  return text;
}

}  // namespace infinigen
