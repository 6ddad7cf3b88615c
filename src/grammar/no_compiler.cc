// The compiler of a build without xgrammar.
#include "grammar/compiler.h"

namespace infinigen {

Result<std::unique_ptr<GrammarCompiler>> GrammarCompiler::Make(const Tokenizer&, int64_t, std::span<const int64_t>) {
  return Unsupported(
      "this build has no grammars: it was made without xgrammar (scripts/get_xgrammar.sh, then build again)");
}

}  // namespace infinigen
