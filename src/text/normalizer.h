// Normalizer: rewrites the text before it is cut into words. Immutable, any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer_spec.h"

namespace infinigen {

class Normalizer {
 public:
  explicit Normalizer(std::vector<NormalizerStep> steps) : steps_(std::move(steps)) {}

  bool identity() const { return steps_.empty(); }

  // `text` is valid UTF-8. `continues`: it directly follows malformed bytes, so nothing is prepended.
  std::string Apply(std::string_view text, bool continues) const;

 private:
  std::vector<NormalizerStep> steps_;
};

}  // namespace infinigen
