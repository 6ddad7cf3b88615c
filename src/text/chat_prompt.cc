#include "text/chat_prompt.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/utf8.h"

namespace infinigen {
namespace {

// The private-use characters of three bytes, U+E000 to U+F8FF: EE 80 80 to EF A3 BF.
constexpr uint32_t kFirstPrivate = 0xE000;

std::string PrivateCharacter(size_t index) {
  std::string character;
  AppendUtf8(static_cast<char32_t>(kFirstPrivate + index), character);
  return character;
}

// `text` without its marks; their offsets in the result go to `offsets`, ascending.
std::string Unmarked(std::string_view text, std::string_view mark, std::vector<size_t>* offsets) {
  std::string result;
  result.reserve(text.size());
  for (size_t begin = 0; begin < text.size();) {
    const size_t found = std::min(text.find(mark, begin), text.size());
    result += text.substr(begin, found - begin);
    if (found < text.size() && (offsets->empty() || offsets->back() != result.size()))
      offsets->push_back(result.size());
    begin = std::min(found + mark.size(), text.size());
  }
  return result;
}

}  // namespace

ChatPrompt::ChatPrompt(const Tokenizer& tokenizer, ChatTemplate parsed)
    : tokenizer_(&tokenizer), template_(std::move(parsed)) {
  FindPrivate(tokenizer.chat_template(), used_);
  std::vector<AddedTokenMatcher::Entry> special;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string_view text = tokenizer.TokenText(id);
    if (!tokenizer.IsSpecial(id) || text.empty()) continue;
    FindPrivate(text, used_);
    special.push_back({std::string(text), {}});
  }
  special_ = AddedTokenMatcher(std::move(special));
}

Result<ChatPrompt> ChatPrompt::Make(const Tokenizer& tokenizer) {
  if (tokenizer.chat_template().empty())
    return Invalid("no chat template: neither chat_template.jinja nor tokenizer_config.json has one");
  ASSIGN_OR_RETURN(ChatTemplate parsed, ChatTemplate::Parse(tokenizer.chat_template()));
  return ChatPrompt(tokenizer, std::move(parsed));
}

std::string ChatPrompt::Marked(std::string_view text, std::string_view mark) const {
  std::string result;
  size_t done = 0;
  for (std::optional<size_t> start = special_.NextStart(text, 0); start; start = special_.NextStart(text, *start + 1)) {
    result += text.substr(done, *start - done);
    result += mark;
    done = *start;
  }
  return result += text.substr(done);
}

void ChatPrompt::FindPrivate(std::string_view text, PrivateSet& found) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(text[i])); };
  for (size_t i = 0; i + 2 < text.size(); ++i) {
    if (byte(i) != 0xEE && byte(i) != 0xEF) continue;
    if ((byte(i + 1) & 0xC0) != 0x80 || (byte(i + 2) & 0xC0) != 0x80) continue;
    const uint32_t code = ((byte(i) & 0xF) << 12) | ((byte(i + 1) & 0x3F) << 6) | (byte(i + 2) & 0x3F);
    if (code - kFirstPrivate < found.size()) found.set(code - kFirstPrivate);
  }
}

std::string ChatPrompt::UnusedCharacter(std::span<const ChatMessage> messages) const {
  PrivateSet used = used_;
  for (const ChatMessage& message : messages) FindPrivate(message.content, used);
  size_t index = 0;
  while (index < used.size() && used.test(index)) ++index;
  return index < used.size() ? PrivateCharacter(index) : "";
}

Result<std::vector<TokenId>> ChatPrompt::Encode(std::span<const ChatMessage> messages) const {
  const std::string mark = UnusedCharacter(messages);
  if (mark.empty()) return Invalid("the conversation contains every private-use character of Unicode");
  const auto text_of = [&](const std::optional<TokenId>& id) {
    return id ? std::string(tokenizer_->TokenText(*id)) : std::string();
  };
  ChatInput input{.messages = {messages.begin(), messages.end()},
                  .bos_token = text_of(tokenizer_->bos()),
                  .eos_token = text_of(tokenizer_->eos())};
  for (ChatMessage& message : input.messages) message.content = Marked(message.content, mark);
  ASSIGN_OR_RETURN(const std::string rendered, template_.Render(input));
  std::vector<size_t> literal;
  const std::string text = Unmarked(rendered, mark, &literal);
  return tokenizer_->Encode(text, {.add_special = false, .parse_special = true, .literal = literal});
}

}  // namespace infinigen
