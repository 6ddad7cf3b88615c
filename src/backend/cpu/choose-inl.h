// Chooses rows from their scores, compiled once per SIMD target. kv/select.h defines the choice; this does not sort:
//
//   1. Maxima of each query head over all rows, computed together with the scores (Maxima).
//   2. A floor that no chosen row falls below, estimated from a sample of relative scores (or −alpha, if higher).
//   3. One pass over the scores keeps the rows at or above the floor as candidates, a few more than needed. If they are
//      too few: again, with a lower floor.
//   4. The last chosen candidate (the pivot), by a histogram of the candidates and an exact choice within one bin.
//   5. The candidates from the pivot up, in ascending order, between the sinks and the window.
//
// Only step 3 can repeat. The pivot alone decides; the sample does not affect the result. If rows are selected by
// pages, "row" means page until step 5, which writes the rows of the pages.
#if defined(INFINIGEN_CPU_CHOOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef INFINIGEN_CPU_CHOOSE_INL_H_
#undef INFINIGEN_CPU_CHOOSE_INL_H_
#else
#define INFINIGEN_CPU_CHOOSE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <type_traits>

#include "backend/cpu/select.h"
#include "backend/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace infinigen::HWY_NAMESPACE {

// The larger of the two; `best` if x is NaN.
HWY_INLINE VF Larger(VF best, VF x) { return hn::Max(x, best); }

// Maxima of each query head, updated block by block with scores [group][64].
class Maxima {
 public:
  // lanes [group][kMostLanes]. soft_cap: of the scores that are added; 0: none, or applied already.
  Maxima(float* lanes, int64_t group, float soft_cap) : lanes_(lanes), group_(group), soft_cap_(soft_cap) {
    std::fill_n(lanes, group * kMostLanes, -std::numeric_limits<float>::infinity());
  }
  // The first `rows` scores of the block exist; the others become NaN, which passes no threshold.
  HWY_INLINE void Add(float* scores, int64_t rows) {
    const DF d;
    for (int64_t g = 0; g < group_; ++g, scores += kScoreBlock) {
      for (int64_t v = 0; v < kScoreBlock && HWY_UNLIKELY(soft_cap_ > 0); v += kLanes)
        hn::Store(SoftCapped(d, hn::Load(d, scores + v), soft_cap_), d, scores + v);
      if (HWY_UNLIKELY(rows < kScoreBlock))
        std::fill(scores + rows, scores + kScoreBlock, std::numeric_limits<float>::quiet_NaN());
      VF best = hn::Load(d, lanes_ + g * kMostLanes);
      INFINIGEN_UNROLL for (int64_t v = 0; v < kScoreBlock; v += kLanes) best = Larger(best, hn::Load(d, scores + v));
      hn::Store(best, d, lanes_ + g * kMostLanes);
    }
  }

 private:
  float* lanes_;
  int64_t group_;
  float soft_cap_;
};

class Chooser {
 public:
  Chooser(const Choice& choice, const ChoiceScratch& scratch) : c_(choice), s_(scratch) {
    const DF d;
    for (int64_t g = 0; g < c_.group; ++g) {
      VF best = hn::Set(d, -kInfinity);
      for (int64_t segment = 0; segment < c_.segments; ++segment)
        best = Larger(best, hn::Load(d, s_.maxima + (segment * c_.group + g) * kMostLanes));
      // Overwrites lanes of earlier heads, which have been read.
      s_.maxima[g] = hn::GetLane(hn::MaxOfLanes(d, best));
    }
  }

  int64_t CountPassing() {
    if (c_.rule.mass > 0) return CountForMass();
    Collect(-c_.rule.alpha);
    return found_ * c_.page;
  }

