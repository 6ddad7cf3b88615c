// Reads the input as tokenizer.json and encodes a short text with the result.
#include <string_view>

#include "fuzz_tokenizer.h"
#include "text/tokenizer_files.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  infinigen::ClassRules rules;
  if (size > 0) rules.tokenizer_class = static_cast<infinigen::TokenizerClass>(data[size - 1] % 3);
  auto spec = infinigen::ReadTokenizerJson(text, "tokenizer.json", rules);
  if (spec.ok()) infinigen::RunSpec(std::move(*spec));
  return 0;
}
