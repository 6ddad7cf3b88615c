#include "text/chat_prompt.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/utf8.h"
#include "jinja/template.h"
#include "text/added_tokens.h"

namespace infinigen {
namespace {

using jinja::Value;

// Limits of a rendering: a constant part for the template and a part that grows with the input. Published templates
// need about 100 steps per message and copy it three times. The limits are at least ten times that, and stop a hostile
// template within a second or two.
constexpr uint64_t kBaseSteps = 1'000'000;
constexpr uint64_t kStepsPerMessage = 2'000;
constexpr uint64_t kInputBytesPerStep = 4;
constexpr uint64_t kBaseMadeBytes = uint64_t{32} << 20;
constexpr uint64_t kMadePerInputByte = 32;
constexpr uint64_t kBaseOutputBytes = uint64_t{4} << 20;
constexpr uint64_t kOutputPerInputByte = 4;

uint64_t InputBytes(const ChatInput& input) {
  uint64_t bytes = 0;
  for (const ChatMessage& message : input.messages) bytes += message.bytes();
  return bytes + input.tools.size();
}

// A value that refers to `text` without a copy; `text` must outlive it.
Value Borrow(const std::string& text) { return Value(jinja::Text(std::shared_ptr<void>(), &text)); }

// `text` with `mark` inserted before every special token. One pass.
std::string Marked(std::string_view text, std::string_view mark, const AddedTokenMatcher& special) {
  std::string result;
  size_t done = 0;
  for (std::optional<size_t> start = special.NextStart(text, 0); start; start = special.NextStart(text, *start + 1)) {
    result += text.substr(done, *start - done);
    result += mark;
    done = *start;
  }
  return result += text.substr(done);
}

// JSON as a value; every string is marked as the contents of messages are.
Value JsonValue(const nlohmann::ordered_json& json, const ChatInput& input) {
  const auto text = [&](const std::string& plain) {
    return Value(
        std::make_shared<const std::string>(input.mark.empty() ? plain : Marked(plain, input.mark, *input.special)));
  };
  if (json.is_boolean()) return Value(json.get<bool>());
  if (json.is_number_unsigned() && json.get<uint64_t>() > INT64_MAX) return Value(json.get<double>());
  if (json.is_number_integer()) return Value(json.get<int64_t>());
  if (json.is_number()) return Value(json.get<double>());
  if (json.is_string()) return text(json.get_ref<const std::string&>());
  int depth = 0;
  const auto deepen = [&](const Value& value) {
    if (value.sequence() != nullptr) depth = std::max(depth, value.sequence()->depth);
    if (value.dict() != nullptr) depth = std::max(depth, value.dict()->depth);
  };
  if (json.is_array()) {
    auto list = std::make_shared<jinja::Sequence>();
    for (const auto& item : json) deepen(list->items.emplace_back(JsonValue(item, input)));
    list->depth = depth + 1;
    return Value(jinja::SequencePtr(std::move(list)));
  }
  if (!json.is_object()) return jinja::None{};
  auto dict = std::make_shared<jinja::Dict>();
  for (const auto& [key, value] : json.items())
    deepen(dict->items.emplace_back(text(key), JsonValue(value, input)).second);
  dict->depth = depth + 1;
  return Value(jinja::DictPtr(std::move(dict)));
}

// The caller has checked that it is JSON of bounded depth.
Value JsonTextValue(const std::string& json, const ChatInput& input) {
  return JsonValue(nlohmann::ordered_json::parse(json, nullptr, /*allow_exceptions=*/false), input);
}

Value MessageList(const ChatInput& input) {
  const auto key = [](const char* name) { return Value(std::make_shared<const std::string>(name)); };
  const Value role = key("role"), content = key("content"), calls = key("tool_calls"), id = key("tool_call_id"),
              name = key("name");
  auto list = std::make_shared<jinja::Sequence>();
  list->depth = 2;
  for (const ChatMessage& message : input.messages) {
    auto dict = std::make_shared<jinja::Dict>();
    dict->items = {{role, Borrow(message.role)}, {content, Borrow(message.content)}};
    if (!message.tool_calls.empty()) {
      const Value& made = dict->items.emplace_back(calls, JsonTextValue(message.tool_calls, input)).second;
      if (made.sequence() != nullptr) dict->depth = made.sequence()->depth + 1;
    }
    if (!message.tool_call_id.empty()) dict->items.emplace_back(id, Borrow(message.tool_call_id));
    if (!message.name.empty()) dict->items.emplace_back(name, Borrow(message.name));
    list->depth = std::max(list->depth, dict->depth + 1);
    list->items.emplace_back(jinja::DictPtr(std::move(dict)));
  }
  return Value(jinja::SequencePtr(std::move(list)));
}

jinja::Variables MakeVariables(const ChatInput& input) {
  jinja::Variables out;
  for (const auto& [name, value] : input.variables) {
    const bool* flag = std::get_if<bool>(&value);
    out[name] = flag ? Value(*flag) : Borrow(std::get<std::string>(value));
  }
  out.emplace("messages", MessageList(input));
  out.emplace("add_generation_prompt", Value(input.add_generation_prompt));
  out.emplace("bos_token", Borrow(input.bos_token));
  out.emplace("eos_token", Borrow(input.eos_token));
  // transformers passes tools and documents as None where there are none.
  out.emplace("tools", input.tools.empty() ? Value(jinja::None{}) : JsonTextValue(input.tools, input));
  out.emplace("documents", Value(jinja::None{}));
  if (input.date_string) out.emplace("date_string", Borrow(*input.date_string));
  return out;
}

std::tm LocalTime() {
  const std::time_t seconds = std::time(nullptr);
  std::tm out = {};
  localtime_r(&seconds, &out);
  return out;
}

// Copies of a conversation while it is encoded: with marks, as the template's values (two), rendered (a text that grows
// has up to twice its length), without marks.
constexpr size_t kCopies = 6;
// A value of JSON is larger than its text: a string, its key and their place in a container.
constexpr size_t kJsonCopies = 16;

// First of the three-byte private-use characters, U+E000 to U+F8FF (bytes EE 80 80 to EF A3 BF).
constexpr uint32_t kFirstPrivate = 0xE000;

std::string PrivateCharacter(size_t index) {
  std::string character;
  AppendUtf8(static_cast<char32_t>(kFirstPrivate + index), character);
  return character;
}

// `text` without its marks; `offsets` receives their offsets in the result, ascending.
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

Result<ChatTemplate> ChatTemplate::Parse(std::string_view source) {
  ASSIGN_OR_RETURN(jinja::Template parsed, jinja::Template::Parse(source));
  return ChatTemplate(std::make_shared<const jinja::Template>(std::move(parsed)));
}

Result<std::string> ChatTemplate::Render(const ChatInput& input) const {
  const uint64_t bytes = InputBytes(input);
  const jinja::RenderLimits limits = {
      .steps = kBaseSteps + input.messages.size() * kStepsPerMessage + bytes / kInputBytesPerStep,
      .made_bytes = kBaseMadeBytes + bytes * kMadePerInputByte,
      .output_bytes = kBaseOutputBytes + bytes * kOutputPerInputByte};
  return parsed_->Render(MakeVariables(input), limits, input.now ? *input.now : LocalTime());
}

ChatPrompt::ChatPrompt(const Tokenizer& tokenizer, ChatTemplate parsed)
    : tokenizer_(&tokenizer), template_(std::move(parsed)) {
  has_tools_ = tokenizer.chat_template().find("tools") != std::string::npos;
  FindPrivate(tokenizer.chat_template(), used_);
  std::vector<AddedTokenMatcher::Entry> special;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string_view text = tokenizer.TokenText(id);
    if (!tokenizer.IsSpecial(id) || text.empty()) continue;
    FindPrivate(text, used_);
    special.push_back({std::string(text), {}});
  }
  special_ = std::make_shared<const AddedTokenMatcher>(std::move(special));
}

Result<ChatPrompt> ChatPrompt::Make(const Tokenizer& tokenizer) {
  if (tokenizer.chat_template().empty() && !tokenizer.other_templates().empty())
    return Invalid("{}: none of the model's chat templates is named 'default'; their names are {}",
                   tokenizer.chat_template_path(),
                   infinigen::Quoted(fmt::format("{}", fmt::join(tokenizer.other_templates(), ", ")), 200));
  if (tokenizer.chat_template().empty())
    return Invalid(
        "the model has no chat template: neither chat_template.jinja nor tokenizer_config.json contains one");
  Result<ChatTemplate> parsed = ChatTemplate::Parse(tokenizer.chat_template());
  if (!parsed.ok()) return Error{parsed.error().kind, tokenizer.chat_template_path() + ": " + parsed.error().message};
  return ChatPrompt(tokenizer, std::move(*parsed));
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

std::string ChatPrompt::UnusedCharacter(std::span<const ChatMessage> messages, std::string_view tools) const {
  PrivateSet used = used_;
  FindPrivate(tools, used);
  for (const ChatMessage& message : messages)
    for (const std::string* text : {&message.content, &message.tool_calls, &message.tool_call_id, &message.name})
      FindPrivate(*text, used);
  size_t index = 0;
  while (index < used.size() && used.test(index)) ++index;
  return index < used.size() ? PrivateCharacter(index) : "";
}

Result<std::vector<TokenId>> ChatPrompt::Encode(std::span<const ChatMessage> messages, const ReserveMemory* reserve,
                                                std::string_view tools) const {
  size_t bytes = tools.size() * kJsonCopies;
  for (const ChatMessage& message : messages) bytes += message.bytes() + message.tool_calls.size() * kJsonCopies;
  if (reserve != nullptr && !(*reserve)(bytes * kCopies))
    return Exhausted("there is no memory to encode a conversation of {} bytes", bytes);
  const std::string mark = UnusedCharacter(messages, tools);
  if (mark.empty())
    return Invalid("the conversation contains every private-use character from U+E000 to U+F8FF; one must be unused");
  const auto text_of = [&](const std::optional<TokenId>& id) {
    return id ? std::string(tokenizer_->TokenText(*id)) : std::string();
  };
  ChatInput input{.messages = {messages.begin(), messages.end()},
                  .tools = std::string(tools),
                  .mark = mark,
                  .special = special_,
                  .bos_token = text_of(tokenizer_->bos()),
                  .eos_token = text_of(tokenizer_->eos())};
  for (ChatMessage& message : input.messages)
    for (std::string* text : {&message.content, &message.tool_call_id, &message.name})
      *text = Marked(*text, mark, *special_);
  ASSIGN_OR_RETURN(const std::string rendered, template_.Render(input));
  std::vector<size_t> literal;
  const std::string text = Unmarked(rendered, mark, &literal);
  return tokenizer_->Encode(text,
                            {.add_special = false, .parse_special = true, .literal = literal, .reserve = reserve});
}

}  // namespace infinigen
