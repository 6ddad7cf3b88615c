// The decoder's fixed memory on the compute device: one block, carved once. What a plan prints is what is allocated,
// because both come from the same walk.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kv/pool.h"
#include "model/config.h"
#include "tensor/view.h"

namespace infinigen {

struct Workspace {
  // T = max(max_batch, chunk tokens); activation type unless said otherwise.
  Tensor step_residual;  // [max_batch][hidden]
  Tensor normed;         // [T][hidden]
  Tensor narrow;         // [T][embed_dim], models with projections only
  Tensor q;              // [T][heads·head_dim]
  Tensor k, v;           // [T][kv_heads·head_dim]
  Tensor mixed;          // [T][heads·head_dim], attention's output
  Tensor gate, up;       // [T][ffn]; gate only where the MLP is gated
  Tensor rope;           // [T][head_dim] f32: cosines, sines
  Tensor frequencies;    // [1][head_dim/2] f32
  Tensor logits;         // [max(max_batch, kLogitRows)][vocab] f32

  int32_t* ids = nullptr;        // [T]
  int32_t* slots = nullptr;      // [T]
  int32_t* rows = nullptr;       // [T]
  std::byte** tables = nullptr;  // [layers][max_sequences][extents_per_slot]

  static size_t Bytes(const ModelConfig& config, const PoolOptions& pool, int64_t max_batch, int64_t chunk,
                      DType activation);
  // `base` has Bytes(…) bytes, 64-byte aligned.
  static Workspace Carve(std::byte* base, const ModelConfig& config, const PoolOptions& pool, int64_t max_batch,
                         int64_t chunk, DType activation);
};

}  // namespace infinigen
