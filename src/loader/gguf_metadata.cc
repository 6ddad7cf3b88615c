// The tensor types, metadata values and typed access of GGUF files.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/utf8.h"
#include "loader/gguf.h"

namespace infinigen {
namespace {

// All numbers that the format has given to types, but for those that it withdrew.
constexpr GgufTensorType kTensorTypes[] = {
    {0, "F32", 1, 4, true},         {1, "F16", 1, 2, true},         {2, "Q4_0", 32, 18, true},
    {3, "Q4_1", 32, 20, true},      {6, "Q5_0", 32, 22, true},      {7, "Q5_1", 32, 24, true},
    {8, "Q8_0", 32, 34, true},      {9, "Q8_1", 32, 36, true},      {10, "Q2_K", 256, 84, true},
    {11, "Q3_K", 256, 110, true},   {12, "Q4_K", 256, 144, true},   {13, "Q5_K", 256, 176, true},
    {14, "Q6_K", 256, 210, true},   {15, "Q8_K", 256, 292, true},   {16, "IQ2_XXS", 256, 66, true},
    {17, "IQ2_XS", 256, 74, true},  {18, "IQ3_XXS", 256, 98, true}, {19, "IQ1_S", 256, 50, true},
    {20, "IQ4_NL", 32, 18, true},   {21, "IQ3_S", 256, 110, true},  {22, "IQ2_S", 256, 82, true},
    {23, "IQ4_XS", 256, 136, true}, {24, "I8", 1, 1, false},        {25, "I16", 1, 2, false},
    {26, "I32", 1, 4, false},       {27, "I64", 1, 8, false},       {28, "F64", 1, 8, false},
    {29, "IQ1_M", 256, 56, true},   {30, "BF16", 1, 2, true},       {34, "TQ1_0", 256, 54, true},
    {35, "TQ2_0", 256, 66, true},   {39, "MXFP4", 32, 17, true},    {40, "NVFP4", 64, 36, true},
    {41, "Q1_0", 128, 18, true},
};

struct WithdrawnType {
  uint32_t id;
  std::string_view name;
};
constexpr WithdrawnType kWithdrawnTypes[] = {
    {4, "Q4_2"},      {5, "Q4_3"},        {31, "Q4_0_4_4"},   {32, "Q4_0_4_8"},
    {33, "Q4_0_8_8"}, {36, "IQ4_NL_4_4"}, {37, "IQ4_NL_4_8"}, {38, "IQ4_NL_8_8"},
};

bool EqualIgnoringCase(std::string_view upper, std::string_view lower) {
  return std::equal(upper.begin(), upper.end(), lower.begin(), lower.end(),
                    [](char a, char b) { return (a >= 'A' && a <= 'Z' ? static_cast<char>(a - 'A' + 'a') : a) == b; });
}

template <class T>
T ReadAs(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

// Calls f with the number at `bytes` in its own type; false if `type` is not a number type.
template <class F>
bool VisitNumber(GgufValueType type, const char* bytes, F&& f) {
  switch (type) {
    case GgufValueType::kUint8:
      f(ReadAs<uint8_t>(bytes));
      return true;
    case GgufValueType::kInt8:
      f(ReadAs<int8_t>(bytes));
      return true;
    case GgufValueType::kUint16:
      f(ReadAs<uint16_t>(bytes));
      return true;
    case GgufValueType::kInt16:
      f(ReadAs<int16_t>(bytes));
      return true;
    case GgufValueType::kUint32:
      f(ReadAs<uint32_t>(bytes));
      return true;
    case GgufValueType::kInt32:
      f(ReadAs<int32_t>(bytes));
      return true;
    case GgufValueType::kUint64:
      f(ReadAs<uint64_t>(bytes));
      return true;
    case GgufValueType::kInt64:
      f(ReadAs<int64_t>(bytes));
      return true;
    case GgufValueType::kFloat32:
      f(ReadAs<float>(bytes));
      return true;
    case GgufValueType::kFloat64:
      f(ReadAs<double>(bytes));
      return true;
    case GgufValueType::kBool:
    case GgufValueType::kString:
    case GgufValueType::kArray:
      return false;
  }
  return false;
}

// The integer at `bytes`; nullopt if the type is no integer or the number needs more than 63 bits.
std::optional<int64_t> ReadInteger(GgufValueType type, const char* bytes) {
  std::optional<int64_t> result;
  VisitNumber(type, bytes, [&](auto number) {
    if constexpr (std::is_integral_v<decltype(number)>)
      if (std::in_range<int64_t>(number)) result = static_cast<int64_t>(number);
  });
  return result;
}

std::optional<double> ReadNumber(GgufValueType type, const char* bytes) {
  std::optional<double> result;
  VisitNumber(type, bytes, [&](auto number) { result = static_cast<double>(number); });
  return result;
}

std::string_view TakeString(std::string_view& bytes) {
  const auto length = ReadAs<uint64_t>(bytes.data());
  const std::string_view text = bytes.substr(sizeof(length), length);
  bytes.remove_prefix(sizeof(length) + length);
  return text;
}

std::string ShownScalar(GgufValueType type, const char* bytes) {
  if (type == GgufValueType::kBool) return bytes[0] != 0 ? "true" : "false";
  std::string text;
  VisitNumber(type, bytes, [&](auto number) {
    // A one-byte integer would print as a character.
    if constexpr (std::is_integral_v<decltype(number)>)
      text = fmt::format(
          "{}", static_cast<std::conditional_t<std::is_signed_v<decltype(number)>, int64_t, uint64_t>>(number));
    else
      text = fmt::format("{}", number);
  });
  return text;
}

}  // namespace

std::string_view WithdrawnGgufType(uint32_t id) {
  for (const WithdrawnType& type : kWithdrawnTypes)
    if (type.id == id) return type.name;
  return {};
}

const GgufTensorType* FindGgufTensorType(uint32_t id) {
  const auto* const found = std::find_if(std::begin(kTensorTypes), std::end(kTensorTypes),
                                         [id](const GgufTensorType& type) { return type.id == id; });
  return found == std::end(kTensorTypes) ? nullptr : found;
}

std::optional<WeightType> WeightTypeOf(const GgufTensorType& type) {
  for (size_t i = 0; i < kWeightFormats.size(); ++i) {
    const WeightFormat& format = kWeightFormats[i];
    if (!EqualIgnoringCase(type.name, format.name)) continue;
    CHECK(format.block_numbers == type.block_numbers && format.block_bytes == type.block_bytes);
    return static_cast<WeightType>(i);
  }
  return std::nullopt;
}

const GgufTensorType& GgufTensorTypeOf(WeightType type) {
  const auto* const found =
      std::find_if(std::begin(kTensorTypes), std::end(kTensorTypes),
                   [&](const GgufTensorType& t) { return EqualIgnoringCase(t.name, Name(type)); });
  CHECK(found != std::end(kTensorTypes));
  return *found;
}

std::string_view Name(GgufValueType type) {
  static constexpr std::string_view kNames[] = {"uint8", "int8",   "uint16", "int16",  "uint32", "int32",  "float32",
                                                "bool",  "string", "array",  "uint64", "int64",  "float64"};
  return kNames[static_cast<size_t>(type)];
}

std::optional<bool> GgufValue::AsBool() const {
  if (type != GgufValueType::kBool) return std::nullopt;
  return bytes[0] != 0;
}

std::optional<int64_t> GgufValue::AsSigned() const {
  return type == GgufValueType::kArray ? std::nullopt : ReadInteger(type, bytes.data());
}

std::optional<uint64_t> GgufValue::AsUnsigned() const {
  const std::optional<int64_t> number = AsSigned();
  return number && *number >= 0 ? std::optional(static_cast<uint64_t>(*number)) : std::nullopt;
}

std::optional<double> GgufValue::AsNumber() const {
  return type == GgufValueType::kArray ? std::nullopt : ReadNumber(type, bytes.data());
}

std::optional<std::string_view> GgufValue::AsString() const {
  return type == GgufValueType::kString ? std::optional(bytes) : std::nullopt;
}

std::optional<std::vector<std::string_view>> GgufValue::AsStrings() const {
  if (!is_array_of(GgufValueType::kString)) return std::nullopt;
  std::vector<std::string_view> strings;
  strings.reserve(count);  // the file has 8 bytes or more for each
  std::string_view rest = bytes;
  for (uint64_t i = 0; i < count; ++i) strings.push_back(TakeString(rest));
  return strings;
}

std::optional<std::vector<int64_t>> GgufValue::AsIntegers() const {
  if (type != GgufValueType::kArray || element == GgufValueType::kString || element == GgufValueType::kArray)
    return std::nullopt;
  std::vector<int64_t> numbers;
  numbers.reserve(count);
  const size_t size = count == 0 ? 0 : bytes.size() / count;
  for (uint64_t i = 0; i < count; ++i) {
    const std::optional<int64_t> number = ReadInteger(element, bytes.data() + i * size);
    if (!number) return std::nullopt;
    numbers.push_back(*number);
  }
  return numbers;
}

std::optional<std::vector<float>> GgufValue::AsFloats() const {
  if (!is_array_of(GgufValueType::kFloat32)) return std::nullopt;
  std::vector<float> numbers(count);
  if (count != 0) std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

std::string GgufValue::Shown() const {
  constexpr uint64_t kShownElements = 6;
  if (type == GgufValueType::kString) return Quoted(bytes, 200);
  if (type != GgufValueType::kArray) return ShownScalar(type, bytes.data());
  if (element == GgufValueType::kArray) return fmt::format("{} arrays", count);
  std::string text = "[";
  std::string_view rest = bytes;
  const size_t size = count == 0 ? 0 : bytes.size() / count;
  for (uint64_t i = 0; i < std::min(count, kShownElements); ++i) {
    text += i == 0 ? "" : ", ";
    text += element == GgufValueType::kString ? Quoted(TakeString(rest), 40)
                                              : ShownScalar(element, bytes.data() + i * size);
  }
  return text + (count > kShownElements ? fmt::format(", … {} in all]", count) : "]");
}

Result<GgufMetadata> GgufMetadata::Make(std::string path, std::vector<GgufEntry> entries) {
  GgufMetadata metadata;
  metadata.path_ = std::move(path);
  metadata.entries_ = std::move(entries);
  const std::vector<GgufEntry>& all = metadata.entries_;
  std::vector<uint32_t>& order = metadata.by_key_;
  order.resize(all.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return all[a].key < all[b].key; });
  const auto twice =
      std::adjacent_find(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return all[a].key == all[b].key; });
  if (twice != order.end())
    return Invalid("{}: metadata key {} occurs twice, at byte {} and {}", metadata.path_, Quoted(all[*twice].key),
                   all[*twice].offset, all[*std::next(twice)].offset);
  return metadata;
}

const GgufValue* GgufMetadata::Find(std::string_view key) const {
  const auto found =
      std::lower_bound(by_key_.begin(), by_key_.end(), key,
                       [this](uint32_t entry, std::string_view wanted) { return entries_[entry].key < wanted; });
  return found != by_key_.end() && entries_[*found].key == key ? &entries_[*found].value : nullptr;
}

Error GgufMetadata::Mismatch(std::string_view key, std::string_view expected) const {
  const GgufValue* const value = Find(key);
  return Invalid("{}: metadata key {} is {}, expected {}", path_, Quoted(key),
                 value == nullptr ? "missing" : value->Shown(), expected);
}

namespace {

// Converts the value of a key; nullopt if the key is missing.
template <class T, class Convert>
Result<std::optional<T>> Typed(const GgufMetadata& metadata, std::string_view key, std::string_view expected,
                               Convert&& convert) {
  const GgufValue* const value = metadata.Find(key);
  if (value == nullptr) return std::optional<T>();
  if (value->count > kMaxGgufElements)
    return Unsupported("{}: metadata key {} has {} elements; at most {} are supported", metadata.path(), Quoted(key),
                       value->count, kMaxGgufElements);
  std::optional<T> converted = convert(*value);
  if (!converted) return metadata.Mismatch(key, expected);
  return converted;
}

}  // namespace

Result<std::optional<bool>> GgufMetadata::Bool(std::string_view key) const {
  return Typed<bool>(*this, key, "true or false", [](const GgufValue& value) { return value.AsBool(); });
}
Result<std::optional<uint64_t>> GgufMetadata::Unsigned(std::string_view key) const {
  return Typed<uint64_t>(*this, key, "a whole number, not negative",
                         [](const GgufValue& value) { return value.AsUnsigned(); });
}
Result<std::optional<double>> GgufMetadata::Number(std::string_view key) const {
  return Typed<double>(*this, key, "a finite number", [](const GgufValue& value) {
    const std::optional<double> number = value.AsNumber();
    return number && std::isfinite(*number) ? number : std::nullopt;
  });
}
Result<std::optional<int64_t>> GgufMetadata::TokenId(std::string_view key) const {
  const GgufValue* const value = Find(key);
  if (value == nullptr) return std::optional<int64_t>();
  const std::optional<int64_t> id = value->AsSigned();
  if (!id) return Mismatch(key, "a token id");
  return *id >= 0 && *id < INT32_MAX ? id : std::nullopt;
}
Result<std::optional<std::string_view>> GgufMetadata::String(std::string_view key) const {
  return Typed<std::string_view>(*this, key, "a string", [](const GgufValue& value) { return value.AsString(); });
}
Result<std::optional<std::vector<std::string_view>>> GgufMetadata::Strings(std::string_view key) const {
  return Typed<std::vector<std::string_view>>(*this, key, "an array of strings",
                                              [](const GgufValue& value) { return value.AsStrings(); });
}
Result<std::optional<std::vector<int64_t>>> GgufMetadata::Integers(std::string_view key) const {
  return Typed<std::vector<int64_t>>(*this, key, "an array of whole numbers",
                                     [](const GgufValue& value) { return value.AsIntegers(); });
}
Result<std::optional<std::vector<float>>> GgufMetadata::Floats(std::string_view key) const {
  return Typed<std::vector<float>>(*this, key, "an array of float32",
                                   [](const GgufValue& value) { return value.AsFloats(); });
}

}  // namespace infinigen
