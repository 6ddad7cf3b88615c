// GrammarCompiler by xgrammar. This file alone includes its headers. Its functions throw; nothing is thrown from here.
#include <dlpack/dlpack.h>
#include <fmt/format.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <chrono>
#include <list>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "grammar/compiler.h"
#include "grammar/schema_formats.h"

namespace infinigen {
namespace {

constexpr size_t kMostMessageBytes = 300;
// An ambiguous grammar (e ::= e "+" e) takes longer with every token: 10 ms after 1,200 of them. It runs on the
// engine's thread, so a request whose grammar takes so long in so many calls ends.
constexpr std::chrono::milliseconds kSlow{100};
constexpr int kMostSlow = 10;

// What xgrammar says of a fault, without the time and the place in its own sources: "[12:00:00] /…/a.cc:7: reason".
std::string Reason(const std::exception& caught) {
  std::string_view text = caught.what();
  const size_t file = text.find(".cc:");
  const size_t colon = file == std::string_view::npos ? file : text.find(": ", file);
  if (colon != std::string_view::npos) text.remove_prefix(colon + 2);
  return Escaped(OneLine(text), kMostMessageBytes);
}

class Constraint : public TokenConstraint {
 public:
  explicit Constraint(const xgrammar::CompiledGrammar& grammar)
      : matcher_(grammar, /*override_stop_tokens=*/std::nullopt, /*terminate_without_stop_token=*/false,
                 /*max_rollback_tokens=*/0) {}

  bool Fill(std::span<uint32_t> mask) override {
    int64_t words = std::ssize(mask);
    DLTensor tensor{.data = mask.data(),
                    .device = {.device_type = kDLCPU, .device_id = 0},
                    .ndim = 1,
                    .dtype = {.code = kDLInt, .bits = 32, .lanes = 1},
                    .shape = &words,
                    .strides = nullptr,
                    .byte_offset = 0};
    return InTime([&] {
      if (!matcher_.FillNextTokenBitmask(&tensor)) std::fill(mask.begin(), mask.end(), ~uint32_t{0});
      return true;
    });
  }

  bool Accept(int32_t token) override {
    return InTime([&] { return matcher_.AcceptToken(token); });
  }

 private:
  using Clock = std::chrono::steady_clock;

  // The result of f; false where it throws, and for a grammar that is slow too often.
  template <class F>
  bool InTime(F&& f) {
    const Clock::time_point start = Clock::now();
    try {
      const bool done = f();
      slow_ += Clock::now() - start > kSlow ? 1 : 0;
      return done && slow_ <= kMostSlow;
    } catch (const std::exception&) {
      return false;
    }
  }

  int slow_ = 0;
  xgrammar::GrammarMatcher matcher_;
};

class Compiled : public CompiledGrammar {
 public:
  explicit Compiled(xgrammar::CompiledGrammar grammar) : grammar_(std::move(grammar)) {}
  std::unique_ptr<TokenConstraint> Start() const override { return std::make_unique<Constraint>(grammar_); }
  size_t bytes() const { return grammar_.MemorySizeBytes(); }

 private:
  xgrammar::CompiledGrammar grammar_;
};

// The bytes of every token inside a text; special tokens have none, so that no grammar allows them. `json`: nor have
// tokens with control characters. JSON has none here: white space is fixed, and in a string they are escaped. xgrammar
// 0.2.8 lets them through in strings of bounded length, which are then no JSON.
std::vector<std::string> TokenTexts(const Tokenizer& tokenizer, int64_t vocab, bool json) {
  std::vector<std::string> texts(static_cast<size_t>(vocab));
  const int64_t known = std::min<int64_t>(vocab, tokenizer.vocab_size());
  for (int64_t i = 0; i < known; ++i) {
    const TokenId id = static_cast<TokenId>(i);
    if (tokenizer.IsSpecial(id)) continue;
    // Some tokenizers drop the space before the first word of a text. Decoding the token twice shows its text inside.
    const std::string once = tokenizer.Decode(std::vector<TokenId>{id}, /*skip_special=*/false);
    const std::string twice = tokenizer.Decode(std::vector<TokenId>{id, id}, /*skip_special=*/false);
    std::string text = twice.size() >= once.size() ? twice.substr(once.size()) : once;
    const auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20; };
    if (json && std::any_of(text.begin(), text.end(), control)) continue;
    texts[static_cast<size_t>(i)] = std::move(text);
  }
  return texts;
}

class Compiler : public GrammarCompiler {
 public:
  Compiler(const Tokenizer& tokenizer, int64_t vocab, const std::vector<int32_t>& eos_ids)
      : json_(MakeFor(tokenizer, vocab, eos_ids, /*json=*/true)),
        any_(MakeFor(tokenizer, vocab, eos_ids, /*json=*/false)) {}

