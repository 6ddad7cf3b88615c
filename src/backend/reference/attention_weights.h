// What the oracle's attention is made of, for those who sum it up.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/view.h"

namespace infinigen {

// softmax(q·K · scale) over the listed rows of one KV head.
std::vector<float> AttentionWeights(const float* query, int64_t slot, int64_t head, std::span<const int32_t> rows,
                                    float scale, const LayerEntries& entries);
// The values of the listed rows, weighted so: one query head's output.
void AttendHead(const float* query, int64_t slot, int64_t head, std::span<const int32_t> rows, float scale,
                const LayerEntries& entries, float* out);

}  // namespace infinigen
