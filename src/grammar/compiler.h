// GrammarCompiler: turns a JSON schema or a grammar into token constraints for one tokenizer. Compiled grammars are
// kept, the least recently used leave first. The work is done by xgrammar; a build without it has no compiler
// (GrammarCompiler::Make says so).
//
// Compile takes milliseconds to a second and must not run on the engine's thread; any other thread may call it, one at
// a time does the work. Start is cheap and may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "engine/constraint.h"
#include "text/tokenizer.h"

namespace infinigen {

struct GrammarSource {
  enum class Kind : uint8_t {
    kJsonSchema,  // text of a schema that CheckSchema accepts
    kEbnf,        // a grammar as GBNF, with a rule "root"
  };
  Kind kind = Kind::kJsonSchema;
  std::string text;
  bool operator==(const GrammarSource&) const = default;
};

// Bounds of compiled grammars that are kept, and of one of them.
inline constexpr size_t kGrammarCacheBytes = 64 << 20;
inline constexpr size_t kMostCompiledBytes = 32 << 20;

class CompiledGrammar {
 public:
  virtual ~CompiledGrammar() = default;
  // A constraint at the beginning of a text.
  virtual std::unique_ptr<TokenConstraint> Start() const = 0;
};

class GrammarCompiler {
 public:
  virtual ~GrammarCompiler() = default;

  // `tokenizer` outlives the compiler. `vocab`: number of logits; ids beyond the tokenizer's are never allowed.
  static Result<std::unique_ptr<GrammarCompiler>> Make(const Tokenizer& tokenizer, int64_t vocab,
                                                       std::span<const int64_t> eos_ids);

  // kInvalid where the grammar is malformed, kExhausted where it becomes too large.
  virtual Result<std::shared_ptr<const CompiledGrammar>> Compile(const GrammarSource& source) = 0;
};

}  // namespace infinigen
