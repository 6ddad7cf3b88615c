#include "hub/listing.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/utf8.h"
#include "hub/name.h"
#include "json/fields.h"
#include "json/parse.h"

namespace infinigen {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{1} << 50;
constexpr size_t kMaxShards = 1024;
// A file's entry has about ten values.
constexpr JsonLimits kEntryLimits = {.max_depth = 16, .max_values = 256, .max_text_bytes = 16384};

Result<HubFile> ReadFile(const nlohmann::json& entry, const std::string& where) {
  FieldReader fields(entry, where + ": siblings");
  HubFile file{.path = fields.RequiredString("rfilename")};
  const std::optional<int64_t> size = fields.Integer("size", 0, kMaxFileBytes);
  const nlohmann::json* large = fields.Get("lfs");
  RETURN_IF_ERROR(fields.status());
  if (!IsSafePath(file.path)) return Invalid("{}: the file name {} is refused", where, Quoted(file.path));
  if (large == nullptr) {
    file.hash = fields.RequiredString("blobId");
    RETURN_IF_ERROR(fields.status());
    if (!size) return Invalid("{}: {} has no size", where, Quoted(file.path));
    file.bytes = static_cast<uint64_t>(*size);
  } else {
    FieldReader inner(*large, where + ": siblings", "lfs.");
    file.hash = inner.RequiredString("sha256");
    const std::optional<int64_t> large_size = inner.Integer("size", 0, kMaxFileBytes);
    RETURN_IF_ERROR(inner.status());
    if (!large_size) return Invalid("{}: {} has no size", where, Quoted(file.path));
    file.bytes = static_cast<uint64_t>(*large_size);
  }
  if (!IsHex(file.hash, large == nullptr ? 40 : 64))
    return Invalid("{}: the hash {} of {} is malformed", where, Quoted(file.hash), Quoted(file.path));
  return file;
}

// {"sha": "…", "siblings": [{"rfilename": …, "size": …, "blobId": …, "lfs": {…}}, …], and much that is skipped}
class ListingHandler final : public JsonHandler {
 public:
  explicit ListingHandler(const std::string& where) : JsonHandler(where), entry_(kEntryLimits) {}

  bool listed() const { return listed_; }
  HubListing TakeListing() { return std::move(listing_); }

  bool Scalar(nlohmann::json value) override {
    if (depth_ == 0 || (in_list_ && depth_ == 2)) return JsonHandler::Scalar(std::move(value));
    return !in_list_ || AddToEntry(std::move(value));
  }
  bool String(std::string& value) override {
    if (depth_ == 0 || (in_list_ && depth_ == 2)) return JsonHandler::String(value);
    if (in_list_) return AddToEntry(std::move(value));
    if (depth_ == 1 && key_ == "sha") listing_.commit = std::move(value);
    return true;
  }
  bool Key(std::string& key) override {
    if (depth_ == 1) key_ = std::move(key);
    return !in_list_ || entry_.Key(std::move(key)) || TooLarge();
  }
  bool Open(bool object) override {
    if (depth_ == 0 && !object) return JsonHandler::Open(object);
    if (depth_ == 1 && key_ == "siblings") {
      if (object || std::exchange(listed_, true)) return Unexpected("value of 'siblings'");
      in_list_ = true;
      ++depth_;
      return true;
    }
    if (in_list_ && depth_ == 2 && !object) return Unexpected("array");
    ++depth_;
    return !in_list_ || entry_.Open(object) || TooLarge();
  }
  bool Close(bool) override {
    --depth_;
    if (!in_list_) return true;
    if (depth_ == 1) {
      in_list_ = false;
      return true;
    }
    entry_.Close();
    return !entry_.complete() || AddFile(entry_.Take());
  }

 protected:
  std::string Place() const override {
    return in_list_ ? fmt::format("siblings, file {}", listing_.files.size()) : "listing";
  }

