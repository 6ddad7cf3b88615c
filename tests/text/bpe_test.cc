#include "text/bpe.h"

#include <gtest/gtest.h>

#include <random>

#include "text/unicode.h"
#include "text_testing.h"

namespace infinigen {
namespace {

// The definition of BPE: merge the pair with the lowest rank, the leftmost among equals, until no pair merges.
std::vector<TokenId> NaiveMerge(std::vector<TokenId> ids, const MergeTable& merges) {
  for (;;) {
    size_t best = ids.size();
    MergeTable::Merge best_merge;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto merge = merges.Find(ids[i], ids[i + 1]);
      if (merge && (best == ids.size() || merge->rank < best_merge.rank)) {
        best = i;
        best_merge = *merge;
      }
    }
    if (best == ids.size()) return ids;
    ids[best] = best_merge.id;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
}

struct RandomModel {
  TokenVocabulary vocabulary;
  MergeTable merges;
};

// Tokens over a few letters, merges in random order, some with equal ranks.
RandomModel MakeModel(std::mt19937_64& random, bool equal_ranks) {
  RandomModel model;
  std::vector<std::string> tokens = {"a", "b", "c", "d"};
  while (tokens.size() < 60) {
    const std::string token = tokens[random() % tokens.size()] + tokens[random() % tokens.size()];
    if (std::find(tokens.begin(), tokens.end(), token) == tokens.end()) tokens.push_back(token);
  }
  for (size_t id = 0; id < tokens.size(); ++id)
    EXPECT_TRUE(model.vocabulary.Add(tokens[id], static_cast<int64_t>(id)).ok());
  std::vector<RankedToken> ranked;
  for (size_t id = 4; id < tokens.size(); ++id)
    ranked.push_back({static_cast<TokenId>(id), static_cast<uint32_t>(equal_ranks ? id / 8 : id)});
  auto merges = MergesOfSplits(model.vocabulary, ranked, std::vector<bool>(tokens.size(), true),
                               equal_ranks ? SplitOrder::kSharedRank : SplitOrder::kLowerIds);
  EXPECT_TRUE(merges.ok());
  model.merges = std::move(*merges);
  return model;
}

TEST(Bpe, ShortAndLongWordsEqualTheDefinition) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 300; ++round) {
    const RandomModel model = MakeModel(random, round % 2 == 0);
    const BpeModel bpe(model.vocabulary, model.merges, BpeOptions{});
    BpeScratch scratch;
    for (const size_t length : {1U, 2U, 5U, 23U, 24U, 25U, 26U, 60U, 150U}) {
      std::string word;
      std::vector<TokenId> symbols;
      for (size_t i = 0; i < length; ++i) {
        symbols.push_back(static_cast<TokenId>(random() % 4));
        word += static_cast<char>('a' + symbols.back());
      }
      std::vector<TokenId> ids;
      bpe.EncodeWord(word, scratch, ids);
      ASSERT_EQ(ids, NaiveMerge(symbols, model.merges)) << word;
    }
  }
}

TEST(Bpe, MergeTableFindsWhatWasInserted) {
  MergeTable table(1000);
  for (TokenId i = 0; i < 1000; ++i) table.Insert(i, i * 7 % 1000, static_cast<uint32_t>(i), (1 << 20) - 1 - i);
  for (TokenId i = 0; i < 1000; ++i) {
    const auto merge = table.Find(i, i * 7 % 1000);
    ASSERT_TRUE(merge);
    EXPECT_EQ(merge->rank, static_cast<uint32_t>(i));
    EXPECT_EQ(merge->id, (1 << 20) - 1 - i);
    EXPECT_FALSE(table.Find(i, i * 7 % 1000 + 1000));
  }
  table.Insert(5, 35, 77, 9);
  EXPECT_EQ(table.Find(5, 35)->rank, 77U);
  EXPECT_FALSE(MergeTable().Find(0, 0));
}

TEST(Bpe, UnknownCharactersFollowTheOptions) {
  TokenVocabulary vocabulary;
  const std::vector<std::string> tokens = {"<unk>", "a", "<0xC3>", "<0xA9>"};
  for (size_t id = 0; id < tokens.size(); ++id) ASSERT_TRUE(vocabulary.Add(tokens[id], static_cast<int64_t>(id)).ok());
  const auto encode = [&](const BpeOptions& options, std::string_view word) {
    const BpeModel bpe(vocabulary, MergeTable(), options);
    BpeScratch scratch;
    std::vector<TokenId> ids;
    bpe.EncodeWord(word, scratch, ids);
    return ids;
  };
  BpeOptions options;
  EXPECT_EQ(encode(options, "axya"), (Ids{1, 1}));
  options.unk_token = "<unk>";
  EXPECT_EQ(encode(options, "axya"), (Ids{1, 0, 0, 1}));
  options.fuse_unk = true;
  EXPECT_EQ(encode(options, "axya"), (Ids{1, 0, 1}));
  EXPECT_EQ(encode(options, "aéa"), (Ids{1, 0, 1}));
  options.byte_fallback = true;
  EXPECT_EQ(encode(options, "aéa"), (Ids{1, 2, 3, 1}));
  EXPECT_EQ(encode(options, "aèa"), (Ids{1, 0, 1}));  // one byte has no token, so there is no fallback
}

TEST(Vocabulary, RefusesWhatContradictsItself) {
  TokenVocabulary vocabulary;
  EXPECT_TRUE(vocabulary.Add("a", 0).ok());
  EXPECT_TRUE(vocabulary.Add("b", 7).ok());
  EXPECT_FALSE(vocabulary.Add("a", 1).ok());
  EXPECT_FALSE(vocabulary.Add("c", 7).ok());
  EXPECT_FALSE(vocabulary.Add("", 2).ok());
  EXPECT_FALSE(vocabulary.Add("d", -1).ok());
  EXPECT_FALSE(vocabulary.Add("e", TokenVocabulary::kMaxTokens).ok());
  EXPECT_EQ(vocabulary.size(), 8);
  EXPECT_EQ(vocabulary.count(), 2);
  EXPECT_EQ(vocabulary.Find("b"), 7);
  EXPECT_EQ(vocabulary.Text(3), "");
  EXPECT_EQ(vocabulary.Text(-5), "");
}

TEST(Unicode, ClassesOfCharacters) {
  EXPECT_TRUE(IsWordChar(U'ß') && IsWordChar(U'_') && IsWordChar(U'漢') && !IsWordChar(U'-') && !IsWordChar(U' '));
}

TEST(ByteLevel, MapsAllBytesThereAndBack) {
  for (int byte = 0; byte < 256; ++byte)
    ASSERT_EQ(ByteOfByteLevelChar(ByteLevelChar(static_cast<uint8_t>(byte))), static_cast<uint8_t>(byte));
  EXPECT_EQ(ByteLevelChar(' '), U'Ġ');
  EXPECT_EQ(ByteLevelChar('\n'), U'Ċ');
  EXPECT_EQ(ByteLevelChar(0xFF), U'ÿ');
  EXPECT_EQ(ByteLevelChar(0xAD), U'\u0143');
  EXPECT_FALSE(ByteOfByteLevelChar(U' '));
  EXPECT_FALSE(ByteOfByteLevelChar(U'漢'));
  EXPECT_EQ(BytesOfByteLevel("Ġthe"), " the");
  EXPECT_FALSE(BytesOfByteLevel("漢"));
}

}  // namespace
}  // namespace infinigen
