#include "loader/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/mmap_file.h"
#include "base/utf8.h"

namespace infinigen {
namespace {

// An entry takes some 100 bytes; the largest public index has a few thousand.
constexpr size_t kMaxIndexBytes = size_t{16} << 20;
// Over all shards together, so that many small hostile files cannot add up.
constexpr size_t kMaxShardTensors = 65536;

constexpr std::string_view kIndexSuffix = ".safetensors.index.json";

bool EndsWith(std::string_view text, std::string_view suffix) {
  return text.size() >= suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
}

bool Exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

Result<std::vector<std::string>> ListDirectory(const std::string& directory) {
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  std::vector<std::string> names;
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error))
    names.push_back(entry->path().filename().string());
  if (error) return IoError("{}: cannot list the model directory: {}", directory, error.message());
  std::sort(names.begin(), names.end());
  return names;
}

// The directory holds no weights that we read: says what it holds instead.
Error NoWeights(const std::string& directory, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (EndsWith(name, ".gguf"))
      return Unsupported("{}/{}: GGUF files are not supported; give a Hugging Face directory with model.safetensors",
                         directory, name);
  }
  for (const std::string& name : names) {
    if (name.compare(0, 13, "pytorch_model") == 0 || EndsWith(name, ".pth") || EndsWith(name, ".pt"))
      return Unsupported(
          "{}/{}: pickled PyTorch weights are not supported (they can run code); convert them with transformers: "
          "AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW_DIR)",
          directory, name);
  }
  for (const std::string& name : names) {
    if (EndsWith(name, ".safetensors"))
      return Invalid("{}: no model.safetensors and no index; rename {} or restore model.safetensors.index.json",
                     directory, name);
  }
  return IoError("{}: no weights: neither model.safetensors nor model.safetensors.index.json", directory);
}

Result<std::vector<SafetensorsFile>> OpenShards(const std::string& directory, const std::string& index_path) {
  ASSIGN_OR_RETURN(const MmapFile index_file, MmapFile::Open(index_path));
  if (index_file.bytes().size() > kMaxIndexBytes)
    return Invalid("{}: {} bytes long, at most {} are accepted for an index", index_path, index_file.bytes().size(),
                   kMaxIndexBytes);
  const std::string_view text(reinterpret_cast<const char*>(index_file.bytes().data()), index_file.bytes().size());
  ASSIGN_OR_RETURN(const ShardIndex index, ParseShardIndex(text, index_path));

  std::vector<SafetensorsFile> files;
  size_t tensors = 0;
  for (const std::string& shard : index.shards) {
    const std::string path = fmt::format("{}/{}", directory, shard);
    if (!Exists(path)) return IoError("{}: this shard, named by {}, is missing", path, index_path);
    ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path));
    tensors += file.tensors().size();
    if (tensors > kMaxShardTensors)
      return Unsupported("{}: more than {} tensors in its shards", index_path, kMaxShardTensors);
    files.push_back(std::move(file));
  }
  for (const ShardIndex::Entry& entry : index.entries) {
    if (files[entry.shard].Find(entry.tensor) == nullptr)
      return Invalid("{}: tensor {} is missing, {} says that it lies here", files[entry.shard].path(),
                     Quoted(entry.tensor), index_path);
  }
  return files;
}

}  // namespace

Result<Checkpoint> Checkpoint::Open(const std::string& directory) {
  std::error_code ignored;
  if (EndsWith(directory, ".gguf"))
    return Unsupported("{}: GGUF files are not supported; give a Hugging Face directory with model.safetensors",
                       directory);
  if (!std::filesystem::is_directory(directory, ignored))
    return IoError("{}: not a directory; give a Hugging Face model directory", directory);
  const std::string single = directory + "/model.safetensors";
  if (Exists(single)) {
    ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(single));
    std::vector<SafetensorsFile> files;
    files.push_back(std::move(file));
    return Make(std::move(files));
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(directory));
  std::vector<std::string> indices;
  for (const std::string& name : names)
    if (EndsWith(name, kIndexSuffix)) indices.push_back(name);
  if (indices.empty()) return NoWeights(directory, names);
  if (indices.size() > 1)
    return Invalid("{}: two indices, {} and {}: keep the one that is meant", directory, indices[0], indices[1]);
  ASSIGN_OR_RETURN(std::vector<SafetensorsFile> files, OpenShards(directory, directory + "/" + indices[0]));
  return Make(std::move(files));
}

Result<Checkpoint> Checkpoint::Make(std::vector<SafetensorsFile> files) {
  std::vector<StoredTensor> tensors;
  for (const SafetensorsFile& file : files)
    for (const TensorEntry& tensor : file.tensors())
      tensors.push_back({.name = tensor.name,
                         .path = file.path(),
                         .type_name = tensor.dtype,
                         .type = tensor.type(),
                         .shape = tensor.shape(),
                         .bytes = file.Data(tensor)});
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const StoredTensor& a, const StoredTensor& b) { return a.name < b.name; });
  const auto twice = std::adjacent_find(tensors.begin(), tensors.end(),
                                        [](const StoredTensor& a, const StoredTensor& b) { return a.name == b.name; });
  if (twice != tensors.end())
    return Invalid("{}: tensor {} occurs in {} too", twice->path, Quoted(twice->name), std::next(twice)->path);
  return Checkpoint(std::move(files), std::move(tensors));
}

std::string Checkpoint::where() const {
  const std::string& path = files_[0].path();
  return files_.size() == 1 ? path : path.substr(0, path.rfind('/'));
}

}  // namespace infinigen
