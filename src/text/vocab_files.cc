// Reads vocabularies in plain files: vocab.json with merges.txt, and tiktoken ranks.
#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "json/parse.h"
#include "text/tokenizer_files.h"
#include "text/unicode.h"

namespace infinigen {
namespace {

// The pattern that Llama 3 uses with its ranks.
constexpr const char* kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

int Base64Value(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '+') return 62;
  if (c == '/') return 63;
  return -1;
}

std::optional<std::string> DecodeBase64(std::string_view text) {
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  for (size_t i = 0; i < text.size(); i += 4) {
    uint32_t quantum = 0;
    for (size_t j = 0; j < 4; ++j) {
      const bool pad = i + j >= text.size() - padding;
      const int value = pad ? 0 : Base64Value(text[i + j]);
      if (value < 0) return std::nullopt;
      quantum = (quantum << 6) | static_cast<uint32_t>(value);
    }
    for (int shift = 16; shift >= 0; shift -= 8) bytes += static_cast<char>(static_cast<uint8_t>(quantum >> shift));
  }
  bytes.resize(bytes.size() - padding);
  return bytes;
}

struct RankLine {
  std::string token;
  int64_t rank = 0;
};

std::optional<RankLine> ParseLine(std::string_view line) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  std::optional<std::string> token = DecodeBase64(line.substr(0, space));
  RankLine result;
  const char* const end = line.data() + line.size();
  const auto [rest, error] = std::from_chars(line.data() + space + 1, end, result.rank);
  if (!token || error != std::errc() || rest != end) return std::nullopt;
  result.token = std::move(*token);
  return result;
}

std::string_view TakeLine(std::string_view& bytes) {
  const size_t end = std::min(bytes.find('\n'), bytes.size());
  std::string_view line = bytes.substr(0, end);
  bytes.remove_prefix(std::min(end + 1, bytes.size()));
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

class VocabHandler final : public JsonHandler {
 public:
  VocabHandler(const std::string& name, TokenVocabulary& vocabulary) : JsonHandler(name), vocabulary_(vocabulary) {}

  bool Key(std::string& key) override {
    key_ = std::move(key);
    return true;
  }
  bool Scalar(nlohmann::json value) override {
    const auto* id = value.get_ptr<const nlohmann::json::number_unsigned_t*>();
    if (!open_ || id == nullptr || *id > INT64_MAX) return Malformed();
    const Status added = vocabulary_.Add(key_, static_cast<int64_t>(*id));
    return added.ok() || Fail(Invalid("{}: {}", path(), added.error().message));
  }
  bool Open(bool object) override {
    if (!object || std::exchange(open_, true)) return Malformed();
    return true;
  }
  bool String(std::string&) override { return Malformed(); }
  bool Close(bool) override { return true; }

 private:
  std::string Place() const override { return "vocabulary"; }
  bool Malformed() {
    return Fail(Invalid("{}: the file must be one JSON object that maps tokens to ids (whole numbers)", path()));
  }

  TokenVocabulary& vocabulary_;
  std::string key_;
  bool open_ = false;
};

constexpr size_t kMaxLineBytes = 1 << 16;  // far more than the two tokens of a merge

}  // namespace

bool LooksLikeTiktoken(std::string_view bytes) { return ParseLine(TakeLine(bytes)).has_value(); }

Result<TokenizerSpec> ReadTiktoken(std::string_view bytes, const std::string& name) {
  TokenizerSpec spec;
  std::string text;
  for (size_t line_number = 1; !bytes.empty(); ++line_number) {
    const std::string_view line = TakeLine(bytes);
    if (line.empty()) continue;
    const std::optional<RankLine> parsed = ParseLine(line);
    if (!parsed) return Invalid("{}: line {} must be a token in base64, a space, and its rank", name, line_number);
    text.clear();
    AppendByteLevel(parsed->token, text);
    if (const Status added = spec.vocabulary.Add(text, parsed->rank); !added.ok())
      return Invalid("{}: line {}: {}", name, line_number, added.error().message);
  }
  std::vector<RankedToken> tokens;
  for (TokenId id = 0; id < spec.vocabulary.size(); ++id)
    if (spec.vocabulary.Contains(id)) tokens.push_back({id, static_cast<uint32_t>(id)});
  const std::vector<bool> part(static_cast<size_t>(spec.vocabulary.size()), true);
  auto merges = MergesOfSplits(spec.vocabulary, tokens, part, SplitOrder::kLowerIds);
  if (!merges.ok()) return Error{merges.error().kind, name + ": " + merges.error().message};
  spec.merges = std::move(*merges);
  spec.bpe.ignore_merges = true;

  PreTokenizerStep split;
  split.kind = PreTokenizerStep::Kind::kSplitRegex;
  split.pattern = kLlama3Pattern;
  spec.pre_tokenizers = {split, PreTokenizerStep{}};
  spec.decoders = {DecoderStep{}};
  return spec;
}

std::vector<std::string> Llama3SpecialTokens() {
  std::vector<std::string> names = {"<|begin_of_text|>",
                                    "<|end_of_text|>",
                                    "<|reserved_special_token_0|>",
                                    "<|reserved_special_token_1|>",
                                    "<|finetune_right_pad_id|>",
                                    "<|reserved_special_token_2|>",
                                    "<|start_header_id|>",
                                    "<|end_header_id|>",
                                    "<|eom_id|>",
                                    "<|eot_id|>",
                                    "<|python_tag|>"};
  for (int reserved = 3; names.size() < 256; ++reserved)
    names.push_back(fmt::format("<|reserved_special_token_{}|>", reserved));
  return names;
}

Result<TokenizerSpec> ReadVocabAndMerges(std::string_view vocab, const std::string& vocab_name, std::string_view merges,
                                         const std::string& merges_name) {
  TokenizerSpec spec;
  spec.vocabulary.ReserveText(vocab.size());
  VocabHandler handler(vocab_name, spec.vocabulary);
  RETURN_IF_ERROR(ParseJsonEvents(vocab, {}, handler));

  MergeList list;
  list.ReserveText(merges.size());
  for (size_t number = 1; !merges.empty(); ++number) {
    const size_t end = std::min(merges.find('\n'), merges.size());
    std::string_view line = merges.substr(0, end);
    merges.remove_prefix(std::min(end + 1, merges.size()));
    if (line.size() > kMaxLineBytes)
      return Invalid("{}: line {} is longer than a merge can be ({} bytes)", merges_name, number, kMaxLineBytes);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with("#version")) continue;
    if (const Status added = list.AddLine(line); !added.ok())
      return Invalid("{}: line {}: {}", merges_name, number, added.error().message);
  }
  auto table = list.Resolve(spec.vocabulary);
  if (!table.ok()) return Invalid("{}: {} (vocabulary: {})", merges_name, table.error().message, vocab_name);
  spec.merges = std::move(*table);
  return spec;
}

}  // namespace infinigen
