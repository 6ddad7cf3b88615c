// Loading of tokenizers: which files are read, the effect of the configuration files, and that damaged or hostile files
// give a one-line error.
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "sanitized.h"
#include "text/chat_prompt.h"
#include "text/tokenizer.h"
#include "text/unicode.h"
#include "text_testing.h"

namespace infinigen {
namespace {

using nlohmann::json;

// A complete small tokenizer.json.
json SmallTokenizer() {
  return json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [
      {"id": 0, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
    "post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
      "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}},
    "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
      "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
      "vocab": {"<s>": 0, "a": 1, "b": 2, "Ġ": 3, "ab": 4, "Ġab": 5},
      "merges": [["a", "b"], "Ġ ab"]}})");
}

class TokenizerJson : public testing::Test {
 protected:
  std::string ErrorWith(const json& file) {
    directory_.Write("tokenizer.json", file.dump());
    return LoadError(directory_.path());
  }
  Ids EncodeWith(const json& file, const std::string& text) {
    directory_.Write("tokenizer.json", file.dump());
    const auto tokenizer = LoadOrFail(directory_.path());
    return tokenizer ? *tokenizer->Encode(text) : Ids{};
  }
  TempDir directory_;
};

TEST_F(TokenizerJson, ReadsBothFormsOfMerges) {
  EXPECT_EQ(EncodeWith(SmallTokenizer(), "ab ab<s>a"), (Ids{0, 4, 5, 0, 1}));
}

TEST_F(TokenizerJson, TheOrderOfSectionsDoesNotMatter) {
  const json file = SmallTokenizer();
  nlohmann::ordered_json turned;
  turned["model"]["merges"] = file["model"]["merges"];
  for (const auto& item : file["model"].items()) turned["model"][item.key()] = item.value();
  for (const auto& item : file.items())
    if (item.key() != "model") turned[item.key()] = item.value();
  directory_.Write("tokenizer.json", turned.dump(1));
  EXPECT_EQ(*LoadOrFail(directory_.path())->Encode("ab ab"), (Ids{0, 4, 5}));
}

TEST_F(TokenizerJson, RefusesUnknownComponentsByName) {
  const std::vector<std::pair<std::string, std::string>> sections = {{"normalizer", "Precompiled"},
                                                                     {"pre_tokenizer", "BertPreTokenizer"},
                                                                     {"post_processor", "Mystery"},
                                                                     {"decoder", "CTC"}};
  for (const auto& [section, type] : sections) {
    json file = SmallTokenizer();
    file[section] = {{"type", type}};
    const std::string error = ErrorWith(file);
    EXPECT_NE(error.find("tokenizer.json: " + section + " type '" + type + "' is not supported"), std::string::npos)
        << error;
  }
  json file = SmallTokenizer();
  file["model"]["type"] = "Unigram";
  EXPECT_NE(ErrorWith(file).find("model type 'Unigram' is not supported"), std::string::npos);
}

// Messages quote names from the file shortened, on one line, as valid UTF-8.
TEST_F(TokenizerJson, QuotesForeignNamesEscaped) {
  const std::string foreign = std::string(62, 'x') + "漢\n\x1b[2J" + std::string(10'000, 'y');
  const auto change = [](const std::string& pointer, const json& value) {
    json file = SmallTokenizer();
    file[json::json_pointer(pointer)] = value;
    return file;
  };
  for (const json& file :
       {change("/normalizer", {{"type", foreign}}), change("/pre_tokenizer/" + foreign, 1), change("/" + foreign, 1),
        change("/model/" + foreign, json::array()), change("/model/vocab/" + foreign, -1),
        change("/model/vocab/" + foreign, 99999999), change("/model/unk_token", foreign),
        change("/added_tokens/0", {{"content", foreign}, {"id", 9}}), change("/model/type", foreign),
        change("/post_processor/single/0/SpecialToken/id", foreign)}) {
    const std::string error = ErrorWith(file);
    EXPECT_LT(error.size(), 400u) << error;
    EXPECT_NE(error.find("xxxx"), std::string::npos) << error;
    EXPECT_EQ(ValidUtf8Prefix(error), error.size()) << error;
    for (const char c : error) EXPECT_GE(static_cast<unsigned char>(c), 0x20) << error;
  }
}

TEST_F(TokenizerJson, AnIdThatIsNullIsNoId) {
  json file = SmallTokenizer();
  file["added_tokens"][0]["id"] = nullptr;
  EXPECT_NE(ErrorWith(file).find("added token: field 'id' must be a whole number"), std::string::npos);
}

TEST_F(TokenizerJson, BytesBehindAZeroByteAreNotIgnored) {
  directory_.Write("tokenizer.json", SmallTokenizer().dump() + std::string("\0{}", 3));
  EXPECT_NE(LoadError(directory_.path()).find("zero byte"), std::string::npos);
}

TEST_F(TokenizerJson, RefusesUnknownOptionsAndWrongValues) {
  const auto change = [](const char* pointer, const json& value) {
    json file = SmallTokenizer();
    file[json::json_pointer(pointer)] = value;
    return file;
  };
  EXPECT_NE(ErrorWith(change("/pre_tokenizer/surprise", 1)).find("option 'surprise'"), std::string::npos);
  EXPECT_NE(ErrorWith(change("/model/surprise", 1)).find("option 'surprise'"), std::string::npos);
  EXPECT_NE(ErrorWith(change("/surprise", 1)).find("section 'surprise'"), std::string::npos);
  EXPECT_NE(ErrorWith(change("/model/dropout", 0.1)).find("dropout"), std::string::npos);
  EXPECT_NE(ErrorWith(change("/model/end_of_word_suffix", "</w>")).find("end_of_word_suffix"), std::string::npos);
  EXPECT_NE(ErrorWith(change("/model/vocab/b", 1)).find("have the same id 1"), std::string::npos);
  EXPECT_NE(ErrorWith(change("/model/vocab/b", -3)).find("must be a whole number"), std::string::npos);
  EXPECT_NE(ErrorWith(change("/model/vocab/b", 99999999)).find("ids from 0 to"), std::string::npos);
  EXPECT_NE(ErrorWith(change("/model/merges/0", "a z")).find("merge 0: token 'z' is not in the vocabulary"),
            std::string::npos);
  EXPECT_NE(ErrorWith(change("/model/merges/0", "a b c")).find("one space"), std::string::npos);
  EXPECT_NE(ErrorWith(change("/model/merges/0", json::array({"a"}))).find("a merge must be"), std::string::npos);
  EXPECT_NE(ErrorWith(change("/model/unk_token", "?")).find("unk_token"), std::string::npos);
  EXPECT_NE(ErrorWith(change("/added_tokens/0/id", 9)).find("has id 9"), std::string::npos);
  EXPECT_NE(ErrorWith(change("/post_processor/special_tokens/<s>/ids/0", 77)).find("outside the vocabulary"),
            std::string::npos);
  EXPECT_EQ(ErrorWith(change("/model/vocab/c", 500)), "loaded");  // ids may have gaps
  EXPECT_EQ(ErrorWith(change("/truncation", {{"max_length", 10}})), "loaded");
}

TEST_F(TokenizerJson, HostilePatternsEndInAnError) {
  json file = SmallTokenizer();
  file["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"Regex", "(?:a|a)*(?!a|$).{5}"}}}, {"behavior", "Isolated"}, {"invert", false}};
  directory_.Write("tokenizer.json", file.dump());
  const auto ids = LoadOrFail(directory_.path())->Encode(std::string(5000, 'a') + "x");
  ASSERT_FALSE(ids.ok());
  EXPECT_NE(ids.error().message.find("cannot be matched"), std::string::npos);
  file["pre_tokenizer"]["pattern"] = {{"Regex", "("}};
  EXPECT_NE(ErrorWith(file).find("is not a valid regular expression"), std::string::npos);
}

TEST_F(TokenizerJson, RefusesStepsThatBlowUpText) {
  json file = SmallTokenizer();
  const json step = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aaaaaaaaaa"}};
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", {step, step, step}}};
  EXPECT_NE(ErrorWith(file).find("times longer"), std::string::npos);
}

TEST(TokenizerDirectory, SaysWhatItLookedFor) {
  TempDir directory;
  const std::string error = LoadError(directory.path());
  EXPECT_NE(error.find(directory.path().string()), std::string::npos);
  for (const char* name : {"tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt"})
    EXPECT_NE(error.find(name), std::string::npos) << error;
  EXPECT_NE(LoadError(directory.path() / "nowhere").find("not a directory"), std::string::npos);
}

TEST(TokenizerDirectory, ConfigurationNamesRolesAndTemplates) {
  TempDir directory;
  directory.Write("tokenizer.json", SmallTokenizer().dump());
  directory.Write("config.json", R"({"bos_token_id": 4, "eos_token_id": 5})");
  auto tokenizer = LoadOrFail(directory.path());
  EXPECT_FALSE(tokenizer->bos());
  EXPECT_EQ(tokenizer->chat_template(), "");
  directory.Write(
      "tokenizer_config.json",
      R"({"bos_token": "<s>", "eos_token": {"content": "<end>", "__type": "AddedToken"}, "add_bos_token": false,
                      "extra_special_tokens": ["<x>"], "chat_template": "{{ messages }}"})");
  tokenizer = LoadOrFail(directory.path());
  EXPECT_EQ(tokenizer->bos(), 0);
  EXPECT_EQ(tokenizer->eos(), 6);  // not in the vocabulary, so it gets the next id
  EXPECT_EQ(tokenizer->IdOf("<x>"), 7);
  EXPECT_EQ(*tokenizer->Encode("a<end><x>"), (Ids{0, 1, 6, 7}));  // tokenizer.json decides whether BOS is added
  EXPECT_EQ(tokenizer->chat_template(), "{{ messages }}");
  directory.Write("chat_template.jinja", "from a file");
  EXPECT_EQ(LoadOrFail(directory.path())->chat_template(), "from a file");
}

// As transformers reads them: the template named default is used; files replace those of tokenizer_config.json.
TEST(TokenizerDirectory, NamedChatTemplates) {
  TempDir directory;
  directory.Write("tokenizer.json", SmallTokenizer().dump());
  directory.Write("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "with tools"},
                                               {"name": "default", "template": "plain"}]})");
  auto tokenizer = LoadOrFail(directory.path());
  EXPECT_EQ(tokenizer->chat_template(), "plain");
  EXPECT_EQ(tokenizer->other_templates(), std::vector<std::string>{"tool_use"});

