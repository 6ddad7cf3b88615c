// Fields that several families share.
#include <algorithm>
#include <cmath>
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

void ReadLlama3(FieldReader& fields, const RopeDefaults& defaults, RopeConfig& rope) {
  rope.scaling = RopeScaling::kLlama3;
  rope.factor = fields.Positive("factor");
  rope.low_freq_factor = fields.Positive("low_freq_factor");
  rope.high_freq_factor = fields.Positive("high_freq_factor");
  rope.original_max_positions = fields.Size("original_max_position_embeddings", kMaxPositions, defaults.max_positions);
  if (fields.status().ok() && rope.high_freq_factor <= rope.low_freq_factor)
    fields.Fail(Invalid("{} is {}, expected more than low_freq_factor {}", fields.At("high_freq_factor"),
                        rope.high_freq_factor, rope.low_freq_factor));
}

// The factor on attention scores that yarn's authors found for a context that is `scale` times as long.
double YarnMagnitude(double scale, double weight) { return scale <= 1 ? 1.0 : 0.1 * weight * std::log(scale) + 1.0; }

void ReadYarn(FieldReader& fields, const RopeDefaults& defaults, RopeConfig& rope) {
  rope.scaling = RopeScaling::kYarn;
  rope.original_max_positions = fields.Size("original_max_position_embeddings", kMaxPositions, defaults.max_positions);
  rope.factor = fields.Positive("factor");
  rope.high_freq_factor = fields.Positive("beta_fast", 32.0);
  rope.low_freq_factor = fields.Positive("beta_slow", 1.0);
  rope.truncate = fields.Bool("truncate", true);
  const bool weighted = fields.Has("mscale") && fields.Has("mscale_all_dim");
  const double mscale = fields.Positive("mscale", 1.0), all_dim = fields.Positive("mscale_all_dim", 1.0);
  rope.magnitude = weighted ? YarnMagnitude(rope.factor, mscale) / YarnMagnitude(rope.factor, all_dim)
                            : YarnMagnitude(rope.factor, 1.0);
  rope.magnitude = fields.Positive("attention_factor", rope.magnitude);
  if (fields.status().ok() && rope.high_freq_factor <= rope.low_freq_factor)
    fields.Fail(Invalid("{} is {}, expected more than beta_slow {}", fields.At("beta_fast"), rope.high_freq_factor,
                        rope.low_freq_factor));
}

// A list of `count` positive numbers.
std::vector<float> Divisors(FieldReader& fields, const char* name, int64_t count) {
  const json* list = fields.Get(name);
  const auto positive = [](const json& number) {
    return number.is_number() && number.get<double>() > 0 && static_cast<float>(number.get<double>()) > 0 &&
           std::isfinite(static_cast<float>(number.get<double>()));
  };
  if (list == nullptr || !list->is_array() || std::ssize(*list) != count ||
      !std::all_of(list->begin(), list->end(), positive)) {
    fields.Fail(Invalid("{} must be a list of {} numbers above 0", fields.At(name), count));
    return {};
  }
  std::vector<float> numbers;
  for (const json& number : *list) numbers.push_back(static_cast<float>(number.get<double>()));
  return numbers;
}

void ReadLongRope(FieldReader& fields, const RopeDefaults& defaults, RopeConfig& rope) {
  const int64_t planes = rope.dims(defaults.head_dim) / 2;
  rope.original_max_positions = fields.Size("original_max_position_embeddings", kMaxPositions,
                                            defaults.original_positions.value_or(defaults.max_positions));
  rope.frequency_divisors = Divisors(fields, "short_factor", planes);
  rope.long_divisors = Divisors(fields, "long_factor", planes);
  const auto original = static_cast<double>(std::max<int64_t>(2, rope.original_max_positions));
  const double factor = fields.Positive("factor", static_cast<double>(defaults.max_positions) / original);
  rope.magnitude =
      fields.Positive("attention_factor", factor <= 1 ? 1.0 : std::sqrt(1.0 + std::log(factor) / std::log(original)));
}

}  // namespace

