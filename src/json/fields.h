// FieldReader: typed access to the fields of one foreign JSON object: a configuration file, a part of a tokenizer file,
// the body of a request, a line of questions. It keeps the first thing that is wrong and returns defaults from then on,
// so that a parser reads as a list of fields and asks once, by status() or problem(). It remembers which fields were
// asked for, and refuses the others by name. One thread.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace infinigen {

// How a wrong field is reported.
enum class FieldWording : uint8_t {
  kValue,  // "config.json: field 'x' is 3, expected true or false"
  kPlain,  // "pre_tokenizer Split: field 'x' must be true or false"
  kApi,    // "'x': must be true or false, not an integer"
};

struct FieldProblem {
  ErrorKind kind = ErrorKind::kInvalid;
  std::string field;    // with its prefix; empty when the problem concerns no single field
  std::string message;  // one line
};

class FieldReader {
 public:
  // `where` begins the messages of kValue and kPlain; `prefix` ("rope_scaling.") begins the names of fields in
  // messages. `object` outlives the reader; when it is no object, that is the first error.
  FieldReader(const nlohmann::json& object, std::string where, std::string prefix = "",
              FieldWording wording = FieldWording::kValue);

  // Whether the field is there and not null. Does not count as asking for it.
  bool Has(const char* name) const;
  // The field, counted as asked for. Find: null when absent. Get: null when absent or the value null.
  const nlohmann::json* Find(const char* name);
  const nlohmann::json* Get(const char* name);
  // Whether the field was asked for.
  bool Seen(const char* name) const { return seen_.count(name) != 0; }
  // Known, and without effect here.
  void Ignore(const char* name) { seen_.insert(name); }

  // In all of these but Unsigned, the value null counts as absent.
  bool Bool(const char* name, bool absent);
  std::string String(const char* name, std::string absent = "");
  std::string RequiredString(const char* name);
  // A whole number in [1, limit], written without a fraction. Without `absent` it must be there.
  int64_t Size(const char* name, int64_t limit, std::optional<int64_t> absent = std::nullopt);
  // A whole number of at least 0. null is refused: an id that is stated as null is not an id that is left out.
  uint64_t Unsigned(const char* name, uint64_t absent);
  // A finite number above 0.
  double Positive(const char* name, std::optional<double> absent = std::nullopt);
  // nullopt: absent, or wrong. Integer takes 3.0 for 3.
  std::optional<int64_t> Integer(const char* name, int64_t least, int64_t most);
  std::optional<double> Number(const char* name, double least, double most);
  // One id or a list of ids, each in [0, 2^31).
  std::vector<int64_t> TokenIds(const char* name);
  // Refuses every value but `only` (or absent): for fields whose other values are not computed.
  void Only(const char* name, const nlohmann::json& only);

  // Both keep the first error only. Refuse: "<where>: field '<name>' <reason>", or "'<name>': <reason>" for kApi.
  void Fail(Error error);
  void Refuse(std::string_view name, std::string_view reason, ErrorKind kind = ErrorKind::kInvalid);
  // The error of a reader of an object inside this one.
  void Adopt(const FieldReader& inner);
  // For messages: "<where>: field '<prefix><name>'".
  std::string At(std::string_view name) const;

  // Refuses each field that was not asked for and that `harmless` (null: none) does not know.
  void RefuseUnknown(bool (*harmless)(std::string_view) = nullptr);
  // Refuses each field that is not in `names`; counts none as asked for.
  void RefuseOtherThan(std::initializer_list<std::string_view> names);

  const std::string& where() const { return where_; }
  const std::optional<FieldProblem>& problem() const { return problem_; }
  Status status() const;

 private:
  // Refuses a value: "is <value>, expected <expected>" and so on, by the wording.
  void Mismatch(const char* name, const nlohmann::json& value, std::string_view expected);

  const nlohmann::json& object_;
  std::string where_;
  std::string prefix_;
  FieldWording wording_;
  std::set<std::string, std::less<>> seen_;
  std::optional<FieldProblem> problem_;
};

// A value as JSON on one short line, for messages.
std::string Shown(const nlohmann::json& value);

// "an integer", "a string", "an object" …
std::string_view KindOf(const nlohmann::json& value);

// 3 and 3.0; nullopt for 3.5, for what is no number and for what 64 bits cannot hold.
std::optional<int64_t> WholeNumber(const nlohmann::json& value);

}  // namespace infinigen
