// Reads the metadata of a GGUF file into a ModelConfig. The metadata is translated into the fields of config.json, and
// model/config_reader.h reads those, so that a family's rules and checks exist once. Called while a model is opened,
// from any thread.
//
// As with config.json, a key of the architecture is used, or known not to change the computation, or rejected by name.
#pragma once

#include "base/result.h"
#include "loader/gguf_source.h"
#include "model/config.h"

namespace infinigen {

// The name of the config is the file's name without ".gguf" and without the number of a part.
Result<ModelConfig> ReadGgufConfig(const GgufSource& source);

}  // namespace infinigen
