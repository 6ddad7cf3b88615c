#include "text/vocab_merges.h"

#include <algorithm>
#include <utility>

#include "json/events.h"
#include "text/merge_list.h"

namespace infinigen {
namespace {

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
  bool Malformed() { return Fail(Invalid("{}: must be one object from tokens to ids (whole numbers)", path())); }

  TokenVocabulary& vocabulary_;
  std::string key_;
  bool open_ = false;
};

constexpr size_t kMaxLineBytes = 1 << 16;  // a merge has two tokens, not megabytes

}  // namespace

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
    if (line.size() > kMaxLineBytes) return Invalid("{}: line {} is too long for a merge", merges_name, number);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with("#version")) continue;
    if (const Status added = list.AddLine(line); !added.ok())
      return Invalid("{}: line {}: {}", merges_name, number, added.error().message);
  }
  auto table = list.Resolve(spec.vocabulary);
  if (!table.ok()) return Invalid("{}: {} ({})", merges_name, table.error().message, vocab_name);
  spec.merges = std::move(*table);

  PreTokenizerStep byte_level;
  byte_level.pattern = kGpt2Pattern;
  spec.pre_tokenizers = {byte_level};
  spec.decoders = {DecoderStep{}};
  return spec;
}

}  // namespace infinigen
