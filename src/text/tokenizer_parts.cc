// Parses the parts of tokenizer.json: normalizer, pre-tokenizer, decoder, post-processor, added tokens.

#include <algorithm>
#include <optional>
#include <utility>

#include "base/utf8.h"
#include "json/fields.h"
#include "text/tokenizer_files.h"

namespace infinigen {
namespace {

using nlohmann::json;

// `name` is the object's name in messages: "pre_tokenizer Split".
FieldReader Part(const json& object, std::string name) {
  return FieldReader(object, std::move(name), "", FieldWording::kPlain);
}

Status Finish(FieldReader& fields) {
  fields.RefuseUnknown();
  return fields.status();
}

std::string TypeOf(const json& component) {
  if (!component.is_object()) return {};
  const auto type = component.find("type");
  if (type == component.end() || !type->is_string()) return {};
  return type->get<std::string>();
}

Error UnknownType(const char* section, const std::string& type) {
  return Unsupported("{} type {} is not supported", section, Quoted(type, 64));
}

// Calls parse(component) for a single component, or for every component of a Sequence, also a nested one.
template <class Parse>
Status ForEachComponent(const json& component, const char* section, const char* list_key, Parse&& parse) {
  if (component.is_null()) return Ok{};
  if (TypeOf(component) != "Sequence") return parse(component);
  FieldReader fields = Part(component, fmt::format("{} Sequence", section));
  fields.Ignore("type");
  const json* list = fields.Find(list_key);
  if (list == nullptr || !list->is_array()) return Invalid("{} Sequence: field '{}' must be a list", section, list_key);
  RETURN_IF_ERROR(Finish(fields));
  for (const json& item : *list) RETURN_IF_ERROR(ForEachComponent(item, section, list_key, parse));
  return Ok{};
}

struct Pattern {
  bool regex = false;
  std::string text;
};

// {"String": "..."} or {"Regex": "..."}.
std::optional<Pattern> ParsePattern(const json* pattern) {
  if (pattern == nullptr || !pattern->is_object() || pattern->size() != 1) return std::nullopt;
  const auto item = pattern->begin();
  const auto* text = item->get_ptr<const std::string*>();
  if (text == nullptr || text->empty() || (item.key() != "String" && item.key() != "Regex")) return std::nullopt;
  return Pattern{item.key() == "Regex", *text};
}

// Limits the growth of text by a chain of replacements: a hostile file could turn one byte into gigabytes.
template <class Step>
Status CheckGrowth(const std::vector<Step>& steps, const char* section) {
  constexpr double kMaxGrowth = 64;
  constexpr size_t kMaxSteps = 32;
  double growth = 1;
  for (const Step& step : steps)
    if (step.kind == Step::Kind::kReplace)
      growth *= std::max(1.0, static_cast<double>(step.content.size()) / static_cast<double>(step.pattern.size()));
  if (steps.size() > kMaxSteps) return Unsupported("{}: more than {} steps are not supported", section, kMaxSteps);
  if (growth > kMaxGrowth)
    return Unsupported("{}: replacements that can make the text more than {} times longer are not supported", section,
                       kMaxGrowth);
  return Ok{};
}

Status AppendNormalizer(const json& component, std::vector<NormalizerStep>& steps) {
  using Kind = NormalizerStep::Kind;
  const std::string type = TypeOf(component);
  FieldReader fields = Part(component, "normalizer " + type);
  fields.Ignore("type");
  NormalizerStep step;
  if (type == "NFC") {
    step.kind = Kind::kNfc;
  } else if (type == "NFD") {
    step.kind = Kind::kNfd;
  } else if (type == "NFKC") {
    step.kind = Kind::kNfkc;
  } else if (type == "NFKD") {
    step.kind = Kind::kNfkd;
  } else if (type == "Lowercase") {
    step.kind = Kind::kLowercase;
  } else if (type == "Prepend") {
    step.kind = Kind::kPrepend;
    step.content = fields.RequiredString("prepend");
  } else if (type == "Strip") {
    step.kind = Kind::kStrip;
    step.strip_left = fields.Bool("strip_left", true);
    step.strip_right = fields.Bool("strip_right", true);
  } else if (type == "Replace") {
    step.kind = Kind::kReplace;
    const std::optional<Pattern> pattern = ParsePattern(fields.Find("pattern"));
    if (!pattern || pattern->regex)
      return Unsupported("normalizer Replace: only a non-empty String pattern is supported");
    step.pattern = pattern->text;
    step.content = fields.RequiredString("content");
  } else {
    return UnknownType("normalizer", type);
  }
  RETURN_IF_ERROR(Finish(fields));
  if (step.kind == Kind::kPrepend && step.content.size() > 256)
    return Unsupported("normalizer Prepend: more than 256 bytes are not supported");
  steps.push_back(std::move(step));
  return CheckGrowth(steps, "normalizer");
}

std::optional<SplitBehavior> BehaviorOf(const std::string& name) {
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return std::nullopt;
}

// For pre_tokenizer and decoder. Old files have add_prefix_space, newer ones prepend_scheme.
Status ReadMetaspace(FieldReader& fields, std::string& replacement, PrependScheme& scheme, bool& split) {
  replacement = fields.String("replacement", "▁");
  if (replacement.empty() || ScanUtf8(replacement, 0).length != replacement.size())
    return Invalid("Metaspace: field 'replacement' must be one character");
  const std::string name = fields.String("prepend_scheme", fields.Bool("add_prefix_space", true) ? "always" : "never");
  if (name == "always")
    scheme = PrependScheme::kAlways;
  else if (name == "first")
    scheme = PrependScheme::kFirst;
  else if (name == "never")
    scheme = PrependScheme::kNever;
  else
    return Unsupported("Metaspace: prepend_scheme {} is not supported", Quoted(name, 64));
  split = fields.Bool("split", true);
  fields.Ignore("str_rep");
  return Ok{};
}

Status ReadSplit(FieldReader& fields, PreTokenizerStep& step) {
  const std::optional<Pattern> pattern = ParsePattern(fields.Find("pattern"));
  if (!pattern) return Invalid("pre_tokenizer Split: field 'pattern' must be a non-empty String or Regex");
  step.kind = pattern->regex ? PreTokenizerStep::Kind::kSplitRegex : PreTokenizerStep::Kind::kSplitString;
  step.pattern = pattern->text;
  const std::string behavior = fields.RequiredString("behavior");
  const std::optional<SplitBehavior> known = BehaviorOf(behavior);
  if (!known) return Unsupported("pre_tokenizer Split: behavior {} is not supported", Quoted(behavior, 64));
  step.behavior = *known;
  step.invert = fields.Bool("invert", false);
  return Ok{};
}

Status AppendPreTokenizer(const json& component, std::vector<PreTokenizerStep>& steps) {
  using Kind = PreTokenizerStep::Kind;
  const std::string type = TypeOf(component);
  FieldReader fields = Part(component, "pre_tokenizer " + type);
  fields.Ignore("type");
  PreTokenizerStep step;
  if (type == "ByteLevel") {
    step.kind = Kind::kByteLevel;
    step.add_prefix_space = fields.Bool("add_prefix_space", true);
    if (fields.Bool("use_regex", true)) step.pattern = kGpt2Pattern;
    fields.Ignore("trim_offsets");
  } else if (type == "Split") {
    RETURN_IF_ERROR(ReadSplit(fields, step));
  } else if (type == "Digits") {
    step.kind = Kind::kDigits;
    step.pattern = R"(\p{N})";
    step.behavior = fields.Bool("individual_digits", false) ? SplitBehavior::kIsolated : SplitBehavior::kContiguous;
  } else if (type == "Metaspace") {
    step.kind = Kind::kMetaspace;
    RETURN_IF_ERROR(ReadMetaspace(fields, step.replacement, step.prepend_scheme, step.split));
  } else {
    return UnknownType("pre_tokenizer", type);
  }
  RETURN_IF_ERROR(Finish(fields));
  // The pre-tokenizer recurses once per step.
  constexpr size_t kMaxSteps = 32;
  if (steps.size() == kMaxSteps) return Unsupported("pre_tokenizer: more than {} steps are not supported", kMaxSteps);
  steps.push_back(std::move(step));
  return Ok{};
}

Status AppendDecoder(const json& component, std::vector<DecoderStep>& steps) {
  using Kind = DecoderStep::Kind;
  const std::string type = TypeOf(component);
  FieldReader fields = Part(component, "decoder " + type);
  fields.Ignore("type");
  DecoderStep step;
  if (type == "ByteLevel") {
    step.kind = Kind::kByteLevel;
    for (const char* key : {"add_prefix_space", "trim_offsets", "use_regex"}) fields.Ignore(key);
  } else if (type == "ByteFallback") {
    step.kind = Kind::kByteFallback;
  } else if (type == "Fuse") {
    step.kind = Kind::kFuse;
  } else if (type == "Replace") {
    step.kind = Kind::kReplace;
    const std::optional<Pattern> pattern = ParsePattern(fields.Find("pattern"));
    if (!pattern || pattern->regex) return Unsupported("decoder Replace: only a non-empty String pattern is supported");
    step.pattern = pattern->text;
    step.content = fields.RequiredString("content");
  } else if (type == "Strip") {
    step.kind = Kind::kStrip;
    step.content = fields.RequiredString("content");
    step.start = fields.Unsigned("start", 0);
    step.stop = fields.Unsigned("stop", 0);
  } else if (type == "Metaspace") {
    step.kind = Kind::kMetaspace;
    PrependScheme scheme = PrependScheme::kAlways;
    bool split = true;
    RETURN_IF_ERROR(ReadMetaspace(fields, step.pattern, scheme, split));
    step.strip_first = scheme != PrependScheme::kNever;
  } else {
    return UnknownType("decoder", type);
  }
  RETURN_IF_ERROR(Finish(fields));
  constexpr size_t kMaxSteps = 8;
  if (steps.size() == kMaxSteps) return Unsupported("decoder: more than {} steps are not supported", kMaxSteps);
  steps.push_back(std::move(step));
  return CheckGrowth(steps, "decoder");
}

// {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}
Status AppendTemplateToken(const json& special_tokens, const std::string& name, const TokenVocabulary& vocabulary,
                           std::vector<TokenId>& out) {
  const auto entry = special_tokens.find(name);
  if (entry == special_tokens.end() || !entry->is_object() || !entry->contains("ids") || !(*entry)["ids"].is_array())
    return Invalid("post_processor TemplateProcessing: special token {} has no list 'ids'", Quoted(name, 64));
  for (const json& id : (*entry)["ids"]) {
    const auto* value = id.get_ptr<const json::number_unsigned_t*>();
    if (value == nullptr || *value >= static_cast<uint64_t>(vocabulary.size()))
      return Invalid("post_processor TemplateProcessing: special token {} has an id outside the vocabulary",
                     Quoted(name, 64));
    out.push_back(static_cast<TokenId>(*value));
  }
  return Ok{};
}

Status ReadTemplate(const json& component, TokenizerSpec& spec) {
  FieldReader fields = Part(component, "post_processor TemplateProcessing");
  for (const char* key : {"type", "pair"}) fields.Ignore(key);
  const json* single = fields.Find("single");
  const json* special_tokens = fields.Find("special_tokens");
  RETURN_IF_ERROR(Finish(fields));
  if (single == nullptr || !single->is_array() || special_tokens == nullptr || !special_tokens->is_object())
    return Invalid(
        "post_processor TemplateProcessing: fields 'single' (a list) and 'special_tokens' (an object) are required");
  std::vector<TokenId> prefix;
  std::vector<TokenId> suffix;
  bool after_text = false;
  for (const json& item : *single) {
    if (!item.is_object() || item.size() != 1 || !item.begin()->is_object())
      return Invalid(
          "post_processor TemplateProcessing: each item of 'single' must be an object with one field, itself an "
          "object");
    FieldReader piece = Part(*item.begin(), "post_processor TemplateProcessing");
    const std::string id = piece.RequiredString("id");
    piece.Ignore("type_id");
    RETURN_IF_ERROR(Finish(piece));
    if (item.begin().key() == "SpecialToken") {
      RETURN_IF_ERROR(AppendTemplateToken(*special_tokens, id, spec.vocabulary, after_text ? suffix : prefix));
    } else if (item.begin().key() == "Sequence" && id == "A" && !after_text) {
      after_text = true;
    } else {
      return Unsupported(
          "post_processor TemplateProcessing: 'single' must be special tokens, the text ($A) once, special tokens");
    }
  }
  if (!after_text) return Unsupported("post_processor TemplateProcessing: 'single' does not contain the text ($A)");
  // In a Sequence a later processor encloses the result of the earlier ones.
  spec.prefix.insert(spec.prefix.begin(), prefix.begin(), prefix.end());
  spec.suffix.insert(spec.suffix.end(), suffix.begin(), suffix.end());
  return Ok{};
}

// BertProcessing and RobertaProcessing: "cls" (["<s>", 0]) goes before the text, "sep" (["</s>", 2]) after it.
Status ReadClsSep(const json& component, const std::string& type, TokenizerSpec& spec) {
  FieldReader fields = Part(component, "post_processor " + type);
  for (const char* key : {"type", "trim_offsets", "add_prefix_space"}) fields.Ignore(key);
  const json* cls = fields.Find("cls");
  const json* sep = fields.Find("sep");
  RETURN_IF_ERROR(Finish(fields));
  const auto id_of = [&](const json* pair) -> std::optional<TokenId> {
    if (pair == nullptr || !pair->is_array() || pair->size() != 2) return std::nullopt;
    const auto* id = (*pair)[1].get_ptr<const json::number_unsigned_t*>();
    if (id == nullptr || *id >= static_cast<uint64_t>(spec.vocabulary.size())) return std::nullopt;
    return static_cast<TokenId>(*id);
  };
  const std::optional<TokenId> cls_id = id_of(cls);
  const std::optional<TokenId> sep_id = id_of(sep);
  if (!cls_id || !sep_id)
    return Invalid("post_processor {}: 'cls' and 'sep' must be [token, id] with an id of the vocabulary", type);
  spec.prefix.insert(spec.prefix.begin(), *cls_id);
  spec.suffix.push_back(*sep_id);
  return Ok{};
}

}  // namespace

Result<std::vector<NormalizerStep>> ParseNormalizer(const json& component) {
  std::vector<NormalizerStep> steps;
  RETURN_IF_ERROR(ForEachComponent(component, "normalizer", "normalizers",
                                   [&](const json& item) { return AppendNormalizer(item, steps); }));
  return steps;
}

Result<std::vector<PreTokenizerStep>> ParsePreTokenizer(const json& component) {
  std::vector<PreTokenizerStep> steps;
  RETURN_IF_ERROR(ForEachComponent(component, "pre_tokenizer", "pretokenizers",
                                   [&](const json& item) { return AppendPreTokenizer(item, steps); }));
  return steps;
}

Result<std::vector<DecoderStep>> ParseDecoder(const json& component) {
  std::vector<DecoderStep> steps;
  RETURN_IF_ERROR(
      ForEachComponent(component, "decoder", "decoders", [&](const json& item) { return AppendDecoder(item, steps); }));
  if (component.is_null()) {
    steps.emplace_back();
    steps.back().kind = DecoderStep::Kind::kJoinWithSpaces;
  }
  return steps;
}

Status ParsePostProcessor(const json& component, TokenizerSpec& spec) {
  RETURN_IF_ERROR(ForEachComponent(component, "post_processor", "processors", [&](const json& item) -> Status {
    const std::string type = TypeOf(item);
    if (type == "ByteLevel") return Ok{};  // affects only offsets
    if (type == "TemplateProcessing") return ReadTemplate(item, spec);
    if (type == "RobertaProcessing" || type == "BertProcessing") return ReadClsSep(item, type, spec);
    return UnknownType("post_processor", type);
  }));
  constexpr size_t kMaxTokens = 1024;
  if (spec.prefix.size() + spec.suffix.size() > kMaxTokens)
    return Unsupported("post_processor: more than {} tokens around the text are not supported", kMaxTokens);
  return Ok{};
}

Result<AddedToken> ParseAddedToken(const json& object) {
  FieldReader fields = Part(object, "added token");
  AddedToken token;
  token.content = fields.RequiredString("content");
  token.single_word = fields.Bool("single_word", false);
  token.lstrip = fields.Bool("lstrip", false);
  token.rstrip = fields.Bool("rstrip", false);
  token.special = fields.Bool("special", false);
  token.normalized = fields.Bool("normalized", !token.special);
  const uint64_t id = fields.Unsigned("id", UINT64_MAX);
  fields.Ignore("__type");
  RETURN_IF_ERROR(Finish(fields));
  if (id != UINT64_MAX && id >= static_cast<uint64_t>(TokenVocabulary::kMaxTokens))
    return Invalid("added token {} has id {}; ids from 0 to {} are allowed", Quoted(token.content, 64), id,
                   TokenVocabulary::kMaxTokens - 1);
  token.id = id == UINT64_MAX ? -1 : static_cast<TokenId>(id);
  return token;
}

}  // namespace infinigen
