// Test helper: renders chat templates for comparison with transformers (tools/chat_template_diff.py).
// Reads one JSON object per line, {"template": text, "inputs": [variables, ...]}, and prints a line with a JSON list of
// outcomes: {"text": ...}, {"raised": message}, {"error": message} or {"unsupported": message}.
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "jinja/json_value.h"
#include "jinja/template.h"

namespace {

using infinigen::Error;
using nlohmann::ordered_json;

constexpr infinigen::jinja::RenderLimits kLimits = {
    .steps = 1'000'000, .made_bytes = 32 << 20, .output_bytes = 4 << 20};

ordered_json Failed(const Error& error) {
  if (error.kind == infinigen::ErrorKind::kUnsupported) return {{"unsupported", error.message}};
  const bool ours = error.message.starts_with("chat template: ");
  return {{ours ? "error" : "raised", error.message}};
}

ordered_json RenderAll(const ordered_json& given) {
  ordered_json out = ordered_json::array();
  const auto parsed = infinigen::jinja::Template::Parse(given["template"].get<std::string>());
  for (const ordered_json& input : given["inputs"]) {
    if (!parsed.ok()) {
      out.push_back(Failed(parsed.error()));
      continue;
    }
    const auto text = parsed->Render(infinigen::jinja::VariablesOf(input), kLimits, infinigen::jinja::GoldenClock());
    out.push_back(text.ok() ? ordered_json{{"text", *text}} : Failed(text.error()));
  }
  return out;
}

}  // namespace

int main() {
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) {
    const ordered_json given = ordered_json::parse(line, nullptr, false);
    if (given.is_discarded()) {
      std::fprintf(stderr, "render_chat: a line is not JSON\n");
      return 1;
    }
    std::cout << RenderAll(given).dump(-1, ' ', true, ordered_json::error_handler_t::replace) << '\n';
  }
  return 0;
}
