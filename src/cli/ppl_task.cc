#include "cli/ppl_task.h"

#include <algorithm>

namespace infinigen {
namespace {

constexpr int64_t kDefaultContext = 8192;  // or what the model was made for, if that is less

}  // namespace

Result<int64_t> ChooseWindow(const ModelConfig& config, int64_t flag) {
  return ChooseContext(config, flag > 0 ? flag : std::min(kDefaultContext, config.max_positions));
}

Result<PplTask> MakePplTask(const EvalSession& session, const PplSource& source, const PplOptions& options) {
  PplTask task{.options = options};
  PplText& text = task.text;
  ASSIGN_OR_RETURN(text.ids, session.tokenizer().Encode(source.bytes, {.add_special = false}));
  if (source.limit_tokens > 0 && static_cast<int64_t>(text.ids.size()) > source.limit_tokens)
    text.ids.resize(static_cast<size_t>(source.limit_tokens));
  ASSIGN_OR_RETURN(text.opening, OpeningIds(session.tokenizer()));
  RETURN_IF_ERROR(CheckIds(session.model->config, text.ids));
  RETURN_IF_ERROR(CheckIds(session.model->config, text.opening));
  if (options.context < static_cast<int64_t>(text.opening.size()))
    return Invalid("--ctx {}: the tokenizer opens every text with {} tokens", options.context, text.opening.size());
  task.windows = CutWindows(text, options);
  if (task.windows.empty())
    return Invalid("{}: {} tokens are too few to score one of them", source.name, text.ids.size());
  task.rows = std::min<int64_t>(options.context, static_cast<int64_t>(text.ids.size() + text.opening.size()));
  return task;
}

Status CheckScorable(const KvRequest& kv) {
  if (!kv.prompt_columns || !kv.selection().uses_basis) return Ok();
  return Unsupported(
      "--kv-columns prompt: every window is read from an empty cache, so there is no prompt that could choose columns; "
      "eval needle has one");
}

}  // namespace infinigen
