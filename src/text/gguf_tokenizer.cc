#include "text/gguf_tokenizer.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <span>
#include <utility>

#include "base/utf8.h"
#include "text/added_tokens.h"
#include "text/tokenizer_files.h"

namespace infinigen {
namespace {

// ---- splitting into words, by pre-type ----

// The patterns of the models' own tokenizer files. Each is applied to the pieces that the one before it leaves.
constexpr const char* kLlama3Split =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2Split =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen35Split =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekkenSplit =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kGpt4oSplit =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kDeepseek3Split =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kEachDigit = R"(\p{N})";
constexpr const char* kThreeDigits = R"(\p{N}{1,3})";
constexpr const char* kDigitRuns = R"(\p{N}+)";

constexpr const char* kLlama3Splits[] = {kLlama3Split};
constexpr const char* kQwen2Splits[] = {kQwen2Split};
constexpr const char* kQwen35Splits[] = {kQwen35Split};
constexpr const char* kTekkenSplits[] = {kTekkenSplit};
constexpr const char* kGpt4oSplits[] = {kGpt4oSplit};
constexpr const char* kGpt2Splits[] = {kGpt2Pattern};
constexpr const char* kDigitSplits[] = {kEachDigit, kGpt2Pattern};
constexpr const char* kDefaultSplits[] = {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2Pattern, kDigitRuns, "[0-9][0-9][0-9]"};
constexpr const char* kFalconSplits[] = {R"([\p{P}\$\+<=>\^~\|`]+)", kGpt2Pattern, "[0-9][0-9][0-9]"};
constexpr const char* kDeepseek3Splits[] = {kThreeDigits, "[一-龥぀-ゟ゠-ヿ]+", kDeepseek3Split};
constexpr const char* kDeepseekCoderSplits[] = {"[\r\n]", R"(\s?\p{L}+)", R"(\s?\p{P}+)", "[一-龥ࠀ-一가-퟿]+",
                                                kEachDigit};

// The rules of a group of pre-types.
struct PreRules {
  std::span<const char* const> splits;
  bool ignore_merges = false;
  bool add_bos = false;  // when the metadata does not say
};
constexpr PreRules kLlama3Rules = {kLlama3Splits, true, true};
constexpr PreRules kGlm4Rules = {kLlama3Splits, true, false};
constexpr PreRules kPlainLlama3Rules = {kLlama3Splits};
constexpr PreRules kQwen2Rules = {kQwen2Splits};
constexpr PreRules kQwen35Rules = {kQwen35Splits};
constexpr PreRules kTekkenRules = {kTekkenSplits, true, true};
constexpr PreRules kGpt4oRules = {kGpt4oSplits};
constexpr PreRules kGpt2Rules = {kGpt2Splits};
constexpr PreRules kDigitRules = {kDigitSplits};
constexpr PreRules kDefaultRules = {kDefaultSplits};
constexpr PreRules kFalconRules = {kFalconSplits};
constexpr PreRules kDeepseek3Rules = {kDeepseek3Splits};
constexpr PreRules kDeepseekCoderRules = {kDeepseekCoderSplits};

struct PreType {
  std::string_view name;
  const PreRules* rules;
};
// For writers, the first name with the same rules is used.
constexpr PreType kPreTypes[] = {
    {"llama-bpe", &kLlama3Rules},
    {"llama3", &kLlama3Rules},
    {"llama-v3", &kLlama3Rules},
    {"falcon3", &kLlama3Rules},
    {"pixtral", &kLlama3Rules},
    {"glm4", &kGlm4Rules},
    {"dbrx", &kPlainLlama3Rules},
    {"smaug-bpe", &kPlainLlama3Rules},
    {"chatglm-bpe", &kPlainLlama3Rules},
    {"qwen2", &kQwen2Rules},
    {"deepseek-r1-qwen", &kQwen2Rules},
    {"stablelm2", &kQwen2Rules},
    {"megrez", &kQwen2Rules},
    {"hunyuan", &kQwen2Rules},
    {"qwen35", &kQwen35Rules},
    {"tekken", &kTekkenRules},
    {"gpt-4o", &kGpt4oRules},
    {"llama4", &kGpt4oRules},
    {"gpt-2", &kGpt2Rules},
    {"phi-2", &kGpt2Rules},
    {"mpt", &kGpt2Rules},
    {"olmo", &kGpt2Rules},
    {"jais", &kGpt2Rules},
    {"exaone4", &kGpt2Rules},
    {"smollm", &kDigitRules},
    {"starcoder", &kDigitRules},
    {"refact", &kDigitRules},
    {"command-r", &kDigitRules},
    {"codeshell", &kDigitRules},
    {"exaone", &kDigitRules},
    {"minerva-7b", &kDigitRules},
    {"falcon", &kFalconRules},
    {"deepseek-v3", &kDeepseek3Rules},
    {"deepseek-coder", &kDeepseekCoderRules},
    {"default", &kDefaultRules},
    {"", &kDefaultRules},  // files from before pre-types existed
};

std::vector<PreTokenizerStep> StepsOf(const PreRules& rules) {
  std::vector<PreTokenizerStep> steps;
  for (const char* pattern : rules.splits) {
    PreTokenizerStep split;
    split.kind = PreTokenizerStep::Kind::kSplitRegex;
    split.pattern = pattern;
    steps.push_back(std::move(split));
  }
  steps.push_back(PreTokenizerStep{});  // bytes to their characters
  return steps;
}

// ---- reading ----

// Far above real tokens. Deriving SentencePiece's merges takes time in the square of a token's length.
constexpr size_t kMaxTokenBytes = 4096;
constexpr size_t kMaxGgufTemplateBytes = 4 << 20;  // as in a model directory

class VocabularyReader {
 public:
  explicit VocabularyReader(const GgufVocabulary& from) : from_(from) {}

