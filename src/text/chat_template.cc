#include "text/chat_template.h"

#include "jinja/template.h"

namespace infinigen {
namespace {

using jinja::Value;

// Limits of a rendering: a constant for the template, and a share that grows with the input. Published templates take
// about 100 steps for a message and copy it three times; these limits leave them a factor of ten and stop a hostile one
// within a second or two.
constexpr uint64_t kBaseSteps = 1'000'000;
constexpr uint64_t kStepsPerMessage = 2'000;
constexpr uint64_t kInputBytesPerStep = 4;
constexpr uint64_t kBaseMadeBytes = uint64_t{32} << 20;
constexpr uint64_t kMadePerInputByte = 32;
constexpr uint64_t kBaseOutputBytes = uint64_t{4} << 20;
constexpr uint64_t kOutputPerInputByte = 4;

uint64_t InputBytes(const ChatInput& input) {
  uint64_t bytes = 0;
  for (const ChatMessage& message : input.messages) bytes += message.role.size() + message.content.size();
  return bytes;
}

// A value that refers to `text`, which the caller keeps.
Value Borrow(const std::string& text) { return Value(jinja::Text(std::shared_ptr<void>(), &text)); }

Value MessageList(const std::vector<ChatMessage>& messages) {
  const Value role(std::make_shared<const std::string>("role"));
  const Value content(std::make_shared<const std::string>("content"));
  auto list = std::make_shared<jinja::Sequence>();
  list->depth = 2;
  for (const ChatMessage& message : messages) {
    auto dict = std::make_shared<jinja::Dict>();
    dict->items = {{role, Borrow(message.role)}, {content, Borrow(message.content)}};
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
  out.emplace("messages", MessageList(input.messages));
  out.emplace("add_generation_prompt", Value(input.add_generation_prompt));
  out.emplace("bos_token", Borrow(input.bos_token));
  out.emplace("eos_token", Borrow(input.eos_token));
  out.emplace("tools", Value(jinja::None{}));  // transformers passes both, as None
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

}  // namespace infinigen
