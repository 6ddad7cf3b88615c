// The choice of rows from their scores, once per SIMD target. kv/selection.h defines it; this does not sort:
//
//   1. the maxima of each query head over all rows;
//   2. a floor below which no chosen row can lie, estimated from a sample of relative scores (or −alpha, if higher);
//   3. one walk over the scores that keeps the rows at or above the floor as candidates, a few more than are wanted;
//      fewer than wanted: a lower floor, and again;
//   4. the last chosen candidate (the pivot) by a histogram of the candidates and an exact choice in one of its bins;
//   5. the candidates from the pivot up, in their ascending order, between the sinks and the window.
//
// Only 3 can be repeated, and only the pivot decides: the sample has no part in the result.
#if defined(INFINIGEN_CPU_CHOOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INFINIGEN_CPU_CHOOSE_INL_H_
#undef INFINIGEN_CPU_CHOOSE_INL_H_
#else
#define INFINIGEN_CPU_CHOOSE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "backend/cpu/select.h"
#include "backend/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace infinigen::HWY_NAMESPACE {

class Chooser {
 public:
  Chooser(const Choice& choice, const ChoiceScratch& scratch) : c_(choice), s_(scratch) {
    FillPastTheEnd();
    FindMaxima();
  }

  int64_t CountPassing() {
    Collect(-c_.rule.alpha);
    return found_;
  }

  Chosen Choose(int32_t* rows, int64_t capacity) {
    const SelectRule& rule = c_.rule;
    const int64_t n = c_.current + 1;
    // Rows attended whatever their score: [0, sinks) and [window, n).
    const int64_t sinks = std::clamp<int64_t>(rule.sinks, 0, n);
    const int64_t window = std::max(sinks, std::min(n, std::max<int64_t>(0, c_.current - rule.window)));
    int64_t count = 0;
    if (rule.force_count > 0) {
      count = std::max<int64_t>(0, std::min<int64_t>(rule.force_count, n) - (sinks + n - window));
      CollectBest(count + (sinks + n - window), -kInfinity);
      LeaveOut(sinks, window);
    } else {
      count = ByThreshold();
    }
    count = std::min(count, found_);
    KeepBest(count);
    LeaveOut(sinks, window);
    return {count, Write(sinks, window, rows, capacity)};
  }

 private:
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();
  using DI = hn::RebindToSigned<DF>;

  // Scores past the last visible row become NaN, which passes nothing.
  void FillPastTheEnd() {
    const int64_t within = c_.visible % kScoreBlock;
    if (within == 0) return;
    float* block = s_.scores + c_.visible / kScoreBlock * c_.group * kScoreBlock;
    for (int64_t g = 0; g < c_.group; ++g)
      std::fill(block + g * kScoreBlock + within, block + (g + 1) * kScoreBlock,
                std::numeric_limits<float>::quiet_NaN());
  }

  void FindMaxima() {
    const DF d;
    const int64_t blocks = ScoreBlocks(c_.visible);
    for (int64_t g = 0; g < c_.group; ++g) {
      VF best = hn::Set(d, -kInfinity);
      for (int64_t b = 0; b < blocks; ++b) {
        const float* scores = s_.scores + (b * c_.group + g) * kScoreBlock;
        for (int64_t v = 0; v < kScoreBlock; v += kLanes) {
          const VF x = hn::Load(d, scores + v);
          best = hn::IfThenElse(hn::Gt(x, best), x, best);
        }
      }
      s_.maxima[g] = hn::GetLane(hn::MaxOfLanes(d, best));
    }
  }

  // Relative scores of kLanes rows: −inf where no score is a number, too.
  HWY_INLINE VF Relative(const float* scores) const {
    const DF d;
    VF r = hn::Set(d, -kInfinity);
    for (int64_t g = 0; g < c_.group; ++g) {
      const VF x = hn::Sub(hn::Load(d, scores + g * kScoreBlock), hn::Set(d, s_.maxima[g]));
      r = hn::IfThenElse(hn::Gt(x, r), x, r);
    }
    return r;
  }
  HWY_INLINE hn::Mask<DF> IsNumber(const float* scores) const {
    const DF d;
    hn::Mask<DF> number = hn::FirstN(d, 0);
    for (int64_t g = 0; g < c_.group; ++g) {
      const VF x = hn::Sub(hn::Load(d, scores + g * kScoreBlock), hn::Set(d, s_.maxima[g]));
      number = hn::Or(number, hn::Eq(x, x));
    }
    return number;
  }