  directory.Write("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "with tools"},
                                               {"name": "rag", "template": "with documents"}]})");
  tokenizer = LoadOrFail(directory.path());
  EXPECT_EQ(tokenizer->chat_template(), "");
  const auto prompt = ChatPrompt::Make(*tokenizer);
  ASSERT_FALSE(prompt.ok());
  EXPECT_EQ(prompt.error().message, (directory.path() / "tokenizer_config.json").string() +
                                        ": none of the model's chat templates is named 'default'; their names are "
                                        "'rag, tool_use'");

  fs::create_directory(directory.path() / "additional_chat_templates");
  directory.Write("additional_chat_templates/tool_use.jinja", "file with tools");
  directory.Write("additional_chat_templates/README.md", "no template");
  EXPECT_EQ(LoadOrFail(directory.path())->chat_template(), "");
  directory.Write("chat_template.jinja", "file");
  tokenizer = LoadOrFail(directory.path());
  EXPECT_EQ(tokenizer->chat_template(), "file");
  EXPECT_EQ(tokenizer->other_templates(), std::vector<std::string>{"tool_use"});
}

TEST(TokenizerDirectory, LegacyFilesAddTokens) {
  TempDir directory;
  directory.Write("tokenizer.json", SmallTokenizer().dump());
  directory.Write("special_tokens_map.json", R"({"eos_token": "<end>", "additional_special_tokens": ["<y>"]})");
  directory.Write("added_tokens.json", R"({"<end>": 6, "plain": 7})");
  const auto tokenizer = LoadOrFail(directory.path());
  EXPECT_EQ(tokenizer->eos(), 6);
  EXPECT_TRUE(tokenizer->IsSpecial(6));
  EXPECT_EQ(tokenizer->IdOf("plain"), 7);
  EXPECT_FALSE(tokenizer->IsSpecial(7));
  EXPECT_EQ(tokenizer->IdOf("<y>"), 8);
}

