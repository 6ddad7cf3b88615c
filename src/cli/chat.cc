// `infinigen chat`: a conversation at the terminal, or one message per line from a pipe.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/flags.h"
#include "cli/line_source.h"
#include "cli/options.h"
#include "runtime/generation.h"
#include "runtime/launch.h"
#include "runtime/model.h"
#include "runtime/plan.h"
#include "runtime/report.h"

namespace infinigen {
namespace {

// Without -c, the context may shrink to this if memory is short.
constexpr int64_t kLeastContext = 256;

struct ChatFlags {
  std::string model;
  std::string system;
  DeviceRequest device;
  KvFlags kv;
  SamplingFlags sampling;
  int64_t predict = 512;
  int64_t context = 0;  // 0: not given
  bool ignore_eos = false;
  bool dry_run = false;
};

void AddFlags(Flags& flags, ChatFlags* values) {
  flags.Group("Conversation");
  flags.Text("--system", &values->system, "TEXT", "system message: instructions before the first message");
  flags.Integer("-n,--predict", &values->predict, -1, INT32_MAX,
                "tokens of an answer, at most; -1: until the model ends it or the context is full (default 512)");
  flags.Switch("--ignore-eos", &values->ignore_eos, "do not stop when the model ends its answer");
  flags.Group("Model and machine");
  AddModelFlag(flags, &values->model);
  AddDeviceFlags(flags, &values->device);
  flags.Integer(
      "-c,--ctx", &values->context, 1, kMaxContext,
      "context: tokens of the conversation; when it is full, the oldest turns are dropped (default: the model's "
      "context, or less if memory is short)");
  flags.Switch("--dry-run", &values->dry_run, "print the memory plan and exit");
  AddKvFlags(flags, &values->kv, /*list=*/false);
  AddSamplingFlags(flags, &values->sampling);
}

constexpr std::string_view kChatHelp =
    "/stats  tokens, speed, memory         /clear  forget the conversation\n"
    "/kv     method and size of the cache  /quit   leave (or Ctrl-D)\n"
    "Ctrl-C stops an answer, or clears the line.\n"
    "A \\ at the end of a line continues the message on the next line.\n";

// Removes the control characters that a terminal would execute; line ends and tabs stay.
std::string ForTerminal(std::string_view text) {
  std::string result(text);
  std::erase_if(result, [](char c) {
    const unsigned char byte = static_cast<unsigned char>(c);
    return (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7F;
  });
  return result;
}

class Chat {
 public:
  Chat(Conversation& conversation, LineSource& lines, Terminal& terminal)
      : conversation_(conversation), lines_(lines), terminal_(terminal) {}

  // Answers messages until the input ends; returns the exit code.
  Result<int> Run() {
    while (!leaving_) {
      std::string message;
      ASSIGN_OR_RETURN(const LineEvent event, ReadMessage(&message));
      if (event == LineEvent::kCancelled) continue;
      if (event == LineEvent::kEnd) break;
      const size_t begin = message.find_first_not_of(" \t\n");
      if (begin == std::string::npos) continue;
      lines_.Remember(message);
      if (message[begin] == '/' && message.find('\n') == std::string::npos)
        Obey(std::string_view(message).substr(begin, message.find_last_not_of(" \t") + 1 - begin));
      else
        Answer(std::move(message));
      RETURN_IF_ERROR(output_.status());
      if (output_.closed()) return kExitOk;  // the pipe's reader is gone
    }
    if (Interrupted() || Terminated()) return kExitInterrupted;
    return refused_ ? kExitError : kExitOk;
  }

 private:
  // Reads one message: a line, and further lines as long as the last one ends in a backslash.
  Result<LineEvent> ReadMessage(std::string* message) {
    std::string line;
    for (const char* prompt = "> ";; prompt = "  ") {
      ASSIGN_OR_RETURN(const LineEvent event, lines_.Read(prompt, &line));
      if (event == LineEvent::kEnd && !message->empty()) return LineEvent::kLine;
      if (event != LineEvent::kLine) return event;
      const bool continues = !line.empty() && line.back() == '\\';
      if (continues) line.back() = '\n';
      *message += line;
      if (!continues) return LineEvent::kLine;
    }
  }

  void Obey(std::string_view command) {
    if (command == "/quit" || command == "/exit")
      leaving_ = true;
    else if (command == "/help")
      output_.Write(kChatHelp);
    else if (command == "/stats")
      output_.Write(conversation_.DescribeStats());
    else if (command == "/kv")
      output_.Write(conversation_.DescribeKv());
    else if (command == "/clear")
      Clear();
    else if (command.substr(0, 5) == "/save" || command.substr(0, 5) == "/load")
      Refuse(fmt::format("{} is not supported", command.substr(0, 5)));
    else
      Refuse(fmt::format("{} is not a command; /help lists them", command));
    if (lines_.terminal() && !leaving_) output_.Write("\n");
  }

  void Clear() {
    conversation_.Clear();
    Note("the conversation is empty again");
  }

  void Answer(std::string message) {
    bool line_open = false;
    const auto on_text = [&](std::string_view text) {
      terminal_.Erase();
      output_.Write(lines_.terminal() ? ForTerminal(text) : std::string(text));
      if (!text.empty()) line_open = text.back() != '\n';
      return !output_.closed() && output_.status().ok();
    };
    const Result<infinigen::Answer> answer = conversation_.Say(std::move(message), on_text);
    terminal_.Erase();
    // In a pipe every answer is followed by a line end; on the screen only if the model did not write one.
    if (line_open || (answer.ok() && !lines_.terminal())) output_.Write("\n");
    if (!answer.ok()) {
      Refuse(answer.error().message);
    } else {
      if (answer->dropped_turns > 0)
        Note(fmt::format("the context is full: the oldest {} turns were dropped", answer->dropped_turns));
      if (answer->interrupted && answer->outcome.text.empty())
        Note("stopped before the answer began; the message was removed from the conversation");
      else if (answer->interrupted)
        Note("stopped");
      else if (answer->outcome.reason == FinishReason::kLength && lines_.terminal())
        Note("the answer reached the limit of -n, or the context is full");
    }
    if (lines_.terminal()) {
      output_.Write("\n");
      if (!Terminated()) TakeInterrupt();
    }
    if (Interrupted()) leaving_ = true;
  }

  // Printed between the answers at a terminal, and on stderr for scripts.
  void Note(std::string_view text) {
    if (lines_.terminal())
      output_.Write(fmt::format("({})\n", text));
    else
      PrintStderr("infinigen: {}\n", OneLine(text));
  }
  void Refuse(std::string_view text) {
    refused_ = refused_ || !lines_.terminal();
    PrintStderr("infinigen: {}\n", OneLine(text));
  }

  Conversation& conversation_;
  LineSource& lines_;
  Terminal& terminal_;
  Output output_;
  bool leaving_ = false;
  bool refused_ = false;  // a line from a pipe failed
};

std::string Greeting(const Model& model, const ExecutorOptions& options) {
  return fmt::format(
      "{}: {:.1f} M parameters in {}, context {} tokens, {}, {} thread{}\n"
      "Ctrl-C stops an answer, Ctrl-D or /quit leaves, /help lists the commands.\n\n",
      model.config.name, static_cast<double>(ParameterCount(model.config)) * 1e-6, Name(model.weight_type),
      options.max_tokens, KvWords(options), options.threads, options.threads == 1 ? "" : "s");
}

Result<int> Talk(const ChatFlags& flags) {
  ASSIGN_OR_RETURN(const DeviceChoice device, ChooseDevice(flags.device));
  ASSIGN_OR_RETURN(const KvRequest kv, OneKvRequest(flags.kv));
  ASSIGN_OR_RETURN(const std::string directory, FindModelHere(flags.model));
  ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, OpenModel(directory));
  if (model->tokenizer == nullptr) return NoTokenizer(directory, "chat");
  Result<ChatPrompt> prompt = ChatPrompt::Make(*model->tokenizer);
  if (!prompt.ok()) return Error{prompt.error().kind, fmt::format("{}: {}", directory, prompt.error().message)};
  ASSIGN_OR_RETURN(const int64_t context, ChooseContext(model->config, flags.context));
  if (kv.prompt_columns && kv.selection().uses_basis)
    return Unsupported(
        "--kv-columns prompt: not possible in chat, which keeps rows from turn to turn, while these columns are chosen "
        "for one whole prompt");
  ASSIGN_OR_RETURN(const RunPlan plan, PlanRun(*model, {.device = device,
                                                        .kv = kv,
                                                        .max_tokens = context,
                                                        .least_tokens = flags.context > 0 ? 0 : kLeastContext,
                                                        .batch = 1}));
  if (flags.dry_run) return PrintPlans(*model, {&plan, 1}, /*json=*/false);
  if (!plan.refusal.empty()) return Exhausted("{}", plan.refusal);
  if (context > model->config.max_positions)
    Warn(fmt::format("--ctx {} exceeds the {} tokens that {} was trained for", context, model->config.max_positions,
                     model->config.name));
  Terminal terminal;
  ASSIGN_OR_RETURN(const std::unique_ptr<Executor> executor, Launch(*model, plan, terminal.callbacks()));

  Conversation conversation(*model, *executor, *prompt,
                            {.system = flags.system,
                             .max_new_tokens = flags.predict >= 0 ? flags.predict : INT32_MAX,
                             .sampling = ResolveSampling(flags.sampling),
                             .ignore_eos = flags.ignore_eos,
                             .stats_per_layer = flags.kv.stats_per_layer,
                             .callbacks = terminal.callbacks()});
  ASSIGN_OR_RETURN(const std::unique_ptr<LineSource> lines, OpenStandardInput());
  if (lines->terminal()) Output().Write(Greeting(*model, executor->options()));
  return Chat(conversation, *lines, terminal).Run();
}

}  // namespace

int RunChat(Arguments arguments) {
  ChatFlags values;
  Flags flags(
      "chat",
      "Chat with a model. At a terminal there is line editing and /help; from a pipe, each line is a message. Answers "
      "go to standard output.");
  AddFlags(flags, &values);
  if (const std::optional<int> exit_code = flags.Parse(arguments)) return *exit_code;
  // At a terminal Ctrl-C ends the answer; from a pipe it ends the program.
  if (::isatty(STDIN_FILENO) == 1)
    InstallRepeatedInterrupt();
  else
    InstallInterrupt();
  return Finish(Talk(values));
}

}  // namespace infinigen
