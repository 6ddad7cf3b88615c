// Runs needle cases: every context is prefilled, then all questions of a group are fed as decode steps together, and
// the answers are decoded greedily. Drives the executor itself, as `bench` does: an engine's requests sample from their
// first decode step on, here steps with given tokens come before that.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cli/needle_case.h"
#include "model/executor.h"
#include "runtime/report.h"
#include "text/tokenizer.h"

namespace infinigen {

struct NeedleAnswer {
  bool done = false;       // false: interrupted before
  bool found = false;      // everything that was sought
  std::vector<bool> hits;  // [sought], once done

  double share() const {
    return hits.empty()
               ? 0
               : static_cast<double>(std::count(hits.begin(), hits.end(), true)) / static_cast<double>(hits.size());
  }
  std::vector<int32_t> tokens;
  std::string text;
};

struct NeedleWatch {
  std::function<void(int64_t units_done, int64_t units, int64_t tokens)> on_prefill;  // of one case; may be null
  std::function<void(size_t index, std::string_view text)> on_text;                   // of an answer; may be null
};

class NeedleRunner {
 public:
  // Both outlive it.
  NeedleRunner(Executor& executor, const Tokenizer& tokenizer, NeedleForm form)
      : executor_(executor), tokenizer_(tokenizer), form_(form) {}

  // One group of at most max_batch cases; answers in their order. After Ctrl-C the unfinished ones are not done.
  Result<std::vector<NeedleAnswer>> Run(std::span<const NeedleCase> cases, const NeedleWatch& watch);

  // Of everything run so far; a prefill that Ctrl-C ended is not in it.
  const Timing& timing() const { return timing_; }
  PoolUse pool() const { return {pool_bytes_, executor_.instruments().pool_peak_bytes()}; }

 private:
  struct Live;

  Status Prefill(const NeedleCase& planted, Live& live, const NeedleWatch& watch);
  void Decode(std::vector<Live>& live, const NeedleWatch& watch);
  void Accept(Live& live, std::span<const float> logits, const NeedleWatch& watch);
  void Judge(Live& live, bool ended) const;

  Executor& executor_;
  const Tokenizer& tokenizer_;
  const NeedleForm form_;
  Timing timing_;
  uint64_t pool_bytes_ = 0;  // when the last group was decoding
};

}  // namespace infinigen
