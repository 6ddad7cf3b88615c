// The tokenizer of GGUF metadata: both models, special tokens, ends, refusals, and the way back from a directory.
#include "text/gguf_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/unicode.h"
#include "text_testing.h"

namespace infinigen {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kNormal = 1, kUnknown = 2, kControl = 3, kUser = 4, kByte = 6;

// Metadata with its texts.
struct Metadata {
  std::vector<std::string> tokens, merges;
  GgufVocabulary vocabulary;

  void Add(std::string token, int64_t type = kNormal, float score = 0) {
    tokens.push_back(std::move(token));
    vocabulary.types.push_back(type);
    vocabulary.scores.push_back(score);
  }
  GgufVocabulary& Views() {
    vocabulary.path = "m.gguf";
    vocabulary.tokens.assign(tokens.begin(), tokens.end());
    vocabulary.merges.assign(merges.begin(), merges.end());
    return vocabulary;
  }
};

// 256 bytes, then "he" 256, "Ġthe" 257 through "Ġt" 258, "12" 259, <|end|> 260 (control), "@@" 261 (user-defined).
Metadata ByteLevel() {
  Metadata made;
  for (int byte = 0; byte < 256; ++byte) {
    std::string text;
    AppendUtf8(ByteLevelChar(static_cast<uint8_t>(byte)), text);
    made.Add(text);
  }
  for (const char* token : {"he", "Ġthe", "Ġt", "12"}) made.Add(token);
  made.Add("<|end|>", kControl);
  made.Add("@@", kUser);
  made.merges = {"h e", "Ġ t", "Ġt he", "1 2"};
  made.vocabulary.model = "gpt2";
  made.vocabulary.pre = "gpt-2";
  made.vocabulary.bos = made.vocabulary.eos = 260;
  return made;
}

// SentencePiece: <unk> <s> </s>, 256 bytes from id 3, then characters and pieces from id 259.
Metadata Pieces() {
  Metadata made;
  made.Add("<unk>", kUnknown);
  made.Add("<s>", kControl);
  made.Add("</s>", kControl);
  for (int byte = 0; byte < 256; ++byte) made.Add(fmt::format("<0x{:02X}>", byte), kByte);
  for (const char* token : {"▁", "a", "b", "c"}) made.Add(token, kNormal, -100);  // 259 to 262
  made.Add("ab", kNormal, -2);                                                    // 263
  made.Add("bc", kNormal, -1);                                                    // 264
  made.Add("▁a", kNormal, -3);                                                    // 265
  made.vocabulary.model = "llama";
  return made;
}

std::unique_ptr<Tokenizer> Make(Metadata& from) {
  Result<std::unique_ptr<Tokenizer>> made = Tokenizer::FromGguf(from.Views());
  EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
  return made.ok() ? std::move(*made) : nullptr;
}

std::string Refused(Metadata from) {
  const Result<std::unique_ptr<Tokenizer>> made = Tokenizer::FromGguf(from.Views());
  return made.ok() ? "" : made.error().message;
}

TEST(GgufTokenizer, ByteLevelMergesInOrder) {
  Metadata from = ByteLevel();
  const auto tokenizer = Make(from);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_THAT(tokenizer->Encode(" the").value(), ElementsAre(257));
  EXPECT_THAT(tokenizer->Encode("the").value(), ElementsAre('t', 256));
  EXPECT_THAT(tokenizer->Encode("a<|end|>@@12").value(), ElementsAre('a', 260, 261, 259));
  EXPECT_THAT(tokenizer->Encode("<|end|>@@", {.parse_special = false}).value(),
              ElementsAre('<', '|', 'e', 'n', 'd', '|', '>', 261))
      << "user-defined tokens are found in any text";
  const std::string bytes = "\xff\xc3\xa9 the";
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(bytes).value(), false), bytes);
  EXPECT_EQ(tokenizer->Decode(Ids{'a', 260, 261}, true), "a@@");
}

