// Reads prompts from a flag, a file, standard input, or a file of many (JSON lines), as text or token ids. One thread.
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
  std::vector<int32_t> ids;  // token ids, used as they are
  bool has_ids = false;
  int64_t line = 0;              // in the file of prompts, from 1; 0 when there is none
  std::optional<int64_t> n;      // tokens to generate, instead of the command's
  std::optional<uint64_t> seed;  // likewise
};

// One JSON value a line: "text", [1,2,3], {"prompt": "text"} or {"prompt_ids": [1,2,3]}; an object may also hold "n"
// (as --predict) and "seed". Blank lines are skipped. Memory stays within a small multiple of the text. `path` is used
// in messages only.
Result<std::vector<PromptSpec>> ParsePromptLines(std::string_view text, const std::string& path);

// The whole of a file, a pipe, or standard input ("-"), as bytes.
Result<std::string> ReadText(const std::string& path);

// The flags that name a prompt; at most one is set.
struct PromptFlags {
  std::optional<std::string> text;  // --prompt, may be the empty text
  std::string file;                 // --file
  std::string lines_file;           // --prompts
  std::vector<int64_t> ids;         // --prompt-ids
  bool has_ids = false;

  bool any() const { return text || !file.empty() || !lines_file.empty() || has_ids; }
};

// Reads the prompts that the flags name; standard input when no flag is set.
Result<std::vector<PromptSpec>> ReadPrompts(const PromptFlags& flags);

}  // namespace infinigen
