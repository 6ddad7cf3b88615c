// Retention: who stays in a layer that keeps at most `quota` rows. The plain host form, which is the definition; every
// backend's own form is tested against it. For one (sequence, layer, KV head):
//
//   the rows hold (position, priority); the newest ⌊quota / 2⌋ and the sinks are protected;
//   a new token at a full cache takes the row of the unprotected one with the smallest priority, among equals the
//   oldest; a prefill that is longer than the quota leaves the protected ones and, of the others, those of the largest
//   priorities, among equals the newer; they become rows 0, 1, ... in the order of their positions.
//
// A policy says what a priority is. Each has a file of its own in kv/retain/; docs/methods.md shows how to add one.
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
  std::string_view summary;  // for help
  InitialPriority on_append = InitialPriority::kPosition;
  PriorityUpdate on_select = PriorityUpdate::kKeep;
  bool sums_attention = false;

  // Priorities are made by selections: where everything is attended to, none are.
  bool needs_selection() const { return on_select != PriorityUpdate::kKeep; }
};

extern const RetainPolicy kRetainCounter, kRetainLru, kRetainFifo, kRetainH2o, kRetainStreaming, kRetainRandom;

std::span<const RetainPolicy* const> RetainPolicies();
// nullptr: nobody's name.
const RetainPolicy* FindRetainPolicy(std::string_view name);

// The limit that a run was asked to keep: a share of each sequence's final length, or bytes for all entries of all
// sequences, which are divided equally among them.
struct RetainLimit {
  double share = 1.0;     // ⌊share · final length⌋ rows; ignored where bytes is not 0
  uint64_t bytes = 0;     // 0: the share counts
  int64_t sequences = 0;  // among which bytes are divided; 0: as many as run at once
};

// How many rows an evicting layer retains of a sequence: the limit in terms of one model and run.
struct QuotaRule {
  RetainLimit limit;
  uint64_t row_bytes = 0;    // one token in one layer
  int64_t layers = 0;        // of the model
  int64_t dense_layers = 0;  // the first of them, which never evict and are served first

  // Rows for a sequence that will have `final_tokens` tokens. 0: the bytes hold no row.
  int64_t Quota(int64_t final_tokens) const;
  // The largest quota of sequences of up to `max_tokens` tokens, at least 1.
  int64_t LargestQuota(int64_t max_tokens) const;

 private:
  uint64_t SequenceBytes() const { return limit.bytes / static_cast<uint64_t>(std::max<int64_t>(1, limit.sequences)); }
};

// The row that the token at `position` takes. positions and priorities [rows], rows ≤ quota.
int64_t AssignRow(std::span<const int32_t> positions, std::span<const float> priorities, const RetainRule& rule,
                  int64_t position, int64_t quota);

// What a selection by the token at `position` does to the priorities. `rows` are attended; those of sinks and window,
// which no score chose, do not count.
void UpdatePriorities(const RetainRule& rule, const SelectRule& select, int64_t position, std::span<const int32_t> rows,
                      std::span<const int32_t> positions, std::span<float> priorities);

// The rows, ascending, that stay of a prefill of positions [0, priorities.size()): `quota` of them.
std::vector<int32_t> Survivors(std::span<const float> priorities, const RetainRule& rule, int64_t quota);

}  // namespace infinigen
