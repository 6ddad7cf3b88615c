// KvWatch: the live picture of the cache (GET /kv, docs/serving-design.md). Follows one sequence, the youngest that
// decodes; observes the executor only while a client watches, on a GPU, where that takes time, one step in a tenth of a
// second. On the engine's thread, all of it.
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

// What the pool can hold: its limit, or less where all sequences together never need as much.
uint64_t PoolLimit(const Executor& executor);

// What a step attended to, as shares of columns of the context.
class KvPicture {
 public:
  explicit KvPicture(int64_t layers) : layers_(static_cast<size_t>(layers)) {}

  void Clear();
  // One KV head's rows, ascending; the current row is the last of them.
  void Add(LayerId layer, KvHead head, std::span<const int32_t> rows);
  // [layers][columns] of 0…255; layers that select nothing attend to everything.
  nlohmann::ordered_json Layers(int64_t rows) const;
  // Of the context in that step; 0: there was none.
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
  // Both outlive it. `samples`: observes a step for each event, not all.
  KvWatch(Engine& engine, const Metrics& metrics, uint64_t prefix_limit_bytes, bool samples);
  ~KvWatch();

  void Add(std::shared_ptr<HttpExchange> watcher);
  void Remove(const HttpExchange* watcher);
  // Ends every stream; those that come later end at once.
  void EndAll();

  // The life of a sequence. `preset` is what it attends by.
  void Started(RequestId id, std::string name, int64_t prompt_tokens, std::string preset);
  void Token(RequestId id);
  void Finished(RequestId id);

  // After a turn: an event, where one is due.
  void Turn();

 private:
  struct Sequence {
    RequestId id;
    std::string name;
    std::string preset;
    int64_t rows = 0;
    bool decoding = false;
  };
  using Clock = std::chrono::steady_clock;

  Sequence* Find(RequestId id);
  void Follow();
  void Observe(bool on);
  void Rest();
  void Send();

  Engine& engine_;
  const Metrics& metrics_;
  std::vector<std::shared_ptr<HttpExchange>> watchers_;
  bool ending_ = false;
  std::vector<Sequence> sequences_;  // in order of arrival
  std::optional<RequestId> followed_;
  const bool selects_, samples_;
  bool observing_ = false;
  bool drawn_ = false, fresh_ = false;  // the picture has a step of the followed one; since the latest event
  KvPicture picture_;
  Clock::time_point last_event_ = Clock::now();
  KvStats before_;
  const uint64_t pool_limit_bytes_, prefix_limit_bytes_;
};

}  // namespace infinigen
