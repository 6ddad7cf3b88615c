// `infinigen chat`: a conversation at the terminal, or one message a line from a pipe.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/flags.h"
#include "cli/line_source.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "runtime/conversation.h"
#include "runtime/describe.h"
#include "runtime/launch.h"
#include "runtime/model.h"
#include "runtime/plan.h"

namespace infinigen {
namespace {

// Where memory is short and -c was not given, a context this short will do.
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
  flags.Text("--system", &values->system, "TEXT", "what the model is told before the first message");
  flags.Integer("-n,--predict", &values->predict, -1, INT32_MAX,
                "at most N tokens in an answer; -1: until the model ends it or the context is full (default 512)");
  flags.Switch("--ignore-eos", &values->ignore_eos, "continue where the model would end its answer");
  flags.Group("Model and machine");
  AddModelFlag(flags, &values->model);
  AddDeviceFlags(flags, &values->device);
  flags.Integer(
      "-c,--ctx", &values->context, 1, kMaxContext,
      "tokens of the conversation; when it is full the oldest turns are dropped (default: what the model was made "
      "for, or less where memory is short)");
  flags.Switch("--dry-run", &values->dry_run, "print the memory plan and end");
  AddKvFlags(flags, &values->kv, /*list=*/false);
  AddSamplingFlags(flags, &values->sampling);
}

constexpr std::string_view kChatHelp =
    "/stats  tokens, speed, memory         /clear  forget the conversation\n"
    "/kv     how the KV cache is kept      /quit   leave (or Ctrl-D)\n"
    "Ctrl-C stops an answer, or drops the line.\n"
    "A \\ at the end of a line continues the message on the next.\n";

// A model's text without the control characters that a terminal would obey; line ends and tabs stay.
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
      if (output_.closed()) return kExitOk;  // the reader has enough
    }
    if (Interrupted() || Terminated()) return kExitInterrupted;
    return refused_ ? kExitError : kExitOk;
  }

 private:
  // One message: a line, and the next one as long as the last ends in a backslash.
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
      Refuse(fmt::format("{} is not part of this version", command.substr(0, 5)));
    else
      Refuse(fmt::format("{} is not a command; /help lists them", command));
    if (lines_.terminal() && !leaving_) output_.Write("\n");
  }

  void Clear() {
    conversation_.Clear();
    Note("the conversation starts anew");
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
    // In a pipe every answer ends with a line end; on the screen one that the model wrote is enough.
    if (line_open || (answer.ok() && !lines_.terminal())) output_.Write("\n");
    if (!answer.ok()) {
      Refuse(answer.error().message);
    } else {
      if (answer->dropped_turns > 0)
        Note(fmt::format("the conversation outgrew the context: the oldest {} of its turns are forgotten",
                         answer->dropped_turns));
      if (answer->interrupted && answer->outcome.text.empty())
        Note("stopped before the answer began; the message is not part of the conversation");
      else if (answer->interrupted)
        Note("stopped");
      else if (answer->outcome.reason == FinishReason::kLength && lines_.terminal())
        Note("cut short: the limit of -n, or the end of the context");
    }
    if (lines_.terminal()) {
      output_.Write("\n");
      if (!Terminated()) TakeInterrupt();
    }
    if (Interrupted()) leaving_ = true;
  }

  // Beside the answers at a terminal, on stderr for scripts.
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
  bool refused_ = false;  // a line of a script failed
};

std::string Greeting(const Model& model, const ExecutorOptions& options) {
  return fmt::format(
      "{}: {:.1f} M parameters in {}, context {} tokens, {}, {} thread{}\n"
      "Ctrl-C stops an answer, Ctrl-D or /quit leaves, /help lists the commands.\n\n",
      model.config.name, static_cast<double>(ParameterCount(model.config)) * 1e-6, Name(model.dtype),
      options.max_tokens, KvWords(options), options.threads, options.threads == 1 ? "" : "s");
}

Result<int> Talk(const ChatFlags& flags) {
  ASSIGN_OR_RETURN(const DeviceChoice device, ChooseDevice(flags.device));
  ASSIGN_OR_RETURN(const KvRequest kv, OneKvRequest(flags.kv));
  ASSIGN_OR_RETURN(const std::string directory, FindModel(flags.model));
  ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, OpenModel(directory));
  if (model->tokenizer == nullptr)
    return Invalid(
        "{}: no tokenizer, which chat needs; put the model's tokenizer.json and tokenizer_config.json beside "
        "config.json",
        directory);
  Result<ChatPrompt> prompt = ChatPrompt::Make(*model->tokenizer);
  if (!prompt.ok()) return Error{prompt.error().kind, fmt::format("{}: {}", directory, prompt.error().message)};
  ASSIGN_OR_RETURN(const int64_t context, ChooseContext(model->config, flags.context));
  if (kv.prompt_columns && kv.selection().uses_basis)
    return Unsupported(
        "--kv-columns prompt: a conversation goes on after rows that exist, and these columns are chosen "
        "by one whole prompt");
  ASSIGN_OR_RETURN(const RunPlan plan, PlanRun(*model, {.device = device,
                                                        .kv = kv,
                                                        .max_tokens = context,
                                                        .least_tokens = flags.context > 0 ? 0 : kLeastContext,
                                                        .batch = 1}));
  if (flags.dry_run) return PrintPlans(*model, {&plan, 1}, /*json=*/false);
  if (!plan.refusal.empty()) return Exhausted("{}", plan.refusal);
  if (context > model->config.max_positions)
    Warn(fmt::format("--ctx {} is beyond the {} positions that {} was trained for", context,
                     model->config.max_positions, model->config.name));
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
      "Talk with a model: at a terminal with line editing; from a pipe each line is a message, and answers go to "
      "standard output.");
  AddFlags(flags, &values);
  if (const std::optional<int> exit_code = flags.Parse(arguments)) return *exit_code;
  // At a terminal Ctrl-C ends an answer; from a pipe it ends the program.
  if (::isatty(STDIN_FILENO) == 1)
    InstallRepeatedInterrupt();
  else
    InstallInterrupt();
  return Finish(Talk(values));
}

}  // namespace infinigen
