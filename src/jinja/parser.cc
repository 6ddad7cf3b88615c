// Parses statements, and expressions down to their operators; operands.cc parses operands.
#include "jinja/parser.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <set>

namespace infinigen::jinja {
namespace {

// ---- statements ----

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : stream_(std::move(tokens)), expressions_(stream_) {}

  Result<Program> Run() {
    Program out;
    ASSIGN_OR_RETURN(out.body, ParseBlock({}));
    for (const auto& [name, line] : expressions_.macro_calls()) {
      if (!macros_.contains(name)) return NotSupported(line, fmt::format("function '{}'", name));
    }
    return out;
  }

 private:
  // Parses statements up to a tag that starts with one of `ends`; that name is then the current token. If `ends` is
  // empty, parses to the end of the source.
  Result<Block> ParseBlock(std::initializer_list<std::string_view> ends);
  // Parses the end of the current tag, then a block.
  Result<Block> ParseBody(std::initializer_list<std::string_view> ends);
  // ParseBody of a block that has a scope of its own.
  Result<Block> ParseScopedBody(std::initializer_list<std::string_view> ends);
  Result<Statement> ParseStatement();
  Result<Statement> ParseIf(int line);
  Result<Statement> ParseFor(int line);
  Result<Statement> ParseSet(int line);
  Result<Statement> ParseWith(int line);
  Result<Statement> ParseGeneration(int line);
  Result<Statement> ParseFilterBlock(int line);
  Result<Statement> ParseMacro(int line);
  Status ParseParameters(Macro& macro);
  Result<Targets> ParseTargets(bool allow_attribute);

