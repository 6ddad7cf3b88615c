#include "base/size.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

namespace infinigen {

Result<uint64_t> ParseSize(std::string_view text) {
  double number = 0;
  const auto [rest, failure] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (failure != std::errc() || number < 0 || std::isnan(number))
    return Invalid("'{}' is not a size: write, for example, 24GiB, 512MiB or 1000000", text);
  std::string unit;
  for (const char* c = rest; c != text.data() + text.size(); ++c)
    if (*c != ' ') unit += static_cast<char>(std::tolower(static_cast<unsigned char>(*c)));

  constexpr std::string_view kPrefixes = "kmgt";
  double scale = 1;
  if (!unit.empty() && unit != "b") {
    const size_t power = kPrefixes.find(unit[0]);
    const std::string_view suffix = std::string_view(unit).substr(1);
    if (power == std::string_view::npos || (!suffix.empty() && suffix != "b" && suffix != "ib"))
      return Invalid("'{}' has an unknown unit '{}': use B, KiB, MiB, GiB, TiB, KB, MB, GB or TB", text, unit);
    scale = std::pow(suffix == "b" ? 1000.0 : 1024.0, static_cast<double>(power + 1));
  }
  const double bytes = number * scale;
  if (bytes > 9.0e18) return Invalid("'{}' is larger than any machine's memory", text);
  return static_cast<uint64_t>(bytes);
}

std::string ParseInteger(std::string_view text, int64_t least, int64_t most, int64_t* value) {
  std::string_view digits = text;
  if (digits.starts_with('+')) digits.remove_prefix(1);
  int64_t number = 0;
  const auto [rest, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  const bool whole = rest == digits.data() + digits.size();
  if (failure == std::errc::invalid_argument || !whole) return fmt::format("'{}' is not a whole number", text);
  const bool overflow = failure == std::errc::result_out_of_range;
  const bool negative = digits.starts_with('-');
  if (overflow ? negative : number < least) return fmt::format("{} is too small, the minimum is {}", text, least);
  if (overflow || number > most) return fmt::format("{} is too large, the maximum is {}", text, most);
  *value = number;
  return {};
}

std::string FormatSize(uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.{}f} {}", value, value < 10 ? 2 : 1, kUnits[unit]);
}

}  // namespace infinigen
