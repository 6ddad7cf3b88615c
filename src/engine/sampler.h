// Sampler: from logits to a token. One per request, with its own generator, so that the same seed gives the same text
// whatever runs beside it. Order: logit bias, penalties, top-k, top-p, min-p, temperature; ties go to the smaller id.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/request.h"

namespace infinigen {

class Sampler {
 public:
  // `vocab` bounds the logits it will see. Memory of that size is taken by the first Sample, so that a request that
  // waits holds none; later ones allocate nothing.
  Sampler(const SamplingOptions& options, int64_t vocab);

  // The next token. `logits` is scratch to it (bias and penalties are applied in place); `history` is prompt and
  // generated tokens, of which the last repeat_window count; `generated` its end, for the penalties that look at the
  // answer alone. nullopt when no logit is finite: the model is broken.
  std::optional<int32_t> Sample(std::span<float> logits, std::span<const int32_t> history,
                                std::span<const int32_t> generated = {});

  // Of the last token; null unless SamplingOptions::top_logprobs asks for them.
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
  // What the model said, before anything is changed; the chosen token's part comes when it is known.
  void KeepLogprobs(std::span<const float> logits);
  // The `keep` best of the first `count` candidates to the front, in order.
  void SortTop(size_t count, size_t keep);
  int32_t Draw(std::span<const Candidate> candidates);
  double NextUniform();  // [0, 1)

  SamplingOptions options_;
  int64_t vocab_;
  uint64_t generator_;
  std::vector<Candidate> candidates_;  // [vocab]
  std::vector<double> weights_;        // [vocab]
  std::vector<int32_t> counts_;        // [vocab], of generated tokens, with presence or frequency penalty
  size_t counted_ = 0;
  std::vector<float> plain_;  // [vocab], logits as they came, with top_logprobs
  double log_sum_ = 0;        // of their exponentials
  TokenLogprobs logprobs_;
};

}  // namespace infinigen
