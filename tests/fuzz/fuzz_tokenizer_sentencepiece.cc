// Reads the input as a SentencePiece tokenizer.model, with both sets of rules, and encodes a short text.
#include "fuzz_tokenizer.h"
#include "text/tokenizer_files.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  for (const auto rules : {infinigen::SentencePieceRules::kOwn, infinigen::SentencePieceRules::kLlamaTokenizer}) {
    auto model = infinigen::ReadSentencePiece(bytes, "tokenizer.model", rules);
    if (model.ok()) infinigen::RunSpec(std::move(model->spec));
  }
  return 0;
}
