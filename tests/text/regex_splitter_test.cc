#include "text/regex_splitter.h"

#include <gtest/gtest.h>

#include <vector>

#include "text/tokenizer_spec.h"

namespace infinigen {
namespace {

std::vector<std::string> Matches(const char* pattern, std::string_view text) {
  auto regex = RegexSplitter::Compile(pattern);
  EXPECT_TRUE(regex.ok()) << regex.error().message;
  RegexScratch scratch;
  std::vector<std::string> matches;
  for (size_t from = 0;;) {
    const auto match = regex->Find(text, from, scratch);
    EXPECT_TRUE(match.ok());
    if (!match.ok() || !*match) return matches;
    matches.emplace_back(text.substr((*match)->begin, (*match)->end - (*match)->begin));
    from = (*match)->end;
  }
}

using Words = std::vector<std::string>;

TEST(RegexSplitter, CutsAsGpt2Does) {
  EXPECT_EQ(Matches(kGpt2Pattern, "It's 12 o'clock,  ok?\n"),
            (Words{"It", "'s", " 12", " o", "'", "clock", ",", " ", " ok", "?", "\n"}));
}

TEST(RegexSplitter, WhiteSpaceIsThatOfUnicode) {
  // The Mongolian vowel separator (U+180E) is not white space, although PCRE2 treats it as such.
  EXPECT_EQ(Matches(R"(\s)", "a\u180E\u00A0\u0085b"), (Words{"\u00A0", "\u0085"}));
  EXPECT_EQ(Matches(R"([^\s]+)", "a\u180Eb c"), (Words{"a\u180Eb", "c"}));
  EXPECT_EQ(Matches(R"(\S+)", "a\u180Eb\u3000c"), (Words{"a\u180Eb", "c"}));
}

TEST(RegexSplitter, KnowsLettersOfNewUnicodeVersions) {
  // U+2EBF0 was added in Unicode 15.1, U+10D40 (a digit) in 16.
  EXPECT_EQ(Matches(R"(\p{L}+)", "x\U0002EBF0y 1"), (Words{"x\U0002EBF0y"}));
  EXPECT_EQ(Matches(R"(\p{N}+)", "x1\U00010D40y"), (Words{"1\U00010D40"}));
  EXPECT_EQ(Matches(R"([^\p{L}\p{N}]+)", "a-\U0002EBF0-\U00010D40+"), (Words{"-", "-", "+"}));
}

TEST(RegexSplitter, CaseFoldsBeyondAscii) { EXPECT_EQ(Matches("(?i:'s)", "'S 'ſ 'x"), (Words{"'S", "'ſ"})); }

TEST(RegexSplitter, FindsMatchesBeyondTheSearchWindow) {
  const std::string text = std::string(100'000, 'x') + "é1" + std::string(5000, 'y') + "2";
  EXPECT_EQ(Matches(R"(\d)", text), (Words{"1", "2"}));
}

TEST(RegexSplitter, RefusesWhatItCannotTranslate) {
  for (const char* bad : {"[a[bc]]", "[a&&b]", R"(\h+)", R"(\K)", R"(\C)", "(*LIMIT_MATCH=1)a", "a(", "[a", R"(a\)",
                          R"([\S])", R"(\pL)", R"(\Qab\E)", R"(\p{NoSuchClass})"})
    EXPECT_FALSE(RegexSplitter::Compile(bad).ok()) << bad;
  EXPECT_FALSE(RegexSplitter::Compile(std::string(10'000, 'a')).ok());
  EXPECT_TRUE(RegexSplitter::Compile("[]a]+").ok());
  EXPECT_TRUE(RegexSplitter::Compile("[[:alpha:]]+").ok());
  EXPECT_TRUE(RegexSplitter::Compile("a++|b*?|(?<=a)b(?!c)").ok());
}

TEST(RegexSplitter, RunawayPatternsEndInAnError) {
  auto regex = RegexSplitter::Compile("(?:a|a)*(?!a|$).{5}");
  ASSERT_TRUE(regex.ok());
  RegexScratch scratch;
  const auto match = regex->Find(std::string(200, 'a') + "x", 0, scratch);
  ASSERT_FALSE(match.ok());
  EXPECT_NE(match.error().message.find("cannot be matched"), std::string::npos);
}

TEST(RegexSplitter, LongRunsDoNotExhaustIt) {
  for (const char c : {'a', ' ', '!', '1', '\n'}) {
    const std::string text = std::string(3'000'000, c) + "x";
    size_t total = 0;
    for (const std::string& word : Matches(kGpt2Pattern, text)) total += word.size();
    EXPECT_EQ(total, text.size());
  }
}

}  // namespace
}  // namespace infinigen
