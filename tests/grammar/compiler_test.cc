// Texts that follow compiled grammars token by token, with the shipped model's tokenizer. Skipped in a build without
// xgrammar.
#include "grammar/compiler.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace infinigen {
namespace {

using Kind = GrammarSource::Kind;

class GrammarTest : public testing::Test {
 protected:
  void SetUp() override {
    tokenizer_ = Tokenizer::Load(INFINIGEN_TEST_DATA "/../models/infinigen-mini").value();
    eos_ = {*tokenizer_->eos()};
    auto compiler = GrammarCompiler::Make(*tokenizer_, vocab(), eos_);
    if (!compiler.ok()) GTEST_SKIP() << compiler.error().message;
    compiler_ = std::move(*compiler);
  }
  int64_t vocab() const { return tokenizer_->vocab_size() + 5; }  // some logits have no token

  static bool Allows(const std::vector<uint32_t>& mask, int64_t token) {
    return (mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0;
  }

  // A text of tokens drawn at random among those that are allowed; empty if it does not end.
  std::string Draw(TokenConstraint& constraint, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<uint32_t> mask(TokenConstraint::MaskWords(vocab()));
    std::vector<TokenId> ids;
    for (int i = 0; i < 2000; ++i) {
      EXPECT_TRUE(constraint.Fill(mask));
      std::vector<int32_t> allowed;
      for (int32_t token = 0; token < vocab(); ++token)
        if (Allows(mask, token)) allowed.push_back(token);
      if (allowed.empty()) return "nothing is allowed after " + tokenizer_->Decode(ids, false);
      const int32_t token = allowed[random() % allowed.size()];
      EXPECT_LT(token, tokenizer_->vocab_size());
      if (token == eos_[0]) return tokenizer_->Decode(ids, false);
      EXPECT_FALSE(tokenizer_->IsSpecial(token));
      ids.push_back(token);
      EXPECT_TRUE(constraint.Accept(token));
    }
    return {};
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<int64_t> eos_;
  std::unique_ptr<GrammarCompiler> compiler_;
};

TEST_F(GrammarTest, TextsFollowTheSchema) {
  const auto grammar = compiler_->Compile({Kind::kJsonSchema, R"({"type":"object","properties":{
      "z":{"type":"string","minLength":2,"maxLength":6},"a":{"type":"integer","minimum":-5,"maximum":120},
      "list":{"type":"array","items":{"enum":["x","é",null]},"minItems":1,"maxItems":3}},
      "required":["z","a","list"],"additionalProperties":false})"});
  ASSERT_TRUE(grammar.ok()) << grammar.error().message;
  std::set<std::string> texts;
  for (uint32_t seed = 0; seed < 40; ++seed) {
    const std::unique_ptr<TokenConstraint> constraint = (*grammar)->Start();
    const std::string text = Draw(*constraint, seed);
    const auto json = nlohmann::ordered_json::parse(text, nullptr, false);
    ASSERT_TRUE(json.is_object()) << testing::PrintToString(text);
    EXPECT_EQ(json.size(), 3u);
    EXPECT_EQ(json.items().begin().key(), "z") << "properties come in the schema's order";
    EXPECT_TRUE(json["a"] >= -5 && json["a"] <= 120) << text;
    EXPECT_TRUE(json["list"].size() >= 1 && json["list"].size() <= 3) << text;
    texts.insert(text);
  }
  EXPECT_GT(texts.size(), 20u);
}

TEST_F(GrammarTest, FormatsAndPatternsAreExact) {
  const auto grammar = compiler_->Compile({Kind::kJsonSchema, R"({"type":"object","properties":{
      "format":{"type":"string","format":"ipv4"},"day":{"format":"date","type":"string"},
      "code":{"type":"string","pattern":"^a(b[0-9]+)?z$"}},
      "required":["format","day","code"]})"});
  ASSERT_TRUE(grammar.ok()) << grammar.error().message;
  const std::regex address("(0|[1-9][0-9]{0,2})(\\.(0|[1-9][0-9]{0,2})){3}");
  for (uint32_t seed = 0; seed < 30; ++seed) {
    const auto json = nlohmann::ordered_json::parse(Draw(*(*grammar)->Start(), seed), nullptr, false);
    ASSERT_TRUE(json.is_object());
    EXPECT_TRUE(std::regex_match(json["format"].get<std::string>(), address)) << json;
    const std::string day = json["day"].get<std::string>();
    EXPECT_EQ(day.size(), 10u);
    EXPECT_TRUE(std::regex_match(json["code"].get<std::string>(), std::regex("a(b[0-9]+)?z"))) << json;
    if (day.substr(5, 2) == "02") {
      EXPECT_LE(day.substr(8), "28");
    }
  }
}

TEST_F(GrammarTest, GrammarsAreFollowedAndFaultsNamed) {
  const auto grammar = compiler_->Compile({Kind::kEbnf, "root ::= (\"yes\" | \"no\") \" \" [0-9]{2}"});
  ASSERT_TRUE(grammar.ok()) << grammar.error().message;
  for (uint32_t seed = 0; seed < 10; ++seed) {
    const std::string text = Draw(*(*grammar)->Start(), seed);
    EXPECT_TRUE(text.size() == 5 || text.size() == 6) << text;
    EXPECT_TRUE(text.substr(0, 4) == "yes " || text.substr(0, 3) == "no ") << text;
  }
  for (const char* bad : {"root ::= (", "start ::= \"a\"", "root ::= other", "\x01"}) {
    const auto refused = compiler_->Compile({Kind::kEbnf, bad});
    ASSERT_FALSE(refused.ok()) << bad;
    EXPECT_EQ(refused.error().message.find('\n'), std::string::npos);
  }
}

TEST_F(GrammarTest, EqualSourcesAreCompiledOnce) {
  const GrammarSource source{Kind::kJsonSchema, R"({"type":"integer"})"};
  const auto first = compiler_->Compile(source), second = compiler_->Compile(source);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->get(), second->get());
  EXPECT_NE(compiler_->Compile({Kind::kEbnf, "root ::= \"a\""})->get(), first->get());
}

}  // namespace
}  // namespace infinigen
