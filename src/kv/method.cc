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

QuotaRule QuotasOf(const KvMethod& method, const PoolOptions& pool) {
  const int64_t windowed = pool.windowed_layers();
  QuotaRule rule{.limit = method.limit,
                 .row_bytes = pool.layout.row_bytes(),
                 .layers = pool.layers - windowed,
                 .dense_layers = pool.layers - windowed - pool.evicting_layers(),
                 .windowed_layers = windowed,
                 .ring_rows = pool.ring_rows};
  if (rule.limit.sequences == 0) rule.limit.sequences = pool.max_sequences;
  return rule;
}

}  // namespace infinigen
