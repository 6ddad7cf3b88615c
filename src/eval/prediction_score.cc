#include "eval/prediction_score.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "eval/prediction_score.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

// Shared by all targets.
#ifndef INFINIGEN_PREDICTION_SCORE_SUMS_
#define INFINIGEN_PREDICTION_SCORE_SUMS_
namespace infinigen {

struct TopTwo {
  float best, second;
};
// Sums over a vocabulary, relative to the largest logits: u = p − max p, w = q − max q.
struct PairSums {
  double p = 0;      // Σ exp(u)
  double q = 0;      // Σ exp(w)
  double cross = 0;  // Σ exp(u) · (u − w)
};

}  // namespace infinigen
#endif

HWY_BEFORE_NAMESPACE();
namespace infinigen::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DD = hn::ScalableTag<double>;
using DF = hn::Rebind<float, DD>;  // as many lanes as DD

TopTwo FindTopTwo(const float* logits, int64_t count) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  constexpr float kLeast = -std::numeric_limits<float>::infinity();
  TopTwo top{kLeast, kLeast};
  const auto add = [&top](float x) {
    top.second = std::max(top.second, std::min(top.best, x));
    top.best = std::max(top.best, x);
  };
  auto best = hn::Set(d, kLeast), second = best;
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto x = hn::LoadU(d, logits + i);
    second = hn::Max(second, hn::Min(best, x));
    best = hn::Max(best, x);
  }
  HWY_ALIGN float of_lanes[HWY_MAX_BYTES / sizeof(float)];
  for (const auto& part : {best, second}) {
    hn::Store(part, d, of_lanes);
    for (int64_t lane = 0; lane < lanes; ++lane) add(of_lanes[lane]);
  }
  for (; i < count; ++i) add(logits[i]);
  return top;
}

// `p` may be null: then only the sum of q is computed.
PairSums SumPair(const float* p, const float* q, int64_t count, float most_p, float most_q) {
  const DD d;
  const DF df;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto top_p = hn::Set(d, static_cast<double>(most_p)), top_q = hn::Set(d, static_cast<double>(most_q));
  auto sum_p = hn::Zero(d), sum_q = hn::Zero(d), cross = hn::Zero(d);
  PairSums sums;
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto w = hn::Sub(hn::PromoteTo(d, hn::LoadU(df, q + i)), top_q);
    sum_q = hn::Add(sum_q, hn::Exp(d, w));
    if (p == nullptr) continue;
    const auto u = hn::Sub(hn::PromoteTo(d, hn::LoadU(df, p + i)), top_p);
    const auto weight = hn::Exp(d, u);
    sum_p = hn::Add(sum_p, weight);
    cross = hn::MulAdd(weight, hn::Sub(u, w), cross);
  }
  sums.p = hn::GetLane(hn::SumOfLanes(d, sum_p));
  sums.q = hn::GetLane(hn::SumOfLanes(d, sum_q));
  sums.cross = hn::GetLane(hn::SumOfLanes(d, cross));
  for (; i < count; ++i) {
    const double w = static_cast<double>(q[i]) - static_cast<double>(most_q);
    sums.q += std::exp(w);
    if (p == nullptr) continue;
    const double u = static_cast<double>(p[i]) - static_cast<double>(most_p);
    sums.p += std::exp(u);
    sums.cross += std::exp(u) * (u - w);
  }
  return sums;
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace infinigen::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace infinigen {
namespace {

HWY_EXPORT(FindTopTwo);
HWY_EXPORT(SumPair);

TopTwo TopOf(std::span<const float> logits) {
  return HWY_DYNAMIC_DISPATCH(FindTopTwo)(logits.data(), std::ssize(logits));
}
// The first token with the largest logit.
int64_t FirstAt(std::span<const float> logits, float most) {
  return std::find(logits.begin(), logits.end(), most) - logits.begin();
}
// −ln p(target), where `sum` is relative to `most`.
double Loss(std::span<const float> logits, int32_t target, float most, double sum) {
  return std::log(sum) - (static_cast<double>(logits[static_cast<size_t>(target)]) - static_cast<double>(most));
}

}  // namespace

PredictionScore ScorePrediction(std::span<const float> logits, std::span<const float> other, int32_t target) {
  CHECK(other.empty() || other.size() == logits.size());
  const float most = TopOf(logits).best;
  const TopTwo top = other.empty() ? TopTwo{} : TopOf(other);
  const PairSums sums = HWY_DYNAMIC_DISPATCH(SumPair)(other.empty() ? nullptr : other.data(), logits.data(),
                                                      std::ssize(logits), top.best, most);
  PredictionScore score{.nll = Loss(logits, target, most, sums.q)};
  if (other.empty()) return score;
  score.other_nll = Loss(other, target, top.best, sums.p);
  score.kld = sums.cross / sums.p - std::log(sums.p) + std::log(sums.q);
  score.same_top = FirstAt(other, top.best) == FirstAt(logits, most);
  score.clear = top.best - top.second > kClearGap;
  return score;
}

double NegativeLogLikelihood(std::span<const float> logits, int32_t target) {
  return ScorePrediction(logits, {}, target).nll;
}

double KlDivergence(std::span<const float> p, std::span<const float> q) { return ScorePrediction(q, p, 0).kld; }

}  // namespace infinigen
#endif  // HWY_ONCE
