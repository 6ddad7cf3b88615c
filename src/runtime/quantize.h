// Writes a model as a GGUF file in another weight type: the work of `infinigen quantize`. One call, from any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/parameters.h"
#include "runtime/callbacks.h"

namespace infinigen {

struct QuantizeRequest {
  std::string model;   // as FindModel takes it, or "shape:NAME" for random weights
  std::string output;  // the file; it appears when all is written
  std::string type;    // one of QuantizeTypes()
  int threads = 1;
};

struct QuantizeReport {
  uint64_t bytes = 0;                      // of the file
  uint64_t weight_bytes_before = 0;        // of the model that was read
  std::map<std::string, int64_t> tensors;  // number of tensors by type, as GGUF spells it
};

std::vector<std::string> QuantizeTypes();

Result<QuantizeReport> Quantize(const QuantizeRequest& request, const Callbacks& callbacks);

// The type of a matrix in a file of `type`, by the rules of llama.cpp: q4_k_m gives the output matrix and some of the
// matrices v and down more bits, and a row that is no multiple of 256 takes a type with blocks of 32.
WeightType QuantizedType(std::string_view type, const ModelConfig& config, const Parameter& parameter, int64_t cols);

}  // namespace infinigen
