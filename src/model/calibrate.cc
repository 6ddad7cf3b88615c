#include "model/calibrate.h"

#include <algorithm>
#include <optional>

#include "base/split_mix.h"
#include "base/thread_pool.h"

namespace infinigen {
namespace {

// Turns a prefill's queries and keys into the skew, layer by layer.
class Collector {
 public:
  Collector(const ModelConfig& config, SkewOrigin origin, int threads)
      : config_(config),
        threads_(threads),
        skew_({.layers = config.layers, .kv_heads = config.kv_heads, .head_dim = config.head_dim}, std::move(origin)) {}

  void Add(LayerId layer, int64_t first_row, const ConstTensor& queries, const ConstTensor& keys) {
    if (!moments_ || layer != layer_) {
      FinishLayer();
      layer_ = layer;
      moments_.emplace(config_.heads, config_.kv_heads, config_.head_dim);
    }
    moments_->Add(first_row, queries, keys, threads_);
  }

  void FinishLayer() {
    if (moments_ && fitted_.ok()) {
      fitted_ = skew_.FitLayer(layer_, *moments_, threads_);
      ++layers_done_;
    }
    moments_.reset();
  }

  const Status& status() const { return fitted_; }
  Result<Skew> Finish() {
    FinishLayer();
    if (!fitted_.ok()) return fitted_.error();
    CHECK(layers_done_ == config_.layers);
    return std::move(skew_);
  }

 private:
  const ModelConfig& config_;
  ThreadPool threads_;
  Skew skew_;
  Status fitted_ = Ok();
  LayerId layer_;
  int64_t layers_done_ = 0;
  std::optional<SkewMoments> moments_;  // of layer_
};

// A sequence of the executor that is watched while it prefills; given back whatever happens.
class WatchedPrefill {
 public:
  WatchedPrefill(Executor& executor, SeqSlot slot, PrefillObserver observer) : executor_(executor), slot_(slot) {
    executor_.ObservePrefill(std::move(observer));
  }
  ~WatchedPrefill() {
    executor_.ObservePrefill({});
    executor_.Release(slot_);
  }
  WatchedPrefill(const WatchedPrefill&) = delete;
  WatchedPrefill& operator=(const WatchedPrefill&) = delete;

 private:
  Executor& executor_;
  SeqSlot slot_;
};

}  // namespace

Result<Skew> Calibrate(Executor& executor, const ModelIdentity& model, const CalibrationText& text, int threads,
                       const CalibrationProgress& progress) {
  CHECK(executor.options().method.select == SelectKind::kAll);
  const int64_t count =
      std::min({static_cast<int64_t>(text.tokens.size()), kCalibrationTokens, executor.options().max_tokens});
  if (count < kLeastCalibrationTokens)
    return Invalid("{}: {} tokens are too few to calibrate by, at least {} are needed", text.name, count,
                   kLeastCalibrationTokens);
  Collector collector(executor.config(), {.model = model, .tokens = count, .text = text.name}, threads);
  ASSIGN_OR_RETURN(const SeqSlot slot, executor.Admit(count));
  const WatchedPrefill watched(
      executor, slot, [&](LayerId layer, int64_t first_row, const ConstTensor& queries, const ConstTensor& keys) {
        collector.Add(layer, first_row, queries, keys);
      });
  RETURN_IF_ERROR(executor.BeginPrefill(slot, 0, std::span(text.tokens).first(static_cast<size_t>(count))));
  const int64_t units = executor.PrefillUnits(slot);
  for (int64_t done = 1; !executor.RunPrefillUnit(slot); ++done) {
    RETURN_IF_ERROR(collector.status());
    if (progress && !progress(done, units)) return Invalid("calibration was interrupted");
  }
  executor.EndPrefill(slot);
  return collector.Finish();
}

CalibrationText RandomCalibrationText(int64_t vocab, int64_t tokens) {
  SplitMix random(1);
  CalibrationText text{.name = "random token ids"};
  for (int64_t i = 0; i < tokens; ++i)
    text.tokens.push_back(static_cast<int32_t>(random.Below(static_cast<size_t>(vocab))));
  return text;
}

}  // namespace infinigen
