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

std::string_view Name(ProjectionKind kind) {
  switch (kind) {
    case ProjectionKind::kRotation:
      return "rotation";
    case ProjectionKind::kPair:
      return "pair";
    case ProjectionKind::kNone:
      return "none";
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

QuotaRule QuotasOf(const KvMethod& method, const EntryLayout& layout, int64_t layers, int64_t sequences) {
  QuotaRule rule{
      .limit = method.limit, .row_bytes = layout.row_bytes(), .layers = layers, .dense_layers = method.dense_layers};
  if (rule.limit.sequences == 0) rule.limit.sequences = sequences;
  return rule;
}

}  // namespace infinigen
