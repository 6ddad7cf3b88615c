// Shared by the tokenizer targets: a specification that a parser has accepted must also run.
#pragma once

#include <cstdlib>
#include <string_view>
#include <utility>

#include "text/pipeline.h"

namespace infinigen {

inline void RunSpec(TokenizerSpec spec) {
  const auto pipeline = Pipeline::Create(std::move(spec));
  if (!pipeline.ok()) return;
  constexpr std::string_view kText = "It's  ka 12\n<s>\xC3\xA9\xFF\xE2\x96\x81 x<|eot|>";
  const auto ids = (*pipeline)->Encode(kText, {.add_special = true, .parse_special = true});
  if (!ids.ok()) return;
  DecodeState state;
  std::string decoded;
  for (const TokenId id : *ids) {
    if (id < 0 || id >= (*pipeline)->vocabulary().size()) std::abort();
    (*pipeline)->decoder().Append((*pipeline)->vocabulary().Text(id), state, decoded);
  }
}

}  // namespace infinigen
