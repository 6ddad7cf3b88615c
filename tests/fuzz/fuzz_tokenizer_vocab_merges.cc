// vocab.json and merges.txt, separated by the first NUL byte.
#include <algorithm>
#include <sstream>
#include <string>

#include "fuzz_tokenizer.h"
#include "text/vocab_merges.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(bytes.find('\0'), bytes.size());
  std::istringstream vocab(bytes.substr(0, end));
  std::istringstream merges(end == bytes.size() ? std::string() : bytes.substr(end + 1));
  auto spec = infinigen::ReadVocabAndMerges(vocab, "vocab.json", end, merges, "merges.txt", size - end);
  if (spec.ok()) infinigen::RunSpec(std::move(*spec));
  return 0;
}
