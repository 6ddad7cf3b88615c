// JSON as values of chat templates, for tests and test helpers. Keys keep their order, as in Python's dicts.
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "jinja/template.h"

namespace infinigen::jinja {

inline Value ValueOf(Budget& budget, const nlohmann::ordered_json& json) {
  if (json.is_null()) return None{};
  if (json.is_boolean()) return Value(json.get<bool>());
  if (json.is_number_integer()) return Value(json.get<int64_t>());
  if (json.is_number()) return Value(json.get<double>());
  if (json.is_string()) return Value(std::make_shared<const std::string>(json.get<std::string>()));
  if (json.is_array()) {
    List items;
    for (const auto& item : json) items.push_back(ValueOf(budget, item));
    return MakeSequence(budget, SequenceKind::kList, std::move(items)).value();
  }
  std::vector<std::pair<Value, Value>> items;
  for (const auto& [key, value] : json.items()) {
    items.emplace_back(Value(std::make_shared<const std::string>(key)), ValueOf(budget, value));
  }
  return MakeDict(budget, items).value();
}

inline Variables VariablesOf(const nlohmann::ordered_json& json) {
  Budget budget(uint64_t{1} << 32, uint64_t{1} << 32);
  Variables out;
  for (const auto& [name, value] : json.items()) out[name] = ValueOf(budget, value);
  return out;
}

// 6 July 2024, 15:04:09, the clock of the golden files.
inline std::tm GoldenClock() {
  std::tm out = {};
  out.tm_year = 124;
  out.tm_mon = 6;
  out.tm_mday = 6;
  out.tm_hour = 15;
  out.tm_min = 4;
  out.tm_sec = 9;
  out.tm_wday = 6;
  out.tm_yday = 187;
  return out;
}

}  // namespace infinigen::jinja
