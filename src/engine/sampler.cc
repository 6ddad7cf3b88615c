#include "engine/sampler.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "engine/logprobs.h"

namespace infinigen {

Sampler::Sampler(const SamplingOptions& options, int64_t vocab)
    : options_(options), vocab_(vocab), generator_(options.seed) {
  CHECK(options.temperature >= 0 && options.top_k >= 0 && options.top_p > 0 && options.min_p >= 0 &&
        options.repeat_penalty > 0 && options.repeat_window >= 0);
  if (options.logit_bias == nullptr) return;
  for (const auto& [token, bias] : *options.logit_bias) CHECK(token >= 0 && token < vocab && std::isfinite(bias));
}

void Sampler::TakeMemory() {
  const size_t vocab = static_cast<size_t>(vocab_);
  if (options_.temperature > 0 && weights_.empty()) weights_.resize(vocab);
  if (options_.temperature > 0 && candidates_.empty()) candidates_.resize(vocab);
  if ((options_.presence_penalty != 0 || options_.frequency_penalty != 0) && counts_.empty()) counts_.resize(vocab);
  if (options_.top_logprobs >= 0 && plain_.empty()) {
    plain_.resize(vocab);
    logprobs_.top.reserve(std::min(vocab, static_cast<size_t>(options_.top_logprobs)));
  }
}

std::optional<int32_t> Sampler::Sample(std::span<float> logits, std::span<const int32_t> history,
                                       std::span<const int32_t> generated, std::span<const uint32_t> mask) {
  CHECK(static_cast<int64_t>(logits.size()) <= vocab_ && (mask.empty() || mask.size() * 32 >= logits.size()));
  TakeMemory();
  if (options_.top_logprobs >= 0) KeepLogprobs(logits);
  if (!mask.empty())
    for (size_t i = 0; i < logits.size(); ++i)
      if ((mask[i / 32] >> (i % 32) & 1) == 0) logits[i] = -INFINITY;
  if (options_.logit_bias != nullptr)
    for (const auto& [token, bias] : *options_.logit_bias)
      if (static_cast<size_t>(token) < logits.size()) logits[static_cast<size_t>(token)] += bias;
  Penalise(logits, history);
  PenaliseGenerated(logits, generated);
  const std::optional<int32_t> token = Choose(logits);
  if (token && options_.top_logprobs >= 0)
    logprobs_.chosen = {*token, static_cast<float>(plain_[static_cast<size_t>(*token)] - log_sum_)};
  return token;
}

std::optional<int32_t> Sampler::Choose(std::span<float> logits) {
  // NaN and infinities are never chosen.
  const auto usable = [](float logit) { return std::isfinite(logit); };
  if (options_.temperature == 0) {
    std::optional<int32_t> best;
    for (size_t i = 0; i < logits.size(); ++i)
      if (usable(logits[i]) && (!best || logits[i] > logits[static_cast<size_t>(*best)]))
        best = static_cast<int32_t>(i);
    return best;
  }

  size_t count = 0;
  for (size_t i = 0; i < logits.size(); ++i)
    if (usable(logits[i])) candidates_[count++] = {logits[i], static_cast<int32_t>(i)};
  if (count == 0) return std::nullopt;
  const size_t keep = options_.top_k > 0 ? std::min(count, static_cast<size_t>(options_.top_k)) : count;
  SortTop(count, keep);
  return Draw({candidates_.data(), keep});
}

void Sampler::SortTop(size_t count, size_t keep) {
  const auto more_likely = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  };
  std::partial_sort(candidates_.begin(), candidates_.begin() + static_cast<ptrdiff_t>(keep),
                    candidates_.begin() + static_cast<ptrdiff_t>(count), more_likely);
}

void Sampler::KeepLogprobs(std::span<const float> logits) {
  std::copy(logits.begin(), logits.end(), plain_.begin());
  log_sum_ = LogSum(logits);
  TopLogprobs(logits, log_sum_, options_.top_logprobs, &logprobs_.top);
}

void Sampler::PenaliseGenerated(std::span<float> logits, std::span<const int32_t> generated) {
  if (counts_.empty()) return;
  CHECK(counted_ <= generated.size());
  for (; counted_ < generated.size(); ++counted_) ++counts_[static_cast<size_t>(generated[counted_])];
  for (size_t i = 0; i < logits.size(); ++i)
    if (counts_[i] > 0)
      logits[i] -= options_.presence_penalty + options_.frequency_penalty * static_cast<float>(counts_[i]);
}

void Sampler::Penalise(std::span<float> logits, std::span<const int32_t> history) {
  if (options_.repeat_penalty == 1.0f) return;
  const size_t window = std::min(history.size(), static_cast<size_t>(options_.repeat_window));
  const std::span<const int32_t> recent = history.last(window);
  for (size_t i = 0; i < recent.size(); ++i) {
    // Once per distinct token, however often it occurs.
    if (std::find(recent.begin(), recent.begin() + static_cast<ptrdiff_t>(i), recent[i]) !=
        recent.begin() + static_cast<ptrdiff_t>(i))
      continue;
    float& logit = logits[static_cast<size_t>(recent[i])];
    logit = logit > 0 ? logit / options_.repeat_penalty : logit * options_.repeat_penalty;
  }
}

// `candidates` in descending order of logit, not empty.
int32_t Sampler::Draw(std::span<const Candidate> candidates) {
  // Top-p and min-p use the probabilities before temperature, so that a higher temperature admits no further tokens.
  const double top = candidates[0].logit;
  double total = 0;
  for (size_t i = 0; i < candidates.size(); ++i) total += weights_[i] = std::exp(candidates[i].logit - top);
  size_t count = 0;
  double covered = 0;
  while (count < candidates.size()) {
    if (count > 0 && (covered >= options_.top_p * total || weights_[count] < options_.min_p)) break;
    covered += weights_[count++];
  }
  total = 0;
  for (size_t i = 0; i < count; ++i)
    total += weights_[i] = std::exp((candidates[i].logit - top) / static_cast<double>(options_.temperature));
  double left = NextUniform() * total;
  for (size_t i = 0; i < count; ++i) {
    left -= weights_[i];
    if (left < 0) return candidates[i].token;
  }
  return candidates[count - 1].token;
}

// SplitMix64: one multiplication chain per number, full period, and every seed is a good seed.
double Sampler::NextUniform() {
  uint64_t z = generator_ += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1p-53;
}

}  // namespace infinigen
