// Sampler: from logits to a token. One per request, with its own generator, so that the same seed gives the same text
// whatever runs beside it. Order: repeat penalty, top-k, top-p, min-p, temperature; ties go to the smaller id.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/request.h"

namespace infinigen {

class Sampler {
 public:
  // `vocab` bounds the logits it will see; memory is taken here, Sample allocates nothing.
  Sampler(const SamplingOptions& options, int64_t vocab);

  // The next token. `logits` is scratch to it (the penalty is applied in place); `history` is prompt and generated
  // tokens, of which the last repeat_window count. nullopt when no logit is finite: the model is broken.
  std::optional<int32_t> Sample(std::span<float> logits, std::span<const int32_t> history);

 private:
  struct Candidate {
    float logit;
    int32_t token;
  };

  void Penalise(std::span<float> logits, std::span<const int32_t> history);
  int32_t Draw(std::span<const Candidate> candidates);
  double NextUniform();  // [0, 1)

  SamplingOptions options_;
  uint64_t generator_;
  std::vector<Candidate> candidates_;  // [vocab]
  std::vector<double> weights_;        // [vocab]
};

}  // namespace infinigen
