// Values as text: Python's str(), repr() and json.dumps().

#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/utf8.h"
#include "jinja/value.h"

namespace infinigen::jinja {
namespace {

// repr(float): the shortest digits that give the same number, with an exponent unless 1e-4 <= x < 1e16.
std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const double magnitude = std::fabs(value);
  const bool scientific = magnitude != 0 && (magnitude < 1e-4 || magnitude >= 1e16);
  const auto format = scientific ? std::chars_format::scientific : std::chars_format::fixed;
  const char* end = std::to_chars(buffer, buffer + sizeof(buffer), value, format).ptr;
  std::string out(static_cast<const char*>(buffer), end);
  if (!scientific && out.find('.') == std::string::npos) out += ".0";
  return out;
}

bool IsPrintable(char32_t code_point) {
  if (code_point == ' ') return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code_point))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

void AppendEscaped(char32_t code_point, std::string& out) {
  if (code_point < 0x100) {
    out += fmt::format("\\x{:02x}", static_cast<uint32_t>(code_point));
  } else if (code_point < 0x10000) {
    out += fmt::format("\\u{:04x}", static_cast<uint32_t>(code_point));
  } else {
    out += fmt::format("\\U{:08x}", static_cast<uint32_t>(code_point));
  }
}

// repr(str).
void AppendQuoted(std::string_view text, std::string& out) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  out.push_back(quote);
  for (size_t at = 0; at < text.size();) {
    const Utf8Scan scan = ScanUtf8(text, at);
    const char c = text[at];
    if (c == '\\' || c == quote) {
      out.push_back('\\');
      out.push_back(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (scan.valid && !IsPrintable(DecodeUtf8(text, at))) {
      AppendEscaped(DecodeUtf8(text, at), out);
    } else {
      out.append(text.substr(at, scan.length));
    }
    at += scan.length;
  }
  out.push_back(quote);
}

// repr(), and the part of str() that equals it.
class Printer {
 public:
  Printer(Budget& budget, std::string& out) : budget_(budget), out_(out) {}

  Status Print(const Value& value) {
    RETURN_IF_ERROR(budget_.Step());
    if (const std::string* text = value.text()) {
      RETURN_IF_ERROR(budget_.Make(text->size()));
      AppendQuoted(*text, out_);
    } else if (const Sequence* sequence = value.sequence()) {
      return PrintSequence(value, *sequence);
    } else if (const Dict* dict = value.dict()) {
      return PrintDict(*dict);
    } else if (value.Is<Undefined>()) {
      out_ += "Undefined";
    } else {
      return PrintScalar(value);
    }
    return Ok{};
  }

  Status PrintScalar(const Value& value) {
    if (value.Is<None>()) {
      out_ += "None";
    } else if (const bool* flag = value.If<bool>()) {
      out_ += *flag ? "True" : "False";
    } else if (const int64_t* integer = value.If<int64_t>()) {
      out_ += std::to_string(*integer);
    } else if (const double* real = value.If<double>()) {
      out_ += FloatText(*real);
    } else {
      return Unsupported("printing a {} is not supported", TypeName(value));
    }
    return Ok{};
  }

 private:
  Status PrintSequence(const Value& value, const Sequence& sequence) {
    const bool tuple = sequence.kind == SequenceKind::kTuple;
    if (!tuple && sequence.kind != SequenceKind::kList) {
      return Unsupported("printing a {} is not supported", TypeName(value));
    }
    out_.push_back(tuple ? '(' : '[');
    for (size_t i = 0; i < sequence.items.size(); ++i) {
      if (i > 0) out_ += ", ";
      RETURN_IF_ERROR(Print(sequence.items[i]));
    }
    if (tuple && sequence.items.size() == 1) out_.push_back(',');
    out_.push_back(tuple ? ')' : ']');
    return Ok{};
  }

  Status PrintDict(const Dict& dict) {
    out_.push_back('{');
    for (size_t i = 0; i < dict.items.size(); ++i) {
      if (i > 0) out_ += ", ";
      RETURN_IF_ERROR(Print(dict.items[i].first));
      out_ += ": ";
      RETURN_IF_ERROR(Print(dict.items[i].second));
    }
    out_.push_back('}');
    return Ok{};
  }

  Budget& budget_;
  std::string& out_;
};

class JsonPrinter {
 public:
  JsonPrinter(Budget& budget, const JsonStyle& style, std::string& out) : budget_(budget), style_(style), out_(out) {}

  Status Print(const Value& value, int level) {
    RETURN_IF_ERROR(budget_.Step());
    if (const std::string* text = value.text()) {
      RETURN_IF_ERROR(budget_.Make(text->size()));
      PrintText(*text);
    } else if (const Sequence* sequence = value.sequence()) {
      if (sequence->kind != SequenceKind::kList && sequence->kind != SequenceKind::kTuple) return NotJson(value);
      return PrintItems(sequence->items.size(), level, "[]",
                        [&](size_t i) { return Print(sequence->items[i], level + 1); });
    } else if (const Dict* dict = value.dict()) {
      return PrintDict(*dict, level);
    } else if (const bool* flag = value.If<bool>()) {
      out_ += *flag ? "true" : "false";
    } else if (value.Is<None>()) {
      out_ += "null";
    } else if (const double* real = value.If<double>(); real && !std::isfinite(*real)) {
      out_ += std::isnan(*real) ? "NaN" : (*real < 0 ? "-Infinity" : "Infinity");
    } else if (real || value.Is<int64_t>()) {
      return Printer(budget_, out_).PrintScalar(value);
    } else {
      return NotJson(value);
    }
    return Ok{};
  }

 private:
  static Error NotJson(const Value& value) {
    return Invalid("tojson: a {} cannot be written as JSON", TypeName(value));
  }

  Status NewLine(int level) {
    if (style_.indent < 0) return Ok{};
    const auto spaces = static_cast<uint64_t>(style_.indent) * static_cast<uint64_t>(level);
    RETURN_IF_ERROR(budget_.Make(spaces));
    out_.push_back('\n');
    out_.append(spaces, ' ');
    return Ok{};
  }

  template <class PrintItem>
  Status PrintItems(size_t count, int level, std::string_view brackets, PrintItem print_item) {
    out_.push_back(brackets[0]);
    for (size_t i = 0; i < count; ++i) {
      if (i > 0) {
        RETURN_IF_ERROR(budget_.Make(style_.item_separator.size()));
        out_ += style_.item_separator;
      }
      RETURN_IF_ERROR(NewLine(level + 1));
      RETURN_IF_ERROR(print_item(i));
    }
    if (count > 0) RETURN_IF_ERROR(NewLine(level));
    out_.push_back(brackets[1]);
    return Ok{};
  }

  Status PrintDict(const Dict& dict, int level) {
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : dict.items) {
      if (!item.first.text()) return Unsupported("tojson: keys other than strings are not supported");
      items.push_back(&item);
    }
    if (style_.sort_keys) {
      std::sort(items.begin(), items.end(), [](auto* a, auto* b) { return *a->first.text() < *b->first.text(); });
    }
    return PrintItems(items.size(), level, "{}", [&](size_t i) -> Status {
      RETURN_IF_ERROR(budget_.Make(items[i]->first.text()->size() + style_.key_separator.size()));
      PrintText(*items[i]->first.text());
      out_ += style_.key_separator;
      return Print(items[i]->second, level + 1);
    });
  }

  void PrintText(std::string_view text) {
    out_.push_back('"');
    for (size_t at = 0; at < text.size();) {
      const Utf8Scan scan = ScanUtf8(text, at);
      PrintCharacter(text.substr(at, scan.length), scan.valid);
      at += scan.length;
    }
    out_.push_back('"');
  }

  void PrintCharacter(std::string_view character, bool valid) {
    constexpr std::string_view kEscaped = "\"\\\n\r\t\b\f";
    constexpr std::string_view kLetters = "\"\\nrtbf";
    const char c = character[0];
    if (const size_t known = kEscaped.find(c); known != std::string_view::npos) {
      out_.push_back('\\');
      out_.push_back(kLetters[known]);
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out_ += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else if (style_.ascii && valid && (character.size() > 1)) {
      const auto code_point = static_cast<uint32_t>(DecodeUtf8(character, 0));
      if (code_point >= 0x10000) {
        const uint32_t pair = code_point - 0x10000;
        out_ += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (pair >> 10), 0xDC00 + (pair & 0x3FF));
      } else {
        out_ += fmt::format("\\u{:04x}", code_point);
      }
    } else {
      out_.append(character);
    }
  }

  Budget& budget_;
  const JsonStyle& style_;
  std::string& out_;
};

}  // namespace

Result<std::string> ToText(Budget& budget, const Value& value) {
  if (value.Is<Undefined>()) return std::string();
  if (const std::string* text = value.text()) {
    RETURN_IF_ERROR(budget.Make(text->size()));
    return *text;
  }
  if (const Markup* markup = value.If<Markup>()) {
    RETURN_IF_ERROR(budget.Make(markup->text->size()));
    return *markup->text;
  }
  return ToRepr(budget, value);
}

Result<std::string> ToRepr(Budget& budget, const Value& value) {
  std::string out;
  RETURN_IF_ERROR(Printer(budget, out).Print(value));
  return out;
}

std::string Quoted(std::string_view text) {
  std::string out;
  AppendQuoted(text, out);
  return out;
}

Result<std::string> ToJson(Budget& budget, const Value& value, const JsonStyle& style) {
  std::string out;
  RETURN_IF_ERROR(JsonPrinter(budget, style, out).Print(value, 0));
  return out;
}

}  // namespace infinigen::jinja
