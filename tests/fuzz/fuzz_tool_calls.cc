// Finds calls in the input as an answer that arrives in two pieces, cut where its first byte says. Every form gives the
// same calls and content as the whole text at once, and arguments are JSON objects.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/check.h"
#include "server/tool_calls.h"

namespace {

using infinigen::ToolCall;
using infinigen::ToolCallStream;
using infinigen::ToolForm;

std::string Read(ToolForm form, std::string_view first, std::string_view second) {
  ToolCallStream stream(form, /*forced=*/false);
  std::string content, calls;
  const auto add = [&](const ToolCallStream::Found& found) {
    content += found.content;
    for (const ToolCall& call : found.calls) {
      CHECK(nlohmann::json::parse(call.arguments, nullptr, /*allow_exceptions=*/false).is_object());
      calls += "\n" + call.name + call.arguments;
    }
  };
  add(stream.Push(first));
  add(stream.Push(second));
  add(stream.Finish());
  return content + "\n\n" + calls;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  const size_t cut = text.empty() ? 0 : data[0] % (text.size() + 1);
  for (const ToolForm form : {ToolForm::kNone, ToolForm::kTagged, ToolForm::kList, ToolForm::kObject})
    CHECK(Read(form, text, "") == Read(form, text.substr(0, cut), text.substr(cut)));
  return 0;
}