  // The number of rows that hold the rule's mass (kv/select.h). A histogram of shares by their leading bits finds the
  // range in which the last counted row lies; only the shares in that range are sorted.
  int64_t CountForMass() {
    const DI di;
    const int64_t blocks = ScoreBlocks(c_.visible);
    for (int64_t g = 0; g < c_.group; ++g) {
      uint64_t sum = 0;
      for (int64_t b = 0; b < blocks; ++b) {
        HWY_ALIGN int32_t weights[kScoreBlock];
        for (int64_t v = 0; v < kScoreBlock; v += kLanes)
          hn::Store(hn::ConvertTo(di, Weights(g, b, v, kMassUnit)), di, weights + v);
        for (const int32_t weight : weights) sum += static_cast<uint64_t>(weight);
      }
      const float per_unit = sum == 0 ? 0.0f : kMassUnit / static_cast<float>(sum) * kMassUnit;
      for (int64_t b = 0; b < blocks; ++b) {
        for (int64_t v = 0; v < kScoreBlock; v += kLanes) {
          int32_t* share = s_.rows + b * kScoreBlock + v;
          const auto own = hn::ConvertTo(di, Weights(g, b, v, per_unit));
          hn::StoreU(g == 0 ? own : hn::Max(own, hn::LoadU(di, share)), di, share);
        }
      }
    }
    return RowsThatHold(c_.rule.mass, s_.rows, blocks * kScoreBlock);
  }

  Chosen Choose(int32_t* rows, int64_t capacity) {
    if (c_.positions != nullptr) return ChooseByPosition(rows, capacity);
    const SelectRule& rule = c_.rule;
    const int64_t n = c_.current + 1;
    // Rows attended regardless of score: [0, sinks) and [window, n).
    const int64_t sinks = std::clamp<int64_t>(rule.sinks, 0, n);
    const int64_t window = std::max(sinks, std::min(n, std::max<int64_t>(0, c_.current - rule.window)));
    int64_t count = 0;
    if (rule.force_count > 0 && c_.page > 1) {
      count = std::max<int64_t>(0, std::min<int64_t>(rule.force_count, n) - (sinks + n - window)) / c_.page;
      CollectBest(count, -kInfinity);
    } else if (rule.force_count > 0) {
      count = std::max<int64_t>(0, std::min<int64_t>(rule.force_count, n) - (sinks + n - window));
      CollectBest(count + (sinks + n - window), -kInfinity);
      LeaveOut(sinks, window);
    } else {
      count = ByThreshold();
    }
    count = std::min(count, found_);
    KeepBest(count);
    LeaveOut(sinks / c_.page, (window + c_.page - 1) / c_.page);
    return {count * c_.page,
            c_.page > 1 ? WritePages(sinks, window, rows, capacity) : Write(sinks, window, rows, capacity)};
  }

  // The same if rows are not in the order of positions: positions decide which row is older, a sink or in the window.
  // Rows are still written in ascending order.
  Chosen ChooseByPosition(int32_t* rows, int64_t capacity) {
    const SelectRule& rule = c_.rule;
    const int64_t n = c_.current + 1;
    const auto is_extra = [&](int64_t row) {
      return c_.positions[row] < rule.sinks || c_.positions[row] >= c_.position - rule.window;
    };
    int64_t count = 0;
    if (rule.force_count > 0) {
      int64_t extras = 0;
      for (int64_t row = 0; row < n; ++row) extras += is_extra(row) ? 1 : 0;
      count = std::max<int64_t>(0, std::min<int64_t>(rule.force_count, n) - extras);
      CollectBest(count + extras, -kInfinity);
    } else {
      count = ByThreshold();
    }
    auto* candidates = reinterpret_cast<Scored*>(s_.ties);
    int64_t found = 0;
    for (int64_t i = first_; i < first_ + found_; ++i)
      if (rule.force_count == 0 || !is_extra(s_.rows[i])) candidates[found++] = {s_.relative[i], s_.rows[i]};
    count = std::min(count, found);
    if (count < found)
      std::nth_element(candidates, candidates + count, candidates + found, [&](const Scored& a, const Scored& b) {
        return a.relative != b.relative ? a.relative > b.relative : c_.positions[a.row] > c_.positions[b.row];
      });
    // From here on s_.rows marks the attended rows.
    std::fill_n(s_.rows, n, 0);
    for (int64_t i = 0; i < count; ++i) s_.rows[candidates[i].row] = 1;
    int64_t attended = 0;
    for (int64_t row = 0; row < n; ++row) {
      if (s_.rows[row] == 0 && !is_extra(row)) continue;
      CHECK(attended < capacity);
      rows[attended++] = static_cast<int32_t>(row);
    }
    return {count, attended};
  }

