#include "base/gguf_name.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

#include "base/utf8.h"

namespace infinigen {
namespace {

constexpr std::string_view kSuffix = ".gguf";
constexpr std::string_view kOf = "-of-";
constexpr size_t kDigits = 5;
constexpr size_t kTail = 1 + kDigits + kOf.size() + kDigits;  // "-00001-of-00003"

std::optional<uint64_t> ParseDigits(std::string_view text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

bool HasGgufSuffix(std::string_view path) { return EndsWithIgnoringCase(path, kSuffix); }

GgufPartName ParseGgufPartName(std::string_view path) {
  if (!HasGgufSuffix(path)) return {};
  const std::string_view name = path.substr(0, path.size() - kSuffix.size());
  if (name.size() < kTail) return {};
  const std::string_view tail = name.substr(name.size() - kTail);
  if (tail[0] != '-' || tail.substr(1 + kDigits, kOf.size()) != kOf) return {};
  const std::optional<uint64_t> part = ParseDigits(tail.substr(1, kDigits));
  const std::optional<uint64_t> parts = ParseDigits(tail.substr(kTail - kDigits));
  if (!part || !parts || *part == 0) return {};
  return {.stem = std::string(name.substr(0, name.size() - kTail)),
          .part = *part,
          .parts = *parts,
          .suffix = std::string(path.substr(name.size()))};
}

std::string FormatGgufPartName(const GgufPartName& name) {
  return fmt::format("{}-{:05}-of-{:05}{}", name.stem, name.part, name.parts, name.suffix);
}

}  // namespace infinigen
