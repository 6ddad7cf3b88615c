// The tail: an estimate of the attention to rows outside the selection, from sketches alone. The plain code below
// defines it; every backend's own implementation is tested against it. Pure functions, any thread.
//
// Attention to all rows is (Σ e^{s_j} v_j) / Σ e^{s_j}. A selection S has the true scores s_j and values v_j of its own
// rows. For every other retained row j, two sketches stand in for the entry:
//
//     ŝ_j = score of the key's sketch + q · key_mean · scale     (key sketches are centred; the level must come back)
//     v̂_j = value_mean + (1 − EEᵀ) · m_b + E · c_j               (c_j: the value's sketch, E: TailBasis::value,
//                                                                 m_b: the mean of j's block, 0 if it has none)
//
//              Σ_{j∈S} e^{s_j} v_j  +  Z · value_mean  +  (1 − EEᵀ) · Σ_b Z_b m_b  +  E · Σ_{j∉S} e^{ŝ_j} c_j
//     out  =  -------------------------------------------------------------------------------------------------
//                                             Σ_{j∈S} e^{s_j}  +  Z
//
// where Z_b = Σ e^{ŝ_j} over the rows j ∉ S of block b, and Z = Σ_b Z_b. A sketch has the few directions in which
// values differ most; the mean of 64 neighbours has what the text around a row adds to all of them.
//
// So a tail is one more (maximum, sum, value) state for the merge that attention does anyway, with value_dims +
// mean_dims numbers. It uses the layer's own query, also where a guess selected the rows, and reads no entry: nothing
// crosses a link. Late rows (kv/select.h) count as selected. Rows whose score is NaN (evicted, or without a sketch yet)
// are in no tail. Where everything is selected the tail is empty, and attention is unchanged bit for bit.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kv/tail_view.h"

namespace infinigen {

// The tail of one query head.
struct TailSums {
  float maximum = -std::numeric_limits<float>::infinity();  // largest ŝ
  float sum = 0;                                            // Σ e^{ŝ − maximum}; 0: the tail is empty
  std::vector<float> values;                                // [value_dims] Σ e^{ŝ − maximum} · c
  std::vector<float> means;                                 // [mean_dims] Σ e^{ŝ − maximum} · m
};

// The tail of rows [0, scores.size()) without those of `selected`, which ascends. scores: ŝ, under the layer's soft
// cap. complete: blocks before this row have a mean, a multiple of 64.
TailSums SumTail(const SketchLayout& layout, const std::byte* head, std::span<const float> scores,
                 std::span<const int32_t> selected, int64_t complete);

// Adds a tail to the attention `out` [head_dim] of one query head, whose selected rows have the largest score `maximum`
// and Σ e^{score − maximum} = `sum`. Returns the tail's share of the attention.
float AddTail(const TailSums& tail, const TailBasis& basis, int64_t kv_head, float maximum, float sum,
              std::span<float> out);

}  // namespace infinigen
