// From a conversation to the text, and to the token ids, that a model was trained on. ChatTemplate renders the Jinja
// template of the model's directory; ChatPrompt makes token ids of the result. Both are made once and immutable: any
// thread.
#pragma once

#include <bitset>
#include <ctime>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"
#include "text/tokenizer.h"

namespace infinigen {

namespace jinja {
class Template;  // jinja/template.h
}
class AddedTokenMatcher;  // text/added_tokens.h

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
  // Further variables of the template, such as enable_thinking. They replace those above of the same name.
  std::map<std::string, std::variant<bool, std::string>> variables;
};

// Parsed once, rendered for every request, to the text of transformers' apply_chat_template, or refused:
// docs/chat-templates.md says which part of Jinja is known. A template is foreign code and runs under limits.
class ChatTemplate {
 public:
  // Fails with kUnsupported and "chat template: line N: ... is not supported" for unknown parts of Jinja.
  static Result<ChatTemplate> Parse(std::string_view source);

  // Fails with the template's own message when it calls raise_exception, else with the line of the error. The text may
  // start with the BOS token: encode it without adding another.
  Result<std::string> Render(const ChatInput& input) const;

 private:
  explicit ChatTemplate(std::shared_ptr<const jinja::Template> parsed) : parsed_(std::move(parsed)) {}

  std::shared_ptr<const jinja::Template> parsed_;
};

// The template's text may spell special tokens ("<|user|>"), which become those tokens. The text of a message may not:
// "<|end|>" inside a message is seven characters of text. Template and messages meet in one rendered text, so before
// rendering a mark (a private-use character that occurs nowhere else) is put in front of every special token that a
// message spells. The marks travel with their text through the template (trim, split, conditions), are taken out of the
// result, and tell the tokenizer where not to see a token. So the ids are those of the rendered text as transformers
// encodes it, down to the merges across the ends of a message, except that no message can open or close a turn. A
// conversation that spells no special token is rendered without any mark.
class ChatPrompt {
 public:
  // `tokenizer` outlives it. Fails when the directory has no template, or one that is not supported.
  static Result<ChatPrompt> Make(const Tokenizer& tokenizer);

  // The conversation and the opening of the assistant's next turn. The ids have a BOS token only when the template
  // writes one.
  Result<std::vector<TokenId>> Encode(std::span<const ChatMessage> messages) const;

 private:
  ChatPrompt(const Tokenizer& tokenizer, ChatTemplate parsed);

  // [i]: the private-use character U+E000 + i.
  using PrivateSet = std::bitset<0xF900 - 0xE000>;

  // `text` with `mark` before every special token that it spells. One pass.
  std::string Marked(std::string_view text, std::string_view mark) const;
  // A private-use character that neither the template, nor a special token, nor a message has; empty when all occur.
  // One pass over the messages.
  std::string UnusedCharacter(std::span<const ChatMessage> messages) const;
  // Adds those that occur in `text`.
  static void FindPrivate(std::string_view text, PrivateSet& found);

  const Tokenizer* tokenizer_;
  ChatTemplate template_;
  std::shared_ptr<const AddedTokenMatcher> special_;  // all special tokens
  PrivateSet used_;                                   // in the template and in special tokens
};

}  // namespace infinigen
