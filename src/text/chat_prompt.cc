#include "text/chat_prompt.h"

#include <algorithm>
#include <utility>

namespace infinigen {
namespace {

// The private-use characters of three bytes.
constexpr uint32_t kFirstPrivate = 0xE000, kLastPrivate = 0xF8FF;

std::string PrivateCharacter(uint32_t code) {
  return {static_cast<char>(0xE0 | (code >> 12)), static_cast<char>(0x80 | ((code >> 6) & 0x3F)),
          static_cast<char>(0x80 | (code & 0x3F))};
}

// `text` without its marks; where they stood goes to `offsets`.
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
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id)
    if (tokenizer.IsSpecial(id) && !tokenizer.TokenText(id).empty()) special_.emplace_back(tokenizer.TokenText(id));
  std::sort(special_.begin(), special_.end());
}

Result<ChatPrompt> ChatPrompt::Make(const Tokenizer& tokenizer) {
  if (tokenizer.chat_template().empty())
    return Invalid("no chat template: neither chat_template.jinja nor tokenizer_config.json has one");
  ASSIGN_OR_RETURN(ChatTemplate parsed, ChatTemplate::Parse(tokenizer.chat_template()));
  return ChatPrompt(tokenizer, std::move(parsed));
}

bool ChatPrompt::SpellsSpecial(std::string_view text, size_t offset) const {
  const auto first_byte = [](const std::string& token) { return static_cast<unsigned char>(token[0]); };
  const unsigned char wanted = static_cast<unsigned char>(text[offset]);
  auto token =
      std::partition_point(special_.begin(), special_.end(), [&](const auto& t) { return first_byte(t) < wanted; });
  for (; token != special_.end() && first_byte(*token) == wanted; ++token)
    if (text.substr(offset, token->size()) == *token) return true;
  return false;
}

std::string ChatPrompt::Marked(std::string_view text, std::string_view mark) const {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    if (SpellsSpecial(text, i)) result += mark;
    result += text[i];
  }
  return result;
}

std::string ChatPrompt::UnusedCharacter(std::span<const ChatMessage> messages) const {
  for (uint32_t code = kFirstPrivate; code <= kLastPrivate; ++code) {
    std::string character = PrivateCharacter(code);
    const auto has = [&](const std::string& text) { return text.find(character) != std::string::npos; };
    if (has(tokenizer_->chat_template())) continue;
    if (std::any_of(special_.begin(), special_.end(), has)) continue;
    if (std::any_of(messages.begin(), messages.end(), [&](const ChatMessage& m) { return has(m.content); })) continue;
    return character;
  }
  return {};
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
