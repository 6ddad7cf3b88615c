#include "eval/choice_task.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/split_mix.h"
#include "base/utf8.h"
#include "runtime/model.h"

namespace infinigen {
namespace {

enum class Split { kTrain, kValidation, kTest };

// The split that a file name tells: valid.jsonl, dev-labels.lst, copa_superglue_train_400.jsonl.
std::optional<Split> SplitOf(std::string_view name) {
  constexpr std::array<std::pair<const char*, Split>, 4> kWords = {
      {{"train", Split::kTrain}, {"test", Split::kTest}, {"val", Split::kValidation}, {"dev", Split::kValidation}}};
  const std::string lower = LowerCase(name);
  for (const auto& [word, split] : kWords)
    if (lower.find(word) != std::string::npos) return split;
  return std::nullopt;
}

struct TaskFiles {
  std::map<Split, std::string> questions, labels;
};

Result<TaskFiles> ListFiles(const std::string& directory) {
  TaskFiles files;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::filesystem::path& path = entry->path();
    const std::string extension = path.extension().string();
    const bool labels = extension == ".lst";
    const std::optional<Split> split = SplitOf(path.filename().string());
    if (!split || (!labels && extension != ".jsonl" && extension != ".tsv")) continue;
    const auto [known, added] = (labels ? files.labels : files.questions).emplace(*split, path.string());
    if (!added)
      return Invalid("{}: {} and {} are of the same split; pass one of them as --task", directory,
                     std::min(known->second, path.string()), std::max(known->second, path.string()));
  }
  if (error) return IoError("{}: cannot list: {}", directory, error.message());
  return files;
}

Result<ChoiceFile> ReadSplit(const TaskFiles& files, Split split, const TextReader& read) {
  const std::string& path = files.questions.at(split);
  ASSIGN_OR_RETURN(const std::string text, read(path));
  std::optional<ChoiceLabels> labels;
  if (const auto found = files.labels.find(split); found != files.labels.end()) {
    ASSIGN_OR_RETURN(const std::string label_text, read(found->second));
    ASSIGN_OR_RETURN(labels, ParseLabels(label_text, found->second));
  }
  return ParseChoices(text, path, labels);
}

// COPA, PIQA and WinoGrande publish their test splits without answers.
Result<Split> AskedSplit(const TaskFiles& files, const std::string& directory, const TextReader& read) {
  if (const auto test = files.questions.find(Split::kTest); test != files.questions.end()) {
    ASSIGN_OR_RETURN(const std::string text, read(test->second));
    ASSIGN_OR_RETURN(const ChoiceFormat format, RecogniseChoices(text, test->second));
    if (format == ChoiceFormat::kOpenBookQa || format == ChoiceFormat::kPlain) return Split::kTest;
  }
  if (files.questions.contains(Split::kValidation)) return Split::kValidation;
  return Invalid("{}: has no file of questions, *.jsonl or *.tsv with val, dev or test in its name", directory);
}

int64_t CountCharacters(std::string_view text) {
  int64_t count = 0;
  for (size_t at = 0; at < text.size(); at += ScanUtf8(text, at).length) ++count;
  return count;
}

}  // namespace

Result<ChoiceTask> LoadChoiceTask(const std::string& path, bool examples, const TextReader& read) {
  ChoiceTask task;
  ChoiceFile file;
  std::error_code error;
  std::filesystem::path name(path);
  if (std::filesystem::is_directory(name, error)) {
    ASSIGN_OR_RETURN(const TaskFiles files, ListFiles(path));
    ASSIGN_OR_RETURN(const Split asked, AskedSplit(files, path, read));
    ASSIGN_OR_RETURN(file, ReadSplit(files, asked, read));
    task.path = files.questions.at(asked);
    if (const auto train = files.questions.find(Split::kTrain); examples && train != files.questions.end()) {
      ASSIGN_OR_RETURN(ChoiceFile training, ReadSplit(files, Split::kTrain, read));
      task.examples_path = train->second;
      task.examples = std::move(training.items);
    }
    if (!name.has_filename()) name = name.parent_path();
    name = name.filename();
  } else {
    ASSIGN_OR_RETURN(const std::string text, read(path));
    task.path = path == "-" ? "standard input" : path;
    ASSIGN_OR_RETURN(file, ParseChoices(text, task.path));
    name = name.stem();
  }
  task.name = file.task.empty() ? name.string() : file.task;
  task.items = std::move(file.items);
  return task;
}

