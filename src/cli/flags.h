// Flags: the command line of one command. Each flag checks its value and writes it to a variable that already holds the
// default. An environment variable can replace a flag (INFINIGEN_TOP_K for --top-k); the flag has precedence. One
// thread.
//
//   Flags flags("tokenize", "Print the token ids of a text");
//   flags.Group("Input");
//   flags.Text("-p,--prompt", &text, "TEXT", "text to encode");
//   if (auto exit_code = flags.Parse(arguments)) return *exit_code;
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace infinigen {

class Flags {
 public:
  // Sets the value. Returns what is wrong with it, or an empty string.
  using Setter = std::function<std::string(const std::string& value)>;

  Flags(std::string command, std::string summary);
  ~Flags();
  Flags(const Flags&) = delete;
  Flags& operator=(const Flags&) = delete;

  // Starts a group: help lists the flags that are added next under `title`.
  void Group(std::string title);

  // `names` is "-p,--prompt"; messages use the long name. `meta` is the placeholder for the value in help. The
  // variables outlive Parse.
  void Text(const std::string& names, std::string* value, const std::string& meta, std::string help);
  void TextList(const std::string& names, std::vector<std::string>* values, const std::string& meta,
                std::string help);  // repeatable
  void Choice(const std::string& names, std::string* value, std::vector<std::string> choices, std::string help);
  void Integer(const std::string& names, int64_t* value, int64_t least, int64_t most, std::string help);
  // Accepts least ≤ value ≤ most; with `open`, least < value.
  void Real(const std::string& names, float* value, double least, double most, bool open, std::string help);
  void Switch(const std::string& names, bool* value, std::string help);
  void Switch(const std::string& names, Setter set, std::string help);  // the flag passes "" to `set`
  void Custom(const std::string& names, Setter set, const std::string& meta, std::string help);

  // At most one of these flags (long names) may be given. If one is on the command line, the environment variables of
  // all are ignored.
  void Exclusive(std::initializer_list<std::string_view> names);

  // `arguments` does not include program and command. nullopt: continue. Otherwise returns the exit code, after
  // printing help (0) or one line about the error (2).
  std::optional<int> Parse(std::span<const std::string> arguments);

  // After Parse: whether the command line or the environment set the flag.
  bool Given(std::string_view long_name) const;
  const std::string& command() const { return command_; }

 private:
  struct Flag;
  struct Parser;

  Flag& Keep(const std::string& names, Setter set, const std::string& meta, std::string help);
  Flag& Add(const std::string& names, Setter set, const std::string& meta, std::string help);
  const Flag* Find(std::string_view long_name) const;
  std::string ReadEnvironment();
  std::string CheckExclusive() const;

  std::string HelpText() const;

  std::string command_;
  std::string summary_;
  std::string group_ = "Flags";
  std::unique_ptr<Parser> parser_;  // keeps CLI11 out of this header
  std::vector<std::unique_ptr<Flag>> flags_;
  std::vector<std::vector<std::string>> exclusive_;
};

// Parses "1,2,3" as numbers in [least, most], ignoring spaces around them. Returns what is wrong, or an empty string.
std::string ParseIntegerList(std::string_view text, int64_t least, int64_t most, std::vector<int64_t>* values);

}  // namespace infinigen
