#include "runtime/kv_map.h"

#include <algorithm>

namespace infinigen {

KvMapRecorder::~KvMapRecorder() {
  if (!recorded_.empty()) engine_.executor().instruments().ObserveSelection({});
}

void KvMapRecorder::Start(RequestId id) {
  if (recorded_.empty())
    engine_.executor().instruments().ObserveSelection(
        [this](LayerId layer, SeqSlot slot, KvHead, std::span<const int32_t> rows) { Add(layer, slot, rows); });
  recorded_[id].resize(static_cast<size_t>(engine_.executor().config().layers));
}

// Rows that are computed again as steps after a preemption were counted before.
void KvMapRecorder::Add(LayerId layer, SeqSlot slot, std::span<const int32_t> rows) {
  if (rows.empty()) return;
  for (auto& [id, layers] : recorded_) {
    if (engine_.SlotOf(id) != slot) continue;
    if (engine_.StateOf(id) != RequestState::kDecoding) return;
    std::vector<uint32_t>& counts = layers[layer.index()];
    const size_t needed = static_cast<size_t>(rows.back()) + 1;
    if (counts.size() < needed) counts.resize(needed);
    for (const int32_t row : rows) ++counts[static_cast<size_t>(row)];
    return;
  }
}

AttendedMap KvMapRecorder::Take(RequestId id, int64_t prompt_tokens, int64_t steps) {
  const auto found = recorded_.find(id);
  CHECK(found != recorded_.end());
  const Counts counted = std::move(found->second);
  recorded_.erase(found);
  if (recorded_.empty()) engine_.executor().instruments().ObserveSelection({});
  const ModelConfig& config = engine_.executor().config();
  if (steps == 0) return {};
  AttendedMap map{.layers = config.layers, .rows = prompt_tokens + steps, .steps = steps};
  map.share.reserve(static_cast<size_t>(map.layers * map.rows));
  for (int64_t layer = 0; layer < map.layers; ++layer) {
    const std::vector<uint32_t>& counts = counted[static_cast<size_t>(layer)];
    const int64_t window = config.specs[static_cast<size_t>(layer)].window;
    for (int64_t row = 0; row < map.rows; ++row) {
      // Step i (from 0) can attend to rows [0, prompt_tokens + i].
      const int64_t first = std::max<int64_t>(0, row - prompt_tokens);
      const int64_t could = steps - first;
      int64_t did = could;
      if (window > 0) did = std::clamp<int64_t>(row + window - prompt_tokens - first, 0, could);
      const double share = static_cast<double>(did) / static_cast<double>(could);
      const double pairs = static_cast<double>(could * config.kv_heads);
      const uint32_t count = static_cast<size_t>(row) < counts.size() ? counts[static_cast<size_t>(row)] : 0;
      map.share.push_back(static_cast<float>(counts.empty() ? share : static_cast<double>(count) / pairs));
    }
  }
  return map;
}

}  // namespace infinigen
