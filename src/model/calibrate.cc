#include "model/calibrate.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/split_mix.h"
#include "base/thread_pool.h"
#include "model/sequence.h"

namespace infinigen {
namespace {

// Number of positions that every row is rotated to. With one, sketches of the shipped model cover 0.1 to 0.2 percentage
// points less of the attention mass; the cost is a small part of the prefill either way.
constexpr int64_t kCopies = 4;
// Models with a longer context are mostly used with less of it, so half of the copies go to positions below this.
constexpr int64_t kNearPositions = 32768;

// The rotation offset of each row of the text for each of its copies.
class Spread {
 public:
  // `context`: of the run that the rows come from.
  Spread(const ModelConfig& config, int64_t positions, int64_t rows, int64_t context)
      : ropes_(config.ropes), head_dim_(config.head_dim) {
    for (const RopeConfig& rope : ropes_) frequencies_.push_back(RopeInverseFrequencies(rope, head_dim_, context));
    if (!config.rotates()) return;
    SplitMix random(1);
    const bool far = positions > kNearPositions;
    const int64_t parts = far ? kCopies / 2 : kCopies;
    for (int64_t copy = 0; copy < kCopies; ++copy) {
      const double span = static_cast<double>(copy < parts ? positions : kNearPositions) / static_cast<double>(parts);
      std::vector<double>& offsets = offsets_.emplace_back();
      for (int64_t row = 0; row < rows; ++row)
        offsets.push_back(std::floor((static_cast<double>(copy % parts) + random.Unit()) * span) -
                          static_cast<double>(row));
    }
  }

  // A layer without RoPE has one copy: the rows themselves.
  int64_t copies(int32_t rope) const { return rope == LayerSpec::kNoRope ? 1 : std::ssize(offsets_); }

  // `rows`, which are rows [first_row, …) of the text, rotated for copy `copy`. Uses `memory` for the result.
  ConstTensor Rotated(int32_t rope, int64_t copy, int64_t first_row, const ConstTensor& rows, ThreadPool& threads,
                      std::vector<float>& memory) const {
    if (rope == LayerSpec::kNoRope) return rows;
    memory.resize(static_cast<size_t>(rows.rows * rows.cols));
    const std::vector<double>& offsets = offsets_[static_cast<size_t>(copy)];
    threads.Run((rows.rows + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task, int) {
      const int64_t begin = task * kRowsPerTask, count = std::min(rows.rows - begin, kRowsPerTask);
      const std::span<float> to(memory.data() + begin * rows.cols, static_cast<size_t>(count * rows.cols));
      for (int64_t r = 0; r < count; ++r) std::copy_n(rows.as<float>(begin + r), rows.cols, to.data() + r * rows.cols);
      TurnRows(frequencies_[static_cast<size_t>(rope)], ropes_[static_cast<size_t>(rope)], head_dim_,
               std::span(offsets).subspan(static_cast<size_t>(first_row + begin), static_cast<size_t>(count)), to);
    });
    return {reinterpret_cast<const std::byte*>(memory.data()), DType::kF32, rows.rows, rows.cols};
  }

 private:
  static constexpr int64_t kRowsPerTask = 32;

  const std::vector<RopeConfig>& ropes_;
  const int64_t head_dim_;
  std::vector<std::vector<float>> frequencies_;  // [ropes][rotated dimensions / 2]
  std::vector<std::vector<double>> offsets_;     // [copies][rows of the text]
};

// Fits the skew to the queries, keys and values of prefills, layer by layer.
class Collector {
 public:
  // `rows`: of the longest sequence; `context`: of the executor.
  Collector(const ModelConfig& config, SkewOrigin origin, int64_t rows, int64_t context, int threads)
      : config_(config),
        threads_(threads),
        spread_(config, origin.positions, rows, context),
        skew_({.layers = config.layers, .kv_heads = config.kv_heads, .head_dim = config.head_dim}, std::move(origin)),
        moments_(static_cast<size_t>(config.layers)) {}

  // The sequences that follow are the last ones: a layer is fitted when the next begins.
  void StartLast() { last_ = true; }

  void Add(LayerId layer, const PrefillRows& rows) {
    if (last_ && layer.value() > 0) FitLayer(LayerId(layer.value() - 1));
    std::optional<SkewMoments>& moments = moments_[layer.index()];
    if (!moments) moments.emplace(config_.heads, config_.kv_heads, config_.head_dim);
    const int32_t rope = config_.specs[layer.index()].rope;
    for (int64_t copy = 0; copy < spread_.copies(rope); ++copy)
      moments->Add(rows.first_row, spread_.Rotated(rope, copy, rows.first_row, rows.queries, threads_, query_memory_),
                   spread_.Rotated(rope, copy, rows.first_row, rows.keys, threads_, key_memory_), threads_);
    moments->AddValues(rows.first_row, rows.values, threads_);
  }

  const Status& fitted() const { return fitted_; }
  Result<Skew> Finish() {
    FitLayer(LayerId(config_.layers - 1));
    if (!fitted_.ok()) return fitted_.error();
    CHECK(layers_done_ == config_.layers);
    return std::move(skew_);
  }