int64_t ChoiceQuestion::rows() const {
  int64_t most = 0;
  for (const ChoiceRequest& choice : choices) most = std::max(most, choice.rows());
  return most;
}

std::vector<size_t> DrawExamples(uint64_t seed, size_t index, size_t pool, size_t count, bool from_itself) {
  CHECK(count + (from_itself ? 1 : 0) <= pool);
  SplitMix first(seed);
  SplitMix random(first.Next() ^ static_cast<uint64_t>(index));
  std::vector<size_t> drawn;
  while (drawn.size() < count) {
    const size_t one = random.Below(pool);
    if (from_itself && one == index) continue;
    if (std::find(drawn.begin(), drawn.end(), one) == drawn.end()) drawn.push_back(one);
  }
  return drawn;
}

Result<ChoiceMaker> ChoiceMaker::Make(const ChoiceTask& task, const Tokenizer& tokenizer, int64_t examples,
                                      uint64_t seed) {
  ChoiceMaker maker(task, tokenizer, examples, seed);
  const int64_t most = static_cast<int64_t>(task.pool().size()) - (task.examples_path.empty() ? 1 : 0);
  if (examples > most)
    return Invalid("--shots {}: {} has only {} questions to draw from", examples,
                   task.examples_path.empty() ? task.path : task.examples_path, most);
  ASSIGN_OR_RETURN(maker.opening_, OpeningIds(tokenizer));
  return maker;
}

std::string ChoiceMaker::Examples(size_t index) const {
  std::string text;
  const std::vector<ChoiceItem>& pool = task_->pool();
  for (const size_t one : DrawExamples(seed_, index, pool.size(), examples_, task_->examples_path.empty()))
    text += pool[one].context(pool[one].answer) + " " + pool[one].ending(pool[one].answer) + "\n\n";
  return text;
}

Result<ChoiceRequest> ChoiceMaker::Encode(std::string_view context, const std::vector<int32_t>& before,
                                          std::string_view ending) const {
  ChoiceRequest request{.context = opening_, .ending = {}, .characters = CountCharacters(ending)};
  const std::string whole = std::string(context) + " " + std::string(ending);
  ASSIGN_OR_RETURN(const std::vector<int32_t> all, tokenizer_->Encode(whole, {.add_special = false}));
  request.context.insert(request.context.end(), before.begin(), before.end());
  // A prediction needs a token before it. An empty context becomes the token that begins or ends texts.
  if (request.context.empty()) {
    const std::optional<int32_t> prefix = tokenizer_->bos() ? tokenizer_->bos() : tokenizer_->eos();
    if (!prefix) return Invalid("the context is empty, and the tokenizer has neither BOS nor EOS to replace it");
    request.context.push_back(*prefix);
  }
  if (all.size() <= before.size()) return Invalid("the tokenizer merges the choice into the last token of its context");
  request.ending.assign(all.begin() + static_cast<ptrdiff_t>(before.size()), all.end());
  return request;
}

Result<ChoiceQuestion> ChoiceMaker::Question(size_t index) const {
  const ChoiceItem& item = task_->items[index];
  const std::string examples = Examples(index);
  ChoiceQuestion question{.choices = {}, .answer = item.answer, .line = item.line};
  std::string context;
  std::vector<int32_t> before;  // the tokens of the context
  for (size_t choice = 0; choice < item.count(); ++choice) {
    if (choice < item.contexts.size()) {
      context = examples + item.contexts[choice];
      ASSIGN_OR_RETURN(before, tokenizer_->Encode(TrimmedRight(context), {.add_special = false}));
    }
    Result<ChoiceRequest> request = Encode(context, before, item.ending(choice));
    if (!request.ok())
      return Error{request.error().kind, fmt::format("{}:{}: {}", task_->path, item.line, request.error().message)};
    question.choices.push_back(std::move(request).value());
  }
  return question;
}

}  // namespace infinigen
