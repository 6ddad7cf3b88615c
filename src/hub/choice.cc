#include "hub/choice.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/gguf_name.h"
#include "base/utf8.h"
#include "hub/name.h"

namespace infinigen {
namespace {

constexpr const char* kDefaultQuantisation = "Q4_K_M";
constexpr const char* kWeights = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
// What runtime reads of a directory, besides the weights.
constexpr const char* kSmallFiles[] = {kConfigFile,
                                       "generation_config.json",
                                       "tokenizer.json",
                                       "tokenizer.model",
                                       "tokenizer_config.json",
                                       "special_tokens_map.json",
                                       "added_tokens.json",
                                       "vocab.json",
                                       "merges.txt",
                                       "chat_template.jinja"};

bool IsPartOfWord(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; }

// Whether `path` has `word` between bytes that belong to no word: "x-Q4_K_M.gguf" has q4_k_m and not q4_k.
bool HasWord(std::string_view path, std::string_view lower_word) {
  const std::string text = LowerCase(path);
  for (size_t at = text.find(lower_word); at != text.npos; at = text.find(lower_word, at + 1)) {
    const size_t end = at + lower_word.size();
    if ((at == 0 || !IsPartOfWord(text[at - 1])) && (end == text.size() || !IsPartOfWord(text[end]))) return true;
  }
  return false;
}

bool IsAccessory(std::string_view path) {
  const std::string name = LowerCase(BaseNameOf(path));
  return name.find("mmproj") != name.npos || name.find("imatrix") != name.npos;
}

std::string Join(const std::vector<std::string>& names) {
  constexpr size_t kShown = 40;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : ", ", Escaped(names[i]));
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text;
}

std::string JoinGroups(const std::vector<GgufGroup>& groups) {
  std::vector<std::string> names;
  for (const GgufGroup& group : groups) names.push_back(group.parts[0]);
  return Join(names);
}

Result<HubChoice> Take(const GgufGroup& group, const std::string& where) {
  if (!group.complete) return Invalid("{}: parts of the split model {} are missing", where, Quoted(group.parts[0]));
  return HubChoice{.gguf = group.parts[0], .files = group.parts};
}

std::vector<GgufGroup> WithWord(const std::vector<GgufGroup>& groups, std::string_view word) {
  std::vector<GgufGroup> found;
  for (const GgufGroup& group : groups)
    if (HasWord(group.parts[0], LowerCase(word))) found.push_back(group);
  return found;
}

std::optional<HubChoice> ChooseSafetensors(const std::vector<std::string>& paths) {
  const auto has = [&](const char* name) { return std::find(paths.begin(), paths.end(), name) != paths.end(); };
  if (!has(kConfigFile) || (!has(kWeights) && !has(kIndex))) return std::nullopt;
  HubChoice choice;
  for (const char* name : kSmallFiles)
    if (has(name)) choice.files.push_back(name);
  if (has(kWeights)) {
    choice.files.push_back(kWeights);
  } else {
    choice.files.push_back(kIndex);
    choice.index = kIndex;
  }
  return choice;
}

Result<HubChoice> ChooseDefault(const std::vector<std::string>& paths, const std::vector<GgufGroup>& groups,
                                const std::string& where) {
  if (std::optional<HubChoice> choice = ChooseSafetensors(paths)) return std::move(*choice);
  if (const std::vector<GgufGroup> found = WithWord(groups, kDefaultQuantisation); found.size() == 1)
    return Take(found[0], where);
  if (groups.size() == 1) return Take(groups[0], where);
  if (!groups.empty())
    return Invalid("{}: choose one of its GGUF models with :FILE or :QUANTISATION: {}", where, JoinGroups(groups));
  return Unsupported("{}: no model of a supported form (config.json with {}, or a GGUF file); it has: {}", where,
                     kWeights, Join(paths));
}

}  // namespace

std::vector<GgufGroup> GroupGgufFiles(const std::vector<std::string>& paths) {
  struct Parts {
    std::map<uint64_t, std::string> found;
    uint64_t count = 1;
  };
  std::map<std::string, Parts> stems;
  for (const std::string& path : paths) {
    if (!HasGgufSuffix(path) || IsAccessory(path)) continue;
    const GgufPartName name = ParseGgufPartName(path);
    const bool is_part = name.parts != 0 && name.part <= name.parts;  // any other name is a model of its own
    Parts& parts = stems[is_part ? fmt::format("{}-of-{}", name.stem, name.parts) : path];
    parts.count = is_part ? name.parts : 1;
    parts.found.emplace(name.part, path);
  }
  std::vector<GgufGroup> groups;
  for (const auto& [stem, parts] : stems) {
    GgufGroup& group = groups.emplace_back();
    for (const auto& [number, path] : parts.found) group.parts.push_back(path);
    group.complete = group.parts.size() == parts.count;
  }
  return groups;
}

std::string QuantisationOf(std::string_view path) {
  const auto is_quantisation = [](std::string_view word) {
    if (word == "f16" || word == "bf16" || word == "f32" || word.substr(0, 4) == "mxfp") return true;
    if (!word.empty() && (word[0] == 'i' || word[0] == 't')) word.remove_prefix(1);
    return word.size() > 1 && word[0] == 'q' && word[1] >= '1' && word[1] <= '9';
  };
  const std::string text = LowerCase(BaseNameOf(path));
  std::string found;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin;
    while (end < text.size() && IsPartOfWord(text[end])) ++end;
    if (const std::string word = text.substr(begin, end - begin); is_quantisation(word)) found = word;
    begin = end + 1;
  }
  for (char& c : found)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  return found;
}

Result<HubChoice> ChooseFiles(const std::vector<std::string>& paths, const std::string& wanted,
                              const std::string& where) {
  const std::vector<GgufGroup> groups = GroupGgufFiles(paths);
  if (wanted.empty()) return ChooseDefault(paths, groups, where);
  const std::string has = groups.empty() ? "it has none" : "it has: " + JoinGroups(groups);
  if (HasGgufSuffix(wanted)) {
    for (const GgufGroup& group : groups)
      if (std::find(group.parts.begin(), group.parts.end(), wanted) != group.parts.end()) return Take(group, where);
    return Invalid("{}: no GGUF model {}; {}", where, Quoted(wanted), has);
  }
  if (std::find(paths.begin(), paths.end(), wanted) != paths.end())
    return Invalid("{}: {} is not a GGUF file; leave it out to open the repository's safetensors", where,
                   Quoted(wanted));
  const std::vector<GgufGroup> found = WithWord(groups, wanted);
  if (found.size() == 1) return Take(found[0], where);
  if (found.empty()) return Invalid("{}: no GGUF model in {}; {}", where, Quoted(wanted), has);
  return Invalid("{}: several GGUF models in {}; name one of the files: {}", where, Quoted(wanted), JoinGroups(found));
}

}  // namespace infinigen