Result<RopeConfig> ParseRope(const json& object, const std::string& path, const std::string& name,
                             const RopeDefaults& defaults) {
  if (!object.is_object()) return Invalid("{}: field '{}' is {}, expected an object", path, name, Shown(object));
  FieldReader fields(object, path, name + ".");
  RopeConfig rope{.base = defaults.theta, .rotary_dims = defaults.rotary_dims};
  const std::string type = RopeType(fields);
  rope.base = fields.Positive("rope_theta", rope.base);
  if (defaults.rotary_dims == 0)
    fields.Only("partial_rotary_factor", 1.0);
  else
    fields.Ignore("partial_rotary_factor");
  if (type == "linear") {
    rope.scaling = RopeScaling::kLinear;
    rope.factor = fields.Positive("factor");
    fields.Get("original_max_position_embeddings");  // some exporters write it, but linear scaling does not use it
  } else if (type == "llama3") {
    ReadLlama3(fields, defaults, rope);
  } else if (type == "yarn") {
    ReadYarn(fields, defaults, rope);
  } else if (type == "longrope" || type == "su") {
    ReadLongRope(fields, defaults, rope);
  } else if (type != "default") {
    fields.Fail(Unsupported("{} {} is not supported; supported are default, linear, llama3, yarn and longrope",
                            fields.At("rope_type"), Shown(json(type))));
  }
  fields.RefuseUnknown([](std::string_view) { return false; });
  RETURN_IF_ERROR(fields.status());
  return rope;
}

void ReadGroupedHeads(FieldReader& fields, ModelConfig& config, std::optional<int64_t> head_dim) {
  config.kv_heads = fields.Size("num_key_value_heads", kMaxHeads, config.heads);
  if (config.heads % config.kv_heads != 0)
    fields.Fail(Invalid("{} is {}, which does not divide num_attention_heads {}", fields.At("num_key_value_heads"),
                        config.kv_heads, config.heads));
  if (!fields.Has("head_dim") && !head_dim && config.hidden % config.heads != 0)
    fields.Fail(Invalid("{} {} is not a multiple of num_attention_heads {}, and head_dim is not given",
                        fields.At("hidden_size"), config.hidden, config.heads));
  config.head_dim =
      fields.Size("head_dim", kHeadDimLimit, head_dim.value_or(std::max<int64_t>(1, config.hidden / config.heads)));
  if (config.head_dim % 2 != 0 || config.head_dim > kHeadDimLimit)
    fields.Fail(Invalid("{} is {}, expected an even number up to {} (RoPE rotates pairs)", fields.At("head_dim"),
                        config.head_dim, kHeadDimLimit));
}

RopeConfig ReadRope(FieldReader& fields, const RopeDefaults& defaults) {
  RopeConfig rope{.rotary_dims = defaults.rotary_dims};
  RopeDefaults with_theta = defaults;
  const double theta = with_theta.theta = rope.base = fields.Positive("rope_theta", defaults.theta);
  const char* spelling_seen = nullptr;
  for (const char* spelling : {"rope_scaling", "rope_parameters"}) {
    const json* object = fields.Get(spelling);
    if (object == nullptr) continue;
    const Result<RopeConfig> parsed = ParseRope(*object, fields.where(), spelling, with_theta);
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

std::optional<std::vector<bool>> ReadLayerTypes(FieldReader& fields, int64_t layers) {
  const json* types = fields.Get("layer_types");
  if (types == nullptr) return std::nullopt;
  const auto known = [](const json& type) { return type == "full_attention" || type == "sliding_attention"; };
  if (!types->is_array() || std::ssize(*types) != layers || !std::all_of(types->begin(), types->end(), known)) {
    fields.Fail(Unsupported("{} is {}; supported is a list of full_attention and sliding_attention for {} layers",
                            fields.At("layer_types"), Shown(*types), layers));
    return std::nullopt;
  }
  std::vector<bool> sliding;
  for (const json& type : *types) sliding.push_back(type == "sliding_attention");
  return sliding;
}

void SetWindows(ModelConfig& config, int64_t window, const std::vector<bool>& sliding) {
  if (window >= config.max_positions) return;
  for (size_t layer = 0; layer < config.specs.size(); ++layer)
    if (sliding[layer]) config.specs[layer].window = window;
}

void ReadSwitchedWindows(FieldReader& fields, ModelConfig& config, int64_t default_window, int64_t default_first) {
  const json* stated = fields.Find("sliding_window");
  fields.Ignore("max_window_layers");
  const bool off = stated != nullptr && stated->is_null();
  const std::optional<std::vector<bool>> types = ReadLayerTypes(fields, config.layers);
  if (!fields.Bool("use_sliding_window", false) || off) {
    if (types && std::find(types->begin(), types->end(), true) != types->end())
      fields.Fail(Invalid("{} names sliding_attention, but use_sliding_window is off", fields.At("layer_types")));
    return;
  }
  const int64_t window = fields.Size("sliding_window", kMaxPositions, default_window);
  const int64_t first = fields.Integer("max_window_layers", 0, kMaxPositions).value_or(default_first);
  std::vector<bool> sliding(static_cast<size_t>(config.layers));
  for (int64_t layer = first; layer < config.layers; ++layer) sliding[static_cast<size_t>(layer)] = true;
  SetWindows(config, window, types.value_or(sliding));
}

}  // namespace infinigen
