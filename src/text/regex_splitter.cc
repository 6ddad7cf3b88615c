#include "text/regex_splitter.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <utility>

#include "text/unicode.h"

namespace infinigen {
namespace {

// The longest pattern in use is below 1 KiB.
constexpr size_t kMaxPatternBytes = 8192;
// One search looks for a start within this many bytes, then the clock is read.
constexpr size_t kSearchWindowBytes = 256;
// Match limit: a step of backtracking each; whitespace runs of the known patterns need about one per byte.
constexpr uint32_t kMatchLimitBase = 10'000'000;
constexpr uint32_t kMatchLimitPerByte = 16;
constexpr size_t kJitStackStart = 64 * 1024;
constexpr size_t kJitStackMax = 8 * 1024 * 1024;
// Fifty times slower than the known patterns, measured: only one that rescans the text at every position gets there.
constexpr std::chrono::duration<double> kTimeLimitBase{5.0};
constexpr std::chrono::duration<double> kTimeLimitPerByte{2e-6};

std::string Pcre2Message(int code) {
  std::array<PCRE2_UCHAR, 160> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

}  // namespace

struct RegexScratch::Handles {
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr);

  Handles() {
    CHECK(context != nullptr && data != nullptr);
    if (stack != nullptr) pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~Handles() {
    pcre2_jit_stack_free(stack);
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
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
    return Unsupported("pattern of {} bytes, at most {} are supported", pattern.size(), kMaxPatternBytes);
  ASSIGN_OR_RETURN(const std::string translated, TranslatePattern(pattern));
  auto code = std::make_unique<Code>();
  int error = 0;
  PCRE2_SIZE offset = 0;
  constexpr uint32_t kOptions =
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_USE_OFFSET_LIMIT;
  code->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), kOptions, &error,
                             &offset, nullptr);
  if (code->code == nullptr) return Invalid("bad pattern: {}", Pcre2Message(error));
  // Where the system forbids JIT the interpreter does the same, slower.
  pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE);
  return RegexSplitter(std::move(code));
}

Result<std::optional<RegexMatch>> RegexSplitter::Find(std::string_view text, size_t from, RegexScratch& scratch) const {
  RegexScratch::Handles& handles = *scratch.handles_;
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  pcre2_set_match_limit(handles.context,
                        static_cast<uint32_t>(std::min<uint64_t>(
                            kMatchLimitBase + uint64_t{kMatchLimitPerByte} * text.size(), UINT32_MAX)));
  while (from < text.size()) {
    const size_t last_start = std::min(from + kSearchWindowBytes, text.size());
    pcre2_set_offset_limit(handles.context, last_start);
    const int found = pcre2_match(code_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY,
                                  handles.data, handles.context);
    if (found > 0 || found == 0) {
      const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(handles.data);
      // \K in a lookaround may put the start after the end or before `from`.
      if (bounds[0] < from || bounds[1] <= bounds[0]) return Invalid("the pattern moves the start of its match");
      return std::optional(RegexMatch{bounds[0], bounds[1]});
    }
    if (found != PCRE2_ERROR_NOMATCH) return Invalid("the pattern gives up on this text: {}", Pcre2Message(found));
    if (std::chrono::steady_clock::now() - scratch.started_ >
        kTimeLimitBase + kTimeLimitPerByte * static_cast<double>(text.size()))
      return Invalid("the pattern takes too long on this text");
    from = last_start + 1;
    while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xC0) == 0x80) ++from;
  }
  return std::optional<RegexMatch>();
}

}  // namespace infinigen
