#include "cli/choice_task.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include "cli/prompts.h"

namespace infinigen {
namespace {

enum class Split { kTrain, kValidation, kTest };

// As the name of a file tells it: valid.jsonl, dev-labels.lst, copa_superglue_train_400.jsonl.
std::optional<Split> SplitOf(std::string name) {
  constexpr std::array<std::pair<const char*, Split>, 4> kWords = {
      {{"train", Split::kTrain}, {"test", Split::kTest}, {"val", Split::kValidation}, {"dev", Split::kValidation}}};
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const auto& [word, split] : kWords)
    if (name.find(word) != std::string::npos) return split;
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

Result<ChoiceFile> ReadSplit(const TaskFiles& files, Split split) {
  const std::string& path = files.questions.at(split);
  ASSIGN_OR_RETURN(const std::string text, ReadText(path));
  std::optional<ChoiceLabels> labels;
  if (const auto found = files.labels.find(split); found != files.labels.end()) {
    ASSIGN_OR_RETURN(const std::string label_text, ReadText(found->second));
    ASSIGN_OR_RETURN(labels, ParseLabels(label_text, found->second));
  }
  return ParseChoices(text, path, labels);
}

// The tests of COPA, PIQA and WinoGrande are published without answers.
Result<Split> AskedSplit(const TaskFiles& files, const std::string& directory) {
  if (const auto test = files.questions.find(Split::kTest); test != files.questions.end()) {
    ASSIGN_OR_RETURN(const std::string text, ReadText(test->second));
    ASSIGN_OR_RETURN(const ChoiceFormat format, RecogniseChoices(text, test->second));
    if (format == ChoiceFormat::kOpenBookQa || format == ChoiceFormat::kPlain) return Split::kTest;
  }
  if (files.questions.contains(Split::kValidation)) return Split::kValidation;
  return Invalid("{}: has no file of questions, *.jsonl or *.tsv with val, dev or test in its name", directory);
}

}  // namespace

Result<ChoiceTask> LoadChoiceTask(const std::string& path, bool examples) {
  ChoiceTask task;
  ChoiceFile file;
  std::error_code error;
  std::filesystem::path name(path);
  if (std::filesystem::is_directory(name, error)) {
    ASSIGN_OR_RETURN(const TaskFiles files, ListFiles(path));
    ASSIGN_OR_RETURN(const Split asked, AskedSplit(files, path));
    ASSIGN_OR_RETURN(file, ReadSplit(files, asked));
    task.path = files.questions.at(asked);
    if (const auto train = files.questions.find(Split::kTrain); examples && train != files.questions.end()) {
      ASSIGN_OR_RETURN(ChoiceFile training, ReadSplit(files, Split::kTrain));
      task.examples_path = train->second;
      task.examples = std::move(training.items);
    }
    if (!name.has_filename()) name = name.parent_path();
    name = name.filename();
  } else {
    ASSIGN_OR_RETURN(const std::string text, ReadText(path));
    task.path = path == "-" ? "standard input" : path;
    ASSIGN_OR_RETURN(file, ParseChoices(text, task.path));
    name = name.stem();
  }
  task.name = file.task.empty() ? name.string() : file.task;
  task.items = std::move(file.items);
  return task;
}

}  // namespace infinigen