TEST(GgufTokenizer, PreTypesSplitDifferently) {
  Metadata from = ByteLevel();
  from.vocabulary.pre = "smollm";
  EXPECT_THAT(Make(from)->Encode("12").value(), ElementsAre('1', '2')) << "each digit is a word";
  from.vocabulary.pre = "llama-bpe";
  from.vocabulary.add_bos = false;
  EXPECT_THAT(Make(from)->Encode("12").value(), ElementsAre(259));
  from.vocabulary.pre = "default";
  EXPECT_THAT(Make(from)->Encode("12").value(), ElementsAre(259));
}

TEST(GgufTokenizer, EndsFollowTheMetadataThenTheModel) {
  Metadata from = ByteLevel();
  EXPECT_THAT(Make(from)->Encode("").value(), IsEmpty());
  from.vocabulary.add_bos = true;
  from.vocabulary.add_eos = true;
  EXPECT_THAT(Make(from)->Encode("a").value(), ElementsAre(260, 'a', 260));
  from.vocabulary.add_bos = from.vocabulary.add_eos = std::nullopt;
  from.vocabulary.pre = "llama-bpe";
  EXPECT_THAT(Make(from)->Encode("a").value(), ElementsAre(260, 'a')) << "llama-bpe adds BOS";
  EXPECT_THAT(Make(from)->Encode("a", {.add_special = false}).value(), ElementsAre('a'));
  from.vocabulary.bos.reset();
  EXPECT_THAT(Refused(from), HasSubstr("m.gguf: the tokenizer adds BOS"));
}

TEST(GgufTokenizer, SentencePieceMergesByScore) {
  Metadata from = Pieces();
  const auto tokenizer = Make(from);
  ASSERT_NE(tokenizer, nullptr);
  // "▁abc": bc (-1) first, then ab is gone, then ▁a (-3).
  EXPECT_THAT(tokenizer->Encode("abc").value(), ElementsAre(1, 265, 264));
  EXPECT_THAT(tokenizer->Encode("z", {.add_special = false}).value(), ElementsAre(259, 3 + 'z')) << "byte token";
  EXPECT_THAT(tokenizer->Encode("a</s>a").value(), ElementsAre(1, 265, 2, 265)) << "a space after each special token";
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode("abc é", {.add_special = false}).value(), false), "abc é");
  from.vocabulary.add_space_prefix = false;
  EXPECT_THAT(Make(from)->Encode("abc").value(), ElementsAre(1, 260, 264));
}

TEST(GgufTokenizer, EndTokensAreSpecialByName) {
  Metadata from = ByteLevel();
  from.Add("<|im_end|>", kNormal);
  EXPECT_THAT(Make(from)->Encode("<|im_end|>").value(), ElementsAre(262));
  EXPECT_TRUE(Make(from)->IsSpecial(262));
}

TEST(GgufTokenizer, AVocabularyOfBytesNeedsNoMerges) {
  Metadata from = ByteLevel();
  from.merges.clear();
  from.tokens.resize(256);
  from.vocabulary.types.resize(256);
  from.vocabulary.bos = from.vocabulary.eos = std::nullopt;
  EXPECT_THAT(Make(from)->Encode("the").value(), ElementsAre('t', 'h', 'e'));
}

