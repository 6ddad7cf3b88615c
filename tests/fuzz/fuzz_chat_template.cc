// Parses the input as a chat template and renders it twice with a fixed conversation. Both renderings give the same
// error or the same bounded text, within the time and memory limits of run.sh.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "text/chat_prompt.h"

namespace {

infinigen::ChatInput Conversation() {
  infinigen::ChatInput out;
  out.messages = {{"system", " Be brief.\n"},
                  {"user", "What is 2+2? \xc3\xa4\xf0\x9f\x99\x82"},
                  {"assistant", "4\xff"},
                  {"user", ""}};
  out.bos_token = "<s>";
  out.eos_token = "</s>";
  out.date_string = "06 Jul 2024";
  out.now = std::tm{.tm_mday = 6, .tm_mon = 6, .tm_year = 124};
  out.variables["enable_thinking"] = false;
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace infinigen;
  static const ChatInput input = Conversation();
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  const Result<ChatTemplate> parsed = ChatTemplate::Parse(source);
  if (!parsed.ok()) {
    CHECK(parsed.error().message.starts_with("chat template: "));
    CHECK(parsed.error().message.find('\n') == std::string::npos);
    return 0;
  }
  const Result<std::string> first = parsed->Render(input);
  const Result<std::string> second = parsed->Render(input);
  CHECK(first.ok() == second.ok());
  if (first.ok()) {
    CHECK(*first == *second);
    CHECK(first->size() < size_t{8} << 20);
  } else {
    CHECK(first.error().message == second.error().message);
  }
  return 0;
}
