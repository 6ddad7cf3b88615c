#include "json/tree.h"

#include <algorithm>
#include <utility>

#include "base/mmap_file.h"

namespace infinigen {
namespace {

class TreeHandler final : public JsonHandler {
 public:
  explicit TreeHandler(const JsonLimits& limits) : JsonHandler(""), tree(limits) {}
  bool Scalar(nlohmann::json value) override { return tree.Add(std::move(value)) || TooLarge(); }
  bool String(std::string& value) override { return tree.Add(std::move(value)) || TooLarge(); }
  bool Key(std::string& key) override { return tree.Key(std::move(key)) || TooLarge(); }
  bool Open(bool object) override { return tree.Open(object) || TooLarge(); }
  bool Close(bool) override {
    tree.Close();
    return true;
  }

  JsonTreeBuilder tree;

 protected:
  std::string Place() const override { return {}; }

 private:
  bool TooLarge() { return Fail({}); }
};

}  // namespace

bool JsonTreeBuilder::Count(size_t text_bytes) {
  text_bytes_ += text_bytes;
  return ++values_ <= limits_.max_values && text_bytes_ <= limits_.max_text_bytes;
}

nlohmann::json* JsonTreeBuilder::Place(nlohmann::json value) {
  if (open_.empty()) {
    root_ = std::move(value);
    started_ = true;
    return &root_;
  }
  nlohmann::json& parent = *open_.back();
  if (parent.is_object()) return &(parent[key_] = std::move(value));
  parent.push_back(std::move(value));
  return &parent.back();
}

bool JsonTreeBuilder::Add(nlohmann::json value) {
  const auto* text = value.get_ptr<const std::string*>();
  if (!Count(text == nullptr ? 0 : text->size())) return false;
  Place(std::move(value));
  return true;
}

bool JsonTreeBuilder::Key(std::string key) {
  key_ = std::move(key);
  return Count(key_.size());
}

bool JsonTreeBuilder::Open(bool object) {
  if (!Count(0)) return false;
  open_.push_back(Place(object ? nlohmann::json::object() : nlohmann::json::array()));
  return true;
}

nlohmann::json JsonTreeBuilder::Take() {
  started_ = false;
  values_ = text_bytes_ = 0;
  return std::exchange(root_, nullptr);
}

std::optional<JsonFault> BuildJson(std::string_view text, const JsonLimits& limits, nlohmann::json* tree) {
  TreeHandler handler(limits);
  std::optional<JsonFault> fault = ScanJson(text, limits, handler);
  if (handler.error()) return JsonFault{.kind = JsonFault::Kind::kTooLarge};
  if (!fault) *tree = handler.tree.Take();
  return fault;
}

Result<nlohmann::json> ParseJson(std::string_view text, const std::string& path, const JsonLimits& limits) {
  nlohmann::json tree;
  if (const std::optional<JsonFault> fault = BuildJson(text, limits, &tree))
    return Invalid("{}: {}", path, fault->Message());
  return tree;
}

Result<nlohmann::json> ReadJsonFile(const std::string& path, size_t max_bytes, const JsonLimits& limits) {
  ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path, max_bytes));
  return ParseJson(text, path, limits);
}

std::optional<JsonLines::Line> JsonLines::Next() {
  while (!rest_.empty()) {
    const size_t end = std::min(rest_.find('\n'), rest_.size());
    std::string_view line = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    ++number_;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) return Line{line, number_};
  }
  return std::nullopt;
}

}  // namespace infinigen
