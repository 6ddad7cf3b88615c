#include "json/fields.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/utf8.h"

namespace infinigen {
namespace {

constexpr size_t kNameBytes = 64;  // longest field name in a message

// "a, b and c"
std::string Listed(std::initializer_list<std::string_view> names) {
  std::string text;
  size_t left = names.size();
  for (const std::string_view name : names) {
    text += name;
    --left;
    text += left > 1 ? ", " : left == 1 ? " and " : "";
  }
  return text;
}

}  // namespace

std::string Shown(const nlohmann::json& value) {
  // `replace`: a string that is not UTF-8 would otherwise throw.
  return Escaped(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

std::string_view KindOf(const nlohmann::json& value) {
  if (value.is_null()) return "null";
  if (value.is_number_integer()) return "an integer";
  if (value.is_number()) return "a number";
  if (value.is_string()) return "a string";
  if (value.is_boolean()) return "a boolean";
  return value.is_array() ? "an array" : "an object";
}

std::optional<int64_t> WholeNumber(const nlohmann::json& value) {
  // nlohmann stores negative integers as signed and all others as unsigned.
  if (value.is_number_unsigned()) {
    const uint64_t number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const double number = value.get<double>();
  if (!(std::abs(number) < 9e15) || number != std::floor(number)) return std::nullopt;  // exact below 2^53
  return static_cast<int64_t>(number);
}

FieldReader::FieldReader(const nlohmann::json& object, std::string where, std::string prefix, FieldWording wording)
    : object_(object), where_(std::move(where)), prefix_(std::move(prefix)), wording_(wording) {
  if (!object_.is_object()) Fail(Invalid("{} must be an object", where_));
}

bool FieldReader::Has(const char* name) const {
  if (!object_.is_object()) return false;
  const auto found = object_.find(name);
  return found != object_.end() && !found->is_null();
}

const nlohmann::json* FieldReader::Find(const char* name) {
  seen_.insert(name);
  if (!object_.is_object()) return nullptr;
  const auto found = object_.find(name);
  return found == object_.end() ? nullptr : &*found;
}

const nlohmann::json* FieldReader::Get(const char* name) {
  const nlohmann::json* value = Find(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

bool FieldReader::Bool(const char* name, bool absent) {
  const nlohmann::json* value = Get(name);
  if (value == nullptr) return absent;
  if (value->is_boolean()) return value->get<bool>();
  Mismatch(name, *value, "true or false");
  return absent;
}

std::string FieldReader::String(const char* name, std::string absent) {
  const nlohmann::json* value = Get(name);
  if (value == nullptr) return absent;
  if (value->is_string()) return value->get<std::string>();
  Mismatch(name, *value, "a string");
  return absent;
}

std::string FieldReader::RequiredString(const char* name) {
  if (!Has(name)) Refuse(name, "is missing");
  return String(name);
}

int64_t FieldReader::Size(const char* name, int64_t limit, std::optional<int64_t> absent) {
  const nlohmann::json* value = Get(name);
  if (value == nullptr) {
    if (!absent) Refuse(name, "is missing");
    return absent.value_or(1);
  }
  if (value->is_number_unsigned()) {
    const uint64_t number = value->get<uint64_t>();
    if (number >= 1 && number <= static_cast<uint64_t>(limit)) return static_cast<int64_t>(number);
  }
  Mismatch(name, *value, fmt::format("a whole number from 1 to {}", limit));
  return 1;
}

uint64_t FieldReader::Unsigned(const char* name, uint64_t absent) {
  const nlohmann::json* value = Find(name);
  if (value == nullptr) return absent;
  if (value->is_number_unsigned()) return value->get<uint64_t>();
  Mismatch(name, *value, "a whole number");
  return absent;
}

double FieldReader::Positive(const char* name, std::optional<double> absent) {
  const nlohmann::json* value = Get(name);
  if (value == nullptr) {
    if (!absent) Refuse(name, "is missing");
    return absent.value_or(1.0);
  }
  if (value->is_number()) {
    const double number = value->get<double>();
    if (std::isfinite(number) && number > 0.0) return number;
  }
  Mismatch(name, *value, "a number above 0");
  return 1.0;
}

std::optional<int64_t> FieldReader::Integer(const char* name, int64_t least, int64_t most) {
  const nlohmann::json* value = Get(name);
  if (value == nullptr) return std::nullopt;
  const auto outside = [&](const auto& number, std::string_view why = "") {
    Refuse(name, fmt::format("{}must be from {} to {}, not {}", why, least, most, number));
    return std::nullopt;
  };
  const std::optional<int64_t> number = WholeNumber(*value);
  if (number && *number >= least && *number <= most) return number;
  if (number) return outside(*number);
  if (value->is_number_integer()) return outside(value->get<uint64_t>());              // more than 63 bits
  if (value->is_number() && std::trunc(value->get<double>()) == value->get<double>())  // more than 64
    return outside(value->get<double>(), "the number is too large: ");
  Mismatch(name, *value, "an integer");
  return std::nullopt;
}

std::optional<double> FieldReader::Number(const char* name, double least, double most) {
  const nlohmann::json* value = Get(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) return Mismatch(name, *value, "a number"), std::nullopt;
  const double number = value->get<double>();
  if (number >= least && number <= most) return number;
  Refuse(name, fmt::format("must be from {} to {}, not {}", least, most, number));
  return std::nullopt;
}

std::vector<int64_t> FieldReader::TokenIds(const char* name) {
  const nlohmann::json* value = Get(name);
  if (value == nullptr) return {};
  std::vector<int64_t> ids;
  const auto add = [&](const nlohmann::json& id) {
    if (id.is_number_unsigned() && id.get<uint64_t>() <= INT32_MAX)
      ids.push_back(id.get<int64_t>());
    else
      Mismatch(name, *value, "a token id or a list of token ids");
  };
  if (value->is_array())
    for (const nlohmann::json& id : *value) add(id);
  else
    add(*value);
  return ids;
}

void FieldReader::Only(const char* name, const nlohmann::json& only) {
  const nlohmann::json* value = Get(name);
  if (value == nullptr || *value == only) return;
  Refuse(name, fmt::format("is {}; only {} is supported", Shown(*value), Shown(only)), ErrorKind::kUnsupported);
}

void FieldReader::Fail(Error error) {
  if (!problem_) problem_ = FieldProblem{error.kind, "", std::move(error.message)};
}

void FieldReader::Refuse(std::string_view name, std::string_view reason, ErrorKind kind) {
  if (problem_) return;
  std::string field = Escaped(prefix_ + std::string(name));
  std::string message =
      wording_ == FieldWording::kApi ? fmt::format("'{}': {}", field, reason) : fmt::format("{} {}", At(name), reason);
  problem_ = FieldProblem{kind, std::move(field), std::move(message)};
}

void FieldReader::Adopt(const FieldReader& inner) {
  if (!problem_) problem_ = inner.problem_;
}

std::string FieldReader::At(std::string_view name) const {
  return fmt::format("{}: field {}", where_, Quoted(prefix_ + std::string(name)));
}

void FieldReader::Mismatch(const char* name, const nlohmann::json& value, std::string_view expected) {
  if (wording_ == FieldWording::kValue) return Refuse(name, fmt::format("is {}, expected {}", Shown(value), expected));
  if (wording_ == FieldWording::kPlain) return Refuse(name, fmt::format("must be {}", expected));
  Refuse(name, fmt::format("must be {}, not {}", expected, KindOf(value)));
}

void FieldReader::RefuseUnknown(bool (*harmless)(std::string_view)) {
  if (!object_.is_object()) return;
  for (const auto& [name, value] : object_.items()) {
    if (seen_.contains(name) || (harmless != nullptr && harmless(name))) continue;
    if (wording_ == FieldWording::kPlain)
      return Fail(Unsupported("{}: option {} is not supported", where_, Quoted(name, kNameBytes)));
    return Refuse(name, fmt::format("({}) is unknown and could change what the model computes", Shown(value)),
                  ErrorKind::kUnsupported);
  }
}

void FieldReader::RefuseOtherThan(std::initializer_list<std::string_view> names) {
  if (!object_.is_object()) return;
  for (const auto& [name, value] : object_.items())
    if (std::find(names.begin(), names.end(), name) == names.end())
      return Refuse(Escaped(name, kNameBytes), "is unknown; known are " + Listed(names));
}

Status FieldReader::status() const {
  if (problem_) return Error{problem_->kind, problem_->message};
  return Ok{};
}

}  // namespace infinigen
