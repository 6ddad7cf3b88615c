// ToolCallStream: finds calls of tools in an answer as its text arrives. Text outside of calls goes on as content. A
// call is complete before it is reported: its arguments are then known to be JSON. What only looks like a call becomes
// content again. Needs neither model nor engine; one thread at a time.
//
// The families' forms, recognised by their chat templates:
//
//   kTagged   <tool_call>{"name": "f", "arguments": {…}}</tool_call>, any number, text between them   (Hermes, Qwen)
//   kList     [TOOL_CALLS] [{"name": "f", "arguments": {…}}, …]                                       (Mistral)
//   kObject   {"name": "f", "parameters": {…}}, alone in the answer                                    (Llama 3)
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace infinigen {

enum class ToolForm : uint8_t { kNone, kTagged, kList, kObject };

// kNone: the template has no tools, or writes calls in a form that is not known here.
ToolForm FormOfTemplate(std::string_view chat_template);
// The name of a call's arguments: "arguments" or "parameters".
std::string_view ArgumentsKey(ToolForm form);
// What a forced call begins with: it is added to the prompt.
std::string_view CallOpening(ToolForm form);

struct ToolCall {
  std::string name;
  std::string arguments;  // JSON of an object
};

class ToolCallStream {
 public:
  // `forced`: the whole answer is one call, `{"name": …}`, without what stands around it.
  ToolCallStream(ToolForm form, bool forced) : form_(forced ? ToolForm::kObject : form) {}

  struct Found {
    std::string content;
    std::vector<ToolCall> calls;  // after the content
  };
  Found Push(std::string_view text);
  // At the end of the answer; gives what was held back.
  Found Finish();

 private:
  void TakeTagged(bool end, Found* found);
  void TakeWhole(Found* found);
  void AddContent(std::string_view text, Found* found);

  ToolForm form_;
  std::string held_;   // may be, or be a part of, a call
  std::string space_;  // white space that is content only if content follows
  bool called_ = false;
  bool plain_ = false;  // kList and kObject: the answer is no call
};

}  // namespace infinigen