  Result<TokenizerSpec> Read() {
    if (from_.chat_template.size() > kMaxGgufTemplateBytes)
      return Invalid("{}: metadata key 'tokenizer.chat_template' has {} bytes; at most {} are supported", from_.path,
                     from_.chat_template.size(), kMaxGgufTemplateBytes);
    if (from_.tokens.empty())
      return Invalid("{}: metadata key 'tokenizer.ggml.tokens' is missing or empty", from_.path);
    if (!from_.types.empty() && from_.types.size() != from_.tokens.size())
      return Invalid("{}: {} token types for {} tokens", from_.path, from_.types.size(), from_.tokens.size());
    for (size_t id = 0; id < from_.types.size(); ++id)
      if (from_.types[id] < 0 || from_.types[id] > static_cast<int64_t>(GgufTokenKind::kByte))
        return Unsupported("{}: token {} has the type {} (tokenizer.ggml.token_type); known are 0 to 6", from_.path, id,
                           from_.types[id]);
    RETURN_IF_ERROR(ReadTokens());
    if (from_.model == "gpt2") {
      RETURN_IF_ERROR(ReadByteLevel());
    } else if (from_.model == "llama") {
      RETURN_IF_ERROR(ReadSentencePieces());
    } else {
      return Unsupported("{}: the tokenizer model {} is not supported; supported are gpt2 and llama", from_.path,
                         Quoted(from_.model));
    }
    RETURN_IF_ERROR(AddSpecials());
    RETURN_IF_ERROR(AddEnds());
    return std::move(spec_);
  }

 private:
  GgufTokenKind KindOf(size_t id) const {
    return from_.types.empty() ? GgufTokenKind::kNormal : static_cast<GgufTokenKind>(from_.types[id]);
  }

  Status ReadTokens() {
    for (size_t id = 0; id < from_.tokens.size(); ++id) {
      const std::string_view text = from_.tokens[id];
      if (text.empty()) continue;
      if (text.size() > kMaxTokenBytes)
        return Invalid("{}: token {} has {} bytes; at most {} are supported", from_.path, id, text.size(),
                       kMaxTokenBytes);
      if (ValidUtf8Prefix(text) != text.size())
        return Invalid("{}: token {} ({}) is not valid UTF-8", from_.path, id, Quoted(text));
      if (const Status added = spec_.vocabulary.Add(text, static_cast<int64_t>(id)); !added.ok())
        return Invalid("{}: {}", from_.path, added.error().message);
    }
    return Ok();
  }

