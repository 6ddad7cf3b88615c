#include "server/grammars.h"

#include <utility>

namespace infinigen {

bool MayHaveGrammar(std::string_view body) {
  for (const std::string_view name : {"\"response_format\"", "\"grammar\"", "\"tools\""})
    if (body.find(name) != std::string_view::npos) return true;
  return false;
}

ApiResult<std::shared_ptr<const CompiledGrammar>> Grammars::Compile(const GrammarSource& source,
                                                                    const Tokenizer* tokenizer, int64_t vocab,
                                                                    std::span<const int64_t> eos_ids) {
  const char* parameter = source.kind == GrammarSource::Kind::kEbnf ? "grammar" : "response_format";
  if (tokenizer == nullptr)
    return ApiError{.message = "this model has no tokenizer, so its answers cannot follow a grammar",
                    .code = "unsupported_parameter",
                    .parameter = parameter};
  const std::lock_guard lock(mutex_);
  if (!compiler_) compiler_ = GrammarCompiler::Make(*tokenizer, vocab, eos_ids);
  if (!compiler_->ok())
    return ApiError{.message = compiler_->error().message, .code = "unsupported_parameter", .parameter = parameter};
  Result<std::shared_ptr<const CompiledGrammar>> made = (**compiler_)->Compile(source);
  if (!made.ok()) return ApiError{.message = made.error().message, .code = "invalid_grammar", .parameter = parameter};
  return std::move(*made);
}

}  // namespace infinigen