TEST(GgufTokenizer, RefusesByName) {
  Metadata from = ByteLevel();
  from.vocabulary.model = "bert";
  EXPECT_THAT(Refused(from), HasSubstr("m.gguf: the tokenizer model 'bert' is not supported"));
  from = ByteLevel();
  from.vocabulary.pre = "new\nkind";
  EXPECT_THAT(Refused(from), HasSubstr("'new\\x0akind'"));
  from = ByteLevel();
  from.merges.push_back("x yz");
  EXPECT_THAT(Refused(from), HasSubstr("yz"));
  from = ByteLevel();
  from.vocabulary.types.pop_back();
  EXPECT_THAT(Refused(from), HasSubstr("261 token types for 262 tokens"));
  from = ByteLevel();
  from.tokens[5] = "he";
  EXPECT_THAT(Refused(from), HasSubstr("he"));
  from = ByteLevel();
  from.tokens[5] = "\xff";
  EXPECT_THAT(Refused(from), HasSubstr("token 5 ('\\xff') is not valid UTF-8"));
  from = ByteLevel();
  from.tokens[5] = std::string(5000, 'x');
  EXPECT_THAT(Refused(from), HasSubstr("token 5 has 5000 bytes"));
  const std::string endless((4 << 20) + 1, 'x');
  from = ByteLevel();
  from.vocabulary.chat_template = endless;
  EXPECT_THAT(Refused(from), HasSubstr("'tokenizer.chat_template' has 4194305 bytes"));
  from = ByteLevel();
  from.merges.clear();
  EXPECT_THAT(Refused(from), HasSubstr("'tokenizer.ggml.merges' is missing or empty, but token 256 ('he')"));
  from = ByteLevel();
  from.merges = {"h  e"};
  EXPECT_THAT(Refused(from), HasSubstr("m.gguf: merge 0 must be two tokens"));
  from = ByteLevel();
  from.vocabulary.types[7] = 77;
  EXPECT_THAT(Refused(from), HasSubstr("token 7 has the type 77"));
  from = Pieces();
  from.vocabulary.scores.pop_back();
  EXPECT_THAT(Refused(from), HasSubstr("265 scores"));
  from = Pieces();
  from.vocabulary.scores[7] = NAN;
  EXPECT_THAT(Refused(from), HasSubstr("not a number"));
  EXPECT_THAT(Refused(Metadata()), HasSubstr("'tokenizer.ggml.tokens' is missing"));
}

// A directory's tokenizer, written as GGUF metadata and read back, gives the same ids.
void ExpectRoundTrip(const fs::path& directory, bool specials_differ = false) {
  SCOPED_TRACE(directory.string());
  const auto tokenizer = Tokenizer::Load(directory.string());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  const int64_t vocab = (*tokenizer)->vocab_size() + 3;
  const Result<GgufTokenizerText> text = ExportGgufTokenizer(directory.string(), vocab);
  ASSERT_TRUE(text.ok()) << text.error().message;
  ASSERT_EQ(std::ssize(text->tokens), vocab) << "padded to the model's vocabulary";
  GgufVocabulary from;
  from.path = "m.gguf";
  from.model = text->model;
  from.pre = text->pre;
  from.tokens.assign(text->tokens.begin(), text->tokens.end());
  from.merges.assign(text->merges.begin(), text->merges.end());
  from.scores = text->scores;
  from.types.assign(text->types.begin(), text->types.end());
  from.bos = text->bos;
  from.eos = text->eos;
  from.add_bos = text->add_bos;
  from.add_eos = text->add_eos;
  from.add_space_prefix = text->add_space_prefix;
  const auto again = Tokenizer::FromGguf(from);
  ASSERT_TRUE(again.ok()) << again.error().message;
  for (const char* sample :
       {"The quick brown fox's 12345 jumps!", "  two  spaces\n\nlines\t", "naïve é 漢字 🙂", "", "a"}) {
    const EncodeOptions options{.add_special = !specials_differ};
    EXPECT_EQ((*again)->Encode(sample, options).value(), (*tokenizer)->Encode(sample, options).value()) << sample;
  }
}

TEST(GgufTokenizer, ADirectoryIsWrittenAndReadBack) {
  ExpectRoundTrip(fs::path(INFINIGEN_TEST_DATA) / ".." / "models" / "infinigen-mini");
  ExpectRoundTrip(DataDir() / "vocab_and_merges");
  ExpectRoundTrip(DataDir() / "qwen2_files");
  ExpectRoundTrip(DataDir() / "sentencepiece_bpe");
}

TEST(GgufTokenizer, RealVocabulariesAreWrittenAndReadBack) {
  const auto corpus = CorpusTokenizers();
  if (!corpus) GTEST_SKIP() << "no corpus of tokenizers: set INFINIGEN_DATA";
  ExpectRoundTrip(*corpus / "llama3");
  ExpectRoundTrip(*corpus / "llama2");
}

TEST(GgufTokenizer, WhatTheFormatCannotExpressIsRefused) {
  const Result<GgufTokenizerText> text = ExportGgufTokenizer((DataDir() / "mixed_steps").string(), 1 << 16);
  ASSERT_FALSE(text.ok());
  EXPECT_THAT(text.error().message, HasSubstr("GGUF"));
}

}  // namespace
}  // namespace infinigen