  // The best `late` rows that have a score, ascending. Returns their number.
  int64_t ChooseLate(int64_t late, int32_t* rows) {
    if (late == 0) return 0;
    CollectBest(late, -kInfinity);
    const int64_t count = std::min(late, found_);
    if (c_.positions == nullptr) {
      KeepBest(count);
      std::copy_n(s_.rows + first_, count, rows);
      return count;
    }
    auto* candidates = reinterpret_cast<Scored*>(s_.ties);
    for (int64_t i = 0; i < found_; ++i) candidates[i] = {s_.relative[first_ + i], s_.rows[first_ + i]};
    if (count < found_)
      std::nth_element(candidates, candidates + count, candidates + found_, [&](const Scored& a, const Scored& b) {
        return a.relative != b.relative ? a.relative > b.relative : c_.positions[a.row] > c_.positions[b.row];
      });
    std::transform(candidates, candidates + count, rows, [](const Scored& scored) { return scored.row; });
    std::sort(rows, rows + count);
    return count;
  }

 private:
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();
  using DI = hn::RebindToSigned<DF>;

  // e^{score − largest score of head g} · factor, for kLanes rows; zero for rows without a score.
  HWY_INLINE VF Weights(int64_t g, int64_t block, int64_t v, float factor) const {
    const DF d;
    const VF score = hn::Load(d, s_.scores + (block * c_.group + g) * kScoreBlock + v);
    const VF x = hn::Mul(hn::Sub(score, hn::Set(d, s_.maxima[g])), hn::Set(d, 1.44269504089f));
    return hn::Mul(hn::IfThenElseZero(hn::Eq(x, x), Exp2NonPositive(d, x)), hn::Set(d, factor));
  }

  // The number of shares, largest first, whose sum reaches the share `mass` of all.
  int64_t RowsThatHold(float mass, const int32_t* shares, int64_t count) const {
    // Bin of a share: its leading bits as a float, eight bins for each power of two. Zero goes to bin 0.
    constexpr int kShift = 20, kLowest = 0x3f8, kBins = 256;
    const auto bin_of = [](int32_t share) {
      return share <= 0 ? 0 : static_cast<int>(std::bit_cast<uint32_t>(static_cast<float>(share)) >> kShift) - kLowest;
    };
    int64_t counts[kBins] = {};
    uint64_t sums[kBins] = {};
    for (int64_t i = 0; i < count; ++i) {
      const int bin = bin_of(shares[i]);
      ++counts[bin];
      sums[bin] += static_cast<uint64_t>(shares[i]);
    }
    const uint64_t target = MassTarget(mass, std::accumulate(std::begin(sums), std::end(sums), uint64_t{0}));
    int64_t rows = 0;
    uint64_t sum = 0;
    int bin = kBins - 1;
    for (; bin >= 0 && sum + sums[bin] < target; --bin) sum += sums[bin], rows += counts[bin];
    if (bin < 0) return rows;
    auto* in_bin = reinterpret_cast<int32_t*>(s_.ties);
    int64_t found = 0;
    for (int64_t i = 0; i < count; ++i)
      if (bin_of(shares[i]) == bin) in_bin[found++] = shares[i];
    std::sort(in_bin, in_bin + found, std::greater<>());
    for (int64_t i = 0; i < found && sum < target; ++i, ++rows) sum += static_cast<uint64_t>(in_bin[i]);
    return rows;
  }