  Status ReadByteLevel() {
    const auto* const type = std::find_if(std::begin(kPreTypes), std::end(kPreTypes),
                                          [this](const PreType& known) { return known.name == from_.pre; });
    if (type == std::end(kPreTypes))
      return Unsupported("{}: the pre-tokenizer {} (tokenizer.ggml.pre) is not supported", from_.path,
                         Quoted(from_.pre));
    RETURN_IF_ERROR(CheckMerges());
    MergeList merges;
    for (const std::string_view line : from_.merges)
      if (const Status added = merges.AddLine(line); !added.ok())
        return Invalid("{}: {}", from_.path, added.error().message);
    auto table = merges.Resolve(spec_.vocabulary);
    if (!table.ok()) return Invalid("{}: {}", from_.path, table.error().message);
    spec_.merges = std::move(*table);
    spec_.bpe.ignore_merges = type->rules->ignore_merges;
    spec_.pre_tokenizers = StepsOf(*type->rules);
    spec_.decoders = {DecoderStep{}};
    add_bos_ = type->rules->add_bos;
    bos_ = from_.bos;
    eos_ = from_.eos;
    return Ok();
  }

  // Without merges, no text becomes a token of several characters. That is right only if there is none.
  Status CheckMerges() const {
    if (!from_.merges.empty()) return Ok();
    for (size_t id = 0; id < from_.tokens.size(); ++id) {
      const std::string_view text = from_.tokens[id];
      const auto starts = std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
      if (starts > 1 && KindOf(id) == GgufTokenKind::kNormal && !IsGgufEndToken(text))
        return Invalid(
            "{}: metadata key 'tokenizer.ggml.merges' is missing or empty, but token {} ({}) is made by merges",
            from_.path, id, Quoted(text));
    }
    return Ok();
  }

  // SentencePiece: the pair with the highest score is merged first.
  Status ReadSentencePieces() {
    const size_t count = from_.tokens.size();
    if (from_.scores.size() != count)
      return Invalid("{}: {} scores (tokenizer.ggml.scores) for {} tokens", from_.path, from_.scores.size(), count);
    if (std::any_of(from_.scores.begin(), from_.scores.end(), [](float score) { return std::isnan(score); }))
      return Invalid("{}: a score in 'tokenizer.ggml.scores' is not a number", from_.path);
    std::vector<bool> mergeable(count);
    for (size_t id = 0; id < count; ++id) {
      mergeable[id] = !from_.tokens[id].empty() &&
                      (KindOf(id) == GgufTokenKind::kNormal || KindOf(id) == GgufTokenKind::kUserDefined);
      spec_.bpe.byte_fallback = spec_.bpe.byte_fallback || KindOf(id) == GgufTokenKind::kByte;
    }
    mergeable.resize(static_cast<size_t>(spec_.vocabulary.size()));
    auto merges =
        MergesOfSplits(spec_.vocabulary, RankByScore(from_.scores, mergeable), mergeable, SplitOrder::kSharedRank);
    if (!merges.ok()) return Error{merges.error().kind, fmt::format("{}: {}", from_.path, merges.error().message)};
    spec_.merges = std::move(*merges);
    spec_.bpe.fuse_unk = true;
    if (const int64_t unk = from_.unk.value_or(0); unk >= 0 && unk < std::ssize(from_.tokens))
      spec_.bpe.unk_token = from_.tokens[static_cast<size_t>(unk)];
    const bool prefix = from_.add_space_prefix.value_or(true);
    NormalizerStep step;
    if (prefix) {
      step.kind = NormalizerStep::Kind::kPrepend;
      step.content = kMetaspaceMark;
      spec_.normalizers.push_back(step);
    }
    step.kind = NormalizerStep::Kind::kReplace;
    step.pattern = " ";
    step.content = kMetaspaceMark;
    spec_.normalizers.push_back(step);
    spec_.decoders = MetaspaceDecoders(prefix);
    add_bos_ = true;
    bos_ = from_.bos.value_or(1);
    eos_ = from_.eos.value_or(2);
    return Ok();
  }

