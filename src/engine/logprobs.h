// Natural logarithms of probabilities, from logits. Numbers that are not finite count as impossible. Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/request.h"

namespace infinigen {

// Log of the sum of the logits' exponentials: a logit less this is the log of its probability.
double LogSum(std::span<const float> logits);

// Replaces *top by the `count` most likely tokens, most likely first, the smaller id of equals first.
void TopLogprobs(std::span<const float> logits, double log_sum, int32_t count, std::vector<TokenLogprob>* top);

// Logprobs of `token` and of the `count` most likely. Precondition: 0 <= token < logits.size().
TokenLogprobs LogprobsOf(std::span<const float> logits, int32_t token, int32_t count);

}  // namespace infinigen
