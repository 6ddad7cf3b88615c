// The identity of a model: a hash that changes when its queries or keys change, and is cheap for a model of any size.
// It ties a skew to the model that it was calibrated on (docs/skew.md).
#pragma once

#include "kv/skew.h"
#include "model/config.h"
#include "model/weights.h"

namespace infinigen {

// Hashes the fields of the configuration that change the computation; and of the embedding, every query and key
// projection, and their norms and biases: shape, type, and at most 64 KiB of evenly spaced rows. Name, directory and
// the division of weights into files do not matter.
ModelIdentity IdentifyModel(const ModelConfig& config, const Weights& weights);

}  // namespace infinigen
