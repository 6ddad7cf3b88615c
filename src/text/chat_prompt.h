// Turns a conversation into the prompt that a chat model was trained on. ChatTemplate renders the Jinja template of the
// model's directory to text; ChatPrompt encodes the result as token ids. Both are immutable and may be used from any
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
  std::string tool_calls;    // of an assistant: a JSON array; empty: none
  std::string tool_call_id;  // of a tool's answer; empty: not given, as below
  std::string name;

  size_t bytes() const { return role.size() + content.size() + tool_calls.size() + tool_call_id.size() + name.size(); }
};

struct ChatInput {
  std::vector<ChatMessage> messages;
  std::string tools;  // a JSON array; empty: none
  std::string mark;   // put before every special token that `special` finds in tools and calls; empty: none
  std::shared_ptr<const AddedTokenMatcher> special;
  std::string bos_token;
  std::string eos_token;
  bool add_generation_prompt = true;
  std::optional<std::string> date_string;  // the template variable; Llama 3 templates use it instead of the clock
  std::optional<std::tm> now;              // local time for strftime_now; the current time when absent
  // Further template variables, such as enable_thinking. They override the ones above.
  std::map<std::string, std::variant<bool, std::string>> variables;
};

// Parsed once, rendered for every request. Renders the same text as transformers' apply_chat_template, or fails:
// docs/chat-templates.md lists the supported part of Jinja. A template is untrusted code and runs under limits.
class ChatTemplate {
 public:
  // Fails with kUnsupported and "chat template: line N: ... is not supported" for unsupported parts of Jinja.
  static Result<ChatTemplate> Parse(std::string_view source);

  // Fails with the template's own message when the template calls raise_exception, otherwise with a message that names
  // the line. The text may start with the BOS token: encode it without adding another one.
  Result<std::string> Render(const ChatInput& input) const;

 private:
  explicit ChatTemplate(std::shared_ptr<const jinja::Template> parsed) : parsed_(std::move(parsed)) {}

  std::shared_ptr<const jinja::Template> parsed_;
};

// Encodes conversations so that no message can forge a turn. Special tokens in the template's text ("<|user|>") become
// those tokens; in the text of a message they do not: "<|end|>" in a message is encoded as seven characters.
//
// Template and messages end up in one rendered text. To tell them apart, a mark (a private-use character that occurs
// nowhere else) is inserted before every special token in a message. The marks pass through the template together with
// their text (trim, split, conditions). After rendering they are removed, and their positions tell the tokenizer which
// special tokens to encode as characters. Apart from these, the ids equal those of transformers for the rendered text,
// including merges across the ends of messages. A conversation without special tokens is rendered without marks.
class ChatPrompt {
 public:
  // `tokenizer` must outlive the object. Fails when the model has no chat template or an unsupported one.
  static Result<ChatPrompt> Make(const Tokenizer& tokenizer);

  // Encodes the conversation and the start of the assistant's next turn. A BOS token is included only if the template
  // writes one. `reserve` as in EncodeOptions.
  Result<std::vector<TokenId>> Encode(std::span<const ChatMessage> messages, const ReserveMemory* reserve = nullptr,
                                      std::string_view tools = {}) const;
  // Whether the template mentions tools at all.
  bool has_tools() const { return has_tools_; }

 private:
  ChatPrompt(const Tokenizer& tokenizer, ChatTemplate parsed);

  // [i]: the private-use character U+E000 + i.
  using PrivateSet = std::bitset<0xF900 - 0xE000>;

  // A private-use character that occurs neither in the template, nor in a special token, nor in a message, nor in the
  // tools; empty when all of them occur. One pass over the messages.
  std::string UnusedCharacter(std::span<const ChatMessage> messages, std::string_view tools) const;
  // Adds the private-use characters of `text` to `found`.
  static void FindPrivate(std::string_view text, PrivateSet& found);

  const Tokenizer* tokenizer_;
  ChatTemplate template_;
  std::shared_ptr<const AddedTokenMatcher> special_;  // all special tokens
  bool has_tools_ = false;
  PrivateSet used_;  // private-use characters of the template and special tokens
};

}  // namespace infinigen