  // Candidates: all rows with relative score ≥ floor, ascending.
  void Collect(float floor) {
    const DF d;
    const DI di;
    const VF limit = hn::Set(d, floor);
    const int64_t blocks = ScoreBlocks(c_.visible);
    int64_t found = 0;
    for (int64_t b = 0; b < blocks; ++b) {
      const float* scores = s_.scores + b * c_.group * kScoreBlock;
      for (int64_t v = 0; v < kScoreBlock; v += kLanes) {
        const VF r = Relative(scores + v);
        hn::Mask<DF> keep = hn::Ge(r, limit);
        if (HWY_UNLIKELY(floor == -kInfinity)) keep = IsNumber(scores + v);
        if (hn::AllFalse(d, keep)) continue;
        const auto rows = hn::Iota(di, static_cast<int32_t>(b * kScoreBlock + v));
        hn::StoreU(hn::Compress(r, keep), d, s_.relative + found);
        hn::StoreU(hn::Compress(rows, hn::RebindMask(di, keep)), di, s_.rows + found);
        found += static_cast<int64_t>(hn::CountTrue(d, keep));
      }
    }
    first_ = 0;
    found_ = found;
  }

  // Candidates down to `base`, or fewer if at least `want` of them, and then all above some floor. Returns that floor.
  float CollectBest(int64_t want, float base) {
    for (const double slack : {1.0, 4.0}) {
      const float floor = std::max(base, Estimate(want, slack));
      Collect(floor);
      if (found_ >= want || floor == base) return floor;
    }
    Collect(base);
    return base;
  }

  // Steps 2 of the definition: how many are chosen. The candidates hold them.
  int64_t ByThreshold() {
    const SelectRule& rule = c_.rule;
    const int64_t capped = static_cast<int64_t>(rule.cap * static_cast<double>(c_.current + 1));
    const int64_t most = std::max<int64_t>(capped, rule.min_rows);
    const auto chosen = [&](int64_t passing) {
      return std::min(c_.visible, std::clamp<int64_t>(passing, rule.min_rows, most));
    };
    if (c_.passing < 0) {
      const float floor = CollectBest(most, -rule.alpha);
      // At the threshold itself all that pass were found; above it, at least as many as may be chosen.
      const int64_t count = floor == -rule.alpha ? chosen(found_) : chosen(most);
      if (count <= found_) return count;
      CollectBest(count, -kInfinity);
      return count;
    }
    const int64_t count = chosen(c_.passing);
    CollectBest(count, -kInfinity);
    return count;
  }

  // A floor that about `want` rows and some more pass, from a sample; −inf where that is not worth it.
  float Estimate(int64_t want, double slack) {
    const DF d;
    if (c_.visible < 2 * kMostSample || 2 * want > c_.visible) return -kInfinity;
    const int64_t vectors = c_.visible / kLanes, taken = kMostSample / kLanes;
    for (int64_t i = 0; i < taken; ++i) {
      const int64_t row = i * vectors / taken * kLanes;
      const float* block = s_.scores + row / kScoreBlock * c_.group * kScoreBlock;
      hn::Store(Relative(block + row % kScoreBlock), d, s_.sample + i * kLanes);
    }
    const double rank = static_cast<double>(want) * static_cast<double>(kMostSample) / static_cast<double>(c_.visible);
    const int64_t k = static_cast<int64_t>(rank + slack * (4.0 * std::sqrt(rank) + 8.0));
    if (k >= kMostSample) return -kInfinity;
    std::nth_element(s_.sample, s_.sample + k, s_.sample + kMostSample, std::greater<float>());
    return s_.sample[k];
  }

