// Reads tokenizer.json as a stream of events; its parts, except vocabulary and merges, become small trees.

#include <map>
#include <utility>

#include "base/utf8.h"
#include "json/fields.h"
#include "json/parse.h"
#include "text/added_tokens.h"
#include "text/tokenizer_files.h"

namespace infinigen {
namespace {

using nlohmann::json;

// Limits of each part except vocabulary and merges. A post-processor template may list a few hundred special tokens.
constexpr JsonLimits kComponentLimits = {.max_values = 50'000, .max_text_bytes = 4 << 20};

// The part of the file being read. Depth 1 is the file's object, depth 2 a section.
enum class Section { kNone, kModel, kAddedTokens, kComponent };
enum class ModelList { kNone, kVocab, kMerges };

class TokenizerJsonHandler final : public JsonHandler {
 public:
  TokenizerJsonHandler(const std::string& name, size_t bytes) : JsonHandler(name), tree_(kComponentLimits) {
    vocabulary.ReserveText(bytes);
    merges.ReserveText(bytes);
  }

  bool Scalar(json value) override {
    if (building_) return AddToTree(std::move(value));
    if (model_list_ == ModelList::kVocab) return AddToVocabulary(value);
    if (depth_ == 2 && section_ == Section::kModel) return Model(std::move(value));
    if (depth_ == 1 && section_ != Section::kNone) return StartTree() && AddToTree(std::move(value));
    return Misplaced();
  }

  bool String(std::string& value) override {
    if (building_) return AddToTree(std::move(value));
    if (model_list_ == ModelList::kMerges) return AddToMerges(value);
    if (depth_ == 2 && section_ == Section::kModel) return Model(std::move(value));
    if (depth_ == 1 && section_ == Section::kComponent) return StartTree() && AddToTree(std::move(value));
    return Misplaced();
  }

  bool Key(std::string& key) override {
    if (building_) return tree_.Key(std::move(key)) || TooLarge();
    if (model_list_ == ModelList::kVocab) {
      token_ = std::move(key);
      return true;
    }
    if (depth_ == 1) return EnterSection(key);
    model_key_ = std::move(key);
    return true;
  }

  bool Open(bool object) override {
    ++depth_;
    if (building_) return tree_.Open(object) || TooLarge();
    if (depth_ == 1) return object || Misplaced();
    if (depth_ == 2) {
      if (section_ == Section::kModel) return object || Misplaced();
      if (section_ == Section::kAddedTokens) return !object || Misplaced();
      return StartTree() && (tree_.Open(object) || TooLarge());
    }
    if (depth_ == 3 && section_ == Section::kAddedTokens)
      return (object || Misplaced()) && StartTree() && (tree_.Open(object) || TooLarge());
    if (depth_ == 3 && section_ == Section::kModel) return EnterModelList(object);
    if (depth_ == 4 && model_list_ == ModelList::kMerges && !object) {
      pair_parts_ = 0;
      return true;
    }
    return Misplaced();
  }

  bool Close(bool) override {
    --depth_;
    if (building_) {
      tree_.Close();
      return !tree_.complete() || FinishTree();
    }
    if (model_list_ == ModelList::kMerges && depth_ == 3) return pair_parts_ == 2 || BadMerge();
    if (depth_ == 2) model_list_ = ModelList::kNone;
    return true;
  }

  TokenVocabulary vocabulary;
  MergeList merges;
  json model = json::object();  // scalar options of the model
  std::vector<AddedToken> added_tokens;
  std::map<std::string, json> components;  // normalizer, pre_tokenizer, post_processor, decoder
  bool has_vocab = false;
  bool has_merges = false;

 private:
  std::string Place() const override { return Quoted(key_, 64); }
  bool Misplaced() { return Fail(Invalid("{}: unexpected type of value in section {}", path(), Place())); }
  bool TooLarge() { return Fail(Invalid("{}: section {} is too large", path(), Place())); }
  bool BadMerge() { return Fail(Invalid("{}: model.merges: a merge must be \"a b\" or [\"a\", \"b\"]", path())); }

  bool EnterSection(std::string& key) {
    key_ = std::move(key);
    for (const char* known :
         {"version", "truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"})
      if (key_ == known) return Enter(Section::kComponent);
    if (key_ == "model") return Enter(Section::kModel);
    if (key_ == "added_tokens") return Enter(Section::kAddedTokens);
    return Fail(Unsupported("{}: section {} is not supported", path(), Place()));
  }

  bool Enter(Section section) {
    section_ = section;
    if (seen_[key_]) return Fail(Invalid("{}: section '{}' occurs twice", path(), key_));
    return seen_[key_] = true;
  }

  bool EnterModelList(bool object) {
    if (model_key_ == "vocab" && object && !std::exchange(has_vocab, true)) {
      model_list_ = ModelList::kVocab;
      return true;
    }
    if (model_key_ == "merges" && !object && !std::exchange(has_merges, true)) {
      model_list_ = ModelList::kMerges;
      return true;
    }
    return Fail(Unsupported("{}: model: field {} must not be a list or object here, or occurs twice", path(),
                            Quoted(model_key_, 64)));
  }

  // Real models have a dozen scalar options.
  bool Model(json value) {
    constexpr size_t kMaxOptions = 64;
    model[model_key_] = std::move(value);
    return model.size() <= kMaxOptions || TooLarge();
  }

  bool AddToVocabulary(const json& value) {
    const auto* id = value.get_ptr<const json::number_unsigned_t*>();
    if (id == nullptr || *id > INT64_MAX)
      return Fail(Invalid("{}: model.vocab: the id of token {} must be a whole number", path(), Quoted(token_, 64)));
    const Status added = vocabulary.Add(token_, static_cast<int64_t>(*id));
    return added.ok() || Fail(Invalid("{}: model.vocab: {}", path(), added.error().message));
  }

  bool AddToMerges(std::string& value) {
    Status added = Ok{};
    if (depth_ == 3) {
      added = merges.AddLine(value);
    } else if (++pair_parts_ == 1) {
      left_ = std::move(value);
    } else if (pair_parts_ == 2) {
      added = merges.Add(left_, value);
    } else {
      return BadMerge();
    }
    return added.ok() || Fail(Invalid("{}: model.merges: {}", path(), added.error().message));
  }

  bool StartTree() { return building_ = true; }

  bool AddToTree(json value) {
    if (!tree_.Add(std::move(value))) return TooLarge();
    return !tree_.complete() || FinishTree();
  }

  bool FinishTree() {
    building_ = false;
    json value = tree_.Take();
    const FreeJsonAtEnd free(value);
    if (section_ == Section::kComponent) {
      components[key_] = std::move(value);
      return true;
    }
    if (section_ != Section::kAddedTokens || depth_ != 2) return value.is_null() || Misplaced();
    Result<AddedToken> token = ParseAddedToken(value);
    if (!token.ok()) return Fail(Error{token.error().kind, path() + ": " + token.error().message});
    added_tokens.push_back(std::move(*token));
    return added_tokens.size() <= kMaxAddedTokens || TooLarge();
  }

  int depth_ = 0;
  Section section_ = Section::kNone;
  std::string key_;  // name of the section
  std::map<std::string, bool> seen_;
  std::string model_key_;
  ModelList model_list_ = ModelList::kNone;
  std::string token_;  // current key in model.vocab
  std::string left_;   // first part of a merge written as a pair
  int pair_parts_ = 0;
  bool building_ = false;
  JsonTreeBuilder tree_;
};

Result<BpeOptions> ReadModelOptions(const json& model) {
  FieldReader fields(model, "model", "", FieldWording::kPlain);
  BpeOptions options;
  const std::string type = fields.String("type", "BPE");
  if (type != "BPE") return Unsupported("model type {} is not supported; only BPE is", Quoted(type, 64));
  const json* dropout = fields.Find("dropout");
  if (dropout != nullptr && !dropout->is_null() && *dropout != 0) return Unsupported("model: dropout is not supported");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!fields.String(key).empty()) return Unsupported("model: {} is not supported", key);
  options.unk_token = fields.String("unk_token");
  options.fuse_unk = fields.Bool("fuse_unk", false);
  options.byte_fallback = fields.Bool("byte_fallback", false);
  options.ignore_merges = fields.Bool("ignore_merges", false);
  for (const char* key : {"vocab", "merges"})
    if (fields.Find(key) != nullptr) return Invalid("model: field '{}' must be a list or an object", key);
  fields.RefuseUnknown();
  RETURN_IF_ERROR(fields.status());
  return options;
}

// True when a component, at any depth, has the type "ByteLevel".
bool MentionsByteLevel(const json& component) {
  if (component.is_object() && component.contains("type") && component["type"] == "ByteLevel") return true;
  if (!component.is_structured()) return false;
  for (const json& child : component)
    if (MentionsByteLevel(child)) return true;
  return false;
}

Status FillSpec(TokenizerJsonHandler& file, ClassRules rules, TokenizerSpec& spec) {
  if (!file.has_vocab || !file.has_merges)
    return Invalid("model: field '{}' is missing", file.has_vocab ? "merges" : "vocab");
  ASSIGN_OR_RETURN(spec.bpe, ReadModelOptions(file.model));
  ASSIGN_OR_RETURN(spec.merges, file.merges.Resolve(file.vocabulary));
  file.merges = {};
  spec.vocabulary = std::move(file.vocabulary);
  if (!spec.bpe.unk_token.empty() && !spec.vocabulary.Find(spec.bpe.unk_token))
    return Invalid("model: unk_token {} is not in the vocabulary", Quoted(spec.bpe.unk_token, 64));
  for (AddedToken& token : file.added_tokens) RETURN_IF_ERROR(AddToken(std::move(token), spec));

  for (const auto& [key, component] : file.components)
    if (rules.tokenizer_class == TokenizerClass::kLlama && MentionsByteLevel(component))
      rules.tokenizer_class = TokenizerClass::kGeneric;
  if (rules.tokenizer_class == TokenizerClass::kGeneric) {
    ASSIGN_OR_RETURN(spec.normalizers, ParseNormalizer(file.components["normalizer"]));
    ASSIGN_OR_RETURN(spec.pre_tokenizers, ParsePreTokenizer(file.components["pre_tokenizer"]));
    ASSIGN_OR_RETURN(spec.decoders, ParseDecoder(file.components["decoder"]));
  }
  ApplyClassRules(rules, spec);
  return ParsePostProcessor(file.components["post_processor"], spec);
}

}  // namespace

Result<TokenizerSpec> ReadTokenizerJson(std::string_view text, const std::string& name, const ClassRules& rules) {
  TokenizerJsonHandler file(name, text.size());
  RETURN_IF_ERROR(ParseJsonEvents(text, {}, file));
  TokenizerSpec spec;
  if (const Status filled = FillSpec(file, rules, spec); !filled.ok())
    return Error{filled.error().kind, name + ": " + filled.error().message};
  return spec;
}

}  // namespace infinigen
