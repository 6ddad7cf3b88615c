// infinigen: the composition root. Picks a command and hands it its arguments.
#include <fmt/format.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.h"
#include "cli/console.h"

namespace infinigen {
namespace {

struct Command {
  std::string_view name;
  int (*run)(Arguments);
  std::string_view summary;
};

constexpr std::array<Command, 8> kCommands = {{
    {"generate", RunGenerate, "continue a text, or many"},
    {"chat", RunChat, "talk with a model"},
    {"serve", RunServe, "answer OpenAI's API over HTTP, with a web page"},
    {"bench", RunBench, "measure prefill and decode speed"},
    {"eval", RunEval, "measure how good the answers are: perplexity, facts found in long text, questions"},
    {"calibrate", RunCalibrate, "compute the file with which small sketches rank a model's keys"},
    {"inspect", RunInspect, "show what is in a model"},
    {"tokenize", RunTokenize, "turn text into token ids, or back"},
}};

std::string HelpText() {
  std::string text =
      "infinigen runs language models whose KV cache lives in host memory.\n\n"
      "usage: infinigen <command> [flags]\n\ncommands:\n";
  for (const Command& command : kCommands) text += fmt::format("  {:<10} {}\n", command.name, command.summary);
  text += "\ninfinigen <command> -h lists the flags of a command; infinigen --version prints the version.\n";
  return text;
}

int Dispatch(Arguments arguments) {
  if (arguments.empty()) {
    std::string names;
    for (const Command& command : kCommands) names += fmt::format("{}{}", names.empty() ? "" : ", ", command.name);
    return FailUsage("", fmt::format("a command is missing: one of {}", names));
  }
  const std::string& name = arguments[0];
  if (name == "-h" || name == "--help" || name == "help") {
    Output().Write(HelpText());
    return kExitOk;
  }
  if (name == "--version" || name == "-V") {
    Output().Write("infinigen " INFINIGEN_VERSION "\n");
    return kExitOk;
  }
  for (const Command& command : kCommands)
    if (command.name == name) return command.run(arguments.subspan(1));
  return FailUsage("", fmt::format("'{}' is not a command", name));
}

}  // namespace
}  // namespace infinigen

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a reader that went away is an error of the write, and does not end the process
  try {
    return infinigen::Dispatch(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const std::bad_alloc&) {
    return infinigen::Fail(infinigen::Exhausted("out of memory"));
  } catch (const std::exception& error) {  // from a library; our own code does not throw
    return infinigen::Fail(infinigen::Invalid("unexpected: {}", error.what()));
  }
}