TEST(TokenizerDirectory, LlamaTokenizerPrefixesTheFirstPieceOnly) {
  const fs::path model = DataDir() / "sentencepiece_bpe" / "tokenizer.model";
  TempDir directory;
  fs::copy_file(model, directory.path() / "tokenizer.model");
  directory.Write("tokenizer_config.json", R"({"tokenizer_class": "LlamaTokenizer", "add_bos_token": true})");
  const auto first = LoadOrFail(directory.path());
  const TokenId bos = *first->IdOf("<s>");
  const TokenId ka = *first->IdOf("▁ka");
  const auto encoded = *first->Encode("ka</s>ka");
  EXPECT_EQ(encoded[0], bos);
  EXPECT_EQ(encoded[1], ka);
  EXPECT_NE(encoded[3], ka);
  EXPECT_EQ(first->Decode(encoded, true), "kaka");
  directory.Write("tokenizer_config.json",
                  R"({"tokenizer_class": "LlamaTokenizer", "legacy": true, "add_eos_token": true})");
  EXPECT_EQ(*LoadOrFail(directory.path())->Encode("ka</s>ka"), (Ids{ka, 2, ka, 2}));
}

// Damaged files: truncations and flipped bits of each committed file. Each loads or gives a one-line error.
class DamagedFile : public testing::TestWithParam<std::pair<std::string, std::string>> {
 protected:
  void Try(const std::string& content) {
    directory_.Write(GetParam().second, content);
    const auto tokenizer = Tokenizer::Load(directory_.path().string());
    if (!tokenizer.ok()) {
      const std::string& message = tokenizer.error().message;
      ASSERT_NE(message.find(directory_.path().string()), std::string::npos) << message;
      ASSERT_EQ(message.find('\n'), std::string::npos);
      return;
    }
    // The damaged tokenizer must work without a crash.
    if (const auto ids = (*tokenizer)->Encode("karato 12 <s>é\xFF  x"); ids.ok()) (*tokenizer)->Decode(*ids, false);
  }
  void SetUp() override {
    for (const auto& entry : fs::directory_iterator(DataDir() / GetParam().first))
      fs::copy(entry.path(), directory_.path() / entry.path().filename());
    whole_ = ReadFile(DataDir() / GetParam().first / GetParam().second);
  }
  TempDir directory_;
  std::string whole_;
};

