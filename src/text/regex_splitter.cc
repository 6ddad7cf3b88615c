#include "text/regex_splitter.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <memory>
#include <new>
#include <utility>

#include "base/utf8.h"

namespace infinigen {
namespace {

// The longest published pattern has less than 1 KiB.
constexpr size_t kMaxPatternBytes = 8192;
// A search covers this many start positions before the time limit is checked.
constexpr size_t kSearchWindowBytes = 256;
// Match limit, in backtracking steps. The known patterns take about one step per byte on runs of white space.
constexpr uint32_t kMatchLimitBase = 10'000'000;
constexpr uint32_t kMatchLimitPerByte = 16;
constexpr size_t kJitStackStart = 64 * 1024;
constexpr size_t kJitStackMax = 8 * 1024 * 1024;
// Fifty times the measured time of the known patterns. Only patterns that rescan the text at every position reach it.
constexpr std::chrono::duration<double> kTimeLimitBase{5.0};
constexpr std::chrono::duration<double> kTimeLimitPerByte{2e-6};

std::string Pcre2Message(int code) {
  std::array<PCRE2_UCHAR, 160> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

// ---- translation of patterns ----
//
// From Oniguruma (Ruby syntax, Unicode 16) to PCRE2. The differences:
//   \s      is the property White_Space; in PCRE2 it includes U+180E
//   \w      is alphabetic, marks, decimal digits, connectors; PCRE2 leaves out marks
//   \p{..}  includes characters of Unicode 15 and 16, which the PCRE2 of Debian 12 does not know
//   [a[b]] [a&&b]  nested classes and intersections are rejected
// (^ and $ match at every line in Ruby, so Compile sets PCRE2_MULTILINE.)

constexpr std::string_view kWhiteSpace =
    R"(\x{09}-\x{0D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

constexpr std::string_view kCircledLetters =
    R"(\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189})";

// Members of a general category that were added after Unicode 14.
struct Newer {
  std::string_view category;
  std::string_view ranges;
};
constexpr Newer kNewer[] = {
    {"N", R"(\x{10D40}-\x{10D49}\x{116D0}-\x{116E3}\x{11BF0}-\x{11BF9}\x{11F50}-\x{11F59}\x{16130}-\x{16139})"
          R"(\x{16D70}-\x{16D79}\x{1CCF0}-\x{1CCF9}\x{1D2C0}-\x{1D2D3}\x{1E4F0}-\x{1E4F9}\x{1E5F1}-\x{1E5FA})"},
    {"Nd", R"(\x{10D40}-\x{10D49}\x{116D0}-\x{116E3}\x{11BF0}-\x{11BF9}\x{11F50}-\x{11F59}\x{16130}-\x{16139})"
           R"(\x{16D70}-\x{16D79}\x{1CCF0}-\x{1CCF9}\x{1E4F0}-\x{1E4F9}\x{1E5F1}-\x{1E5FA})"},
    {"M", R"(\x{897}\x{CF3}\x{ECE}\x{10D69}-\x{10D6D}\x{10EFC}-\x{10EFF}\x{11241}\x{113B8}-\x{113C0}\x{113C2})"
          R"(\x{113C5}\x{113C7}-\x{113CA}\x{113CC}-\x{113D0}\x{113D2}\x{113E1}-\x{113E2}\x{11F00}-\x{11F01})"
          R"(\x{11F03}\x{11F34}-\x{11F3A}\x{11F3E}-\x{11F42}\x{11F5A}\x{13440}\x{13447}-\x{13455})"
          R"(\x{1611E}-\x{1612F}\x{1E08F}\x{1E4EC}-\x{1E4EF}\x{1E5EE}-\x{1E5EF})"},
    {"Lu", R"(\x{1C89}\x{A7CB}-\x{A7CC}\x{A7DA}\x{A7DC}\x{10D50}-\x{10D65})"},
    {"Ll", R"(\x{1C8A}\x{A7CD}\x{A7DB}\x{10D70}-\x{10D85}\x{1DF25}-\x{1DF2A})"},
    {"Lm", R"(\x{10D4E}\x{10D6F}\x{16D40}-\x{16D42}\x{16D6B}-\x{16D6C}\x{1E030}-\x{1E06D}\x{1E4EB})"},
    {"Lo", R"(\x{105C0}-\x{105F3}\x{10D4A}-\x{10D4D}\x{10D4F}\x{10EC2}-\x{10EC4}\x{1123F}-\x{11240})"
           R"(\x{11380}-\x{11389}\x{1138B}\x{1138E}\x{11390}-\x{113B5}\x{113B7}\x{113D1}\x{113D3})"
           R"(\x{11BC0}-\x{11BE0}\x{11F02}\x{11F04}-\x{11F10}\x{11F12}-\x{11F33}\x{1342F}\x{13441}-\x{13446})"
           R"(\x{13460}-\x{143FA}\x{16100}-\x{1611D}\x{16D43}-\x{16D6A}\x{18CFF}\x{1B132}\x{1B155})"
           R"(\x{1E4D0}-\x{1E4EA}\x{1E5D0}-\x{1E5ED}\x{1E5F0}\x{2B739}\x{2EBF0}-\x{2EE5D}\x{31350}-\x{323AF})"},
};

std::string_view NewerOf(std::string_view category) {
  for (const Newer& newer : kNewer)
    if (newer.category == category) return newer.ranges;
  return {};
}

// All members of a category, as the inside of a bracket expression; empty when PCRE2's own definition is complete.
std::string CategoryMembers(std::string_view category) {
  if (category == "L") {
    std::string members = R"(\p{L})";
    for (const std::string_view part : {"Lu", "Ll", "Lm", "Lo"}) members += NewerOf(part);
    return members;
  }
  const std::string_view newer = NewerOf(category);
  if (newer.empty()) return {};
  return fmt::format(R"(\p{{{}}}{})", category, newer);
}

std::string WordMembers() {
  return CategoryMembers("L") + CategoryMembers("M") + CategoryMembers("Nd") + R"(\p{Nl}\p{Pc}\x{200C}\x{200D})" +
         std::string(kCircledLetters);
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  Result<std::string> Run() {
    while (position_ < pattern_.size()) {
      const char c = pattern_[position_];
      if (c == '\\') {
        RETURN_IF_ERROR(Escape());
      } else if (in_class_) {
        RETURN_IF_ERROR(ClassCharacter(c));
      } else if (c == '[') {
        OpenClass();
      } else if (pattern_.substr(position_, 2) == "(*") {
        return Unsupported("pattern {}: directives \"(*\" are not supported", Quoted(pattern_));
      } else {
        Copy(1);
      }
    }
    return out_;
  }

 private:
  void Copy(size_t count) {
    out_ += pattern_.substr(position_, count);
    position_ += count;
  }

  void OpenClass() {
    Copy(1);
    in_class_ = true;
    if (pattern_.substr(position_, 1) == "^") Copy(1);
    // A closing bracket in first place is a member of the class.
    if (pattern_.substr(position_, 1) == "]") Copy(1);
  }

  Status ClassCharacter(char c) {
    if (c == '[' && pattern_.substr(position_, 2) != "[:")
      return Unsupported("pattern {}: nested character classes are not supported", Quoted(pattern_));
    if (pattern_.substr(position_, 2) == "&&")
      return Unsupported("pattern {}: intersections of character classes (&&) are not supported", Quoted(pattern_));
    if (c == '[') {
      const size_t end = pattern_.find(":]", position_);
      if (end == std::string_view::npos)
        return Unsupported("pattern {}: nested character classes are not supported", Quoted(pattern_));
      Copy(end + 2 - position_);
      return Ok{};
    }
    if (c == ']') in_class_ = false;
    Copy(1);
    return Ok{};
  }

  void Members(std::string_view members, bool negated) {
    if (in_class_)
      out_ += members;
    else
      out_ += fmt::format("[{}{}]", negated ? "^" : "", members);
  }

  Status Escape() {
    if (position_ + 1 >= pattern_.size()) return Invalid("pattern {}: it ends with a backslash", Quoted(pattern_));
    const char c = pattern_[position_ + 1];
    const bool negated = std::isupper(static_cast<unsigned char>(c)) != 0;
    switch (c) {
      case 's':
      case 'S':
      case 'w':
      case 'W':
      case 'd':
      case 'D':
        return Shorthand(c, negated);
      case 'p':
      case 'P':
        return Property(negated);
      case 'x':
      case 'r':
      case 'n':
      case 't':
      case 'f':
      case 'a':
      case 'e':
      case 'b':
      case 'B':
      case 'A':
      case 'z':
      case 'Z':
        Copy(2);
        return Ok{};
      default:
        if (std::isalnum(static_cast<unsigned char>(c)) && !(c >= '1' && c <= '9'))
          return Unsupported("pattern {}: the escape \\{} is not supported", Quoted(pattern_), c);
        Copy(2);
        return Ok{};
    }
  }

  Status Shorthand(char c, bool negated) {
    if (in_class_ && negated)
      return Unsupported("pattern {}: \\{} within a character class is not supported", Quoted(pattern_), c);
    position_ += 2;
    switch (std::tolower(static_cast<unsigned char>(c))) {
      case 's':
        Members(kWhiteSpace, negated);
        break;
      case 'w':
        Members(WordMembers(), negated);
        break;
      default:
        Members(CategoryMembers("Nd"), negated);
    }
    return Ok{};
  }

  Status Property(bool negated) {
    const size_t open = position_ + 2;
    const size_t close = pattern_.find('}', open);
    if (open >= pattern_.size() || pattern_[open] != '{' || close == std::string_view::npos)
      return Unsupported("pattern {}: \\p without braces is not supported", Quoted(pattern_));
    std::string_view name = pattern_.substr(open + 1, close - open - 1);
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    const std::string members = CategoryMembers(name);
    if (members.empty() || (in_class_ && negated)) {
      Copy(close + 1 - position_);
      return Ok{};
    }
    position_ = close + 1;
    Members(members, negated);
    return Ok{};
  }

  std::string_view pattern_;
  size_t position_ = 0;
  bool in_class_ = false;
  std::string out_;
};

}  // namespace

Result<std::string> TranslatePattern(std::string_view pattern) { return Translator(pattern).Run(); }

struct RegexScratch::Handles {
  template <auto kFree>
  struct Free {
    template <class T>
    void operator()(T* held) const {
      kFree(held);
    }
  };
  std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>> context{pcre2_match_context_create(nullptr)};
  std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>> data{pcre2_match_data_create(1, nullptr)};
  // Null: there is no JIT, or no memory for its stack. Then it uses 32 KiB of the thread's.
  std::unique_ptr<pcre2_jit_stack, Free<pcre2_jit_stack_free>> stack{
      pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr)};

