#include "kv/method.h"

#include "base/check.h"

namespace infinigen {

std::string_view Name(GuessSource source) {
  switch (source) {
    case GuessSource::kSelf:
      return "self";
    case GuessSource::kPrevLayer:
      return "prev-layer";
    case GuessSource::kPrevMid:
      return "prev-mid";
    case GuessSource::kPrevStep:
      return "prev-step";
  }
  CHECK(false);
}

std::string_view Name(SketchType type) {
  switch (type) {
    case SketchType::kBF16:
      return "bf16";
    case SketchType::kInt8:
      return "int8";
    case SketchType::kInt4:
      return "int4";
  }
  CHECK(false);
}

}  // namespace infinigen