 private:
  // Only the first call for a layer has an effect.
  void FitLayer(LayerId layer) {
    std::optional<SkewMoments>& moments = moments_[layer.index()];
    if (moments && fitted_.ok()) {
      fitted_ = skew_.FitLayer(layer, *moments, threads_);
      ++layers_done_;
    }
    moments.reset();
  }

  const ModelConfig& config_;
  ThreadPool threads_;
  const Spread spread_;
  Skew skew_;
  Status fitted_ = Ok();
  bool last_ = false;
  int64_t layers_done_ = 0;
  std::vector<std::optional<SkewMoments>>
      moments_;                                   // [layers]; null before the layer's first rows and once it is fitted
  std::vector<float> query_memory_, key_memory_;  // rotated rows of one unit
};

// Observes an executor's prefills for as long as it lives.
class PrefillWatch {
 public:
  PrefillWatch(Executor& executor, PrefillObserver observer) : instruments_(executor.instruments()) {
    instruments_.ObservePrefill(std::move(observer));
  }
  ~PrefillWatch() { instruments_.ObservePrefill({}); }
  PrefillWatch(const PrefillWatch&) = delete;
  PrefillWatch& operator=(const PrefillWatch&) = delete;

 private:
  Instruments& instruments_;
};

}  // namespace

Result<Skew> Calibrate(Executor& executor, const CalibrationText& text, const CalibrationOptions& options) {
  CHECK(!executor.options().method.selects());
  CHECK(!executor.options().owned);  // a skew has all heads
  const int64_t count = std::ssize(text.tokens), context = executor.options().max_tokens;
  if (std::min(count, context) < kLeastCalibrationTokens)
    return Invalid("{}: {} tokens are too few for calibration, at least {} are needed", text.name, count,
                   kLeastCalibrationTokens);
  const int64_t positions = options.positions > 0 ? options.positions : executor.config().max_positions;
  // A rest of a few tokens would be all sinks.
  const int64_t sequences = count / context + (count % context >= kLeastCalibrationTokens ? 1 : 0);
  const int64_t used = std::min(count, sequences * context);
  Collector collector(executor.config(),
                      {.model = options.model, .tokens = used, .positions = positions, .text = text.name},
                      std::min(count, context), context, options.threads);
  const PrefillWatch watch(executor, [&](LayerId layer, const PrefillRows& rows) { collector.Add(layer, rows); });
  for (int64_t i = 0; i < sequences; ++i) {
    const int64_t first = i * context, rows = std::min(context, used - first);
    if (i + 1 == sequences) collector.StartLast();
    const auto should_continue = [&](int64_t done, int64_t units) {
      return collector.fitted().ok() && (!options.progress || options.progress(i * units + done, sequences * units));
    };
    ASSIGN_OR_RETURN(Sequence sequence, Sequence::Admit(executor, rows));
    ASSIGN_OR_RETURN(
        const bool whole,
        sequence.Prefill(std::span(text.tokens).subspan(static_cast<size_t>(first), static_cast<size_t>(rows)),
                         PrefillKind::kDense, should_continue));
    RETURN_IF_ERROR(collector.fitted());
    if (!whole) return Invalid("calibration was interrupted");
  }
  return collector.Finish();
}

CalibrationText RandomCalibrationText(int64_t vocab, int64_t tokens) {
  SplitMix random(1);
  CalibrationText text{.name = "random token ids"};
  for (int64_t i = 0; i < tokens; ++i)
    text.tokens.push_back(static_cast<int32_t>(random.Below(static_cast<size_t>(vocab))));
  return text;
}

void TurnRows(std::span<const float> frequencies, const RopeConfig& rope, int64_t head_dim,
              std::span<const double> offsets, std::span<float> rows) {
  const size_t half = frequencies.size(), head_size = static_cast<size_t>(head_dim);
  const bool adjacent = rope.order == RopeOrder::kPairs;
  CHECK(half > 0 && !offsets.empty() && rows.size() % (offsets.size() * head_size) == 0);
  const size_t width = rows.size() / offsets.size();
  std::vector<float> cosine(half), sine(half);
  for (size_t r = 0; r < offsets.size(); ++r) {
    for (size_t i = 0; i < half; ++i) {
      const double angle = offsets[r] * static_cast<double>(frequencies[i]);
      cosine[i] = static_cast<float>(std::cos(angle));
      sine[i] = static_cast<float>(std::sin(angle));
    }
    for (size_t head = r * width; head < (r + 1) * width; head += head_size) {
      for (size_t i = 0; i < half; ++i) {
        float &first = rows[head + (adjacent ? 2 * i : i)], &second = rows[head + (adjacent ? 2 * i + 1 : half + i)];
        const float a = first, b = second;
        first = a * cosine[i] - b * sine[i];
        second = b * cosine[i] + a * sine[i];
      }
    }
  }
}

}  // namespace infinigen