  // Control and user-defined tokens are searched for in the text before it is split.
  Status AddSpecials() {
    // Phi-3's tokenizer removes white space after its special tokens, which the metadata does not say.
    const bool strips = from_.model == "llama" && IsPhi3();
    for (size_t id = 0; id < from_.tokens.size(); ++id) {
      const GgufTokenKind kind = KindOf(id);
      const bool special =
          kind == GgufTokenKind::kControl || kind == GgufTokenKind::kUnknown || IsGgufEndToken(from_.tokens[id]);
      if (from_.tokens[id].empty() || (!special && kind != GgufTokenKind::kUserDefined)) continue;
      AddedToken token;
      token.content = from_.tokens[id];
      token.normalized = false;
      token.special = special;
      token.rstrip = strips && token.content != "<unk>" && token.content != "<s>" && token.content != "<|endoftext|>";
      if (const Status added = AddToken(std::move(token), spec_); !added.ok())
        return Invalid("{}: {}", from_.path, added.error().message);
    }
    return Ok();
  }

  bool IsPhi3() const {
    const std::string name = LowerCase(from_.model_name);
    return name.find("phi-3") != std::string::npos || name.find("phi3") != std::string::npos;
  }

  Status AddEnds() {
    const auto add = [this](bool wanted, std::optional<int64_t> id, std::string_view role,
                            std::vector<TokenId>& list) -> Status {
      if (!wanted) return Ok();
      if (!id || *id < 0 || *id >= spec_.vocabulary.size() || !spec_.vocabulary.Contains(static_cast<TokenId>(*id)))
        return Invalid("{}: the tokenizer adds {} to every text, but the file has no such token", from_.path, role);
      list.push_back(static_cast<TokenId>(*id));
      return Ok();
    };
    RETURN_IF_ERROR(add(from_.add_bos.value_or(add_bos_), bos_, "BOS", spec_.prefix));
    return add(from_.add_eos.value_or(false), eos_, "EOS", spec_.suffix);
  }

  const GgufVocabulary& from_;
  TokenizerSpec spec_;
  bool add_bos_ = false;  // when the metadata does not say
  std::optional<int64_t> bos_, eos_;
};

}  // namespace

Result<TokenizerSpec> ReadGgufVocabulary(const GgufVocabulary& vocabulary) {
  return VocabularyReader(vocabulary).Read();
}

bool IsGgufEndToken(std::string_view text) {
  static constexpr std::string_view kEnds[] = {"<|eot_id|>",
                                               "<|im_end|>",
                                               "<|end|>",
                                               "<end_of_turn>",
                                               "<|endoftext|>",
                                               "<|end_of_text|>",
                                               "<|eom_id|>",
                                               "<EOT>",
                                               "_<EOT>",
                                               "[EOT]",
                                               "<|return|>",
                                               "<|call|>",
                                               "<turn|>",
                                               "<end_of_utterance>",
                                               "<｜end▁of▁sentence｜>"};
  return std::find(std::begin(kEnds), std::end(kEnds), text) != std::end(kEnds);
}

std::string_view GgufPreType(const std::vector<PreTokenizerStep>& steps, bool ignore_merges) {
  std::vector<std::string_view> patterns;
  for (const PreTokenizerStep& step : steps) {
    if (step.behavior != SplitBehavior::kIsolated || step.invert || step.add_prefix_space) return {};
    if (!step.pattern.empty()) patterns.push_back(step.pattern);
  }
  for (const PreType& type : kPreTypes)
    if (type.rules->ignore_merges == ignore_merges &&
        std::equal(patterns.begin(), patterns.end(), type.rules->splits.begin(), type.rules->splits.end()))
      return type.name;
  return {};
}

}  // namespace infinigen
