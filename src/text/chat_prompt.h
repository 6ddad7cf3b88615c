// ChatPrompt: a conversation as the token ids that a model was trained on. Made once from a tokenizer; immutable, any
// thread.
//
// The template's text may spell special tokens ("<|user|>"), which become those tokens; what people and models wrote
// may not: "<|end|>" inside a message is eight characters. Template and messages meet in one rendered text, so before
// rendering a mark (a private-use character that occurs nowhere else) is put in front of every special token that a
// message spells. The marks travel with their text through whatever the template does (trim, split, conditions), are
// taken out of the result, and tell the tokenizer where not to see a token. So the ids are those of the rendered text
// as transformers would encode it, down to the merges across the ends of a message, except that no message can open or
// close a turn. A conversation that spells no special token is rendered without any mark.
#pragma once

#include <bitset>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "text/added_tokens.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace infinigen {

class ChatPrompt {
 public:
  // `tokenizer` outlives it. Fails when the directory has no template, or one that is not understood.
  static Result<ChatPrompt> Make(const Tokenizer& tokenizer);

  // The conversation and the opening of the assistant's next turn. Nothing is added to what the template writes: a BOS
  // token is in the ids when the template puts it there.
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
  AddedTokenMatcher special_;  // all special tokens
  PrivateSet used_;            // in the template and in special tokens
};

}  // namespace infinigen
