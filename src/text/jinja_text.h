// Python's string operations on UTF-8, as far as chat templates use them. Positions and lengths count characters; a
// byte that is not UTF-8 counts as a character of its own and is never changed. Pure functions, any thread, linear
// time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace infinigen::jinja {

// str.isspace(): the property White_Space and the four separators U+001C to U+001F.
bool IsSpace(char32_t code_point);

std::vector<std::string_view> Characters(std::string_view text);
size_t CountCharacters(std::string_view text);
// The byte at which character `index` starts; text.size() where there are fewer.
size_t ByteOffset(std::string_view text, size_t index);

// First occurrence at or after byte `from`, or npos. Linear also for hostile needles, unlike string_view::find.
size_t FindText(std::string_view text, std::string_view needle, size_t from = 0);

// `characters`: what to strip; whitespace when absent.
std::string_view Strip(std::string_view text, std::optional<std::string_view> characters, bool left, bool right);

// `limit`: the most cuts to make; negative for all.
std::vector<std::string_view> SplitAtSpace(std::string_view text, int64_t limit);
std::vector<std::string_view> SplitAt(std::string_view text, std::string_view separator, int64_t limit);  // not empty
std::vector<std::string_view> SplitLines(std::string_view text);

// Occurrences of `needle` that replace() would replace, at most `limit` (negative: all).
size_t CountReplacements(std::string_view text, std::string_view needle, int64_t limit);
std::string Replace(std::string_view text, std::string_view needle, std::string_view replacement, size_t count);

// One character to one.
std::string Upper(std::string_view text);
std::string Lower(std::string_view text);
std::string Capitalize(std::string_view text);
std::string TitleWords(std::string_view text);    // Jinja's filter: words start after space and ( { [ < -
std::string TitleLetters(std::string_view text);  // str.title(): words are runs of letters
// str.islower(), str.isupper(): some letter has case, and all that have it have this one.
bool HasOnlyCase(std::string_view text, bool upper);

}  // namespace infinigen::jinja
