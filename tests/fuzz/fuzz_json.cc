// Parses the input as JSON. Events and tree agree with each other and, within the limits, with the library; every
// message is one line of valid UTF-8. Then reads fields of every type from the result.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/utf8.h"
#include "json/fields.h"
#include "json/parse.h"

namespace {

using namespace infinigen;

constexpr JsonLimits kLimits = {.max_depth = 8, .max_token_bytes = 1000, .max_values = 2000, .max_text_bytes = 20'000};

void CheckMessage(std::string_view message) {
  CHECK(!message.empty() && message.size() < 1000 && ValidUtf8Prefix(message) == message.size());
  for (const char c : message) CHECK(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f);
}

class Counter final : public JsonHandler {
 public:
  Counter() : JsonHandler("f.json") {}
  bool Scalar(nlohmann::json value) override {
    CHECK(!value.is_structured() && !value.is_string());
    return ++values_ > 0;
  }
  bool String(std::string& value) override {
    CHECK(ValidUtf8Prefix(value) == value.size() && value.size() <= kLimits.max_token_bytes);
    return ++values_ > 0;
  }
  bool Key(std::string& key) override { return String(key); }
  bool Open(bool) override {
    CHECK(++depth_ <= kLimits.max_depth);
    return ++values_ > 0;
  }
  bool Close(bool) override { return depth_-- > 0; }
  size_t values() const { return values_; }

 protected:
  std::string Place() const override { return "here"; }

 private:
  size_t depth_ = 0;
  size_t values_ = 0;
};

void ReadFields(const nlohmann::json& object) {
  for (const FieldWording wording : {FieldWording::kValue, FieldWording::kPlain, FieldWording::kApi}) {
    const auto check = [&](auto&& read) {
      FieldReader fields(object, "f.json", "", wording);
      read(fields);
      if (fields.problem()) CheckMessage(fields.problem()->message);
      if (!fields.status().ok()) CheckMessage(fields.status().error().message);
    };
    check([](FieldReader& f) { f.Bool("a", false); });
    check([](FieldReader& f) { f.RequiredString("a"); });
    check([](FieldReader& f) { CHECK(f.Size("a", 100) >= 1); });
    check([](FieldReader& f) { f.Unsigned("a", 7); });
    check([](FieldReader& f) { CHECK(f.Positive("a") > 0); });
    check([](FieldReader& f) { CHECK(f.Integer("a", -5, 5).value_or(0) <= 5); });
    check([](FieldReader& f) { CHECK(f.Number("a", -5, 5).value_or(0) <= 5); });
    check([](FieldReader& f) { f.TokenIds("a"); });
    check([](FieldReader& f) { f.Only("a", 1); });
    check([](FieldReader& f) { f.RefuseUnknown(); });
    check([](FieldReader& f) { f.RefuseOtherThan({"a", "b"}); });
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Counter counter;
  const Status events = ParseJsonEvents(text, kLimits, counter);
  const Result<nlohmann::json> tree = ParseJson(text, "f.json", kLimits);
  if (!events.ok()) CheckMessage(events.error().message);
  if (!tree.ok()) {
    CheckMessage(tree.error().message);
    CHECK(!events.ok() || counter.values() > 0);
    return 0;
  }
  CHECK(events.ok() && counter.values() <= kLimits.max_values);
  CHECK(*tree == nlohmann::json::parse(text));
  ReadFields(*tree);
  return 0;
}