 private:
  bool TooLarge() { return Fail(Invalid("{}: {}: the entry is too large", path(), Place())); }
  bool AddToEntry(nlohmann::json value) { return entry_.Add(std::move(value)) || TooLarge(); }
  bool AddFile(const nlohmann::json& entry) {
    if (listing_.files.size() == kMaxListedFiles)
      return Fail(Unsupported("{}: more than {} files are not supported", path(), kMaxListedFiles));
    Result<HubFile> file = ReadFile(entry, path());
    if (!file.ok()) return Fail(file.error());
    listing_.files.push_back(std::move(file).value());
    return true;
  }

  size_t depth_ = 0;      // objects and arrays that are open
  bool in_list_ = false;  // inside the array "siblings", whose depth is 2
  bool listed_ = false;
  std::string key_;        // the last key of the outermost object
  JsonTreeBuilder entry_;  // the file that is being read
  HubListing listing_;
};

// {"metadata": …, "weight_map": {"tensor": "shard", …}}
class ShardHandler final : public JsonHandler {
 public:
  using JsonHandler::JsonHandler;

  bool seen() const { return seen_; }
  std::vector<std::string> shards() const { return {shards_.begin(), shards_.end()}; }

  bool Scalar(nlohmann::json value) override {
    return (depth_ > 0 && !in_map_) || JsonHandler::Scalar(std::move(value));
  }
  bool String(std::string& value) override {
    if (depth_ == 0) return JsonHandler::String(value);
    if (!in_map_) return true;
    if (!IsSafePath(value) || value.find('/') != value.npos || !EndsWithIgnoringCase(value, ".safetensors"))
      return Fail(Invalid("{}: the shard name {} is refused", path(), Quoted(value)));
    shards_.insert(std::move(value));
    return shards_.size() <= kMaxShards ||
           Fail(Unsupported("{}: more than {} shards are not supported", path(), kMaxShards));
  }
  bool Key(std::string& key) override {
    if (depth_ == 1) key_ = std::move(key);
    return true;
  }
  bool Open(bool object) override {
    if (in_map_ || (depth_ == 0 && !object)) return JsonHandler::Open(object);
    if (depth_ == 1 && key_ == "weight_map") {
      if (!object || std::exchange(seen_, true)) return Unexpected("value of 'weight_map'");
      in_map_ = true;
    }
    ++depth_;
    return true;
  }
  bool Close(bool) override {
    --depth_;
    in_map_ = false;
    return true;
  }

 protected:
  std::string Place() const override { return in_map_ ? "weight_map" : "index"; }

 private:
  size_t depth_ = 0;
  bool in_map_ = false;  // inside "weight_map", whose depth is 2
  bool seen_ = false;
  std::string key_;
  std::set<std::string> shards_;
};

}  // namespace

const HubFile* HubListing::Find(std::string_view path) const {
  const auto found = std::lower_bound(files.begin(), files.end(), path,
                                      [](const HubFile& file, std::string_view other) { return file.path < other; });
  return found != files.end() && found->path == path ? &*found : nullptr;
}

Result<HubListing> ParseListing(std::string_view text, const std::string& where) {
  ListingHandler handler(where);
  RETURN_IF_ERROR(ParseJsonEvents(text, JsonLimits{}, handler));
  if (!handler.listed()) return Invalid("{}: the reply has no list of files ('siblings')", where);
  HubListing listing = handler.TakeListing();
  if (!IsHex(listing.commit, 40))
    return Invalid("{}: the commit {} ('sha') is malformed", where, Quoted(listing.commit));
  const auto by_path = [](const HubFile& a, const HubFile& b) { return a.path < b.path; };
  std::sort(listing.files.begin(), listing.files.end(), by_path);
  for (size_t i = 1; i < listing.files.size(); ++i)
    if (listing.files[i - 1].path == listing.files[i].path)
      return Invalid("{}: {} is listed twice", where, Quoted(listing.files[i].path));
  return listing;
}

Result<std::vector<std::string>> ParseShardNames(std::string_view text, const std::string& where) {
  ShardHandler handler(where);
  RETURN_IF_ERROR(ParseJsonEvents(text, JsonLimits{.max_depth = 16}, handler));
  if (!handler.seen()) return Invalid("{}: the field 'weight_map' is missing", where);
  return handler.shards();
}

}  // namespace infinigen