  Result<std::shared_ptr<const CompiledGrammar>> Compile(const GrammarSource& source) override {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(kept_, source, &Kept::source);
    if (found != kept_.end()) {
      kept_.splice(kept_.begin(), kept_, found);
      return std::shared_ptr<const CompiledGrammar>(found->grammar);
    }
    std::shared_ptr<const Compiled> made;
    try {
      made = std::make_shared<const Compiled>(Make(source));
    } catch (const std::bad_alloc&) {
      throw;  // the server answers 503
    } catch (const std::exception& caught) {
      return Invalid("the grammar does not compile: {}", Reason(caught));
    }
    if (made->bytes() > kMostCompiledBytes)
      return Exhausted("the grammar takes {} MiB when it is compiled, the limit is {}", made->bytes() >> 20,
                       kMostCompiledBytes >> 20);
    kept_.push_front({source, made});
    bytes_ += SizeOf(kept_.front());
    while (bytes_ > kGrammarCacheBytes && kept_.size() > 1) {
      bytes_ -= SizeOf(kept_.back());
      kept_.pop_back();
    }
    return std::shared_ptr<const CompiledGrammar>(made);
  }

 private:
  struct Kept {
    GrammarSource source;
    std::shared_ptr<const Compiled> grammar;
  };
  static size_t SizeOf(const Kept& kept) { return kept.source.text.size() + kept.grammar->bytes(); }

  static xgrammar::GrammarCompiler MakeFor(const Tokenizer& tokenizer, int64_t vocab,
                                           const std::vector<int32_t>& eos_ids, bool json) {
    const xgrammar::TokenizerInfo info(TokenTexts(tokenizer, vocab, json), xgrammar::VocabType::RAW,
                                       static_cast<int>(vocab), eos_ids);
    return xgrammar::GrammarCompiler(info, /*max_threads=*/1, /*cache_enabled=*/false);
  }

  // White space is fixed, as json.dumps writes it: a model that may write spaces at will does so without end.
  xgrammar::CompiledGrammar Make(const GrammarSource& source) {
    if (source.kind == GrammarSource::Kind::kEbnf) return any_.CompileGrammar(source.text);
    auto schema = nlohmann::ordered_json::parse(source.text, nullptr, /*allow_exceptions=*/false);
    PrepareSchema(schema);
    return json_.CompileJSONSchema(schema.dump(), /*any_whitespace=*/false, /*indent=*/std::nullopt,
                                   std::make_pair(std::string(", "), std::string(": ")), /*strict_mode=*/true);
  }

  std::mutex mutex_;
  xgrammar::GrammarCompiler json_, any_;
  std::list<Kept> kept_;  // most recently used first
  size_t bytes_ = 0;
};

}  // namespace

Result<std::unique_ptr<GrammarCompiler>> GrammarCompiler::Make(const Tokenizer& tokenizer, int64_t vocab,
                                                               std::span<const int64_t> eos_ids) {
  std::vector<int32_t> eos;
  for (const int64_t id : eos_ids)
    if (id >= 0 && id < vocab) eos.push_back(static_cast<int32_t>(id));
  if (eos.empty()) return Unsupported("the model has no token that ends a text, so an answer could not end");
  try {
    return std::unique_ptr<GrammarCompiler>(std::make_unique<Compiler>(tokenizer, vocab, eos));
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& caught) {
    return Unsupported("this tokenizer does not work with grammars: {}", Reason(caught));
  }
}

}  // namespace infinigen
