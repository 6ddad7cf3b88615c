#include "golden/golden_file.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/mmap_file.h"
#include "loader/safetensors.h"

namespace infinigen {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 20;

Result<std::vector<std::vector<float>>> ReadLogits(const SafetensorsFile& file, const std::string& name, size_t rows) {
  const TensorEntry* tensor = file.Find(name);
  if (tensor == nullptr || tensor->dtype != "F32" || tensor->rank != 2 ||
      tensor->extents[0] != static_cast<int64_t>(rows))
    return Invalid("{}: tensor '{}' is not an F32 matrix of {} rows", file.path(), name, rows);
  const auto cols = static_cast<size_t>(tensor->extents[1]);
  std::vector<std::vector<float>> logits(rows, std::vector<float>(cols));
  for (size_t row = 0; row < rows; ++row)
    std::memcpy(logits[row].data(), file.Data(*tensor).data() + row * cols * sizeof(float), cols * sizeof(float));
  return logits;
}

Result<GoldenPrompt> ReadPrompt(const nlohmann::json& entry, const SafetensorsFile& file) {
  GoldenPrompt prompt;
  prompt.name = entry.at("name");
  prompt.ids = entry.at("ids").get<std::vector<int32_t>>();
  prompt.logit_positions = entry.at("logit_positions").get<std::vector<int64_t>>();
  prompt.greedy = entry.at("greedy").get<std::vector<int32_t>>();
  prompt.gaps = entry.at("gaps").get<std::vector<float>>();
  const size_t rows = prompt.logit_positions.size();
  ASSIGN_OR_RETURN(prompt.logits, ReadLogits(file, entry.at("logits"), rows));
  if (entry.contains("native_logits")) {
    ASSIGN_OR_RETURN(prompt.native_logits, ReadLogits(file, entry.at("native_logits"), rows));
    prompt.native_greedy = entry.at("native_greedy").get<std::vector<int32_t>>();
  }
  return prompt;
}

}  // namespace

Result<GoldenModel> LoadGolden(const std::string& directory) {
  const std::string path = directory + "/golden.json";
  ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path, kMaxBytes));
  ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(directory + "/golden.safetensors"));
  try {
    const nlohmann::json tree = nlohmann::json::parse(text);
    GoldenModel model;
    model.directory = directory;
    model.name = tree.at("model");
    model.covers = tree.at("covers");
    model.stored = tree.at("stored");
    for (const nlohmann::json& entry : tree.at("prompts")) {
      ASSIGN_OR_RETURN(GoldenPrompt prompt, ReadPrompt(entry, file));
      model.prompts.push_back(std::move(prompt));
    }
    return model;
  } catch (const std::exception& reason) {
    return Invalid("{}: {}", path, reason.what());
  }
}

Result<std::vector<std::string>> ListGolden(const std::string& root) {
  std::error_code error;
  std::filesystem::directory_iterator entry(root, error);
  std::vector<std::string> directories;
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    std::error_code ignored;
    if (std::filesystem::exists(entry->path() / "golden.json", ignored)) directories.push_back(entry->path().string());
  }
  if (error) return IoError("{}: {}", root, error.message());
  std::sort(directories.begin(), directories.end());
  return directories;
}

}  // namespace infinigen
