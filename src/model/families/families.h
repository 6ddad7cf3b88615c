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

// Reads kv_heads and head_dim as in Llama, from num_key_value_heads and head_dim; both may be absent.
void ReadGroupedHeads(FieldReader& fields, ModelConfig& config);

// Reads rope_theta and rope_scaling (old) or rope_parameters (new). If both exist they must agree.
RopeConfig ReadRope(FieldReader& fields, int64_t max_positions);

}  // namespace infinigen
