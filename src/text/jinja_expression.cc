#include "text/jinja_expression.h"

#include <algorithm>
#include <charconv>
#include <optional>

namespace infinigen::jinja {
namespace {

std::optional<Operator> ComparisonOf(const Token& token) {
  if (token.kind != TokenKind::kOperator) return std::nullopt;
  if (token.text == "==") return Operator::kEq;
  if (token.text == "!=") return Operator::kNe;
  if (token.text == "<") return Operator::kLt;
  if (token.text == "<=") return Operator::kLe;
  if (token.text == ">") return Operator::kGt;
  if (token.text == ">=") return Operator::kGe;
  return std::nullopt;
}

constexpr std::string_view kLoopAttributes[] = {"index",  "index0", "revindex", "revindex0", "first",    "last",
                                                "length", "depth",  "depth0",   "previtem",  "nextitem", "cycle"};

}  // namespace

Status TokenStream::ExpectOperator(std::string_view text) {
  if (!IsOperator(text)) {
    const Error error = Unexpected();
    return Invalid("{}, expected '{}'", error.message, text);
  }
  Next();
  return Ok{};
}

Status TokenStream::Expect(TokenKind kind, std::string_view description) {
  if (current().kind != kind) {
    const Error error = Unexpected();
    return Invalid("{}, expected {}", error.message, description);
  }
  Next();
  return Ok{};
}

Result<std::string> TokenStream::ExpectName() {
  std::string name = current().text;
  RETURN_IF_ERROR(Expect(TokenKind::kName, "a name"));
  return name;
}

Error TokenStream::Unexpected() const {
  const Token& token = current();
  switch (token.kind) {
    case TokenKind::kData:
      return SyntaxError(token.line, "unexpected text");
    case TokenKind::kPrintBegin:
      return SyntaxError(token.line, "unexpected '{{'");
    case TokenKind::kPrintEnd:
      return SyntaxError(token.line, "unexpected '}}'");
    case TokenKind::kBlockBegin:
      return SyntaxError(token.line, "unexpected '{%'");
    case TokenKind::kBlockEnd:
      return SyntaxError(token.line, "unexpected '%}'");
    case TokenKind::kString:
      return SyntaxError(token.line, "unexpected string");
    case TokenKind::kEnd:
      return SyntaxError(token.line, "unexpected end of template");
    default:
      return SyntaxError(token.line, fmt::format("unexpected '{}'", token.text));
  }
}

Status ExpressionParser::Enter() {
  if (nesting_ >= kMaxNesting) {
    return Exhausted("chat template: line {}: expressions are nested more than {} deep", stream_.line(), kMaxNesting);
  }
  ++nesting_;
  return Ok{};
}

Result<ExprPtr> ExpressionParser::Make(ExprKind kind, int line, std::vector<ExprPtr> args, std::string name) {
  auto node = std::make_unique<Expr>();
  node->kind = kind;
  node->line = line;
  node->name = std::move(name);
  for (const ExprPtr& arg : args) {
    if (arg) node->depth = std::max(node->depth, 1 + arg->depth);
  }
  node->args = std::move(args);
  if (node->depth > kMaxExpressionDepth) {
    return Exhausted("chat template: line {}: an expression of more than {} levels", line, kMaxExpressionDepth);
  }
  return node;
}

Result<ExprPtr> ExpressionParser::MakeBinary(Operator op, int line, ExprPtr left, ExprPtr right) {
  ASSIGN_OR_RETURN(ExprPtr node, Make(ExprKind::kBinary, line, Children(std::move(left), std::move(right))));
  node->ops.push_back(op);
  return node;
}

Result<ExprPtr> ExpressionParser::ParseTuple(bool allow_conditional, bool in_parentheses) {
  const int line = stream_.line();
  const auto at_end = [&] {
    const TokenKind kind = stream_.current().kind;
    return kind == TokenKind::kPrintEnd || kind == TokenKind::kBlockEnd || stream_.IsOperator(")");
  };
  std::vector<ExprPtr> items;
  bool has_comma = false;
  while (!at_end()) {
    ASSIGN_OR_RETURN(ExprPtr item, ParseExpression(allow_conditional));
    items.push_back(std::move(item));
    if (!stream_.SkipOperator(",")) break;
    has_comma = true;
  }
  if (!has_comma && !items.empty()) return std::move(items[0]);
  if (!has_comma && !in_parentheses) return stream_.Unexpected();
  return Make(ExprKind::kTuple, line, std::move(items));
}

Result<ExprPtr> ExpressionParser::ParseExpression(bool allow_conditional) {
  RETURN_IF_ERROR(Enter());
  Result<ExprPtr> node = allow_conditional ? ParseConditional() : ParseOr();
  Leave();
  return node;
}

Result<ExprPtr> ExpressionParser::ParseConditional() {
  ASSIGN_OR_RETURN(ExprPtr node, ParseOr());
  while (stream_.IsName("if")) {
    const int line = stream_.line();
    stream_.Next();
    ASSIGN_OR_RETURN(ExprPtr condition, ParseOr());
    ExprPtr otherwise;
    if (stream_.SkipName("else")) {
      ASSIGN_OR_RETURN(otherwise, ParseExpression());
    }
    auto children = Children(std::move(node), std::move(condition), std::move(otherwise));
    ASSIGN_OR_RETURN(node, Make(ExprKind::kConditional, line, std::move(children)));
  }
  return node;
}

Result<ExprPtr> ExpressionParser::ParseOr() {
  ASSIGN_OR_RETURN(ExprPtr node, ParseAnd());
  while (stream_.IsName("or")) {
    const int line = stream_.line();
    stream_.Next();
    ASSIGN_OR_RETURN(ExprPtr right, ParseAnd());
    ASSIGN_OR_RETURN(node, Make(ExprKind::kOr, line, Children(std::move(node), std::move(right))));
  }
  return node;
}

Result<ExprPtr> ExpressionParser::ParseAnd() {
  ASSIGN_OR_RETURN(ExprPtr node, ParseNot());
  while (stream_.IsName("and")) {
    const int line = stream_.line();
    stream_.Next();
    ASSIGN_OR_RETURN(ExprPtr right, ParseNot());
    ASSIGN_OR_RETURN(node, Make(ExprKind::kAnd, line, Children(std::move(node), std::move(right))));
  }
  return node;
}

Result<ExprPtr> ExpressionParser::ParseNot() {
  const int line = stream_.line();
  if (!stream_.SkipName("not")) return ParseCompare();
  RETURN_IF_ERROR(Enter());
  Result<ExprPtr> operand = ParseNot();
  Leave();
  if (!operand.ok()) return operand;
  return Make(ExprKind::kNot, line, Children(std::move(*operand)));
}

Result<ExprPtr> ExpressionParser::ParseCompare() {
  const int line = stream_.line();
  ASSIGN_OR_RETURN(ExprPtr first, ParseSum());
  std::vector<ExprPtr> operands = Children(std::move(first));
  std::vector<Operator> ops;
  while (true) {
    if (const std::optional<Operator> op = ComparisonOf(stream_.current())) {
      stream_.Next();
      ops.push_back(*op);
    } else if (stream_.SkipName("in")) {
      ops.push_back(Operator::kIn);
    } else if (stream_.IsName("not") && TokenStream::Is(stream_.following(), TokenKind::kName, "in")) {
      stream_.Next();
      stream_.Next();
      ops.push_back(Operator::kNotIn);
    } else {
      break;
    }
    ASSIGN_OR_RETURN(ExprPtr operand, ParseSum());
    operands.push_back(std::move(operand));
  }
  if (ops.empty()) return std::move(operands[0]);
  ASSIGN_OR_RETURN(ExprPtr node, Make(ExprKind::kCompare, line, std::move(operands)));
  node->ops = std::move(ops);
  return node;
}

Result<ExprPtr> ExpressionParser::ParseSum() {
  ASSIGN_OR_RETURN(ExprPtr node, ParseConcat());
  while (stream_.IsOperator("+") || stream_.IsOperator("-")) {
    const int line = stream_.line();
    const Operator op = stream_.IsOperator("+") ? Operator::kAdd : Operator::kSub;
    stream_.Next();
    ASSIGN_OR_RETURN(ExprPtr right, ParseConcat());
    ASSIGN_OR_RETURN(node, MakeBinary(op, line, std::move(node), std::move(right)));
  }
  return node;
}

Result<ExprPtr> ExpressionParser::ParseConcat() {
  const int line = stream_.line();
  ASSIGN_OR_RETURN(ExprPtr first, ParseProduct());
  if (!stream_.IsOperator("~")) return first;
  std::vector<ExprPtr> parts = Children(std::move(first));
  while (stream_.SkipOperator("~")) {
    ASSIGN_OR_RETURN(ExprPtr part, ParseProduct());
    parts.push_back(std::move(part));
  }
  return Make(ExprKind::kConcat, line, std::move(parts));
}

Result<ExprPtr> ExpressionParser::ParseProduct() {
  ASSIGN_OR_RETURN(ExprPtr node, ParsePower());
  while (true) {
    Operator op = Operator::kMul;
    if (stream_.IsOperator("/")) {
      op = Operator::kDiv;
    } else if (stream_.IsOperator("//")) {
      op = Operator::kFloorDiv;
    } else if (stream_.IsOperator("%")) {
      op = Operator::kMod;
    } else if (!stream_.IsOperator("*")) {
      return node;
    }
    const int line = stream_.line();
    stream_.Next();
    ASSIGN_OR_RETURN(ExprPtr right, ParsePower());
    ASSIGN_OR_RETURN(node, MakeBinary(op, line, std::move(node), std::move(right)));
  }
}

Result<ExprPtr> ExpressionParser::ParsePower() {
  ASSIGN_OR_RETURN(ExprPtr node, ParseUnary(true));
  while (stream_.IsOperator("**")) {  // to the left, as Jinja has it
    const int line = stream_.line();
    stream_.Next();
    ASSIGN_OR_RETURN(ExprPtr right, ParseUnary(true));
    ASSIGN_OR_RETURN(node, MakeBinary(Operator::kPow, line, std::move(node), std::move(right)));
  }
  return node;
}

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
  if (!stream_.SkipOperator(".")) return NotSupported(line, "'loop' other than as 'loop.index' and the like");
  ASSIGN_OR_RETURN(std::string name, stream_.ExpectName());
  if (std::find(std::begin(kLoopAttributes), std::end(kLoopAttributes), name) == std::end(kLoopAttributes)) {
    return NotSupported(line, fmt::format("'loop.{}'", name));
  }
  std::vector<ExprPtr> args;
  if (name == "cycle") {
    if (!stream_.IsOperator("(")) return NotSupported(line, "'loop.cycle' without a call");
    ASSIGN_OR_RETURN(CallArguments arguments, ParseCallArguments());
    if (!arguments.keywords.empty() || arguments.positional.empty()) {
      return SyntaxError(line, "'loop.cycle' takes one or more values");
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

}  // namespace infinigen::jinja
