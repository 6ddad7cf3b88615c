// The families, and what several of them read alike. Private to model/family.cc and the files of this directory.
#pragma once

#include <cstdint>

#include "json/fields.h"
#include "model/config.h"
#include "model/family.h"

namespace infinigen {

extern const ModelFamily kLlamaFamily;
extern const ModelFamily kOptFamily;
extern const ModelFamily kQwen2Family;

// kv_heads and head_dim from num_key_value_heads and head_dim, as in Llama: both may be absent.
void ReadGroupedHeads(FieldReader& fields, ModelConfig& config);

// From rope_theta and rope_scaling (old spelling) or rope_parameters (new); where both are there they must agree.
RopeConfig ReadRope(FieldReader& fields, int64_t max_positions);

}  // namespace infinigen
