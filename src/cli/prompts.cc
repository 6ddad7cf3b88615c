#include "cli/prompts.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "cli/console.h"

namespace infinigen {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;
// A prompt costs about 100 bytes before its first character, so a file of empty ones is bounded by its count.
constexpr size_t kMaxPrompts = 100'000;

// Receives the events of one line and refuses the first that does not belong, so that neither depth nor size of foreign
// JSON builds anything. nlohmann's parser keeps one bit for each level.
class LineReader {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  explicit LineReader(PromptSpec& prompt) : prompt_(prompt) {}

  bool null() { return Refuse("null"); }
  bool boolean(bool) { return Refuse("true or false"); }
  bool number_float(number_float_t, const string_t& text) { return Refuse("the number " + text.substr(0, 32)); }
  bool binary(binary_t&) { return Refuse("binary data"); }

  bool number_integer(number_integer_t value) { return Number(value); }
  bool number_unsigned(number_unsigned_t value) {
    if (value > static_cast<number_unsigned_t>(INT64_MAX)) return Refuse("a number beyond 2^63");
    return Number(static_cast<int64_t>(value));
  }

  bool string(string_t& text) {
    if (place_ != Place::kTop && place_ != Place::kPrompt) return Refuse("text");
    prompt_.text = std::move(text);
    return Leave();
  }

  bool start_array(std::size_t) {
    if (place_ != Place::kTop && place_ != Place::kIds) return Refuse("a list");
    place_ = Place::kList;
    prompt_.has_ids = true;
    return true;
  }
  bool end_array() { return Leave(); }

  bool start_object(std::size_t) {
    if (place_ != Place::kTop) return Refuse("an object");
    in_object_ = true;
    place_ = Place::kObject;
    return true;
  }
  bool key(string_t& name) {
    constexpr std::array<std::string_view, 4> kNames = {"prompt", "prompt_ids", "n", "seed"};
    constexpr std::array<Place, 4> kPlaces = {Place::kPrompt, Place::kIds, Place::kN, Place::kSeed};
    for (size_t i = 0; i < kNames.size(); ++i) {
      if (name != kNames[i]) continue;
      if (seen_[i]) return Say(fmt::format("field '{}' is given twice", name));
      seen_[i] = true;
      place_ = kPlaces[i];
      return true;
    }
    return Say(
        fmt::format("unknown field '{}', known are prompt, prompt_ids, n and seed", OneLine(name.substr(0, 64))));
  }
  bool end_object() {
    if (seen_[0] == seen_[1]) return Say("an object needs either \"prompt\" or \"prompt_ids\"");
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
    return Say(fmt::format("no valid JSON at column {}", position));
  }

  const std::string& wrong() const { return wrong_; }

 private:
  enum class Place { kTop, kObject, kPrompt, kIds, kN, kSeed, kList };

  bool Number(int64_t value) {
    switch (place_) {
      case Place::kList:
        if (value < 0 || value > INT32_MAX) return Refuse(fmt::format("the id {}", value));
        prompt_.ids.push_back(static_cast<int32_t>(value));
        return true;
      case Place::kN:
        if (value < -1 || value > INT32_MAX) return Say(fmt::format("\"n\" is {}, expected -1 to 2^31-1", value));
        prompt_.n = value;
        return Leave();
      case Place::kSeed:
        if (value < 0) return Say(fmt::format("\"seed\" is {}, it must not be negative", value));
        prompt_.seed = static_cast<uint64_t>(value);
        return Leave();
      default:
        return Refuse("a number");
    }
  }

  bool Leave() {
    place_ = in_object_ ? Place::kObject : Place::kTop;
    return true;
  }

  bool Refuse(const std::string& what) {
    const char* expected = place_ == Place::kPrompt || place_ == Place::kTop ? "text"
                           : place_ == Place::kIds                           ? "a list of token ids"
                           : place_ == Place::kList                          ? "a token id"
                                                                             : "a whole number";
    const char* alternative = place_ == Place::kTop ? ", a list of token ids or an object" : "";
    return Say(fmt::format("{} where {}{} is expected", what, expected, alternative));
  }
  bool Say(std::string message) {
    if (wrong_.empty()) wrong_ = std::move(message);
    return false;
  }

  PromptSpec& prompt_;
  Place place_ = Place::kTop;
  bool in_object_ = false;
  std::array<bool, 4> seen_{};  // prompt, prompt_ids, n, seed
  std::string wrong_;
};

Result<std::string> ReadDescriptor(int fd, const std::string& name) {
  std::string text;
  size_t filled = 0;
  while (true) {
    if (filled == text.size()) text.resize(std::max<size_t>(text.size() * 2, size_t{1} << 16));
    const ssize_t got = ::read(fd, text.data() + filled, text.size() - filled);
    if (got < 0 && errno == EINTR && !Interrupted()) continue;
    if (got < 0) return IoError("{}: read failed at byte {}: {}", name, filled, std::strerror(errno));
    if (got == 0) break;
    filled += static_cast<size_t>(got);
    if (filled > kMaxTextBytes)
      return Invalid("{}: longer than {} bytes, the most a prompt may have", name, kMaxTextBytes);
  }
  text.resize(filled);
  return text;
}

}  // namespace

Result<std::vector<PromptSpec>> ParsePromptLines(std::string_view text, const std::string& path) {
  std::vector<PromptSpec> prompts;
  int64_t line_number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++line_number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    if (prompts.size() == kMaxPrompts)
      return Invalid("{}:{}: more than {} prompts, split the file", path, line_number, kMaxPrompts);
    PromptSpec& prompt = prompts.emplace_back();
    prompt.line = line_number;
    LineReader reader(prompt);
    if (!nlohmann::json::sax_parse(line.begin(), line.end(), &reader))
      return Invalid("{}:{}: {}", path, line_number, reader.wrong());
    prompt.ids.shrink_to_fit();
  }
  if (prompts.empty()) return Invalid("{}: holds no prompt", path);
  return prompts;
}

Result<std::string> ReadText(const std::string& path) {
  if (path == "-") return ReadDescriptor(STDIN_FILENO, "standard input");
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return IoError("{}: cannot open: {}", path, std::strerror(errno));
  Result<std::string> text = ReadDescriptor(fd, path);
  ::close(fd);
  return text;
}

Result<std::vector<PromptSpec>> ReadPrompts(const PromptFlags& flags) {
  if (!flags.lines_file.empty()) {
    ASSIGN_OR_RETURN(const std::string lines, ReadText(flags.lines_file));
    return ParsePromptLines(lines, flags.lines_file == "-" ? "standard input" : flags.lines_file);
  }
  std::vector<PromptSpec> prompts(1);
  PromptSpec& prompt = prompts[0];
  if (flags.has_ids) {
    prompt.has_ids = true;
    prompt.ids.assign(flags.ids.begin(), flags.ids.end());
  } else if (flags.text) {
    prompt.text = *flags.text;
  } else {
    ASSIGN_OR_RETURN(prompt.text, ReadText(flags.file.empty() ? "-" : flags.file));
  }
  return prompts;
}

}  // namespace infinigen
