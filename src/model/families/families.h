// The families, and fields that several of them share. Private to model/family.cc and the files of this directory.
#pragma once

#include <cstdint>

#include "json/fields.h"
#include "model/config.h"
#include "model/family.h"

namespace infinigen {

extern const ModelFamily kLlamaFamily;
extern const ModelFamily kOptFamily;
extern const ModelFamily kQwen2Family;

// The tensor names of GGUF files, which are the same in every family.
inline constexpr RoleName kGgufNames[] = {
    {WeightRole::kEmbedding, "token_embd"},      {WeightRole::kAttentionNorm, "blk.#.attn_norm"},
    {WeightRole::kMlpNorm, "blk.#.ffn_norm"},    {WeightRole::kQuery, "blk.#.attn_q"},
    {WeightRole::kKey, "blk.#.attn_k"},          {WeightRole::kValue, "blk.#.attn_v"},
    {WeightRole::kOutput, "blk.#.attn_output"},  {WeightRole::kQueryNorm, "blk.#.attn_q_norm"},
    {WeightRole::kKeyNorm, "blk.#.attn_k_norm"}, {WeightRole::kGate, "blk.#.ffn_gate"},
    {WeightRole::kUp, "blk.#.ffn_up"},           {WeightRole::kDown, "blk.#.ffn_down"},
    {WeightRole::kFinalNorm, "output_norm"},     {WeightRole::kLmHead, "output"},
};
// Divisors of the rotary frequencies, which model/gguf_config.cc reads, and frequencies that follow from the metadata.
inline constexpr std::string_view kGgufRopeTensors[] = {"rope_freqs.weight", "blk.#.attn_rot_embd.weight"};

// Reads kv_heads and head_dim as in Llama, from num_key_value_heads and head_dim; both may be absent.
void ReadGroupedHeads(FieldReader& fields, ModelConfig& config);

// Reads rope_theta and rope_scaling (old) or rope_parameters (new). If both exist they must agree.
RopeConfig ReadRope(FieldReader& fields, int64_t max_positions);

}  // namespace infinigen
