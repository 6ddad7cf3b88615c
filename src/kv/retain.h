// Retention: which entries stay in a layer that retains at most `quota` rows of a sequence. This is the plain host code
// that defines it; every backend's own implementation is tested against it. Pure functions, any thread.
//
// For one (sequence, layer, KV head), every row has a position and a priority. The newest ⌊quota / 2⌋ rows and the
// sinks are protected.
//
//   step      When the cache is full, a new token replaces the unprotected row with the smallest priority; among equal
//             priorities, the oldest.
//   prefill   Of a prompt that is longer than the quota, the survivors are the protected rows and the others with the
//             largest priorities; among equal priorities, the newest. They become rows 0, 1, … in order of position.
//
// A policy defines the priorities. Each has its own file in kv/retain/; docs/adding-a-method.md shows how to add one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kv/retain_view.h"
#include "kv/selection_view.h"

namespace infinigen {

struct RetainPolicy {
  std::string_view name;
  std::string_view summary;  // for help texts
  InitialPriority on_append = InitialPriority::kPosition;
  PriorityUpdate on_select = PriorityUpdate::kKeep;
  bool sums_attention = false;

  // Priorities are updated by selections, so the policy needs a method that selects.
  bool needs_selection() const { return on_select != PriorityUpdate::kKeep; }
};

extern const RetainPolicy kRetainCounter, kRetainLru, kRetainFifo, kRetainH2o, kRetainStreaming, kRetainRandom;

std::span<const RetainPolicy* const> RetainPolicies();
// Null when no policy has the name.
const RetainPolicy* FindRetainPolicy(std::string_view name);

// The limit that the user set: a share of each sequence's final length, or bytes for the entries of all sequences,
// divided equally among them.
struct RetainLimit {
  double share = 1.0;     // ⌊share · final length⌋ rows; ignored unless bytes is 0
  uint64_t bytes = 0;     // 0: the share applies
  int64_t sequences = 0;  // number of sequences that share the bytes; 0: as many as run at once
};

// Converts the limit to rows that an evicting layer retains of a sequence, for one model and run.
struct QuotaRule {
  RetainLimit limit;
  uint64_t row_bytes = 0;    // one token in one layer
  int64_t layers = 0;        // of the model, without layers that have a window
  int64_t dense_layers = 0;  // layers that never evict; their rows are subtracted from the bytes first
  // Layers with a window never evict either; each has up to ring_rows rows, in whole extents.
  int64_t windowed_layers = 0;
  int64_t ring_rows = 0;

  // Rows for a sequence that will have `final_tokens` tokens; 0 when the bytes do not suffice for one row.
  int64_t Quota(int64_t final_tokens) const;
  // The largest quota of sequences of up to `max_tokens` tokens, at least 1.
  int64_t LargestQuota(int64_t max_tokens) const;

 private:
  // Bytes of the layers that never evict.
  uint64_t FixedBytes(int64_t final_tokens) const;
  uint64_t SequenceBytes() const { return limit.bytes / static_cast<uint64_t>(std::max<int64_t>(1, limit.sequences)); }
};

// The row for the token at `position`: the next free one, or in a full cache that of the evicted entry. positions and
// priorities [rows], rows ≤ quota.
int64_t AssignRow(std::span<const int32_t> positions, std::span<const float> priorities, const RetainRule& rule,
                  int64_t position, int64_t quota);

// Updates the priorities after a selection by the token at `position`. `rows` are the attended rows; sinks and window,
// which are attended whatever they score, are skipped.
void UpdatePriorities(const RetainRule& rule, const SelectRule& select, int64_t position, std::span<const int32_t> rows,
                      std::span<const int32_t> positions, std::span<float> priorities);

// The `quota` rows, ascending, that are retained of a prefill of positions [0, priorities.size()).
std::vector<int32_t> Survivors(std::span<const float> priorities, const RetainRule& rule, int64_t quota);

}  // namespace infinigen
