// JsonFields: typed access to the fields of one JSON object from a foreign file. Collects the first error; after the
// last field has been asked for, Finish() also reports fields that nobody asked for.
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "base/result.h"

namespace infinigen {

class JsonFields {
 public:
  // `what` names the object in messages: "pre_tokenizer Split".
  JsonFields(const nlohmann::json& object, std::string what) : object_(object), what_(std::move(what)) {
    if (!object_.is_object()) Fail(Invalid("{} must be an object", what_));
  }

  bool Bool(const char* key, bool otherwise) {
    const nlohmann::json* field = Find(key);
    if (field == nullptr || field->is_null()) return otherwise;
    const bool* value = field->get_ptr<const bool*>();
    if (value == nullptr) Fail(Invalid("{}: field '{}' must be true or false", what_, key));
    return value == nullptr ? otherwise : *value;
  }

  // `required`: absence is an error, else it is `otherwise`.
  std::string Text(const char* key, bool required, std::string otherwise = {}) {
    const nlohmann::json* field = Find(key);
    if (field == nullptr || field->is_null()) {
      if (required) Fail(Invalid("{}: field '{}' is missing", what_, key));
      return otherwise;
    }
    const auto* value = field->get_ptr<const std::string*>();
    if (value == nullptr) Fail(Invalid("{}: field '{}' must be a string", what_, key));
    return value == nullptr ? otherwise : *value;
  }

  uint64_t Unsigned(const char* key, uint64_t otherwise) {
    const nlohmann::json* field = Find(key);
    if (field == nullptr) return otherwise;
    const auto* value = field->get_ptr<const nlohmann::json::number_unsigned_t*>();
    if (value == nullptr) Fail(Invalid("{}: field '{}' must be a whole number", what_, key));
    return value == nullptr ? otherwise : *value;
  }

  // Null when absent.
  const nlohmann::json* Find(const char* key) {
    known_.insert(key);
    if (!object_.is_object()) return nullptr;
    const auto field = object_.find(key);
    return field == object_.end() ? nullptr : &*field;
  }

  // Known and without effect here.
  void Ignore(const char* key) { known_.insert(key); }

  void Fail(Error error) {
    if (!failed_) error_ = std::move(error);
    failed_ = true;
  }

  Status Finish() {
    if (failed_) return error_;
    for (const auto& item : object_.items())
      if (!known_.contains(item.key()))
        return Unsupported("{}: option '{}' is not supported", what_, item.key().substr(0, 64));
    return Ok{};
  }

 private:
  const nlohmann::json& object_;
  std::string what_;
  std::set<std::string> known_;
  bool failed_ = false;
  Error error_;
};

}  // namespace infinigen
