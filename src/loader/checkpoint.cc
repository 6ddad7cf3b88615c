#include "loader/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "base/gguf_name.h"
#include "base/mmap_file.h"
#include "base/utf8.h"
#include "json/parse.h"

namespace infinigen {
namespace {

// ---- model.safetensors.index.json ----

// Limits on the memory and open files that a hostile index can cause. Large public models have about 200 shards.
constexpr size_t kMaxShards = 1024;
constexpr size_t kMaxEntries = 65536;
constexpr size_t kMaxIndexNameBytes = 256;
constexpr JsonLimits kIndexLimits = {.max_depth = 16};  // real files nest two deep, apart from metadata

// Shards are in the directory of their index: a name with a path could lead out of it.
bool IsPlainShardName(std::string_view name) {
  constexpr std::string_view kSuffix = ".safetensors";
  if (name.size() <= kSuffix.size() || name.size() > 255 || name[0] == '.') return false;
  if (name.substr(name.size() - kSuffix.size()) != kSuffix) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte >= 0x20 && byte != 0x7f && c != '/' && c != '\\';
  });
}

// {"metadata": {anything}, "weight_map": {"tensor": "shard.safetensors", …}}
class IndexHandler final : public JsonHandler {
 public:
  using JsonHandler::JsonHandler;

  bool weight_map_seen() const { return weight_map_seen_; }
  ShardIndex TakeIndex() { return std::move(index_); }

  // The metadata (total_size, total_parameters) is not used: any value is skipped.
  bool Scalar(nlohmann::json value) override { return metadata_depth_ > 0 || JsonHandler::Scalar(std::move(value)); }
  bool Open(bool object) override {
    if (metadata_depth_ > 0 || (object && where_ == Where::kMetadataValue)) {
      ++metadata_depth_;
      where_ = Where::kTop;  // the state after the metadata
      return true;
    }
    if (object && where_ == Where::kOutside) return Enter(Where::kTop);
    if (object && where_ == Where::kMapValue) return Enter(Where::kMap);
    return JsonHandler::Open(object);
  }
  bool Close(bool) override {
    if (metadata_depth_ > 0) {
      --metadata_depth_;
      return true;
    }
    return Enter(where_ == Where::kMap ? Where::kTop : Where::kEnd);
  }
  bool Key(std::string& name) override {
    if (metadata_depth_ > 0) return true;
    if (where_ == Where::kMap) return StartEntry(name);
    if (name == "metadata") {
      if (std::exchange(metadata_seen_, true)) return Fail(Invalid("{}: 'metadata' occurs twice", path()));
      return Enter(Where::kMetadataValue);
    }
    if (name != "weight_map") return Fail(Invalid("{}: unknown field {}", path(), Quoted(name)));
    if (std::exchange(weight_map_seen_, true)) return Fail(Invalid("{}: 'weight_map' occurs twice", path()));
    return Enter(Where::kMapValue);
  }
  bool String(std::string& text) override {
    if (metadata_depth_ > 0) return true;
    if (where_ != Where::kShardName) return JsonHandler::String(text);
    if (!IsPlainShardName(text))
      return Fail(Invalid("{}: {}: {} is not a file name that ends in .safetensors, without a directory", path(),
                          Place(), Quoted(text)));
    const auto [found, is_new] = shards_.try_emplace(text, static_cast<uint32_t>(index_.shards.size()));
    if (is_new) {
      if (index_.shards.size() == kMaxShards)
        return Fail(Unsupported("{}: more than {} shards are not supported", path(), kMaxShards));
      index_.shards.push_back(text);
    }
    index_.entries.back().shard = found->second;
    return Enter(Where::kMap);
  }

 protected:
  std::string Place() const override {
    if (where_ == Where::kShardName) return fmt::format("weight_map, tensor {}", Quoted(index_.entries.back().tensor));
    if (where_ == Where::kMapValue || where_ == Where::kMap) return "weight_map";
    return where_ == Where::kMetadataValue ? "metadata" : "index";
  }

 private:
  enum class Where { kOutside, kTop, kMetadataValue, kMapValue, kMap, kShardName, kEnd };

  bool Enter(Where where) {
    where_ = where;
    return true;
  }

  bool StartEntry(const std::string& name) {
    if (name.size() > kMaxIndexNameBytes)
      return Fail(Invalid("{}: weight_map: tensor name {} has {} bytes; at most {} are allowed", path(), Quoted(name),
                          name.size(), kMaxIndexNameBytes));
    if (index_.entries.size() == kMaxEntries)
      return Fail(Unsupported("{}: weight_map: more than {} tensors are not supported", path(), kMaxEntries));
    index_.entries.push_back({name, 0});
    return Enter(Where::kShardName);
  }

  Where where_ = Where::kOutside;
  int metadata_depth_ = 0;  // objects and arrays open inside the metadata
  bool metadata_seen_ = false;
  bool weight_map_seen_ = false;
  std::map<std::string, uint32_t, std::less<>> shards_;
  ShardIndex index_;
};

// ---- the directory ----

