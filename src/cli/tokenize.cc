// `infinigen tokenize`: converts text to token ids, and back.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/flags.h"
#include "cli/options.h"
#include "cli/prompts.h"
#include "runtime/model.h"
#include "runtime/report.h"
#include "runtime/requests.h"

namespace infinigen {
namespace {

struct TokenizeFlags {
  std::string model;
  PromptFlags input;
  bool no_special = false;
  bool json = false;
};

nlohmann::ordered_json TokensJson(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  nlohmann::ordered_json texts = nlohmann::ordered_json::array();
  for (const int32_t id : ids) texts.push_back(std::string(tokenizer.TokenText(id)));
  return {{"ids", ids}, {"tokens", std::move(texts)}, {"count", ids.size()}};
}

Result<int> Tokenize(const TokenizeFlags& flags) {
  ASSIGN_OR_RETURN(const std::string directory, FindModelHere(flags.model));
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, OpenTokenizer(directory));
  Output output;
  if (flags.input.has_ids) {
    const std::vector<int32_t> ids(flags.input.ids.begin(), flags.input.ids.end());
    for (size_t i = 0; i < ids.size(); ++i)
      if (ids[i] >= tokenizer->vocab_size())
        return Invalid("--ids: the id {} (number {}) is not in the vocabulary, which ends at {}", ids[i], i,
                       tokenizer->vocab_size() - 1);
    const std::string text = tokenizer->Decode(ids, /*skip_special=*/flags.no_special);
    if (flags.json) {
      nlohmann::ordered_json json = TokensJson(*tokenizer, ids);
      json["text"] = ReplaceInvalidUtf8(text);
      output.Write(Dump(json));
    } else {
      output.Write(text + "\n");  // the exact bytes, even if they are not valid UTF-8
    }
  } else {
    ASSIGN_OR_RETURN(const std::vector<PromptSpec> prompts, ReadPrompts(flags.input));
    ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                     tokenizer->Encode(prompts[0].text, {.add_special = !flags.no_special}));
    output.Write(flags.json ? Dump(TokensJson(*tokenizer, ids)) : fmt::format("{}\n", fmt::join(ids, " ")));
  }
  RETURN_IF_ERROR(output.status());
  return kExitOk;
}

}  // namespace

int RunTokenize(Arguments arguments) {
  TokenizeFlags values;
  Flags flags("tokenize", "Print the token ids of a text, or with --ids the text of token ids.");
  flags.Group("Input (at most one of these; default: standard input)");
  AddTextFlags(flags, &values.input);
  const auto set_ids = [&](const std::string& text) {
    values.input.has_ids = true;
    return ParseIntegerList(text, 0, INT32_MAX, &values.input.ids);
  };
  flags.Custom("--ids", set_ids, "1,2,3", "token ids to decode into text");
  flags.Exclusive({"prompt", "file", "ids"});
  flags.Group("Model");
  AddModelFlag(flags, &values.model);
  flags.Group("Output");
  flags.Switch("--no-special", &values.no_special,
               "do not add special tokens (BOS and the like); with --ids, leave them out of the text");
  flags.Switch("--json", &values.json, "print one JSON object: ids, tokens (as spelled in the vocabulary), count");
  if (const std::optional<int> exit_code = flags.Parse(arguments)) return *exit_code;
  if (!values.input.any() && ::isatty(STDIN_FILENO) == 1)
    return FailUsage("tokenize", "a text is missing; pass -p, -f or --ids, or pipe text in");
  return Finish(Tokenize(values));
}

}  // namespace infinigen
