#include "server/tool_calls.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "json/parse.h"

namespace infinigen {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kOpen = "<tool_call>", kClose = "</tool_call>";
constexpr std::string_view kListMark = "[TOOL_CALLS]", kObjectMark = "<|python_tag|>";
constexpr std::string_view kSpace = " \t\r\n";
constexpr size_t kMostArgumentDepth = 64;

std::string_view Trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

// The members of a call, with the text of its arguments as the model wrote them: a tree would sort their keys.
std::optional<ToolCall> CallOf(const nlohmann::ordered_json& json) {
  if (!json.is_object() || !json.contains("name") || !json["name"].is_string()) return std::nullopt;
  const char* key = json.contains("arguments") ? "arguments" : "parameters";
  nlohmann::ordered_json arguments = json.contains(key) ? json[key] : nlohmann::ordered_json::object();
  if (arguments.is_string())  // some models write JSON in a string
    arguments = nlohmann::ordered_json::parse(arguments.get<std::string>(), nullptr, /*allow_exceptions=*/false);
  if (!arguments.is_object()) return std::nullopt;
  return ToolCall{json["name"].get<std::string>(),
                  arguments.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)};
}

// One call, or a list of them; empty: the text is neither.
std::vector<ToolCall> CallsOf(std::string_view text) {
  text = Trimmed(text);
  Json checked;  // bounds the depth
  if (BuildJson(text, {.max_depth = kMostArgumentDepth, .max_token_bytes = SIZE_MAX}, &checked)) return {};
  const auto json = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  std::vector<ToolCall> calls;
  const auto add = [&](const nlohmann::ordered_json& each) {
    std::optional<ToolCall> call = CallOf(each);
    if (call) calls.push_back(std::move(*call));
    return call.has_value();
  };
  if (json.is_array()) {
    for (const auto& each : json)
      if (!add(each)) return {};
  } else {
    add(json);
  }
  return calls;
}

// How much of the end of `text` may be the beginning of `word`.
size_t PartAtEnd(std::string_view text, std::string_view word) {
  for (size_t count = std::min(text.size(), word.size() - 1); count > 0; --count)
    if (text.substr(text.size() - count) == word.substr(0, count)) return count;
  return 0;
}

}  // namespace

ToolForm FormOfTemplate(std::string_view chat_template) {
  const auto has = [&](std::string_view text) { return chat_template.find(text) != std::string_view::npos; };
  if (!has("tools") || has("<function=")) return ToolForm::kNone;
  if (has(kOpen)) return ToolForm::kTagged;
  if (has("[TOOL_CALLS]")) return has("[ARGS]") ? ToolForm::kNone : ToolForm::kList;
  if (has("\"parameters\"") && has("<|eot_id|>")) return ToolForm::kObject;
  return ToolForm::kNone;
}

std::string_view ArgumentsKey(ToolForm form) { return form == ToolForm::kObject ? "parameters" : "arguments"; }

std::string_view CallOpening(ToolForm form) { return form == ToolForm::kTagged ? "<tool_call>\n" : ""; }

ToolCallStream::Found ToolCallStream::Push(std::string_view text) {
  Found found;
  if (form_ == ToolForm::kNone || plain_) {
    found.content = text;
    return found;
  }
  held_ += text;
  if (form_ == ToolForm::kTagged) {
    TakeTagged(/*end=*/false, &found);
    return found;
  }
  // The first character that is no space decides.
  const std::string_view rest = Trimmed(held_);
  const std::string_view mark = form_ == ToolForm::kList ? kListMark : kObjectMark;
  const bool marked = rest.substr(0, mark.size()) == mark.substr(0, rest.size());
  plain_ = !rest.empty() && !marked && rest[0] != (form_ == ToolForm::kList ? '[' : '{');
  if (plain_) found.content = std::exchange(held_, {});
  return found;
}

ToolCallStream::Found ToolCallStream::Finish() {
  Found found;
  if (form_ == ToolForm::kTagged)
    TakeTagged(/*end=*/true, &found);
  else
    TakeWhole(&found);
  if (!called_) found.content += space_;
  space_.clear();
  return found;
}

void ToolCallStream::TakeWhole(Found* found) {
  std::string_view text = Trimmed(held_);
  for (const std::string_view mark : {kListMark, kObjectMark})
    if (text.substr(0, mark.size()) == mark) text.remove_prefix(mark.size());
  found->calls = CallsOf(text);
  called_ = !found->calls.empty();
  if (!called_) found->content = held_;
  held_.clear();
}

// White space around calls is no content.
void ToolCallStream::AddContent(std::string_view text, Found* found) {
  const size_t last = text.find_last_not_of(kSpace);
  if (last == std::string_view::npos) {
    space_ += text;
    return;
  }
  found->content += std::exchange(space_, {});
  found->content += text.substr(0, last + 1);
  space_ = text.substr(last + 1);
}

void ToolCallStream::TakeTagged(bool end, Found* found) {
  while (!held_.empty()) {
    const size_t open = held_.find(kOpen);
    if (open == std::string::npos) {
      const size_t part = end ? 0 : PartAtEnd(held_, kOpen);
      AddContent(std::string_view(held_).substr(0, held_.size() - part), found);
      held_.erase(0, held_.size() - part);
      return;
    }
    const size_t inside = open + kOpen.size();
    size_t close = held_.find(kClose, inside);
    if (close == std::string::npos && !end) {
      // Content before the call need not wait for it, unless calls of this text were found: content comes before calls.
      if (found->calls.empty()) {
        AddContent(std::string_view(held_).substr(0, open), found);
        held_.erase(0, open);
      }
      return;
    }
    const size_t after = close == std::string::npos ? held_.size() : close + kClose.size();
    close = std::min(close, held_.size());
    std::vector<ToolCall> calls = CallsOf(std::string_view(held_).substr(inside, close - inside));
    AddContent(std::string_view(held_).substr(0, calls.empty() ? after : open), found);
    if (!calls.empty()) {
      called_ = true;
      space_.clear();
    }
    for (ToolCall& call : calls) found->calls.push_back(std::move(call));
    held_.erase(0, after);
  }
}

}  // namespace infinigen
