// Files of tests/tensor/golden: JSON with bytes as hexadecimal text.
#pragma once

#include <cstddef>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace infinigen {

inline nlohmann::json GoldenJson(const std::string& name) {
  std::ifstream file(INFINIGEN_TEST_DATA "/tensor/golden/" + name);
  return nlohmann::json::parse(file);
}

inline std::vector<std::byte> BytesFromHex(const std::string& hex) {
  std::vector<std::byte> bytes(hex.size() / 2);
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  return bytes;
}

inline std::vector<float> FloatsFromHex(const std::string& hex) {
  const std::vector<std::byte> bytes = BytesFromHex(hex);
  std::vector<float> numbers(bytes.size() / sizeof(float));
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

}  // namespace infinigen