TEST_P(DamagedFile, Truncated) {
  std::mt19937_64 random(2);
  const size_t step = std::max<size_t>(1, whole_.size() / 400);
  for (size_t length = 0; length < whole_.size(); length += 1 + random() % (2 * step)) Try(whole_.substr(0, length));
  for (size_t length = 0; length < std::min<size_t>(64, whole_.size()); ++length) Try(whole_.substr(0, length));
}

TEST_P(DamagedFile, FlippedBits) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 600; ++round) {
    std::string content = whole_;
    for (size_t flips = 1 + random() % 3; flips > 0; --flips)
      content[random() % content.size()] ^= static_cast<char>(1U << (random() % 8));
    Try(content);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, DamagedFile,
    testing::Values(std::pair("byte_level", "tokenizer.json"), std::pair("split_regex", "tokenizer.json"),
                    std::pair("legacy_prefix", "tokenizer.json"), std::pair("mixed_steps", "tokenizer.json"),
                    std::pair("tiktoken_ranks", "tokenizer.model"), std::pair("sentencepiece_bpe", "tokenizer.model"),
                    std::pair("vocab_and_merges", "vocab.json"), std::pair("vocab_and_merges", "merges.txt"),
                    std::pair("vocab_and_merges", "tokenizer_config.json")));

// Files made to use much memory. Each is loaded in its own process, whose peak may grow by the file's size + 64 MiB.
struct HostileFile {
  const char* name;
  const char* head;
  std::string unit;
  size_t bytes;
};

uint64_t PeakBytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

// Writes head, then unit repeatedly, without holding the file in memory.
void WriteHostile(const fs::path& path, const HostileFile& file) {
  std::ofstream out(path, std::ios::binary);
  out << file.head;
  std::string block;
  while (block.size() < 65536) block += file.unit;
  for (size_t written = 0; written < file.bytes; written += block.size()) out << block;
}