  Handles() {
    if (context == nullptr || data == nullptr) throw std::bad_alloc();
    if (stack != nullptr) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};

RegexScratch::RegexScratch() : handles_(std::make_unique<Handles>()), started_(std::chrono::steady_clock::now()) {}
RegexScratch::~RegexScratch() = default;

struct RegexSplitter::Code {
  pcre2_code* code = nullptr;
  ~Code() { pcre2_code_free(code); }
};

RegexSplitter::RegexSplitter(std::unique_ptr<Code> code) : code_(std::move(code)) {}
RegexSplitter::RegexSplitter(RegexSplitter&&) noexcept = default;
RegexSplitter& RegexSplitter::operator=(RegexSplitter&&) noexcept = default;
RegexSplitter::~RegexSplitter() = default;

Result<RegexSplitter> RegexSplitter::Compile(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes)
    return Unsupported("a pattern has {} bytes; at most {} are supported", pattern.size(), kMaxPatternBytes);
  ASSIGN_OR_RETURN(const std::string translated, TranslatePattern(pattern));
  auto code = std::make_unique<Code>();
  int error = 0;
  PCRE2_SIZE offset = 0;
  constexpr uint32_t kOptions =
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_USE_OFFSET_LIMIT;
  code->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), kOptions, &error,
                             &offset, nullptr);
  if (code->code == nullptr)
    return Invalid("pattern {} is not a valid regular expression: {}", Quoted(pattern), Pcre2Message(error));
  // Where the system forbids JIT, PCRE2 interprets the pattern, which is slower.
  pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE);
  return RegexSplitter(std::move(code));
}

