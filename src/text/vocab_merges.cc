#include "text/vocab_merges.h"

#include <utility>

#include "text/json_events.h"
#include "text/merge_list.h"

namespace infinigen {
namespace {

class VocabSink final : public JsonSink {
 public:
  VocabSink(const std::string& name, TokenVocabulary& vocabulary) : name_(name), vocabulary_(vocabulary) {}

  bool Key(std::string& key) override {
    key_ = std::move(key);
    return true;
  }
  bool Scalar(nlohmann::json value) override {
    const auto* id = value.get_ptr<const nlohmann::json::number_unsigned_t*>();
    if (!open_ || id == nullptr || *id > INT64_MAX) return Malformed();
    const Status added = vocabulary_.Add(key_, static_cast<int64_t>(*id));
    return added.ok() || Fail(Invalid("{}: {}", name_, added.error().message));
  }
  bool Open(bool object) override {
    if (!object || std::exchange(open_, true)) return Malformed();
    return true;
  }
  bool String(std::string&) override { return Malformed(); }
  bool Close(bool) override { return true; }

 private:
  bool Malformed() { return Fail(Invalid("{}: must be one object from tokens to ids (whole numbers)", name_)); }

  const std::string& name_;
  TokenVocabulary& vocabulary_;
  std::string key_;
  bool open_ = false;
};

// Like std::getline, with a limit: a merge has two tokens, not megabytes.
bool ReadLine(std::istream& in, std::string& line, bool& overlong) {
  constexpr size_t kMaxLineBytes = 1 << 16;
  line.clear();
  for (int c = in.get(); c != std::istream::traits_type::eof(); c = in.get()) {
    if (c == '\n') return true;
    if (line.size() == kMaxLineBytes) {
      overlong = true;
      return true;
    }
    line += static_cast<char>(c);
  }
  return !line.empty();
}

}  // namespace

Result<TokenizerSpec> ReadVocabAndMerges(std::istream& vocab, const std::string& vocab_name, uint64_t vocab_bytes,
                                         std::istream& merges, const std::string& merges_name, uint64_t merges_bytes) {
  TokenizerSpec spec;
  spec.vocabulary.ReserveText(vocab_bytes);
  VocabSink sink(vocab_name, spec.vocabulary);
  RETURN_IF_ERROR(ParseJsonEvents(vocab, vocab_name, sink));

  MergeList list;
  list.ReserveText(merges_bytes);
  std::string line;
  bool overlong = false;
  for (size_t number = 1; ReadLine(merges, line, overlong); ++number) {
    if (overlong) return Invalid("{}: line {} is too long for a merge", merges_name, number);
    if (line.ends_with('\r')) line.pop_back();
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
