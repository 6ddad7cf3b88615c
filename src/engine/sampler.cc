#include "engine/sampler.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace infinigen {

Sampler::Sampler(const SamplingOptions& options, int64_t vocab) : options_(options), generator_(options.seed) {
  CHECK(options.temperature >= 0 && options.top_k >= 0 && options.top_p > 0 && options.min_p >= 0 &&
        options.repeat_penalty > 0 && options.repeat_window >= 0);
  if (options.temperature > 0) {
    candidates_.resize(static_cast<size_t>(vocab));
    weights_.resize(static_cast<size_t>(vocab));
  }
}

std::optional<int32_t> Sampler::Sample(std::span<float> logits, std::span<const int32_t> history) {
  Penalise(logits, history);
  // NaN compares false with everything, so it is never chosen; neither is an infinity, whatever its sign.
  const auto usable = [](float logit) { return std::isfinite(logit); };
  if (options_.temperature == 0) {
    std::optional<int32_t> best;
    for (size_t i = 0; i < logits.size(); ++i)
      if (usable(logits[i]) && (!best || logits[i] > logits[static_cast<size_t>(*best)]))
        best = static_cast<int32_t>(i);
    return best;
  }

  CHECK(logits.size() <= candidates_.size());
  size_t count = 0;
  for (size_t i = 0; i < logits.size(); ++i)
    if (usable(logits[i])) candidates_[count++] = {logits[i], static_cast<int32_t>(i)};
  if (count == 0) return std::nullopt;
  const auto more_likely = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  };
  const size_t keep = options_.top_k > 0 ? std::min(count, static_cast<size_t>(options_.top_k)) : count;
  std::partial_sort(candidates_.begin(), candidates_.begin() + static_cast<ptrdiff_t>(keep),
                    candidates_.begin() + static_cast<ptrdiff_t>(count), more_likely);
  return Draw({candidates_.data(), keep});
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
  // Top-p and min-p look at the probabilities before the temperature, so that raising it does not let in what they shut
  // out.
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