// An index entry has about 100 bytes; the largest public index has a few thousand entries.
constexpr size_t kMaxIndexBytes = size_t{16} << 20;
// Limit for all shards together, so that many small hostile files cannot add up.
constexpr size_t kMaxShardTensors = 65536;

constexpr std::string_view kIndexSuffix = ".safetensors.index.json";

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

// The error for a directory without readable weights; it names the unsupported file if there is one.
Error NoWeights(const std::string& directory, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (HasGgufSuffix(name))
      return Unsupported("{}: holds no model.safetensors; pass the GGUF file itself: -m {}/{}", directory, directory,
                         name);
  }
  for (const std::string& name : names) {
    if (name.compare(0, 13, "pytorch_model") == 0 || name.ends_with(".pth") || name.ends_with(".pt"))
      return Unsupported(
          "{}/{}: pickled PyTorch weights are not supported (they can run code); convert them with transformers: "
          "AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW_DIR)",
          directory, name);
  }
  for (const std::string& name : names) {
    if (name.ends_with(".safetensors"))
      return Invalid(
          "{}: neither model.safetensors nor model.safetensors.index.json found; rename {} or restore the index",
          directory, name);
  }
  return IoError("{}: no weights found: neither model.safetensors nor model.safetensors.index.json exists", directory);
}

Result<std::vector<SafetensorsFile>> OpenShards(const std::string& directory, const std::string& index_path) {
  ASSIGN_OR_RETURN(const MmapFile index_file, MmapFile::Open(index_path));
  if (index_file.bytes().size() > kMaxIndexBytes)
    return Invalid("{}: file of {} bytes; an index may have at most {}", index_path, index_file.bytes().size(),
                   kMaxIndexBytes);
  const std::string_view text(reinterpret_cast<const char*>(index_file.bytes().data()), index_file.bytes().size());
  ASSIGN_OR_RETURN(const ShardIndex index, ParseShardIndex(text, index_path));

  std::vector<SafetensorsFile> files;
  size_t tensors = 0;
  for (const std::string& shard : index.shards) {
    const std::string path = fmt::format("{}/{}", directory, shard);
    if (!Exists(path)) return IoError("{}: file is missing; {} lists it as a shard", path, index_path);
    ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path));
    tensors += file.tensors().size();
    if (tensors > kMaxShardTensors)
      return Unsupported("{}: its shards contain more than {} tensors, which is not supported", index_path,
                         kMaxShardTensors);
    files.push_back(std::move(file));
  }
  for (const ShardIndex::Entry& entry : index.entries) {
    if (files[entry.shard].Find(entry.tensor) == nullptr)
      return Invalid("{}: tensor {} is missing; {} lists it in this file", files[entry.shard].path(),
                     Quoted(entry.tensor), index_path);
  }
  return files;
}

}  // namespace

Result<ShardIndex> ParseShardIndex(std::string_view text, const std::string& path) {
  IndexHandler handler(path);
  RETURN_IF_ERROR(ParseJsonEvents(text, kIndexLimits, handler));
  if (!handler.weight_map_seen()) return Invalid("{}: field 'weight_map' is missing", path);
  ShardIndex index = handler.TakeIndex();
  if (index.entries.empty()) return Invalid("{}: 'weight_map' is empty", path);
  std::sort(index.entries.begin(), index.entries.end(),
            [](const ShardIndex::Entry& a, const ShardIndex::Entry& b) { return a.tensor < b.tensor; });
  const auto twice =
      std::adjacent_find(index.entries.begin(), index.entries.end(),
                         [](const ShardIndex::Entry& a, const ShardIndex::Entry& b) { return a.tensor == b.tensor; });
  if (twice != index.entries.end())
    return Invalid("{}: weight_map: tensor {} occurs twice", path, Quoted(twice->tensor));
  return index;
}

Result<Checkpoint> Checkpoint::Open(const std::string& directory) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(directory, ignored))
    return IoError("{}: not a directory; pass a Hugging Face model directory", directory);
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
    if (name.ends_with(kIndexSuffix)) indices.push_back(name);
  if (indices.empty()) return NoWeights(directory, names);
  if (indices.size() > 1)
    return Invalid("{}: two index files, {} and {}; keep only one", directory, indices[0], indices[1]);
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
    return Invalid("{}: tensor {} is also in {}; each tensor must be in one file", twice->path, Quoted(twice->name),
                   std::next(twice)->path);
  return Checkpoint(std::move(files), std::move(tensors));
}

std::string Checkpoint::where() const {
  const std::string& path = files_[0].path();
  return files_.size() == 1 ? path : path.substr(0, path.rfind('/'));
}

const StoredTensor* TensorSource::Find(std::string_view name) const {
  const std::span<const StoredTensor> all = tensors();
  const auto found =
      std::lower_bound(all.begin(), all.end(), name,
                       [](const StoredTensor& tensor, std::string_view wanted) { return tensor.name < wanted; });
  return found != all.end() && found->name == name ? &*found : nullptr;
}

std::string FormatShape(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape.begin(), shape.end(), ","));
}

}  // namespace infinigen
