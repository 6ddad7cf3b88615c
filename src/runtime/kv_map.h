// KvMapRecorder: adds up which rows the decode steps of chosen requests attended to, for pictures of the cache. It
// observes the executor's selections while a request is recorded. Called from the engine's thread only.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "engine/engine.h"

namespace infinigen {

// The sum over the decode steps of one request.
struct AttendedMap {
  int64_t layers = 0;
  int64_t rows = 0;  // of the last step, its own included
  int64_t steps = 0;
  // [layers][rows]: of the (step, KV head) pairs that could attend to the row, the share that did. Layers without a
  // selection attend to all rows, or to those in their window.
  std::vector<float> share;
};

class KvMapRecorder {
 public:
  // `engine` outlives it. Precondition: the method does not evict, so that a row is a position.
  explicit KvMapRecorder(Engine& engine) : engine_(engine) {}
  ~KvMapRecorder();
  KvMapRecorder(const KvMapRecorder&) = delete;
  KvMapRecorder& operator=(const KvMapRecorder&) = delete;

  // Before the request's first step.
  void Start(RequestId id);
  // Ends the recording. `steps`: decode steps that the request ran after a prompt of `prompt_tokens` tokens.
  AttendedMap Take(RequestId id, int64_t prompt_tokens, int64_t steps);

 private:
  using Counts = std::vector<std::vector<uint32_t>>;  // [layers][rows]: (step, KV head) pairs that attended to the row

  void Add(LayerId layer, SeqSlot slot, std::span<const int32_t> rows);

  Engine& engine_;
  std::map<RequestId, Counts> recorded_;
};

}  // namespace infinigen
