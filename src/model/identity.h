// The identity of a model: a hash that changes when its queries or keys change, cheap for a model of any size. It ties
// a skew to what it was calibrated on (docs/skew.md).
#pragma once

#include "kv/skew.h"
#include "model/config.h"
#include "model/weights.h"

namespace infinigen {

// Over the configuration's fields that change the computation, and over shape, type and at most 64 KiB of evenly spaced
// rows of the embedding and every query and key projection, with their norms and biases. Neither name nor directory
// takes part, nor into which files the weights are cut.
ModelIdentity IdentifyModel(const ModelConfig& config, const Weights& weights);

}  // namespace infinigen
