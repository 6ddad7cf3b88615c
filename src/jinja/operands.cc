// Parses operands (constants, names, lists, dicts) and their postfixes (attributes, subscripts, calls, filters, tests).
#include <algorithm>
#include <charconv>
#include <optional>

#include "jinja/evaluator.h"
#include "jinja/parser.h"

namespace infinigen::jinja {
namespace {

constexpr std::string_view kLoopAttributes[] = {"index",  "index0", "revindex", "revindex0", "first",    "last",
                                                "length", "depth",  "depth0",   "previtem",  "nextitem", "cycle"};

std::string_view KindName(ExprKind kind) {
  return kind == ExprKind::kFilter ? "filter" : (kind == ExprKind::kTest ? "test" : "method");
}

}  // namespace

Result<ExprPtr> ExpressionParser::ParseUnary(bool with_filters) {
  const int line = stream_.line();
  ExprPtr node;
  if (stream_.IsOperator("-") || stream_.IsOperator("+")) {
    const ExprKind kind = stream_.IsOperator("-") ? ExprKind::kNegate : ExprKind::kPlus;
    stream_.Next();
    RETURN_IF_ERROR(Enter());
    Result<ExprPtr> operand = ParseUnary(false);
    Leave();
    if (!operand.ok()) return operand;
    ASSIGN_OR_RETURN(node, Make(kind, line, Children(std::move(*operand))));
  } else {
    ASSIGN_OR_RETURN(node, ParsePrimary());
  }
  ASSIGN_OR_RETURN(node, ParsePostfix(std::move(node)));
  if (with_filters) return ParseFiltersAndTests(std::move(node));
  return node;
}

Result<ExprPtr> ExpressionParser::ParsePrimary() {
  const int line = stream_.line();
  switch (stream_.current().kind) {
    case TokenKind::kName:
      return ParseName();
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return ParseNumber();
    case TokenKind::kString: {
      std::string text;
      for (; stream_.current().kind == TokenKind::kString; stream_.Next()) text += stream_.current().text;
      ASSIGN_OR_RETURN(ExprPtr node, Make(ExprKind::kConstant, line, {}));
      node->constant = std::make_shared<const std::string>(std::move(text));
      return node;
    }
    default:
      break;
  }
  if (stream_.SkipOperator("(")) {
    ASSIGN_OR_RETURN(ExprPtr node, ParseTuple(true, true));
    RETURN_IF_ERROR(stream_.ExpectOperator(")"));
    return node;
  }
  if (stream_.IsOperator("[")) return ParseList();
  if (stream_.IsOperator("{")) return ParseDict();
  return stream_.Unexpected();
}

Result<ExprPtr> ExpressionParser::ParseName() {
  const int line = stream_.line();
  ASSIGN_OR_RETURN(std::string name, stream_.ExpectName());
  ASSIGN_OR_RETURN(ExprPtr node, Make(ExprKind::kConstant, line, {}));
  if (name == "true" || name == "True") {
    node->constant = true;
  } else if (name == "false" || name == "False") {
    node->constant = false;
  } else if (name == "none" || name == "None") {
    node->constant = None{};
  } else if (name == "loop") {
    return ParseLoop(line);
  } else if (name == "self" || name == "super" || name == "caller" || name == "varargs" || name == "kwargs") {
    return NotSupported(line, fmt::format("'{}'", name));
  } else {
    node->kind = ExprKind::kName;
    node->name = std::move(name);
  }
  return node;
}

Result<ExprPtr> ExpressionParser::ParseLoop(int line) {
  if (!stream_.SkipOperator(".")) return NotSupported(line, "'loop' without an attribute (such as 'loop.index')");
  ASSIGN_OR_RETURN(std::string name, stream_.ExpectName());
  if (std::find(std::begin(kLoopAttributes), std::end(kLoopAttributes), name) == std::end(kLoopAttributes)) {
    return NotSupported(line, fmt::format("'loop.{}'", name));
  }
  std::vector<ExprPtr> args;
  if (name == "cycle") {
    if (!stream_.IsOperator("(")) return NotSupported(line, "'loop.cycle' without a call");
    ASSIGN_OR_RETURN(CallArguments arguments, ParseCallArguments());
    if (!arguments.keywords.empty() || arguments.positional.empty()) {
      return SyntaxError(line, "'loop.cycle' needs at least one value and takes no named arguments");
    }
    args = std::move(arguments.positional);
  }
  return Make(ExprKind::kLoop, line, std::move(args), std::move(name));
}

Result<ExprPtr> ExpressionParser::ParseNumber() {
  const Token& token = stream_.current();
  ASSIGN_OR_RETURN(ExprPtr node, Make(ExprKind::kConstant, token.line, {}));
  const char* begin = token.text.data();
  const char* end = begin + token.text.size();
  std::errc error{};
  if (token.kind == TokenKind::kInteger) {
    int64_t value = 0;
    error = std::from_chars(begin, end, value).ec;
    node->constant = value;
  } else {
    double value = 0;
    error = std::from_chars(begin, end, value).ec;
    node->constant = value;
  }
  if (error != std::errc()) return SyntaxError(token.line, fmt::format("the number {} is out of range", token.text));
  stream_.Next();
  return node;
}

Result<ExprPtr> ExpressionParser::ParseList() {
  const int line = stream_.line();
  stream_.Next();
  std::vector<ExprPtr> items;
  while (!stream_.IsOperator("]")) {
    ASSIGN_OR_RETURN(ExprPtr item, ParseExpression());
    items.push_back(std::move(item));
    if (!stream_.SkipOperator(",")) break;
  }
  RETURN_IF_ERROR(stream_.ExpectOperator("]"));
  return Make(ExprKind::kList, line, std::move(items));
}

Result<ExprPtr> ExpressionParser::ParseDict() {
  const int line = stream_.line();
  stream_.Next();
  std::vector<ExprPtr> items;
  while (!stream_.IsOperator("}")) {
    ASSIGN_OR_RETURN(ExprPtr key, ParseExpression());
    RETURN_IF_ERROR(stream_.ExpectOperator(":"));
    ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
    items.push_back(std::move(key));
    items.push_back(std::move(value));
    if (!stream_.SkipOperator(",")) break;
  }
  RETURN_IF_ERROR(stream_.ExpectOperator("}"));
  return Make(ExprKind::kDict, line, std::move(items));
}

// ---- postfixes ----

Result<ExprPtr> ExpressionParser::ParsePostfix(ExprPtr node) {
  while (true) {
    if (stream_.IsOperator(".")) {
      ASSIGN_OR_RETURN(node, ParseAttribute(std::move(node)));
    } else if (stream_.IsOperator("[")) {
      ASSIGN_OR_RETURN(node, ParseSubscript(std::move(node)));
    } else if (stream_.IsOperator("(")) {
      ASSIGN_OR_RETURN(node, ParseCall(std::move(node)));
    } else {
      return node;
    }
  }
}

Result<ExprPtr> ExpressionParser::ParseAttribute(ExprPtr node) {
  const int line = stream_.line();
  stream_.Next();
  if (stream_.current().kind == TokenKind::kInteger) {
    ASSIGN_OR_RETURN(ExprPtr index, ParseNumber());
    return Make(ExprKind::kItem, line, Children(std::move(node), std::move(index)));
  }
  ASSIGN_OR_RETURN(std::string name, stream_.ExpectName());
  if (name.starts_with("__")) return NotSupported(line, fmt::format("attribute '{}'", name));
  if (!stream_.IsOperator("(")) return Make(ExprKind::kAttribute, line, Children(std::move(node)), std::move(name));
  const Builtin* method = FindMethod(name);
  if (!method) return NotSupported(line, fmt::format("method '{}'", name));
  ASSIGN_OR_RETURN(CallArguments arguments, ParseCallArguments());
  return Bind(ExprKind::kMethod, *method, std::move(node), std::move(arguments), line);
}

Result<ExprPtr> ExpressionParser::ParseSubscript(ExprPtr node) {
  const int line = stream_.line();
  stream_.Next();
  std::vector<ExprPtr> args = Children(std::move(node));
  bool is_slice = false;
  while (args.size() < 4) {
    if (stream_.IsOperator(":") || (is_slice && stream_.IsOperator("]"))) {
      args.emplace_back();
    } else {
      ASSIGN_OR_RETURN(ExprPtr bound, ParseExpression());
      args.push_back(std::move(bound));
    }
    if (!stream_.SkipOperator(":")) break;
    is_slice = true;
  }
  if (stream_.IsOperator(",")) return NotSupported(line, "a subscript with several values");
  RETURN_IF_ERROR(stream_.ExpectOperator("]"));
  if (!is_slice) return Make(ExprKind::kItem, line, std::move(args));
  args.resize(4);
  return Make(ExprKind::kSlice, line, std::move(args));
}

Result<ExprPtr> ExpressionParser::ParseCall(ExprPtr node) {
  const int line = stream_.line();
  if (node->kind != ExprKind::kName) return NotSupported(line, "a call of anything but a named function or method");
  const std::optional<Function> function = FindFunction(node->name);
  if (!function) macro_calls_.emplace_back(node->name, line);  // the statement parser checks that the macro exists
  ASSIGN_OR_RETURN(CallArguments arguments, ParseCallArguments());
  std::vector<ExprPtr> args = std::move(arguments.positional);
  std::vector<std::string> keywords;
  for (auto& [keyword, value] : arguments.keywords) {
    keywords.push_back(keyword);
    args.push_back(std::move(value));
  }
  if (function && !keywords.empty() && *function != Function::kNamespace && *function != Function::kDict) {
    return NotSupported(line, fmt::format("argument '{}' of function '{}'", keywords[0], node->name));
  }
  const ExprKind kind = function ? ExprKind::kCall : ExprKind::kMacroCall;
  ASSIGN_OR_RETURN(ExprPtr call, Make(kind, line, std::move(args), node->name));
  call->keywords = std::move(keywords);
  if (function) call->function = *function;
  return call;
}

Result<ExpressionParser::CallArguments> ExpressionParser::ParseCallArguments() {
  RETURN_IF_ERROR(stream_.ExpectOperator("("));
  CallArguments out;
  while (!stream_.IsOperator(")")) {
    const int line = stream_.line();
    if (stream_.IsOperator("*") || stream_.IsOperator("**")) {
      return NotSupported(line, fmt::format("unpacking of arguments ('{}')", stream_.current().text));
    }
    if (stream_.current().kind == TokenKind::kName && TokenStream::Is(stream_.following(), TokenKind::kOperator, "=")) {
      ASSIGN_OR_RETURN(std::string keyword, stream_.ExpectName());
      stream_.Next();
      for (const auto& given : out.keywords) {
        if (given.first == keyword) return SyntaxError(line, fmt::format("argument '{}' is given twice", keyword));
      }
      ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
      out.keywords.emplace_back(std::move(keyword), std::move(value));
    } else {
      if (!out.keywords.empty()) return SyntaxError(line, "a positional argument follows a named one");
      ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
      out.positional.push_back(std::move(value));
    }
    if (!stream_.SkipOperator(",")) break;
  }
  RETURN_IF_ERROR(stream_.ExpectOperator(")"));
  return out;
}

Result<ExprPtr> ExpressionParser::Bind(ExprKind kind, const Builtin& builtin, ExprPtr self, CallArguments arguments,
                                       int line) {
  const size_t count = builtin.parameter_count();
  if (arguments.positional.size() > count) {
    return NotSupported(
        line, fmt::format("{} '{}' with {} arguments", KindName(kind), builtin.name, arguments.positional.size()));
  }
  std::vector<ExprPtr> args = Children(std::move(self));
  for (ExprPtr& value : arguments.positional) args.push_back(std::move(value));
  args.resize(1 + count);
  for (auto& [keyword, value] : arguments.keywords) {
    const auto end = builtin.parameters.begin() + static_cast<std::ptrdiff_t>(count);
    const auto found = std::find(builtin.parameters.begin(), end, keyword);
    if (found == end) {
      return NotSupported(line, fmt::format("argument '{}' of {} '{}'", keyword, KindName(kind), builtin.name));
    }
    ExprPtr& slot = args[1 + static_cast<size_t>(found - builtin.parameters.begin())];
    if (slot) return SyntaxError(line, fmt::format("argument '{}' is given twice", keyword));
    slot = std::move(value);
  }
  for (size_t i = 0; i < builtin.required; ++i) {
    if (args[1 + i]) continue;
    return SyntaxError(
        line, fmt::format("{} '{}' needs the argument '{}'", KindName(kind), builtin.name, builtin.parameters[i]));
  }
  ASSIGN_OR_RETURN(ExprPtr node, Make(kind, line, std::move(args), std::string(builtin.name)));
  node->builtin = &builtin;
  return node;
}

Result<ExprPtr> ExpressionParser::ParseFiltersAndTests(ExprPtr node) {
  while (true) {
    if (stream_.SkipOperator("|")) {
      ASSIGN_OR_RETURN(node, ParseFilter(std::move(node)));
    } else if (stream_.IsName("is")) {
      ASSIGN_OR_RETURN(node, ParseTest(std::move(node)));
    } else if (stream_.IsOperator("(")) {
      return NotSupported(stream_.line(), "a call of anything but a named function or method");
    } else {
      return node;
    }
  }
}

Result<ExprPtr> ExpressionParser::ParseBlockFilters(bool with_bar) {
  ASSIGN_OR_RETURN(ExprPtr node, Make(ExprKind::kName, stream_.line(), {}));
  if (with_bar) RETURN_IF_ERROR(stream_.ExpectOperator("|"));
  do {
    ASSIGN_OR_RETURN(node, ParseFilter(std::move(node)));
  } while (stream_.SkipOperator("|"));
  return node;
}

Result<ExprPtr> ExpressionParser::ParseFilter(ExprPtr node) {
  const int line = stream_.line();
  ASSIGN_OR_RETURN(const std::string name, stream_.ExpectName());
  const Builtin* filter = FindFilter(name);
  if (!filter) return NotSupported(line, fmt::format("filter '{}'", name));
  CallArguments arguments;
  if (stream_.IsOperator("(")) {
    ASSIGN_OR_RETURN(arguments, ParseCallArguments());
  }
  ASSIGN_OR_RETURN(ExprPtr out, Bind(ExprKind::kFilter, *filter, std::move(node), std::move(arguments), line));
  RETURN_IF_ERROR(CheckNamedArguments(*out));
  return out;
}

Status ExpressionParser::CheckNamedArguments(const Expr& node) {
  for (size_t i = 0; i < node.builtin->parameter_count(); ++i) {
    const std::string_view parameter = node.builtin->parameters[i];
    if ((parameter != "test" && parameter != "filter") || !node.args[1 + i]) continue;
    const std::string* name = node.args[1 + i]->constant.text();
    if (!name)
      return NotSupported(node.line, fmt::format("a computed argument '{}' of filter '{}'", parameter, node.name));
    const Builtin* found = parameter == "test" ? FindTest(*name) : FindFilter(*name);
    if (!found) return NotSupported(node.line, fmt::format("{} {}", parameter, Quoted(*name)));
    if (parameter == "filter" && found->required > 0) {
      return NotSupported(node.line, fmt::format("filter '{}' inside '{}'", *name, node.name));
    }
  }
  return Ok{};
}

Result<ExprPtr> ExpressionParser::ParseTest(ExprPtr node) {
  stream_.Next();
  const bool negated = stream_.SkipName("not");
  const int line = stream_.line();
  ASSIGN_OR_RETURN(const std::string name, stream_.ExpectName());
  const Builtin* test = FindTest(name);
  if (!test) return NotSupported(line, fmt::format("test '{}'", name));
  CallArguments arguments;
  const Token& token = stream_.current();
  const bool is_keyword = token.text == "else" || token.text == "or" || token.text == "and";
  if (stream_.IsOperator("(")) {
    ASSIGN_OR_RETURN(arguments, ParseCallArguments());
  } else if ((token.kind == TokenKind::kName && !is_keyword) || token.kind == TokenKind::kString ||
             token.kind == TokenKind::kInteger || token.kind == TokenKind::kFloat || stream_.IsOperator("[") ||
             stream_.IsOperator("{")) {
    if (stream_.IsName("is")) return SyntaxError(line, "tests cannot be chained with 'is'");
    ASSIGN_OR_RETURN(ExprPtr argument, ParsePrimary());
    ASSIGN_OR_RETURN(argument, ParsePostfix(std::move(argument)));
    arguments.positional.push_back(std::move(argument));
  }
  ASSIGN_OR_RETURN(ExprPtr out, Bind(ExprKind::kTest, *test, std::move(node), std::move(arguments), line));
  if (!negated) return out;
  return Make(ExprKind::kNot, line, Children(std::move(out)));
}

}  // namespace infinigen::jinja
