// Encodes the input with committed tokenizers. Byte-level tokenizers decode to the same bytes, and streaming gives the
// same text as decoding the whole sequence.
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/utf8.h"
#include "text/text_stream.h"
#include "text/tokenizer.h"

namespace {

std::unique_ptr<infinigen::Tokenizer> Load(const char* name) {
  const char* given = std::getenv("INFINIGEN_TEST_DATA");  // where the binary runs in another checkout
  const std::string data = given != nullptr ? given : INFINIGEN_TEST_DATA;
  auto tokenizer = infinigen::Tokenizer::Load(data + "/text/data/" + name);
  if (!tokenizer.ok()) std::abort();
  return std::move(*tokenizer);
}

void Check(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<const char*> kNames = {"tiktoken_ranks", "vocab_and_merges", "sentencepiece_bpe",
                                                  "split_regex", "mixed_steps"};
  static const std::vector<std::unique_ptr<infinigen::Tokenizer>> kTokenizers = [] {
    std::vector<std::unique_ptr<infinigen::Tokenizer>> tokenizers;
    for (const char* name : kNames) tokenizers.push_back(Load(name));
    return tokenizers;
  }();
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (size_t i = 0; i < kTokenizers.size(); ++i) {
    const infinigen::Tokenizer& tokenizer = *kTokenizers[i];
    const auto ids = tokenizer.Encode(text, {.add_special = false, .parse_special = size % 2 == 0});
    Check(ids.ok());
    const std::string whole = tokenizer.Decode(*ids, false);
    if (i < 2) Check(whole == text);
    infinigen::StreamDecoder stream(tokenizer, false);
    std::string joined;
    std::string replaced;
    for (const infinigen::TokenId id : *ids) {
      const std::string piece = stream.Push(id);
      joined += piece;
      replaced += infinigen::ReplaceInvalidUtf8(piece);
    }
    const std::string rest = stream.Finish();
    Check(joined + rest == whole);
    // A piece that ends inside a character would add replacement characters that the whole text does not have.
    Check(replaced + infinigen::ReplaceInvalidUtf8(rest) == infinigen::ReplaceInvalidUtf8(whole));
  }
  return 0;
}