  TokenStream stream_;
  ExpressionParser expressions_;
  int nesting_ = 0;
  int loops_ = 0;   // nested loops around the current statement, within the innermost generation block or macro
  int scopes_ = 0;  // nested blocks with a scope of their own around the current statement
  std::set<std::string> macros_;  // names of all macros so far
};

Statement MakeStatement(StatementKind kind, int line) {
  Statement out;
  out.kind = kind;
  out.line = line;
  return out;
}

Result<Block> Parser::ParseBlock(std::initializer_list<std::string_view> ends) {
  if (nesting_ >= kMaxNesting) {
    return Exhausted("chat template: line {}: blocks are nested more than {} deep", stream_.line(), kMaxNesting);
  }
  ++nesting_;
  Block out;
  while (stream_.current().kind != TokenKind::kEnd) {
    const int line = stream_.line();
    const TokenKind kind = stream_.current().kind;
    if (kind == TokenKind::kData) {
      out.push_back(MakeStatement(StatementKind::kText, line));
      out.back().text = stream_.current().text;
      stream_.Next();
    } else if (kind == TokenKind::kPrintBegin) {
      stream_.Next();
      out.push_back(MakeStatement(StatementKind::kPrint, line));
      ASSIGN_OR_RETURN(ExprPtr value, expressions_.ParseTuple());
      out.back().exprs.push_back(std::move(value));
      RETURN_IF_ERROR(stream_.Expect(TokenKind::kPrintEnd, "'}}'"));
    } else {
      RETURN_IF_ERROR(stream_.Expect(TokenKind::kBlockBegin, "'{%'"));
      for (const std::string_view end : ends) {
        if (!stream_.IsName(end)) continue;
        --nesting_;
        return out;
      }
      ASSIGN_OR_RETURN(Statement statement, ParseStatement());
      out.push_back(std::move(statement));
      RETURN_IF_ERROR(stream_.Expect(TokenKind::kBlockEnd, "'%}'"));
    }
  }
  if (ends.size() > 0) {
    return SyntaxError(stream_.line(), fmt::format("unexpected end of template, expected '{}'", *(ends.end() - 1)));
  }
  --nesting_;
  return out;
}

Result<Block> Parser::ParseBody(std::initializer_list<std::string_view> ends) {
  stream_.SkipOperator(":");  // Jinja allows a colon here
  RETURN_IF_ERROR(stream_.Expect(TokenKind::kBlockEnd, "'%}'"));
  return ParseBlock(ends);
}

Result<Block> Parser::ParseScopedBody(std::initializer_list<std::string_view> ends) {
  ++scopes_;
  Result<Block> body = ParseBody(ends);
  --scopes_;
  return body;
}

Result<Statement> Parser::ParseStatement() {
  const int line = stream_.line();
  ASSIGN_OR_RETURN(const std::string tag, stream_.ExpectName());
  if (tag == "if") return ParseIf(line);
  if (tag == "for") return ParseFor(line);
  if (tag == "set") return ParseSet(line);
  if (tag == "with") return ParseWith(line);
  if (tag == "generation") return ParseGeneration(line);
  if (tag == "filter") return ParseFilterBlock(line);
  if (tag == "macro") return ParseMacro(line);
  if (tag == "break" || tag == "continue") {
    if (loops_ == 0) return SyntaxError(line, fmt::format("'{}' is only allowed inside a loop", tag));
    return MakeStatement(tag == "break" ? StatementKind::kBreak : StatementKind::kContinue, line);
  }
  if (tag == "print") {
    Statement out = MakeStatement(StatementKind::kPrint, line);
    ASSIGN_OR_RETURN(ExprPtr value, expressions_.ParseTuple());
    out.exprs.push_back(std::move(value));
    return out;
  }
  if (tag.starts_with("end") || tag == "else" || tag == "elif") {
    return SyntaxError(line, fmt::format("'{}' without a matching tag before it", tag));
  }
  return NotSupported(line, fmt::format("tag '{}'", tag));
}

Result<Statement> Parser::ParseIf(int line) {
  Statement out = MakeStatement(StatementKind::kIf, line);
  while (true) {
    ASSIGN_OR_RETURN(ExprPtr condition, expressions_.ParseTuple(false));
    out.exprs.push_back(std::move(condition));
    ASSIGN_OR_RETURN(Block body, ParseBody({"elif", "else", "endif"}));
    out.blocks.push_back(std::move(body));
    if (!stream_.SkipName("elif")) break;
  }
  if (stream_.SkipName("else")) {
    ASSIGN_OR_RETURN(Block body, ParseBody({"endif"}));
    out.blocks.push_back(std::move(body));
  }
  stream_.Next();
  return out;
}

Result<Statement> Parser::ParseFor(int line) {
  Statement out = MakeStatement(StatementKind::kFor, line);
  ASSIGN_OR_RETURN(out.targets, ParseTargets(false));
  if (!stream_.SkipName("in")) return SyntaxError(stream_.line(), "expected 'in' after the names of a loop");
  ASSIGN_OR_RETURN(ExprPtr items, expressions_.ParseTuple(false));
  out.exprs.push_back(std::move(items));
  out.exprs.emplace_back();
  if (stream_.SkipName("if")) {
    ASSIGN_OR_RETURN(out.exprs[1], expressions_.ParseExpression());
  }
  if (stream_.IsName("recursive")) return NotSupported(stream_.line(), "a recursive loop ('recursive')");
  ++loops_;
  ASSIGN_OR_RETURN(Block body, ParseScopedBody({"else", "endfor"}));
  --loops_;
  out.blocks.push_back(std::move(body));
  out.blocks.emplace_back();
  if (stream_.SkipName("else")) {
    ASSIGN_OR_RETURN(out.blocks[1], ParseScopedBody({"endfor"}));
  }
  stream_.Next();
  return out;
}

Result<Statement> Parser::ParseSet(int line) {
  Statement out = MakeStatement(StatementKind::kSet, line);
  ASSIGN_OR_RETURN(out.targets, ParseTargets(true));
  if (stream_.SkipOperator("=")) {
    ASSIGN_OR_RETURN(ExprPtr value, expressions_.ParseTuple());
    out.exprs.push_back(std::move(value));
    return out;
  }
  out.kind = StatementKind::kSetBlock;
  if (stream_.IsOperator("|")) {
    ASSIGN_OR_RETURN(ExprPtr filters, expressions_.ParseBlockFilters(/*with_bar=*/true));
    out.exprs.push_back(std::move(filters));
  }
  ASSIGN_OR_RETURN(Block body, ParseScopedBody({"endset"}));
  out.blocks.push_back(std::move(body));
  stream_.Next();
  return out;
}

Result<Statement> Parser::ParseWith(int line) {
  Statement out = MakeStatement(StatementKind::kWith, line);
  while (stream_.current().kind != TokenKind::kBlockEnd) {
    if (!out.exprs.empty()) RETURN_IF_ERROR(stream_.ExpectOperator(","));
    ASSIGN_OR_RETURN(const std::string name, stream_.ExpectName());
    if (name == "loop") return NotSupported(line, "assigning to 'loop'");
    out.with_targets.push_back({{{name, ""}}, false});
    RETURN_IF_ERROR(stream_.ExpectOperator("="));
    ASSIGN_OR_RETURN(ExprPtr value, expressions_.ParseExpression());
    out.exprs.push_back(std::move(value));
  }
  ASSIGN_OR_RETURN(Block body, ParseScopedBody({"endwith"}));
  out.blocks.push_back(std::move(body));
  stream_.Next();
  return out;
}

Result<Statement> Parser::ParseGeneration(int line) {
  Statement out = MakeStatement(StatementKind::kWith, line);
  const int loops = std::exchange(loops_, 0);  // Jinja treats the body as a macro, which cannot leave a loop
  ASSIGN_OR_RETURN(Block body, ParseScopedBody({"endgeneration"}));
  loops_ = loops;
  out.blocks.push_back(std::move(body));
  stream_.Next();
  return out;
}

Result<Statement> Parser::ParseFilterBlock(int line) {
  Statement out = MakeStatement(StatementKind::kFilter, line);
  ASSIGN_OR_RETURN(ExprPtr filters, expressions_.ParseBlockFilters(/*with_bar=*/false));
  out.exprs.push_back(std::move(filters));
  ASSIGN_OR_RETURN(Block body, ParseScopedBody({"endfilter"}));
  out.blocks.push_back(std::move(body));
  stream_.Next();
  return out;
}

Status Parser::ParseParameters(Macro& macro) {
  RETURN_IF_ERROR(stream_.ExpectOperator("("));
  while (!stream_.IsOperator(")")) {
    if (!macro.parameters.empty()) RETURN_IF_ERROR(stream_.ExpectOperator(","));
    const int line = stream_.line();
    ASSIGN_OR_RETURN(std::string name, stream_.ExpectName());
    if (name == "loop" || name == "caller") return NotSupported(line, fmt::format("a parameter '{}'", name));
    if (std::find(macro.parameters.begin(), macro.parameters.end(), name) != macro.parameters.end()) {
      return SyntaxError(line, fmt::format("the parameter '{}' occurs twice", name));
    }
    macro.parameters.push_back(std::move(name));
    macro.defaults.emplace_back();
    if (stream_.SkipOperator("=")) {
      ASSIGN_OR_RETURN(macro.defaults.back(), expressions_.ParseExpression());
    } else if (macro.defaults.size() > 1 && macro.defaults[macro.defaults.size() - 2]) {
      return SyntaxError(line, "a parameter without a default follows one with a default");
    }
  }
  return stream_.ExpectOperator(")");
}

Result<Statement> Parser::ParseMacro(int line) {
  if (scopes_ > 0) return NotSupported(line, "a macro inside a loop, a macro or a block with its own scope");
  Statement out = MakeStatement(StatementKind::kMacro, line);
  auto macro = std::make_shared<Macro>();
  ASSIGN_OR_RETURN(macro->name, stream_.ExpectName());
  if (FindFunction(macro->name)) return NotSupported(line, fmt::format("a macro with the name '{}'", macro->name));
  RETURN_IF_ERROR(ParseParameters(*macro));
  const int loops = std::exchange(loops_, 0);
  ASSIGN_OR_RETURN(macro->body, ParseScopedBody({"endmacro"}));
  loops_ = loops;
  stream_.Next();
  macros_.insert(macro->name);
  out.macro = std::move(macro);
  return out;
}

Result<Targets> Parser::ParseTargets(bool allow_attribute) {
  Targets out;
  while (true) {
    if (stream_.IsOperator("(")) return NotSupported(stream_.line(), "an assignment to names in parentheses");
    const int line = stream_.line();
    Target target;
    ASSIGN_OR_RETURN(target.name, stream_.ExpectName());
    for (const std::string_view constant : {"true", "false", "none", "True", "False", "None"}) {
      if (target.name == constant) return SyntaxError(line, fmt::format("cannot assign to '{}'", constant));
    }
    if (allow_attribute && stream_.SkipOperator(".")) {
      ASSIGN_OR_RETURN(target.attribute, stream_.ExpectName());
      if (target.attribute.starts_with("_")) {
        return NotSupported(line, fmt::format("attribute '{}'", target.attribute));
      }
    } else if (target.name == "loop") {
      return NotSupported(line, "assigning to 'loop'");
    }
    out.names.push_back(std::move(target));
    if (!stream_.SkipOperator(",")) return out;
    out.unpack = true;
    const bool at_end =
        stream_.IsName("in") || stream_.IsOperator("=") || stream_.current().kind == TokenKind::kBlockEnd;
    if (at_end) return out;
  }
}

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

}  // namespace

// ---- expressions ----

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
    return Exhausted("chat template: line {}: an expression has more than {} levels", line, kMaxExpressionDepth);
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
  while (stream_.IsOperator("**")) {  // left-associative, as in Jinja
    const int line = stream_.line();
    stream_.Next();
    ASSIGN_OR_RETURN(ExprPtr right, ParseUnary(true));
    ASSIGN_OR_RETURN(node, MakeBinary(Operator::kPow, line, std::move(node), std::move(right)));
  }
  return node;
}

Result<Program> ParseProgram(std::string_view source) {
  ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return Parser(std::move(tokens)).Run();
}

}  // namespace infinigen::jinja
