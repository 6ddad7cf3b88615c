// The program `infinigen`: runs the command that the first argument names.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/mmap_file.h"
#include "cli/commands.h"
#include "cli/console.h"

namespace infinigen {
namespace {

struct Command {
  std::string_view name;
  int (*run)(Arguments);
  std::string_view summary;
};

constexpr std::array<Command, 10> kCommands = {{
    {"generate", RunGenerate, "generate text from one or many prompts"},
    {"chat", RunChat, "chat with a model in the terminal"},
    {"serve", RunServe, "run an OpenAI-compatible HTTP server with a web page"},
    {"bench", RunBench, "measure prefill and decode speed"},
    {"eval", RunEval, "measure quality: perplexity, facts found in long text, multiple-choice questions"},
    {"calibrate", RunCalibrate, "compute a model's skew file, which --kv infinigen needs (automatic on first use)"},
    {"quantize", RunQuantize, "write a model as a GGUF file with smaller weights"},
    {"models", RunModels, "list the models on this machine: built-in, downloaded, in the hub's cache"},
    {"inspect", RunInspect, "show a model's configuration, tensors and tokenizer"},
    {"tokenize", RunTokenize, "convert text to token ids, or back"},
}};

std::string HelpText() {
  std::string text =
      "infinigen runs language models with long contexts. The KV cache is in host memory,\n"
      "and each step attends only to the entries that matter.\n\n"
      "usage: infinigen <command> [flags]\n\ncommands:\n";
  for (const Command& command : kCommands) text += fmt::format("  {:<10} {}\n", command.name, command.summary);
  text += "\ninfinigen <command> -h lists the flags of a command; infinigen --version prints the version.\n";
  return text;
}

int Dispatch(Arguments arguments) {
  if (arguments.empty()) {
    std::string names;
    for (const Command& command : kCommands) names += fmt::format("{}{}", names.empty() ? "" : ", ", command.name);
    return FailUsage("", fmt::format("a command is missing; use one of {}", names));
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

namespace {

// Descriptors 0 to 2 that are closed (2>&-) would become those of the next files and sockets, and messages would be
// written into them. They are opened the wrong way round, so that reading and writing still fail.
void OccupyStandardStreams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    if (::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0) return;
  }
}

int Run(int argc, char** argv) {
  try {
    return infinigen::Dispatch(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::system_error& error) {  // of std::thread, whose message names only the cause
    return infinigen::Fail(infinigen::Exhausted("cannot start a thread: {}", error.what()));
  } catch (const std::exception& error) {  // from a library; this project's code does not throw
    return infinigen::Fail(infinigen::Invalid("unexpected error: {}", error.what()));
  }
}

}  // namespace

int main(int argc, char** argv) {
  OccupyStandardStreams();
  // A closed pipe, and a file above the limit of ulimit -f, make the write fail instead of ending the process.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  infinigen::ExplainTruncatedFiles();
  try {
    return Run(argc, argv);
  } catch (const std::bad_alloc&) {  // memory may be short for the usual message too
    constexpr std::string_view kLine = "infinigen: out of memory\n";
    if (::write(STDERR_FILENO, kLine.data(), kLine.size()) < 0) errno = 0;  // no place to say so
    return infinigen::kExitError;
  }
}
