#include "engine/logprobs.h"

#include <algorithm>
#include <cmath>

namespace infinigen {

double LogSum(std::span<const float> logits) {
  double top = -INFINITY;
  for (const float logit : logits)
    if (std::isfinite(logit)) top = std::max(top, static_cast<double>(logit));
  double sum = 0;
  for (const float logit : logits)
    if (std::isfinite(logit)) sum += std::exp(logit - top);
  return top + std::log(sum);
}

// `count` is small: an insertion into a sorted list is rarer the longer the list has been filled.
void TopLogprobs(std::span<const float> logits, double log_sum, int32_t count, std::vector<TokenLogprob>* top) {
  top->clear();
  const size_t most = static_cast<size_t>(std::max(count, 0));
  if (most == 0) return;
  for (size_t i = 0; i < logits.size(); ++i) {
    const float logit = logits[i];
    if (!std::isfinite(logit) || (top->size() == most && logit <= top->back().logprob)) continue;
    if (top->size() == most) top->pop_back();
    const auto place = std::find_if(top->begin(), top->end(), [&](const auto& each) { return each.logprob < logit; });
    top->insert(place, {static_cast<int32_t>(i), logit});
  }
  for (TokenLogprob& each : *top) each.logprob = static_cast<float>(each.logprob - log_sum);
}

TokenLogprobs LogprobsOf(std::span<const float> logits, int32_t token, int32_t count) {
  TokenLogprobs values;
  const double log_sum = LogSum(logits);
  values.chosen = {token, static_cast<float>(logits[static_cast<size_t>(token)] - log_sum)};
  TopLogprobs(logits, log_sum, count, &values.top);
  return values;
}

}  // namespace infinigen