TEST(HostileFiles, StayWithinTheirSizeAnd64MiB) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory would be counted";
  constexpr size_t kMiB = 1 << 20;
  const std::vector<HostileFile> files = {
      {"tokenizer.json", "[", "0,", 48 * kMiB},
      {"tokenizer.json", "", "[", 48 * kMiB},
      {"tokenizer.json", "{\"added_tokens\":[", "{},", 48 * kMiB},
      {"tokenizer.json", "{\"version\":[", "[],", 48 * kMiB},
      {"tokenizer.json", "{\"version\":\"", "x", 48 * kMiB},
      {"tokenizer.json", "{\"model\":", "  \n", 48 * kMiB},
      {"tokenizer.json", "{\"model\":{\"merges\":[", "\"a b\",", 48 * kMiB},
      {"tokenizer.json", "{\"model\":{\"merges\":[", "true,", 48 * kMiB},
      {"tokenizer.json", "", "1", 48 * kMiB},
      {"tokenizer.json", "", "[", 100 * kMiB},
      {"vocab.json", "{", "\"a\":1,", 48 * kMiB},
      {"vocab.json", "[", "[],", 48 * kMiB},
      {"merges.txt", "", "a b\n", 48 * kMiB},
      {"merges.txt", "", "x", 48 * kMiB},
      {"tokenizer.model", "", "\n", 15 * kMiB},
      {"tokenizer.model", "", "IQ== 0\n", 15 * kMiB},
      {"tokenizer.model", "", std::string("\x0A\x00", 2), 15 * kMiB},
      {"tokenizer.model", "", "x", 100 * kMiB},
      {"tokenizer_config.json", "{\"x\":[", "[],", 4 * kMiB - 65536 * 2},
      {"tokenizer_config.json", "{\"x\":", "{\"\":", 4 * kMiB - 65536 * 2},
      {"tokenizer_config.json", "{\"x\":[", "{},", 4 * kMiB - 65536 * 2},
      {"tokenizer_config.json", "", " ", 40 * kMiB},
  };
  for (const HostileFile& file : files) {
    TempDir directory;
    for (const auto& entry : fs::directory_iterator(DataDir() / "vocab_and_merges"))
      fs::copy(entry.path(), directory.path() / entry.path().filename());
    WriteHostile(directory.path() / file.name, file);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const uint64_t before = PeakBytes();
      const bool loaded = Tokenizer::Load(directory.path().string()).ok();
      const uint64_t limit = fs::file_size(directory.path() / file.name) + 64 * kMiB;
      _exit(loaded ? 2 : PeakBytes() - before > limit ? 1 : 0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
        << file.name << " starting with " << file.head << file.unit.substr(0, 8) << ": status " << status;
  }
}

// The largest tables that a file can cause: the maximum number of tokens and merges.
TEST(HostileFiles, LargestTablesStayWithinTheirSizeAnd64MiB) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory would be counted";
  TempDir directory;
  {
    std::ofstream out(directory.path() / "tokenizer.json", std::ios::binary);
    out << R"({"model":{"type":"BPE","vocab":{)";
    // 1,023 single characters and every pair of them: nearly 2^20 tokens, and a merge for each pair.
    std::vector<std::string> letters;
    for (char32_t c = 0x4E00; letters.size() < 1023; ++c) {
      letters.emplace_back();
      AppendUtf8(c, letters.back());
    }
    int id = 0;
    for (const std::string& letter : letters) {
      out << (id == 0 ? "\"" : ",\"") << letter << "\":" << id;
      ++id;
    }
    for (const std::string& left : letters)
      for (const std::string& right : letters) out << ",\"" << left << right << "\":" << id++;
    out << R"(},"merges":[)";
    bool first = true;
    for (const std::string& left : letters)
      for (const std::string& right : letters) {
        out << (first ? "\"" : ",\"") << left << ' ' << right << '"';
        first = false;
      }
    out << "]}}";
  }
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    mallopt(M_MMAP_THRESHOLD, 128 << 10);  // as in a new process; glibc raises it when large blocks were freed
    const uint64_t before = PeakBytes();
    const bool loaded = Tokenizer::Load(directory.path().string()).ok();
    const uint64_t limit = fs::file_size(directory.path() / "tokenizer.json") + (64 << 20);
    std::fprintf(stderr, "largest tables: %.1f MiB for a file of %.1f MiB\n",
                 static_cast<double>(PeakBytes() - before) / (1 << 20), static_cast<double>(limit) / (1 << 20) - 64);
    _exit(!loaded ? 2 : PeakBytes() - before > limit ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(HostileFiles, AFifoIsNoFile) {
  TempDir directory;
  ASSERT_EQ(std::system(("mkfifo " + (directory.path() / "tokenizer.json").string()).c_str()), 0);
  EXPECT_NE(LoadError(directory.path()).find("not a regular file"), std::string::npos);
}

}  // namespace
}  // namespace infinigen
