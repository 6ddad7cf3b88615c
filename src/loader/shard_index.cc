#include <algorithm>
#include <map>
#include <utility>

#include "base/utf8.h"
#include "json/events.h"
#include "loader/checkpoint.h"

namespace infinigen {
namespace {

// Bounds on what a hostile index can make us hold and open; large public models have some 200 shards.
constexpr size_t kMaxShards = 1024;
constexpr size_t kMaxEntries = 65536;
constexpr size_t kMaxIndexNameBytes = 256;
constexpr JsonLimits kIndexLimits = {.max_depth = 16};  // index files nest two deep, metadata aside

// A shard lies beside its index: nothing in an index may lead out of the model's directory.
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

  // The metadata (total_size, total_parameters) is for information: any value is skipped.
  bool Scalar(nlohmann::json value) override { return metadata_depth_ > 0 || JsonHandler::Scalar(std::move(value)); }
  bool Open(bool object) override {
    if (metadata_depth_ > 0 || (object && where_ == Where::kMetadataValue)) {
      ++metadata_depth_;
      where_ = Where::kTop;  // once the metadata has ended
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
      return Fail(Invalid("{}: {}: {} is not the plain name of a .safetensors file beside the index", path(), Place(),
                          Quoted(text)));
    const auto [found, is_new] = shards_.try_emplace(text, static_cast<uint32_t>(index_.shards.size()));
    if (is_new) {
      if (index_.shards.size() == kMaxShards) return Fail(Unsupported("{}: more than {} shards", path(), kMaxShards));
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
      return Fail(Invalid("{}: weight_map: tensor name {} is {} bytes long, at most {} are accepted", path(),
                          Quoted(name), name.size(), kMaxIndexNameBytes));
    if (index_.entries.size() == kMaxEntries)
      return Fail(Unsupported("{}: weight_map: more than {} tensors", path(), kMaxEntries));
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

}  // namespace

Result<ShardIndex> ParseShardIndex(std::string_view text, const std::string& path) {
  IndexHandler handler(path);
  RETURN_IF_ERROR(ParseJsonEvents(text, kIndexLimits, handler));
  if (!handler.weight_map_seen()) return Invalid("{}: field 'weight_map' is missing", path);
  ShardIndex index = handler.TakeIndex();
  if (index.entries.empty()) return Invalid("{}: 'weight_map' names no tensor", path);
  std::sort(index.entries.begin(), index.entries.end(),
            [](const ShardIndex::Entry& a, const ShardIndex::Entry& b) { return a.tensor < b.tensor; });
  const auto twice =
      std::adjacent_find(index.entries.begin(), index.entries.end(),
                         [](const ShardIndex::Entry& a, const ShardIndex::Entry& b) { return a.tensor == b.tensor; });
  if (twice != index.entries.end())
    return Invalid("{}: weight_map: tensor {} occurs twice", path, Quoted(twice->tensor));
  return index;
}

}  // namespace infinigen
