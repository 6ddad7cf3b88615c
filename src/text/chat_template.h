// ChatTemplate: turns a conversation into the prompt a model was trained on, with the Jinja template of its directory.
//
// Parsed once, rendered for every request; immutable, so any thread may render. Renders what transformers'
// apply_chat_template renders, or refuses: docs/chat-templates.md says which part of Jinja is known. Templates are
// foreign code and are evaluated under limits; no template can make Parse or Render hang, crash, throw or read anything
// but its input.
#pragma once

#include <ctime>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"

namespace infinigen {

namespace jinja {
class Template;  // jinja/template.h
}

struct ChatMessage {
  std::string role;
  std::string content;
};

struct ChatInput {
  std::vector<ChatMessage> messages;
  std::string bos_token;
  std::string eos_token;
  bool add_generation_prompt = true;
  std::optional<std::string> date_string;  // the variable of that name, which Llama 3 templates prefer to the clock
  std::optional<std::tm> now;              // local time for strftime_now; the clock when absent
  // Further variables of the template, such as enable_thinking. They come before those above.
  std::map<std::string, std::variant<bool, std::string>> variables;
};

class ChatTemplate {
 public:
  // Fails with kUnsupported and "chat template: line N: ... is not supported" for what the evaluator does not know.
  static Result<ChatTemplate> Parse(std::string_view source);

  // Fails with the template's own words where it calls raise_exception, and with the line where it goes wrong. The text
  // may start with the BOS token: encode it without adding another.
  Result<std::string> Render(const ChatInput& input) const;

 private:
  explicit ChatTemplate(std::shared_ptr<const jinja::Template> parsed) : parsed_(std::move(parsed)) {}

  std::shared_ptr<const jinja::Template> parsed_;
};

}  // namespace infinigen
