#include "cli/flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "base/check.h"
#include "cli/console.h"

namespace infinigen {
namespace {

std::string WithoutSpaces(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return std::string(text);
}

// Parses all of `text` as a number. False if it is not one or does not fit.
template <class T>
bool ParseWhole(const std::string& text, T* value) {
  const char* begin = text.data();
  const char* end = begin + text.size();
  if (begin != end && *begin == '+') ++begin;
  const auto [rest, failure] = std::from_chars(begin, end, *value);
  return failure == std::errc() && rest == end;
}

std::string SetSwitch(const std::string& text, bool* value) {
  for (const char* yes : {"", "1", "true", "yes", "on"})
    if (text == yes) return *value = true, std::string();
  for (const char* no : {"0", "false", "no", "off"})
    if (text == no) return *value = false, std::string();
  return fmt::format("'{}' is neither 1 nor 0", text);
}

constexpr size_t kHelpColumn = 34;  // column at which descriptions begin
constexpr size_t kHelpWidth = 110;

// Breaks `text` into lines of at most kHelpWidth columns. The first line starts at `column`; the others are indented to
// it.
std::string Wrapped(std::string_view text, size_t column) {
  std::string result;
  size_t used = column;
  while (!text.empty()) {
    const size_t length = std::min(text.find(' '), text.size());
    const bool first = used == column;
    if (!first && used + 1 + length > kHelpWidth) {
      result += "\n" + std::string(column, ' ');
      used = column;
    } else if (!first) {
      result += ' ';
      ++used;
    }
    result += text.substr(0, length);
    used += length;
    text.remove_prefix(std::min(length + 1, text.size()));
  }
  return result + "\n";
}

std::string EnvironmentName(std::string_view long_name) {
  std::string name = "INFINIGEN_";
  for (char c : long_name) name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

}  // namespace

struct Flags::Flag {
  std::string name;               // long, without dashes
  std::string left, help, group;  // of the help text; left: "-n, --predict N"
  Setter set;
  CLI::Option* option = nullptr;
  bool from_environment = false;
};

struct Flags::Parser {
  CLI::App app;
};

Flags::Flags(std::string command, std::string summary)
    : command_(std::move(command)), summary_(std::move(summary)), parser_(std::make_unique<Parser>()) {
  parser_->app.set_help_flag("-h,--help");
}

Flags::~Flags() = default;

void Flags::Group(std::string title) { group_ = std::move(title); }

Flags::Flag& Flags::Keep(const std::string& names, Setter set, const std::string& meta, std::string help) {
  auto flag = std::make_unique<Flag>();
  flag->name = names.substr(names.rfind("--") + 2);
  flag->set = std::move(set);
  const size_t comma = names.find(',');
  flag->left = comma == std::string::npos ? "    " + names : names.substr(0, comma) + ", " + names.substr(comma + 1);
  if (!meta.empty()) flag->left += " " + meta;
  flag->help = std::move(help);
  flag->group = group_;
  flags_.push_back(std::move(flag));
  return *flags_.back();
}

Flags::Flag& Flags::Add(const std::string& names, Setter set, const std::string& meta, std::string help) {
  Flag& flag = Keep(names, std::move(set), meta, std::move(help));
  const auto read = [&flag](const CLI::results_t& values) {
    for (const std::string& value : values)
      if (const std::string wrong = flag.set(value); !wrong.empty())
        throw CLI::ValidationError("--" + flag.name, wrong);
    return true;
  };
  flag.option = parser_->app.add_option(names, read);
  flag.option->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  return flag;
}

void Flags::Custom(const std::string& names, Setter set, const std::string& meta, std::string help) {
  Add(names, std::move(set), meta, std::move(help));
}

void Flags::Text(const std::string& names, std::string* value, const std::string& meta, std::string help) {
  Add(
      names, [value](const std::string& text) { return *value = text, std::string(); }, meta, std::move(help));
}

void Flags::TextList(const std::string& names, std::vector<std::string>* values, const std::string& meta,
                     std::string help) {
  const Setter append = [values](const std::string& text) { return values->push_back(text), std::string(); };
  Add(names, append, meta, std::move(help)).option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void Flags::Choice(const std::string& names, std::string* value, std::vector<std::string> choices, std::string help) {
  const std::string list = fmt::format("{}", fmt::join(choices, "|"));
  const Setter set = [value, choices = std::move(choices), list](const std::string& text) {
    if (std::find(choices.begin(), choices.end(), text) == choices.end())
      return fmt::format("'{}' is unknown, it can be {}", text, list);
    *value = text;
    return std::string();
  };
  if (!value->empty()) help += fmt::format(" (default {})", *value);
  Add(names, set, list, std::move(help));
}

void Flags::Integer(const std::string& names, int64_t* value, int64_t least, int64_t most, std::string help) {
  Add(
      names, [=](const std::string& text) { return ParseInteger(text, least, most, value); }, "N", std::move(help));
}

void Flags::Real(const std::string& names, float* value, double least, double most, bool open, std::string help) {
  const Setter set = [=](const std::string& text) -> std::string {
    double number = 0;
    if (!ParseWhole(text, &number) || !std::isfinite(number)) return fmt::format("'{}' is not a number", text);
    if (number < least || (open && number == least))
      return fmt::format("{} is too small, it must be {} {}", text, open ? "more than" : "at least", least);
    if (number > most) return fmt::format("{} is too large, the maximum is {}", text, most);
    *value = static_cast<float>(number);
    return {};
  };
  Add(names, set, "X", std::move(help));
}

void Flags::Switch(const std::string& names, bool* value, std::string help) {
  Switch(
      names, [value](const std::string& text) { return SetSwitch(text, value); }, std::move(help));
}

void Flags::Switch(const std::string& names, Setter set, std::string help) {
  Flag& flag = Keep(names, std::move(set), "", std::move(help));
  flag.option = parser_->app.add_flag_callback(names, [&flag] { flag.set(""); });
}

void Flags::Exclusive(std::initializer_list<std::string_view> names) {
  exclusive_.emplace_back(names.begin(), names.end());
}

std::string Flags::HelpText() const {
  std::string text = Wrapped(summary_, 0) + fmt::format("\nusage: infinigen {} [flags]\n", command_);
  const std::string* group = nullptr;
  for (const std::unique_ptr<Flag>& flag : flags_) {
    if (group == nullptr || *group != flag->group) text += fmt::format("\n{}:\n", flag->group);
    group = &flag->group;
    const std::string left = "  " + flag->left;
    text += left;
    if (left.size() + 2 > kHelpColumn) text += "\n";
    text += std::string(left.size() + 2 > kHelpColumn ? kHelpColumn : kHelpColumn - left.size(), ' ');
    text += Wrapped(flag->help, kHelpColumn);
  }
  return text + "\n" +
         Wrapped(
             "Every flag can also be set by an environment variable, for example --top-k by INFINIGEN_TOP_K; a flag on "
             "the command line has precedence. -h, --help prints this text.",
             0);
}

const Flags::Flag* Flags::Find(std::string_view long_name) const {
  for (const std::unique_ptr<Flag>& flag : flags_)
    if (flag->name == long_name) return flag.get();
  return nullptr;
}

bool Flags::Given(std::string_view long_name) const {
  const Flag* flag = Find(long_name);
  CHECK(flag != nullptr);
  return flag->option->count() > 0 || flag->from_environment;
}

std::string Flags::ReadEnvironment() {
  const auto silenced = [&](const Flag& flag) {
    if (flag.option->count() > 0) return true;
    for (const std::vector<std::string>& group : exclusive_) {
      if (std::find(group.begin(), group.end(), flag.name) == group.end()) continue;
      for (const std::string& other : group)
        if (Find(other)->option->count() > 0) return true;
    }
    return false;
  };
  for (const std::unique_ptr<Flag>& flag : flags_) {
    const std::string name = EnvironmentName(flag->name);
    const char* value = std::getenv(name.c_str());
    if (value == nullptr || *value == '\0' || silenced(*flag)) continue;
    if (const std::string wrong = flag->set(value); !wrong.empty()) return fmt::format("{}: {}", name, wrong);
    flag->from_environment = true;
  }
  return {};
}

std::string Flags::CheckExclusive() const {
  for (const std::vector<std::string>& group : exclusive_) {
    const std::string* first = nullptr;
    for (const std::string& name : group) {
      if (!Given(name)) continue;
      if (first != nullptr) return fmt::format("--{} and --{} cannot be combined; pass only one", *first, name);
      first = &name;
    }
  }
  return {};
}

std::optional<int> Flags::Parse(std::span<const std::string> arguments) {
  try {
    parser_->app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // CLI11 takes from the back
  } catch (const CLI::CallForHelp&) {
    Output().Write(HelpText());
    return kExitOk;
  } catch (const CLI::ExtrasError&) {
    return FailUsage(command_,
                     fmt::format("'{}' is not a flag of {}", fmt::join(parser_->app.remaining(), " "), command_));
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string text = error.what();  // "--stop: 1 required TEXT missing"
    return FailUsage(command_, fmt::format("{} needs a value", text.substr(0, text.find(':'))));
  } catch (const CLI::ParseError& error) {
    return FailUsage(command_, error.what());
  }
  std::string wrong = ReadEnvironment();
  if (wrong.empty()) wrong = CheckExclusive();
  if (!wrong.empty()) return FailUsage(command_, wrong);
  return std::nullopt;
}

std::string ParseIntegerList(std::string_view text, int64_t least, int64_t most, std::vector<int64_t>* values) {
  values->clear();
  while (true) {
    const size_t comma = text.find(',');
    int64_t value = 0;
    const std::string item = WithoutSpaces(text.substr(0, comma));
    if (item.empty()) return "a number is missing; write for example 1,2,3";
    if (std::string wrong = ParseInteger(item, least, most, &value); !wrong.empty()) return wrong;
    values->push_back(value);
    if (comma == std::string_view::npos) return {};
    text.remove_prefix(comma + 1);
  }
}

}  // namespace infinigen