  struct Scored {
    float relative;
    int32_t row;
  };
  // The order of choice: the larger relative score, among equals the newer row.
  static bool Before(const Scored& a, const Scored& b) {
    return a.relative != b.relative ? a.relative > b.relative : a.row > b.row;
  }

  // Candidates become the best `count` ≤ found_ of them, still ascending.
  void KeepBest(int64_t count) {
    if (count == found_) return;
    if (count == 0) {
      found_ = 0;
      return;
    }
    const Scored pivot = Pivot(count);
    const DF d;
    const DI di;
    const VF limit = hn::Set(d, pivot.relative);
    const auto newest = hn::Set(di, pivot.row - 1);
    int64_t kept = 0;
    for (int64_t i = 0; i < found_; i += kLanes) {
      const VF r = hn::LoadU(d, s_.relative + first_ + i);
      const auto rows = hn::LoadU(di, s_.rows + first_ + i);
      hn::Mask<DF> keep = hn::Or(hn::Gt(r, limit), hn::And(hn::Eq(r, limit), hn::RebindMask(d, hn::Gt(rows, newest))));
      if (i + kLanes > found_) keep = hn::And(keep, hn::FirstN(d, static_cast<size_t>(found_ - i)));
      // Never ahead of what has been read.
      hn::StoreU(hn::Compress(rows, hn::RebindMask(di, keep)), di, s_.rows + first_ + kept);
      kept += static_cast<int64_t>(hn::CountTrue(d, keep));
    }
    found_ = kept;
  }

  // The candidate that is number `count` in the order of choice.
  Scored Pivot(int64_t count) {
    const float* r = s_.relative + first_;
    float low = 0;
    for (int64_t i = 0; i < found_; ++i)
      if (r[i] < low && r[i] > -kInfinity) low = r[i];
    float per_unit = static_cast<float>(kChoiceBins - 1) / -low;
    if (!(per_unit < kInfinity)) per_unit = 0;
    const auto bin_of = [&](float x) {
      return x > low ? std::min<int64_t>(kChoiceBins - 1, static_cast<int64_t>((x - low) * per_unit)) : int64_t{0};
    };
    std::fill_n(s_.bins, kChoiceBins, 0u);
    for (int64_t i = 0; i < found_; ++i) ++s_.bins[bin_of(r[i])];
    int64_t bin = kChoiceBins - 1, above = 0;
    while (above + s_.bins[bin] < count) above += s_.bins[bin--];
    auto* ties = reinterpret_cast<Scored*>(s_.ties);
    int64_t tied = 0;
    for (int64_t i = 0; i < found_; ++i)
      if (bin_of(r[i]) == bin) ties[tied++] = {r[i], s_.rows[first_ + i]};
    Scored* nth = ties + (count - above - 1);
    std::nth_element(ties, nth, ties + tied, Before);
    return *nth;
  }

  // Drops candidates outside of rows [begin, end).
  void LeaveOut(int64_t begin, int64_t end) {
    const int32_t* from = s_.rows + first_;
    const int32_t* to = from + found_;
    const int32_t* lower = std::lower_bound(from, to, static_cast<int32_t>(begin));
    const int32_t* upper = std::lower_bound(lower, to, static_cast<int32_t>(end));
    first_ += lower - from;
    found_ = upper - lower;
  }

  // sinks, candidates, window.
  int64_t Write(int64_t sinks, int64_t window, int32_t* rows, int64_t capacity) const {
    const int64_t tail = c_.current + 1 - window;
    CHECK(sinks + found_ + tail <= capacity);
    std::iota(rows, rows + sinks, 0);
    std::copy_n(s_.rows + first_, found_, rows + sinks);
    std::iota(rows + sinks + found_, rows + sinks + found_ + tail, static_cast<int32_t>(window));
    return sinks + found_ + tail;
  }

  const Choice& c_;
  const ChoiceScratch& s_;
  int64_t first_ = 0;  // the candidates: s_.relative and s_.rows [first_, first_ + found_)
  int64_t found_ = 0;
};

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace infinigen::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
