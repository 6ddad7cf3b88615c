// FieldReader: typed access to the fields of one untrusted JSON object, such as a configuration file, a part of a
// tokenizer file or the body of a request. It records the first error and returns defaults after it, so a parser reads
// as a list of fields and checks for errors once, with status() or problem(). It also records which fields were read
// and can reject all others. One thread.
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

// Form of the message about a wrong field.
enum class FieldWording : uint8_t {
  kValue,  // "config.json: field 'x' is 3, expected true or false"
  kPlain,  // "pre_tokenizer Split: field 'x' must be true or false"
  kApi,    // "'x': must be true or false, not an integer"
};

struct FieldProblem {
  ErrorKind kind = ErrorKind::kInvalid;
  std::string field;    // with prefix; empty when the problem is not about a single field
  std::string message;  // one line
};

class FieldReader {
 public:
  // `where`: start of the messages of kValue and kPlain. `prefix` ("rope_scaling."): put before field names in
  // messages. `object` must outlive the reader. If it is not a JSON object, that is the first error.
  FieldReader(const nlohmann::json& object, std::string where, std::string prefix = "",
              FieldWording wording = FieldWording::kValue);

  // True when the field exists and is not null. Does not count as a read.
  bool Has(const char* name) const;
  // Reads the field. Find: nullptr when absent. Get: nullptr when absent or JSON null.
  const nlohmann::json* Find(const char* name);
  const nlohmann::json* Get(const char* name);
  // True when the field was read.
  bool Seen(const char* name) const { return seen_.count(name) != 0; }
  // Counts the field as read: it is known and has no effect.
  void Ignore(const char* name) { seen_.insert(name); }

  // `absent` is the value for an absent field. JSON null counts as absent, except in Unsigned.
  bool Bool(const char* name, bool absent);
  std::string String(const char* name, std::string absent = "");
  std::string RequiredString(const char* name);
  // A whole number in [1, limit], written without a fraction. Required unless `absent` is given.
  int64_t Size(const char* name, int64_t limit, std::optional<int64_t> absent = std::nullopt);
  // A whole number >= 0. JSON null is an error: an id that is null is not the same as no id.
  uint64_t Unsigned(const char* name, uint64_t absent);
  // A finite number > 0. Required unless `absent` is given.
  double Positive(const char* name, std::optional<double> absent = std::nullopt);
  // nullopt when absent or wrong. Integer accepts 3.0 as 3.
  std::optional<int64_t> Integer(const char* name, int64_t least, int64_t most);
  std::optional<double> Number(const char* name, double least, double most);
  // One id or a list of ids, each in [0, 2^31).
  std::vector<int64_t> TokenIds(const char* name);
  // Fails unless the field is absent or equals `only`: for fields with a single supported value.
  void Only(const char* name, const nlohmann::json& only);

  // Both record the error only if it is the first. Refuse's message is "<where>: field '<name>' <reason>", or
  // "'<name>': <reason>" for kApi.
  void Fail(Error error);
  void Refuse(std::string_view name, std::string_view reason, ErrorKind kind = ErrorKind::kInvalid);
  // Takes over the error of a reader of a nested object.
  void Adopt(const FieldReader& inner);
  // For messages: "<where>: field '<prefix><name>'".
  std::string At(std::string_view name) const;

  // Fails for the first field that was not read, unless `harmless` (may be null) returns true for it.
  void RefuseUnknown(bool (*harmless)(std::string_view) = nullptr);
  // Fails for the first field that is not in `names`. Does not count as a read.
  void RefuseOtherThan(std::initializer_list<std::string_view> names);

  const std::string& where() const { return where_; }
  const std::optional<FieldProblem>& problem() const { return problem_; }
  Status status() const;

 private:
  // Fails for a value of the wrong type or range, in the words of wording_.
  void Mismatch(const char* name, const nlohmann::json& value, std::string_view expected);

  const nlohmann::json& object_;
  std::string where_;
  std::string prefix_;
  FieldWording wording_;
  std::set<std::string, std::less<>> seen_;
  std::optional<FieldProblem> problem_;
};

// The value as JSON, on one line and shortened, for messages.
std::string Shown(const nlohmann::json& value);

// "an integer", "a string", "an object" …
std::string_view KindOf(const nlohmann::json& value);

// The value as an integer, also when written as 3.0; nullopt for 3.5, non-numbers and numbers beyond 64 bits.
std::optional<int64_t> WholeNumber(const nlohmann::json& value);

}  // namespace infinigen
