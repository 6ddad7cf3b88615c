// Reads the input as tiktoken ranks (tokenizer.model) and encodes a short text.
#include "fuzz_tokenizer.h"
#include "text/tokenizer_files.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  infinigen::LooksLikeTiktoken(bytes);
  auto spec = infinigen::ReadTiktoken(bytes, "tokenizer.model");
  if (spec.ok()) infinigen::RunSpec(std::move(*spec));
  return 0;
}
