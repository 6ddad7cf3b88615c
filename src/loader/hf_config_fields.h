// Fields of config.json that do not change what a trained model computes, and a reader of JSON objects that remembers
// which fields were looked at. For the readers of config.json (model/config_reader.cc, model/families/).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace infinigen {

// Training settings, bookkeeping and sampling defaults, as transformers 4.x and 5.x write them.
bool IsHarmlessConfigField(std::string_view name);

// Typed access to the fields of one JSON object. The first thing that is wrong is kept and later calls return defaults,
// so that a parser reads as a list of fields and asks once, by status(). A null counts as absent.
class FieldReader {
 public:
  // `path` and `prefix` ("rope_scaling.") are for messages. `object` is an object and outlives the reader.
  FieldReader(const nlohmann::json& object, std::string path, std::string prefix = "");

  const std::string& path() const { return path_; }
  bool Has(const char* name) const;
  // The field was looked at before.
  bool Seen(const char* name) const { return seen_.count(name) != 0; }
  // Looked at, whatever it holds; null when absent.
  const nlohmann::json* Get(const char* name);

  // A size in [1, limit]. Without a default it must be there.
  int64_t Size(const char* name, int64_t limit, std::optional<int64_t> absent = std::nullopt);
  bool Bool(const char* name, bool absent);
  // A finite number above 0.
  double Positive(const char* name, std::optional<double> absent = std::nullopt);
  std::string String(const char* name, std::string absent);
  // One id or a list of ids, each at least 0.
  std::vector<int64_t> TokenIds(const char* name);
  // Refuses every value but `only` (or absent): for fields whose other values we do not compute.
  void Only(const char* name, const nlohmann::json& only);

  void Fail(Error error);
  // For messages: "path: field 'prefix.name'".
  std::string At(std::string_view name) const;
  // Refuses by name every field that was not looked at and that `harmless` does not know.
  void RefuseUnknown(bool (*harmless)(std::string_view));

  Status status() const;

 private:
  const nlohmann::json& object_;
  std::string path_;
  std::string prefix_;
  std::set<std::string, std::less<>> seen_;
  std::optional<Error> error_;
};

// A JSON value for a message: short, one line.
std::string Shown(const nlohmann::json& value);

}  // namespace infinigen