Result<std::optional<RegexMatch>> RegexSplitter::Find(std::string_view text, size_t from, RegexScratch& scratch) const {
  RegexScratch::Handles& handles = *scratch.handles_;
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  pcre2_set_match_limit(handles.context.get(),
                        static_cast<uint32_t>(std::min<uint64_t>(
                            kMatchLimitBase + uint64_t{kMatchLimitPerByte} * text.size(), UINT32_MAX)));
  while (from < text.size()) {
    const size_t last_start = std::min(from + kSearchWindowBytes, text.size());
    pcre2_set_offset_limit(handles.context.get(), last_start);
    const int found = pcre2_match(code_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY,
                                  handles.data.get(), handles.context.get());
    if (found >= 0) {
      const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(handles.data.get());
      // \K in a lookaround may move the start after the end or before `from`.
      if (bounds[0] < from || bounds[1] <= bounds[0])
        return Invalid("the tokenizer's pattern moves the start of its match, which is not supported");
      return std::optional(RegexMatch{bounds[0], bounds[1]});
    }
    const bool no_memory =
        found == PCRE2_ERROR_NOMEMORY || (found == PCRE2_ERROR_JIT_STACKLIMIT && handles.stack == nullptr);
    if (no_memory) throw std::bad_alloc();
    if (found != PCRE2_ERROR_NOMATCH)
      return Invalid("the tokenizer's pattern cannot be matched against this text: {}", Pcre2Message(found));
    if (std::chrono::steady_clock::now() - scratch.started_ >
        kTimeLimitBase + kTimeLimitPerByte * static_cast<double>(text.size()))
      return Invalid("the tokenizer's pattern takes too long on this text");
    from = last_start + 1;
    while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xC0) == 0x80) ++from;
  }
  return std::optional<RegexMatch>();
}

}  // namespace infinigen
