// Encoding and decoding, with the committed tokenizers and, if the corpus is available, with real ones.
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "sanitized.h"
#include "text/text_stream.h"
#include "text/unicode.h"
#include "text_testing.h"

namespace infinigen {
namespace {

const std::vector<std::string> kCommitted = {"byte_level",       "split_regex",       "legacy_prefix",
                                             "metaspace",        "mixed_steps",       "tiktoken_ranks",
                                             "vocab_and_merges", "sentencepiece_bpe", "qwen2_files"};
const std::vector<std::string> kByteLevel = {"byte_level", "tiktoken_ranks", "vocab_and_merges"};

class CommittedTokenizer : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, CommittedTokenizer, testing::ValuesIn(kCommitted));

TEST_P(CommittedTokenizer, GivesTheIdsOfTheReference) {
  const auto tokenizer = LoadOrFail(DataDir() / GetParam());
  ASSERT_TRUE(tokenizer);
  const nlohmann::json cases = nlohmann::json::parse(ReadFile(DataDir() / GetParam() / "cases.json"));
  ASSERT_GT(cases.size(), 30U);
  for (const nlohmann::json& item : cases) {
    const std::string text = item["text"];
    const auto ids = tokenizer->Encode(text);
    ASSERT_TRUE(ids.ok()) << ids.error().message;
    EXPECT_EQ(*ids, item["ids"].get<std::vector<TokenId>>()) << text;
    EXPECT_EQ(ReplaceInvalidUtf8(tokenizer->Decode(*ids, true)), item["decoded"].get<std::string>()) << text;
  }
}

TEST_P(CommittedTokenizer, StreamingEqualsWholeAndNeverSplitsACharacter) {
  const auto tokenizer = LoadOrFail(DataDir() / GetParam());
  ASSERT_TRUE(tokenizer);
  std::mt19937_64 random(5);
  for (int round = 0; round < 300; ++round) {
    std::vector<TokenId> ids;
    if (round % 2 == 0) {
      ids = *tokenizer->Encode(RandomBytes(random, 60));
    } else {
      // Arbitrary ids, as a model may generate them, some outside the vocabulary.
      for (int i = 0; i < 60; ++i)
        ids.push_back(static_cast<TokenId>(random() % static_cast<uint64_t>(tokenizer->vocab_size() + 3)) - 1);
    }
    for (const bool skip_special : {false, true}) {
      const std::string whole = tokenizer->Decode(ids, skip_special);
      std::vector<bool> ends(whole.size() + 1);  // [bytes]: a character, or a malformed subpart, ends here
      ends[0] = true;
      for (size_t position = 0; position < whole.size(); ends[position] = true)
        position += ScanUtf8(whole, position).length;
      StreamDecoder stream(*tokenizer, skip_special);
      std::string joined;
      std::string replaced;
      for (const TokenId id : ids) {
        const std::string piece = stream.Push(id);
        joined += piece;
        ASSERT_LE(joined.size(), whole.size());
        ASSERT_TRUE(ends[joined.size()]) << "cut inside a character";
        replaced += ReplaceInvalidUtf8(piece);
      }
      const std::string rest = stream.Finish();
      ASSERT_LE(rest.size(), 3U);
      joined += rest;
      replaced += ReplaceInvalidUtf8(rest);
      ASSERT_EQ(joined, whole);
      ASSERT_EQ(replaced, ReplaceInvalidUtf8(whole));
    }
  }
}

TEST_P(CommittedTokenizer, IsTheSameFromManyThreads) {
  const auto tokenizer = LoadOrFail(DataDir() / GetParam());
  ASSERT_TRUE(tokenizer);
  std::mt19937_64 random(9);
  const std::string text = RandomBytes(random, 20'000);
  const std::vector<TokenId> expected = *tokenizer->Encode(text);
  std::vector<std::vector<TokenId>> results(4);
  std::vector<std::thread> threads;
  for (auto& result : results) threads.emplace_back([&] { result = *tokenizer->Encode(text); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) EXPECT_EQ(result, expected);
}

TEST(ByteLevelTokenizer, DecodeInvertsEncodeOnArbitraryBytes) {
  for (const std::string& name : kByteLevel) {
    const auto tokenizer = LoadOrFail(DataDir() / name);
    ASSERT_TRUE(tokenizer);
    std::mt19937_64 random(1);
    std::string all;
    for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
    std::vector<std::string> texts = {all, "", std::string(1, '\0'), "\xF0\x9F", "a\xFF"};
    // Without added tokens that strip white space.
    for (int round = 0; round < 500; ++round) texts.push_back(RandomBytes(random, random() % 200));
    for (const std::string& text : texts) {
      const auto ids = tokenizer->Encode(text, {.add_special = false});
      ASSERT_TRUE(ids.ok());
      ASSERT_EQ(tokenizer->Decode(*ids, false), text) << name;
    }
  }
}

TEST(Tokenizer, SpecialTokensInTextAreParsedOnlyWhenAsked) {
  const auto tokenizer = LoadOrFail(DataDir() / "byte_level");
  ASSERT_TRUE(tokenizer);
  const std::string text = "a<|eot|>b";
  const TokenId eot = *tokenizer->IdOf("<|eot|>");
  EXPECT_TRUE(tokenizer->IsSpecial(eot));
  const auto parsed = *tokenizer->Encode(text, {.add_special = false});
  EXPECT_EQ(std::count(parsed.begin(), parsed.end(), eot), 1);
  const auto plain = *tokenizer->Encode(text, {.add_special = false, .parse_special = false});
  EXPECT_EQ(std::count(plain.begin(), plain.end(), eot), 0);
  EXPECT_EQ(tokenizer->Decode(plain, true), text);
  EXPECT_EQ(tokenizer->Decode(parsed, true), "ab");
  // An added token that is not special is recognised all the same.
  const TokenId tool = *tokenizer->IdOf("<tool>");
  const auto with_tool = *tokenizer->Encode("x<tool>y", {.add_special = false, .parse_special = false});
  EXPECT_EQ(std::count(with_tool.begin(), with_tool.end(), tool), 1);
}

TEST(Tokenizer, TellsAboutItsVocabulary) {
  const auto tokenizer = LoadOrFail(DataDir() / "vocab_and_merges");
  ASSERT_TRUE(tokenizer);
  EXPECT_EQ(tokenizer->bos(), tokenizer->IdOf("</s>"));
  EXPECT_EQ(tokenizer->eos(), tokenizer->IdOf("</s>"));
  EXPECT_EQ(tokenizer->TokenText(*tokenizer->IdOf("Ġ")), "Ġ");
  EXPECT_EQ(tokenizer->TokenText(-1), "");
  EXPECT_EQ(tokenizer->TokenText(tokenizer->vocab_size()), "");
  EXPECT_FALSE(tokenizer->IdOf("no such token"));
  EXPECT_FALSE(tokenizer->IsSpecial(-1));
  EXPECT_FALSE(tokenizer->IsSpecial(1 << 30));
}

// One word of a million symbols: only a nearly linear algorithm finishes within the test's time limit.
TEST(Tokenizer, LongRunsOfOneLetter) {
  for (const std::string& name : kCommitted) {
    const auto tokenizer = LoadOrFail(DataDir() / name);
    ASSERT_TRUE(tokenizer);
    for (const char c : {'a', ' ', '!'}) {
      const std::string text(kSanitized ? 100'000 : 1'000'000, c);
      const auto ids = tokenizer->Encode(text);
      ASSERT_TRUE(ids.ok()) << ids.error().message;
      if (std::find(kByteLevel.begin(), kByteLevel.end(), name) != kByteLevel.end()) {
        EXPECT_EQ(tokenizer->Decode(*ids, true), text);
      }
    }
  }
}

// Real tokenizers.

std::vector<std::string> SplitCases(const std::string& text) {
  const std::string separator = "\n__ggml_vocab_test__\n";
  std::vector<std::string> cases;
  size_t begin = 0;
  for (size_t end = text.find(separator); end != std::string::npos; end = text.find(separator, begin)) {
    cases.push_back(text.substr(begin, end - begin));
    begin = end + separator.size();
  }
  cases.push_back(text.substr(begin));
  return cases;
}

void CheckListedCases(const Tokenizer& tokenizer, const fs::path& cases, const std::string& name) {
  const std::vector<std::string> texts = SplitCases(ReadFile(cases / (name + ".inp")));
  std::istringstream expected(ReadFile(cases / (name + ".out")));
  size_t checked = 0;
  for (std::string line; checked < texts.size() && std::getline(expected, line); ++checked) {
    std::istringstream numbers(line);
    const std::vector<TokenId> ids((std::istream_iterator<TokenId>(numbers)), {});
    const std::string& text = texts[checked];
    const auto encoded = tokenizer.Encode(text, {.add_special = false});
    ASSERT_TRUE(encoded.ok());
    EXPECT_EQ(*encoded, ids) << name << " case " << checked << ": " << text;
    EXPECT_EQ(tokenizer.Decode(ids, true), text);
  }
  EXPECT_GE(checked, 40U);
}

TEST(RealTokenizers, Llama2ListedCases) {
  const auto corpus = CorpusTokenizers();
  if (!corpus) GTEST_SKIP() << "no corpus";
  const auto tokenizer = LoadOrFail(*corpus / "llama2");
  ASSERT_TRUE(tokenizer);
  EXPECT_EQ(tokenizer->vocab_size(), 32'000);
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->eos(), 2);
  CheckListedCases(*tokenizer, *corpus / "cases", "ggml-vocab-llama-spm.gguf");
}

TEST(RealTokenizers, Llama3ListedCases) {
  const auto corpus = CorpusTokenizers();
  if (!corpus) GTEST_SKIP() << "no corpus";
  const auto tokenizer = LoadOrFail(*corpus / "llama3");
  ASSERT_TRUE(tokenizer);
  EXPECT_EQ(tokenizer->vocab_size(), 128'256);
  EXPECT_EQ(tokenizer->bos(), 128'000);
  EXPECT_EQ(tokenizer->IdOf("<|end_of_text|>"), 128'001);
  EXPECT_EQ(tokenizer->IdOf("<|finetune_right_pad_id|>"), 128'004);
  EXPECT_EQ(tokenizer->IdOf("<|start_header_id|>"), 128'006);
  EXPECT_EQ(tokenizer->IdOf("<|end_header_id|>"), 128'007);
  EXPECT_EQ(tokenizer->IdOf("<|eom_id|>"), 128'008);
  EXPECT_EQ(tokenizer->IdOf("<|eot_id|>"), 128'009);
  EXPECT_EQ(tokenizer->IdOf("<|python_tag|>"), 128'010);
  EXPECT_EQ(tokenizer->IdOf("<|reserved_special_token_247|>"), 128'255);
  CheckListedCases(*tokenizer, *corpus / "cases", "ggml-vocab-llama-bpe.gguf");
}

// GPT-2's ids follow from its merges: printable bytes, other bytes, then the result of each merge, in order.
TEST(RealTokenizers, Gpt2ListedCases) {
  const auto corpus = CorpusTokenizers();
  if (!corpus) GTEST_SKIP() << "no corpus";
  const std::string merges = ReadFile(*corpus / "opt" / "gpt2-merges.txt");
  nlohmann::json vocab;
  const auto add = [&](const std::string& token) {
    const size_t id = vocab.size();
    vocab[token] = id;
  };
  for (const bool itself : {true, false})
    for (int byte = 0; byte < 256; ++byte) {
      const char32_t c = ByteLevelChar(static_cast<uint8_t>(byte));
      std::string token;
      AppendUtf8(c, token);
      if ((c == static_cast<char32_t>(byte)) == itself) add(token);
    }
  std::istringstream lines(merges);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("#version") || line.empty()) continue;
    line.erase(line.find(' '), 1);
    add(line);
  }
  add("<|endoftext|>");
  TempDir directory;
  directory.Write("vocab.json", vocab.dump());
  directory.Write("merges.txt", merges);
  directory.Write("config.json", R"({"model_type": "gpt2", "bos_token_id": 50256})");
  const auto tokenizer = LoadOrFail(directory.path());
  ASSERT_TRUE(tokenizer);
  EXPECT_EQ(tokenizer->bos(), 50'256);
  EXPECT_EQ(tokenizer->Encode("Hello world")->size(), 2U);  // config.json adds no BOS
  CheckListedCases(*tokenizer, *corpus / "cases", "ggml-vocab-gpt-2.gguf");
}

TEST(RealTokenizers, OptAddsItsBosWhereItsConfigurationSaysSo) {
  const auto corpus = CorpusTokenizers();
  if (!corpus) GTEST_SKIP() << "no corpus";
  TempDir directory;
  fs::copy_file(*corpus / "opt" / "gpt2-vocab.json", directory.path() / "vocab.json");
  fs::copy_file(*corpus / "opt" / "gpt2-merges.txt", directory.path() / "merges.txt");
  directory.Write("config.json", R"({"model_type": "opt", "bos_token_id": 2})");
  EXPECT_EQ(*LoadOrFail(directory.path())->Encode("Hello world"), (Ids{31414, 232}));
  directory.Write("tokenizer_config.json",
                  R"({"tokenizer_class": "GPT2Tokenizer", "add_bos_token": true, "bos_token": "</s>",
                      "eos_token": "</s>", "unk_token": "</s>", "pad_token": "<pad>"})");
  const auto tokenizer = LoadOrFail(directory.path());
  EXPECT_EQ(*tokenizer->Encode("Hello world"), (Ids{2, 31414, 232}));
  EXPECT_EQ(*tokenizer->Encode("a</s>b"), (Ids{2, 102, 2, 428}));
}

}  // namespace
}  // namespace infinigen
