// KvWatch: the live picture of the KV cache (GET /kv, docs/serving-design.md). A client sees sequences of its own
// tenant only. The watch follows one sequence at a time: the latest that decodes, of the tenants that watch in turn. It
// observes the executor only while a client watches; on a GPU, where observing takes time, only one step in 0.1 s.
// Everything runs on the engine's thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine_thread.h"
#include "server/http.h"
#include "server/metrics.h"

namespace infinigen {

inline constexpr int64_t kPictureColumns = 256;

// Bytes that the pool can hold: its limit, or what all sequences together need at most if that is less.
uint64_t PoolLimit(const Executor& executor);

// The rows that a step attended to. The context is divided into columns; each has the share of its rows attended to.
class KvPicture {
 public:
  explicit KvPicture(int64_t layers) : layers_(static_cast<size_t>(layers)) {}

  void Clear();
  // Adds the rows that one KV head attended to, ascending; the last is the current token's row.
  void Add(LayerId layer, KvHead head, std::span<const int32_t> rows);
  // [layers][columns], 0 to 255. Layers without a selection are 255: they attend to everything.
  nlohmann::ordered_json Layers(int64_t rows) const;
  // Rows of the context in that step; 0: no step was added.
  int64_t rows() const;
  static int64_t Columns(int64_t rows) { return std::min(rows, kPictureColumns); }

 private:
  struct Layer {
    int64_t heads = 0;
    int64_t rows = 0;
    std::vector<int64_t> counts;  // [columns]
  };
  std::vector<Layer> layers_;
};

class KvWatch {
 public:
  using Clock = std::chrono::steady_clock;

  // `engine` and `metrics` outlive it. `samples`: observe one step per event instead of all steps.
  KvWatch(Engine& engine, const Metrics& metrics, uint64_t prefix_limit_bytes, bool samples,
          NowFunction now = Clock::now);
  ~KvWatch();

  // `place` is held until the watcher leaves.
  void Add(std::shared_ptr<HttpExchange> watcher, std::string tenant = {}, std::shared_ptr<const void> place = {});
  void Remove(const HttpExchange* watcher);
  // Ends every stream; streams added later end immediately.
  void EndAll();

  // Events of a sequence, reported by its Completion. `preset`: its KV method.
  void Started(RequestId id, std::string name, int64_t prompt_tokens, std::string preset, std::string tenant = {});
  void Token(RequestId id);
  void Finished(RequestId id);

  // Called after every turn; sends an event if one is due.
  void Turn();

 private:
  struct Sequence {
    RequestId id;
    std::string name;
    std::string preset;
    int64_t rows = 0;
    bool decoding = false;
    std::string tenant;
  };
  struct Watcher {
    std::shared_ptr<HttpExchange> exchange;
    std::string tenant;
    std::shared_ptr<const void> place;
  };
  Sequence* Find(RequestId id);
  // Chooses the sequence to follow; `next_tenant`: one of another tenant, if one decodes.
  void Follow(bool next_tenant = false);
  bool IsWatched(const std::string& tenant) const;
  void Observe(bool on);
  void Rest();
  void Send();

  Engine& engine_;
  const Metrics& metrics_;
  std::vector<Watcher> watchers_;
  bool ending_ = false;
  std::vector<Sequence> sequences_;  // in order of arrival
  std::optional<RequestId> followed_;
  const bool selects_, samples_;
  bool observing_ = false;
  bool drawn_ = false;  // the picture has a step of the followed sequence
  bool fresh_ = false;  // and that step is newer than the latest event
  KvPicture picture_;
  const NowFunction now_;
  Clock::time_point last_event_ = now_();
  KvStats before_;
  const uint64_t pool_limit_bytes_, prefix_limit_bytes_;
};

}  // namespace infinigen
