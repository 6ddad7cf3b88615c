// Describes a model of a directory by GGUF metadata: keys, and tensors that hold divisors of rotary frequencies. The
// metadata leaves parts of some families to the reader (docs/gguf.md); a model that a reader would understand otherwise
// is refused. Used by `quantize`; one thread.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "loader/gguf_writer.h"
#include "model/config.h"

namespace infinigen {

// A tensor without parameters, float32.
struct GgufNumbers {
  std::string name;
  std::vector<float> numbers;
};

// kUnsupported, with the feature's name, unless a reader gets the same computation from the keys and tensors below.
// Precondition: the family has GGUF files.
Status CheckDescribable(const ModelConfig& config);

// Preconditions of both: CheckDescribable.
void DescribeModel(const ModelConfig& config, GgufWriter& writer);
std::vector<GgufNumbers> DescribeRotation(const ModelConfig& config);

}  // namespace infinigen
