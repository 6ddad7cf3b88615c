// Grammars: the grammars of one model's answers, compiled when requests ask for them. Any thread but the engine's.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string_view>

#include "grammar/compiler.h"
#include "server/completion_request.h"

namespace infinigen {

// Whether a body may ask for a grammar. Cheap; a body that only mentions the words is read a little later.
bool MayHaveGrammar(std::string_view body);

class Grammars {
 public:
  // Makes the compiler at the first call: it reads the whole vocabulary.
  ApiResult<std::shared_ptr<const CompiledGrammar>> Compile(const GrammarSource& source, const Tokenizer* tokenizer,
                                                            int64_t vocab, std::span<const int64_t> eos_ids);

 private:
  std::mutex mutex_;
  std::optional<Result<std::unique_ptr<GrammarCompiler>>> compiler_;
};

}  // namespace infinigen
