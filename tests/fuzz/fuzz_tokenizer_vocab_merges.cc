// Reads the input as vocab.json and merges.txt, separated by the first NUL byte, and encodes a short text.
#include <algorithm>
#include <string_view>

#include "fuzz_tokenizer.h"
#include "text/tokenizer_files.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(bytes.find('\0'), bytes.size());
  const std::string_view merges = bytes.substr(std::min(end + 1, bytes.size()));
  auto spec = infinigen::ReadVocabAndMerges(bytes.substr(0, end), "vocab.json", merges, "merges.txt");
  if (spec.ok()) infinigen::RunSpec(std::move(*spec));
  return 0;
}