  // The maxima as vectors for kGroup heads; kGroup = 0: any number of heads, from memory.
  template <int kGroup>
  struct Tops {
    explicit Tops(const float* maxima) {
      INFINIGEN_UNROLL for (int g = 0; g < kGroup; ++g) at[g] = hn::Set(DF(), maxima[g]);
    }
    HWY_INLINE VF operator()(int64_t g) const { return at[g]; }
    VF at[kGroup];
  };
  struct AnyTops {
    explicit AnyTops(const float* m) : maxima(m) {}
    HWY_INLINE VF operator()(int64_t g) const { return hn::Set(DF(), maxima[g]); }
    const float* maxima;
  };
  template <int kGroup>
  using TopsOf = std::conditional_t<kGroup == 0, AnyTops, Tops<std::max(1, kGroup)>>;

  // Relative scores of kLanes rows; −inf also if all scores of a row are NaN.
  template <int kGroup>
  HWY_INLINE VF Relative(const TopsOf<kGroup>& tops, const float* scores) const {
    const DF d;
    VF r = hn::Set(d, -kInfinity);
    const auto add = [&](int64_t g)
                         HWY_ATTR { r = Larger(r, hn::Sub(hn::Load(d, scores + g * kScoreBlock), tops(g))); };
    if constexpr (kGroup > 0) {
      INFINIGEN_UNROLL for (int g = 0; g < kGroup; ++g) add(g);
    } else {
      for (int64_t g = 0; g < c_.group; ++g) add(g);
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

  // Collects all rows with relative score ≥ floor as candidates, ascending.
  void Collect(float floor) {
    switch (c_.group) {
      case 1:
        return CollectFor<1>(floor);
      case 2:
        return CollectFor<2>(floor);
      case 3:
        return CollectFor<3>(floor);
      case 4:
        return CollectFor<4>(floor);
      case 8:
        return CollectFor<8>(floor);
      default:
        return CollectFor<0>(floor);
    }
  }
  template <int kGroup>
  HWY_NOINLINE void CollectFor(float floor) {
    const DF d;
    const DI di;
    const TopsOf<kGroup> tops(s_.maxima);
    const VF limit = hn::Set(d, floor);
    const int64_t blocks = ScoreBlocks(c_.visible);
    int64_t found = 0;
    for (int64_t b = 0; b < blocks; ++b) {
      const float* scores = s_.scores + b * c_.group * kScoreBlock;
      for (int64_t v = 0; v < kScoreBlock; v += kLanes) {
        const VF r = Relative<kGroup>(tops, scores + v);
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

  // Collects candidates down to `base`, or fewer: then at least `want`, and all rows above some floor. Returns the
  // floor used.
  float CollectBest(int64_t want, float base) {
    for (const double slack : {1.0, 4.0}) {
      const float floor = std::max(base, Estimate(want, slack));
      Collect(floor);
      if (found_ >= want || floor == base) return floor;
    }
    Collect(base);
    return base;
  }

  // Step 2 of the definition: the number of chosen rows. The candidates include them.
  int64_t ByThreshold() {
    const SelectRule& rule = c_.rule;
    const int64_t most = std::max<int64_t>(rule.Capped(c_.current + 1), rule.min_rows);
    const auto chosen = [&](int64_t passing) {
      const int64_t count = std::min(c_.visible * c_.page, std::clamp<int64_t>(passing, rule.min_rows, most));
      return WholePages(count, c_.page) / c_.page;
    };
    if (c_.passing < 0 && rule.mass == 0) {
      const float floor = CollectBest((most + c_.page - 1) / c_.page, -rule.alpha);
      // At the threshold itself, all rows that pass were found; above it, at least as many as may be chosen.
      const int64_t count = floor == -rule.alpha ? chosen(found_ * c_.page) : chosen(most);
      if (count <= found_) return count;
      CollectBest(count, -kInfinity);
      return count;
    }
    const int64_t count = chosen(c_.passing < 0 ? CountForMass() : c_.passing);
    CollectBest(count, -kInfinity);
    return count;
  }

  // Estimates from a sample a floor that slightly more than `want` rows pass; −inf if sampling is not worth it.
  float Estimate(int64_t want, double slack) {
    const DF d;
    if (c_.visible < kLeastSampled || 2 * want > c_.visible) return -kInfinity;
    const int64_t size = std::min(kMostSample, c_.visible / 4 / kMostLanes * kMostLanes);
    const int64_t vectors = c_.visible / kLanes, taken = size / kLanes;
    for (int64_t i = 0; i < taken; ++i) {
      const int64_t row = i * vectors / taken * kLanes;
      const float* block = s_.scores + row / kScoreBlock * c_.group * kScoreBlock;
      hn::Store(Relative<0>(AnyTops(s_.maxima), block + row % kScoreBlock), d, s_.sample + i * kLanes);
    }
    const double rank = static_cast<double>(want) * static_cast<double>(size) / static_cast<double>(c_.visible);
    const int64_t k = static_cast<int64_t>(rank + slack * (4.0 * std::sqrt(rank) + 8.0));
    if (k >= size) return -kInfinity;
    const Histogram histogram(s_.sample, size, s_.bins);
    return histogram.Edge(histogram.BinOf(k + 1).bin);
  }

  // Histogram of values ≤ 0: bins of equal width from the least value (other than −inf) up to 0.
  class Histogram {
   public:
    Histogram(const float* values, int64_t count, uint32_t* bins) : bins_(bins) {
      const DF d;
      VF low = hn::Zero(d);
      for (int64_t i = 0; i < count; i += kLanes) {
        const VF x = Values(values, count, i);
        low = hn::Min(hn::IfThenElse(hn::Gt(x, hn::Set(d, -kInfinity)), x, low), low);
      }
      low_ = hn::GetLane(hn::MinOfLanes(d, low));
      const float per_unit = static_cast<float>(kChoiceBins - 1) / -low_;
      if (per_unit < kInfinity) per_unit_ = per_unit;
      std::fill_n(bins, kChoiceBins, 0u);
      for (int64_t i = 0; i < count; i += kLanes) {
        HWY_ALIGN int32_t index[kLanes];
        hn::Store(Bins(hn::LoadU(d, values + i)), DI(), index);
        for (int64_t lane = 0; lane < std::min(kLanes, count - i); ++lane) ++bins[index[lane]];
      }
    }
    HWY_INLINE hn::Vec<DI> Bins(VF x) const {
      const DF d;
      const VF scaled = hn::Mul(hn::Sub(x, hn::Set(d, low_)), hn::Set(d, per_unit_));
      // NaN (−inf times zero) goes to bin 0, with −inf.
      const VF inside = hn::Max(hn::Min(scaled, hn::Set(d, static_cast<float>(kChoiceBins - 1))), hn::Zero(d));
      return hn::ConvertTo(DI(), inside);
    }
    struct Bin {
      int64_t bin;
      int64_t above;  // values in higher bins
    };
    // The bin of the k-th largest value, k from 1.
    Bin BinOf(int64_t k) const {
      Bin found{kChoiceBins - 1, 0};
      while (found.bin > 0 && found.above + bins_[found.bin] < k) found.above += bins_[found.bin--];
      return found;
    }
    // Approximately the least value of a bin.
    float Edge(int64_t bin) const { return per_unit_ > 0 ? low_ + static_cast<float>(bin) / per_unit_ : low_; }

   private:
    HWY_INLINE static VF Values(const float* values, int64_t count, int64_t i) {
      const DF d;
      const VF x = hn::LoadU(d, values + i);
      return i + kLanes <= count ? x : hn::IfThenElseZero(hn::FirstN(d, static_cast<size_t>(count - i)), x);
    }
    uint32_t* bins_;
    float low_ = 0, per_unit_ = 0;
  };

  struct Scored {
    float relative;
    int32_t row;
  };
  // The order of choice: larger relative score first, then the newer row.
  static bool Before(const Scored& a, const Scored& b) {
    return a.relative != b.relative ? a.relative > b.relative : a.row > b.row;
  }

  // Reduces the candidates to the best `count` ≤ found_, still ascending.
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
      // Writes never overtake reads.
      hn::StoreU(hn::Compress(rows, hn::RebindMask(di, keep)), di, s_.rows + first_ + kept);
      kept += static_cast<int64_t>(hn::CountTrue(d, keep));
    }
    found_ = kept;
  }

  // The candidate at rank `count` in the order of choice.
  Scored Pivot(int64_t count) {
    const DF d;
    const DI di;
    const float* relative = s_.relative + first_;
    const int32_t* rows = s_.rows + first_;
    const Histogram histogram(relative, found_, s_.bins);
    const typename Histogram::Bin found = histogram.BinOf(count);
    const auto bin = hn::Set(di, static_cast<int32_t>(found.bin));
    auto* ties = reinterpret_cast<Scored*>(s_.ties);
    int64_t tied = 0;
    for (int64_t i = 0; i < found_; i += kLanes) {
      const auto here = hn::Eq(histogram.Bins(hn::LoadU(d, relative + i)), bin);
      if (hn::AllFalse(di, here)) continue;
      HWY_ALIGN int32_t in_bin[kLanes];
      hn::Store(hn::VecFromMask(di, here), di, in_bin);
      for (int64_t lane = 0; lane < std::min(kLanes, found_ - i); ++lane)
        if (in_bin[lane] != 0) ties[tied++] = {relative[i + lane], rows[i + lane]};
    }
    Scored* nth = ties + (count - found.above - 1);
    std::nth_element(ties, nth, ties + tied, Before);
    return *nth;
  }

  // Drops candidates outside rows [begin, end).
  void LeaveOut(int64_t begin, int64_t end) {
    const int32_t* from = s_.rows + first_;
    const int32_t* to = from + found_;
    const int32_t* lower = std::lower_bound(from, to, static_cast<int32_t>(begin));
    const int32_t* upper = std::lower_bound(lower, to, static_cast<int32_t>(end));
    first_ += lower - from;
    found_ = upper - lower;
  }

  // Writes sinks, candidates, window.
  int64_t Write(int64_t sinks, int64_t window, int32_t* rows, int64_t capacity) const {
    const int64_t tail = c_.current + 1 - window;
    CHECK(sinks + found_ + tail <= capacity);
    std::iota(rows, rows + sinks, 0);
    std::copy_n(s_.rows + first_, found_, rows + sinks);
    std::iota(rows + sinks + found_, rows + sinks + found_ + tail, static_cast<int32_t>(window));
    return sinks + found_ + tail;
  }

  // The same for pages, whose rows may overlap sinks and window.
  int64_t WritePages(int64_t sinks, int64_t window, int32_t* rows, int64_t capacity) const {
    int64_t count = 0;
    const auto write = [&](int64_t begin, int64_t end) {
      CHECK(count + end - begin <= capacity);
      for (int64_t row = begin; row < end; ++row) rows[count++] = static_cast<int32_t>(row);
    };
    write(0, sinks);
    for (int64_t i = 0; i < found_; ++i) {
      const int64_t first = s_.rows[first_ + i] * c_.page;
      write(std::max(first, sinks), std::min(first + c_.page, window));
    }
    write(window, c_.current + 1);
    return count;
  }

  const Choice& c_;
  const ChoiceScratch& s_;
  int64_t first_ = 0;  // candidates: s_.relative and s_.rows [first_, first_ + found_)
  int64_t found_ = 0;
};

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace infinigen::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
