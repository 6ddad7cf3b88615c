#include "cli/prompts.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/utf8.h"
#include "cli/console.h"
#include "json/fields.h"
#include "json/parse.h"

namespace infinigen {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;
// A prompt takes about 100 bytes besides its text, so the number of prompts in a file is limited too.
constexpr size_t kMaxPrompts = 100'000;

// A prompt is one JSON token, so its length has no limit. LineReader refuses deeper nesting itself.
constexpr JsonLimits kLineLimits = {.max_depth = SIZE_MAX, .max_token_bytes = SIZE_MAX};

// Receives the JSON events of one line and refuses the first unexpected one, so that hostile JSON cannot allocate more
// than the prompt.
class LineReader final : public JsonHandler {
 public:
  // `where`: "path:line".
  LineReader(std::string where, PromptSpec& prompt) : JsonHandler(std::move(where)), prompt_(prompt) {}

  bool Scalar(nlohmann::json value) override {
    if (value.is_null()) return Refuse("null");
    if (value.is_boolean()) return Refuse("true or false");
    if (value.is_number_float()) return Refuse("the number " + Shown(value));
    if (const std::optional<int64_t> number = WholeNumber(value)) return Number(*number);
    return Refuse("a number beyond 2^63");
  }

  bool String(std::string& text) override {
    if (place_ != Where::kTop && place_ != Where::kPrompt) return Refuse("text");
    prompt_.text = std::move(text);
    return Leave();
  }

  bool Open(bool object) override {
    if (object) {
      if (place_ != Where::kTop) return Refuse("an object");
      in_object_ = true;
      place_ = Where::kObject;
      return true;
    }
    if (place_ != Where::kTop && place_ != Where::kIds) return Refuse("a list");
    place_ = Where::kList;
    prompt_.has_ids = true;
    return true;
  }
  bool Close(bool object) override {
    if (!object) return Leave();
    return seen_[0] != seen_[1] || Say("an object needs either \"prompt\" or \"prompt_ids\"");
  }
  bool Key(std::string& name) override {
    constexpr std::array<std::string_view, 4> kNames = {"prompt", "prompt_ids", "n", "seed"};
    constexpr std::array<Where, 4> kPlaces = {Where::kPrompt, Where::kIds, Where::kN, Where::kSeed};
    for (size_t i = 0; i < kNames.size(); ++i) {
      if (name != kNames[i]) continue;
      if (seen_[i]) return Say(fmt::format("field '{}' is given twice", name));
      seen_[i] = true;
      place_ = kPlaces[i];
      return true;
    }
    return Say(fmt::format("unknown field {}, known are prompt, prompt_ids, n and seed", Quoted(name, 64)));
  }

 private:
  enum class Where { kTop, kObject, kPrompt, kIds, kN, kSeed, kList };

  std::string Place() const override { return {}; }

  bool Number(int64_t value) {
    switch (place_) {
      case Where::kList:
        if (value < 0 || value > INT32_MAX) return Refuse(fmt::format("the id {}", value));
        prompt_.ids.push_back(static_cast<int32_t>(value));
        return true;
      case Where::kN:
        if (value < -1 || value > INT32_MAX) return Say(fmt::format("\"n\" is {}, expected -1 to 2^31-1", value));
        prompt_.n = value;
        return Leave();
      case Where::kSeed:
        if (value < 0) return Say(fmt::format("\"seed\" is {}, it must not be negative", value));
        prompt_.seed = static_cast<uint64_t>(value);
        return Leave();
      default:
        return Refuse("a number");
    }
  }

  bool Leave() {
    place_ = in_object_ ? Where::kObject : Where::kTop;
    return true;
  }

  bool Refuse(const std::string& what) {
    const char* expected = place_ == Where::kPrompt || place_ == Where::kTop ? "text"
                           : place_ == Where::kIds                           ? "a list of token ids"
                           : place_ == Where::kList                          ? "a token id"
                                                                             : "a whole number";
    const char* alternative = place_ == Where::kTop ? ", a list of token ids or an object" : "";
    return Say(fmt::format("{} where {}{} is expected", what, expected, alternative));
  }
  bool Say(const std::string& message) { return Fail(Invalid("{}: {}", path(), message)); }

  PromptSpec& prompt_;
  Where place_ = Where::kTop;
  bool in_object_ = false;
  std::array<bool, 4> seen_{};  // prompt, prompt_ids, n, seed
};

Status ParseLine(std::string_view line, const std::string& where, PromptSpec& prompt) {
  LineReader reader(where, prompt);
  const std::optional<JsonFault> fault = ScanJson(line, kLineLimits, reader);
  if (reader.error()) return *reader.error();
  if (fault) return Invalid("{}: invalid JSON at column {}", where, fault->byte + 1);
  prompt.ids.shrink_to_fit();
  return Ok();
}

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
    if (filled > kMaxTextBytes) return Invalid("{}: longer than {} bytes, the limit for a prompt", name, kMaxTextBytes);
  }
  text.resize(filled);
  return text;
}

}  // namespace

Result<std::vector<PromptSpec>> ParsePromptLines(std::string_view text, const std::string& path) {
  std::vector<PromptSpec> prompts;
  JsonLines lines(text);
  while (const std::optional<JsonLines::Line> line = lines.Next()) {
    if (prompts.size() == kMaxPrompts)
      return Invalid("{}:{}: more than {} prompts; split the file", path, line->number, kMaxPrompts);
    PromptSpec& prompt = prompts.emplace_back();
    prompt.line = line->number;
    RETURN_IF_ERROR(ParseLine(line->text, fmt::format("{}:{}", path, line->number), prompt));
  }
  if (prompts.empty()) return Invalid("{}: contains no prompt", path);
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
