// Reads prompts, as text or token ids, from a flag, a file, standard input, or a JSON-lines file of many. One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace infinigen {

struct PromptSpec {
  std::string text;          // unless `ids` is set
  std::vector<int32_t> ids;  // token ids; nothing is added to them
  bool has_ids = false;
  int64_t line = 0;              // line in the prompts file, from 1; 0 without such a file
  std::optional<int64_t> n;      // tokens to generate; overrides --predict
  std::optional<uint64_t> seed;  // overrides --seed
};

// Parses one JSON value per line: "text", [1,2,3], {"prompt": "text"} or {"prompt_ids": [1,2,3]}; an object may also
// have "n" (as --predict) and "seed". Blank lines are skipped. Memory stays within a small multiple of the text. `path`
// is used only in messages.
Result<std::vector<PromptSpec>> ParsePromptLines(std::string_view text, const std::string& path);

// Reads a whole file, pipe, or standard input ("-") as bytes.
Result<std::string> ReadText(const std::string& path);

// The flags that name a prompt; at most one is set.
struct PromptFlags {
  std::optional<std::string> text;  // --prompt; may be empty
  std::string file;                 // --file
  std::string lines_file;           // --prompts
  std::vector<int64_t> ids;         // --prompt-ids
  bool has_ids = false;

  bool any() const { return text || !file.empty() || !lines_file.empty() || has_ids; }
};

// Reads the prompts that the flags name; standard input when no flag is set.
Result<std::vector<PromptSpec>> ReadPrompts(const PromptFlags& flags);

}  // namespace infinigen
