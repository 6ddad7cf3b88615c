// Parses the input as a file of prompts. The result is prompts within their limits or a one-line error that names the
// file.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "cli/prompts.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace infinigen;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Result<std::vector<PromptSpec>> prompts = ParsePromptLines(text, "p.jsonl");
  if (!prompts.ok()) {
    CHECK(prompts.error().message.find('\n') == std::string::npos);
    CHECK(prompts.error().message.size() < 400);
    CHECK(prompts.error().message.substr(0, 8) == "p.jsonl:");
    return 0;
  }
  CHECK(!prompts->empty());
  int64_t last_line = 0;
  size_t bytes = 0;
  for (const PromptSpec& prompt : *prompts) {
    CHECK(prompt.line > last_line);
    last_line = prompt.line;
    CHECK(prompt.has_ids ? prompt.text.empty() : prompt.ids.empty());
    for (const int32_t id : prompt.ids) CHECK(id >= 0);
    CHECK(!prompt.n || (*prompt.n >= -1 && *prompt.n <= INT32_MAX));
    bytes += prompt.text.size() + prompt.ids.size();
  }
  CHECK(bytes <= size);
  return 0;
}
