#include "text/text_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace infinigen {
namespace {

TEST(StopStrings, CutsAcrossPieces) {
  StopStrings stops({"STOP"});
  EXPECT_EQ(stops.Push("abc S"), "abc ");
  EXPECT_EQ(stops.Push("T"), "");
  EXPECT_FALSE(stops.matched());
  EXPECT_EQ(stops.Push("OP and more"), "");
  EXPECT_TRUE(stops.matched());
  EXPECT_EQ(stops.matched_stop(), "STOP");
  EXPECT_EQ(stops.Push("never"), "");
  EXPECT_EQ(stops.Finish(), "");
}

TEST(StopStrings, ReleasesWhatTurnsOutToBeText) {
  StopStrings stops({"\n\nUser:"});
  EXPECT_EQ(stops.Push("a\n"), "a");
  EXPECT_EQ(stops.Push("\n"), "");
  EXPECT_EQ(stops.Push("b\nU"), "\n\nb\nU");  // one line end and "U" start no stop string
  EXPECT_EQ(stops.Push("\n\nUs"), "");
  EXPECT_EQ(stops.Push("e me"), "\n\nUse me");
}

TEST(StopStrings, FinishShowsWhatWasHeldBack) {
  StopStrings stops({"END"});
  EXPECT_EQ(stops.Push("the EN"), "the ");
  EXPECT_EQ(stops.Finish(), "EN");
  EXPECT_FALSE(stops.matched());
}

TEST(StopStrings, AnEarlierStartWinsEvenIfItIsCompleteLater) {
  StopStrings stops({"cd", "bcde"});
  EXPECT_EQ(stops.Push("abcd"), "a");
  EXPECT_FALSE(stops.matched());
  EXPECT_EQ(stops.Push("e"), "");
  EXPECT_EQ(stops.matched_stop(), "bcde");

  StopStrings other({"cd", "bcde"});
  EXPECT_EQ(other.Push("abcd"), "a");
  EXPECT_EQ(other.Push("x"), "b");
  EXPECT_EQ(other.matched_stop(), "cd");

  StopStrings ended({"cd", "bcde"});
  EXPECT_EQ(ended.Push("abcd"), "a");
  EXPECT_EQ(ended.Finish(), "b");
  EXPECT_TRUE(ended.matched());
}

TEST(StopStrings, WithoutStopsNothingIsHeld) {
  StopStrings stops({""});
  EXPECT_EQ(stops.Push("abc"), "abc");
  EXPECT_EQ(stops.Finish(), "");
}

// Compares with a search in the whole text, for random texts, stop strings and pieces over a small alphabet.
TEST(StopStrings, EqualsASearchInTheWholeText) {
  std::mt19937_64 random(11);
  const auto word = [&](size_t longest) {
    std::string text;
    for (size_t length = random() % (longest + 1); text.size() < length;) text += static_cast<char>('a' + random() % 3);
    return text;
  };
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::string> stops;
    for (size_t count = random() % 4; stops.size() < count;) stops.push_back(word(5));
    const std::string text = word(30);
    size_t cut = std::string::npos;
    size_t longest = 1;
    for (const std::string& stop : stops) {
      if (!stop.empty()) cut = std::min(cut, text.find(stop));
      longest = std::max(longest, stop.size());
    }
    StopStrings streaming(stops);
    std::string shown;
    size_t pushed = 0;
    while (pushed < text.size() && !streaming.matched()) {
      const size_t length = std::min<size_t>(1 + random() % 4, text.size() - pushed);
      shown += streaming.Push(text.substr(pushed, length));
      pushed += length;
      // No more text is held back than the longest stop string less one byte.
      if (!streaming.matched() && cut >= pushed) {
        ASSERT_GE(shown.size() + longest - 1, pushed);
      }
    }
    shown += streaming.Finish();
    ASSERT_EQ(shown, text.substr(0, cut)) << text;
    ASSERT_EQ(streaming.matched(), cut != std::string::npos);
  }
}

}  // namespace
}  // namespace infinigen
