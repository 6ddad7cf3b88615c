// Sampler: chooses a token from logits. Each request has its own with its own random generator, so that a seed gives
// the same text whatever other requests run. Order: mask, logit bias, penalties, top-k, top-p, min-p, temperature; ties
// go to the smaller id.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/request.h"

namespace infinigen {

class Sampler {
 public:
  // `vocab` is the largest number of logits. The first Sample allocates memory of that size, so that a queued request
  // holds none; later calls allocate nothing.
  Sampler(const SamplingOptions& options, int64_t vocab);

  // The next token. `logits` is modified (bias and penalties). `history` is prompt and generated tokens, of which the
  // last repeat_window are used; `generated` is the generated part, for presence and frequency penalty. nullopt when no
  // logit is finite, which means that the model is broken. `mask`: as TokenConstraint::Fill writes it, tokens that may
  // be drawn; empty: all.
  std::optional<int32_t> Sample(std::span<float> logits, std::span<const int32_t> history,
                                std::span<const int32_t> generated = {}, std::span<const uint32_t> mask = {});

  // Log probabilities for the last token; null unless SamplingOptions::top_logprobs >= 0.
  const TokenLogprobs* logprobs() const { return options_.top_logprobs >= 0 ? &logprobs_ : nullptr; }

 private:
  struct Candidate {
    float logit;
    int32_t token;
  };

  void TakeMemory();
  std::optional<int32_t> Choose(std::span<float> logits);
  void Penalise(std::span<float> logits, std::span<const int32_t> history);
  void PenaliseGenerated(std::span<float> logits, std::span<const int32_t> generated);
  // Stores logits and top log probabilities before anything is changed; Sample adds the chosen token.
  void KeepLogprobs(std::span<const float> logits);
  // Moves the `keep` best of the first `count` candidates to the front, sorted.
  void SortTop(size_t count, size_t keep);
  int32_t Draw(std::span<const Candidate> candidates);
  double NextUniform();  // [0, 1)

  SamplingOptions options_;
  int64_t vocab_;
  uint64_t generator_;
  std::vector<Candidate> candidates_;  // [vocab]
  std::vector<double> weights_;        // [vocab]
  std::vector<int32_t> counts_;  // [vocab] occurrences of generated tokens; only for presence or frequency penalty
  size_t counted_ = 0;           // generated tokens in counts_
  std::vector<float> plain_;     // [vocab] unchanged logits; only for top_logprobs
  double log_sum_ = 0;           // log of the sum of their exponentials
  TokenLogprobs logprobs_;
};

}  // namespace infinigen
