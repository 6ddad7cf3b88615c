// Fields that several families share.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "model/config_reader.h"
#include "model/families/families.h"

namespace infinigen {
namespace {

using nlohmann::json;

// The type of a RoPE object: `rope_type`, or `type` before transformers 4.43. Some versions write both.
std::string RopeType(FieldReader& fields) {
  const std::string old_type = fields.String("type", "");
  std::string type = fields.String("rope_type", old_type.empty() ? "default" : old_type);
  if (!old_type.empty() && type != old_type)
    fields.Fail(Invalid("{} is '{}', but 'type' beside it is '{}'", fields.At("rope_type"), type, old_type));
  return type;
}

// `object` is rope_scaling (old) or rope_parameters (new, which contains rope_theta).
Result<RopeConfig> ParseRope(const json& object, const std::string& path, const std::string& name, double theta,
                             int64_t max_positions) {
  if (!object.is_object()) return Invalid("{}: field '{}' is {}, expected an object", path, name, Shown(object));
  FieldReader fields(object, path, name + ".");
  RopeConfig rope;
  const std::string type = RopeType(fields);
  rope.base = fields.Positive("rope_theta", theta);
  fields.Only("partial_rotary_factor", 1.0);
  if (type == "linear") {
    rope.scaling = RopeScaling::kLinear;
    rope.factor = fields.Positive("factor");
    fields.Get("original_max_position_embeddings");  // some exporters write it, but linear scaling does not use it
  } else if (type == "llama3") {
    rope.scaling = RopeScaling::kLlama3;
    rope.factor = fields.Positive("factor");
    rope.low_freq_factor = fields.Positive("low_freq_factor");
    rope.high_freq_factor = fields.Positive("high_freq_factor");
    rope.original_max_positions = fields.Size("original_max_position_embeddings", kMaxPositions, max_positions);
    if (fields.status().ok() && rope.high_freq_factor <= rope.low_freq_factor)
      fields.Fail(Invalid("{} is {}, expected more than low_freq_factor {}", fields.At("high_freq_factor"),
                          rope.high_freq_factor, rope.low_freq_factor));
  } else if (type != "default") {
    fields.Fail(Unsupported("{} {} is not supported; supported are default, linear and llama3", fields.At("rope_type"),
                            Shown(json(type))));
  }
  fields.RefuseUnknown([](std::string_view) { return false; });
  RETURN_IF_ERROR(fields.status());
  return rope;
}

}  // namespace

void ReadGroupedHeads(FieldReader& fields, ModelConfig& config) {
  config.kv_heads = fields.Size("num_key_value_heads", kMaxHeads, config.heads);
  if (config.heads % config.kv_heads != 0)
    fields.Fail(Invalid("{} is {}, which does not divide num_attention_heads {}", fields.At("num_key_value_heads"),
                        config.kv_heads, config.heads));
  if (!fields.Has("head_dim") && config.hidden % config.heads != 0)
    fields.Fail(Invalid("{} {} is not a multiple of num_attention_heads {}, and head_dim is not given",
                        fields.At("hidden_size"), config.hidden, config.heads));
  config.head_dim = fields.Size("head_dim", kHeadDimLimit, std::max<int64_t>(1, config.hidden / config.heads));
  if (config.head_dim % 2 != 0 || config.head_dim > kHeadDimLimit)
    fields.Fail(Invalid("{} is {}, expected an even number up to {} (RoPE rotates pairs)", fields.At("head_dim"),
                        config.head_dim, kHeadDimLimit));
}

RopeConfig ReadRope(FieldReader& fields, int64_t max_positions) {
  RopeConfig rope;
  const double theta = rope.base = fields.Positive("rope_theta", rope.base);
  const char* spelling_seen = nullptr;
  for (const char* spelling : {"rope_scaling", "rope_parameters"}) {
    const json* object = fields.Get(spelling);
    if (object == nullptr) continue;
    const Result<RopeConfig> parsed = ParseRope(*object, fields.where(), spelling, theta, max_positions);
    if (!parsed.ok()) {
      fields.Fail(parsed.error());
      return rope;
    }
    if (spelling_seen != nullptr && !(*parsed == rope))
      fields.Fail(Invalid("{} and '{}' disagree", fields.At(spelling), spelling_seen));
    rope = *parsed;
    spelling_seen = spelling;
  }
  if (fields.Has("rope_theta") && rope.base != theta)
    fields.Fail(
        Invalid("{} is {}, but the rope_theta of rope_parameters is {}", fields.At("rope_theta"), theta, rope.base));
  return rope;
}

}  // namespace infinigen
