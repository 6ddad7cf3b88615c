#include <gtest/gtest.h>

#include <cctype>
#include <set>

#include "eval/filler.h"

namespace infinigen {
namespace {

std::vector<std::string> Sentences(uint64_t seed, int paragraphs) {
  StoryWriter writer(seed);
  std::vector<std::string> all;
  for (int i = 0; i < paragraphs; ++i)
    for (std::string& sentence : writer.Paragraph()) all.push_back(std::move(sentence));
  return all;
}

TEST(Story, IsAFunctionOfTheSeed) {
  EXPECT_EQ(Sentences(7, 50), Sentences(7, 50));
  EXPECT_NE(Sentences(7, 3), Sentences(8, 3));
}

// The text of a seed is part of every reported result: it must not change unnoticed.
TEST(Story, IsWhatItAlwaysWas) {
  EXPECT_EQ(Sentences(1, 1)[0], "Paula taught the small children at the ferry house until the new teacher came.");
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const std::string& sentence : Sentences(1, 1000))
    for (const char c : sentence) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  EXPECT_EQ(hash, 1272429455303069178u);
}

TEST(Story, SentencesAreWellFormed) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    for (const std::string& s : Sentences(seed, 100)) {
      EXPECT_TRUE(std::isupper(static_cast<unsigned char>(s[0]))) << s;
      EXPECT_NE(std::string(".!?").find(s.back()), std::string::npos) << s;
      EXPECT_EQ(s.find_first_of("{}0123456789\n"), std::string::npos) << s;
      EXPECT_EQ(s.find("  "), std::string::npos) << s;
      for (const char* wrong : {" a a", " a e", " a i", " a o", " a u", " an b", " an d", " an s", "A e", "A o"})
        EXPECT_EQ(s.find(wrong), std::string::npos) << s;
    }
  }
}

TEST(Story, ParagraphsVary) {
  StoryWriter writer(3);
  std::set<std::string> openings;
  std::set<size_t> sizes;
  for (int i = 0; i < 400; ++i) {
    const std::vector<std::string> paragraph = writer.Paragraph();
    openings.insert(paragraph[0]);
    sizes.insert(paragraph.size());
    EXPECT_EQ(std::set<std::string>(paragraph.begin(), paragraph.end()).size(), paragraph.size());
  }
  EXPECT_GT(openings.size(), 350u);
  EXPECT_EQ(sizes, (std::set<size_t>{4, 5, 6, 7, 8}));
}

}  // namespace
}  // namespace infinigen
