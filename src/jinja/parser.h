// Parses the source of a chat template into a Program: tokens, syntax tree, and the parsers. Unsupported parts of Jinja
// fail with kUnsupported and a message that names the part; every message names the line. Any thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "jinja/value.h"

namespace infinigen::jinja {

// ---- tokens (lexer.cc) ----

inline constexpr size_t kMaxSourceBytes = size_t{1} << 20;
// Limits a parsed template to tens of MB. Published templates have a few thousand tokens.
inline constexpr size_t kMaxTokens = 200'000;

enum class TokenKind {
  kData,        // text outside of tags
  kPrintBegin,  // {{
  kPrintEnd,    // }}
  kBlockBegin,  // {%
  kBlockEnd,    // %}
  kName,
  kString,  // `text` is the unescaped content
  kInteger,
  kFloat,
  kOperator,
  kEnd,  // end of the source; always the last token
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int line = 1;
  std::string text;
};

// Applies Jinja's white space rules (trim_blocks, lstrip_blocks, the signs `-` and `+`, one newline removed at the
// end), so that kData tokens contain the text exactly as it will be printed.
Result<std::vector<Token>> Tokenize(std::string_view source);

// "chat template: line N: <reason>", and "chat template: line N: <what> is not supported".
Error SyntaxError(int line, std::string_view reason);
Error NotSupported(int line, std::string_view what);

// The tokens and the current position. The last token is kEnd; the position never moves beyond it.
class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[next_]; }
  const Token& following() const { return tokens_[next_ + 1 < tokens_.size() ? next_ + 1 : next_]; }
  int line() const { return current().line; }
  void Next() {
    if (next_ + 1 < tokens_.size()) ++next_;
  }

  bool IsOperator(std::string_view text) const { return Is(current(), TokenKind::kOperator, text); }
  bool IsName(std::string_view text) const { return Is(current(), TokenKind::kName, text); }
  bool SkipOperator(std::string_view text) { return IsOperator(text) && (Next(), true); }
  bool SkipName(std::string_view text) { return IsName(text) && (Next(), true); }
  Status ExpectOperator(std::string_view text);
  Status Expect(TokenKind kind, std::string_view description);
  Result<std::string> ExpectName();
  // The error "unexpected <current token>".
  Error Unexpected() const;

  static bool Is(const Token& token, TokenKind kind, std::string_view text) {
    return token.kind == kind && token.text == text;
  }

 private:
  std::vector<Token> tokens_;
  size_t next_ = 0;
};

// ---- syntax tree ----

// Invariant: expressions nest at most kMaxExpressionDepth deep and statements at most kMaxNesting, so evaluation and
// destruction may recurse.
inline constexpr int kMaxNesting = 48;           // nested brackets and blocks in the source
inline constexpr int kMaxExpressionDepth = 200;  // depth of the tree; a + b + c + ... nests to the left

enum class ExprKind {
  kConstant,     // constant
  kName,         // name
  kLoop,         // loop.name; args only for loop.cycle
  kList,         // args
  kTuple,        // args
  kDict,         // args: key, value, key, value, ...
  kAttribute,    // args[0].name
  kItem,         // args[0][args[1]]
  kSlice,        // args[0][args[1]:args[2]:args[3]]; absent bounds are null
  kCall,         // name(args, keywords[i]=args[n+i]): a builtin function
  kMacroCall,    // as kCall: a macro of the template
  kMethod,       // args[0].name(args[1..]); builtin; absent arguments are null
  kFilter,       // args[0] | name(args[1..]); as kMethod
  kTest,         // args[0] is name(args[1..]); as kMethod
  kNegate,       // -args[0]
  kPlus,         // +args[0]
  kNot,          // not args[0]
  kAnd,          // args[0] and args[1]
  kOr,           // args[0] or args[1]
  kConditional,  // args[0] if args[1] else args[2]; args[2] may be null
  kCompare,      // args[0] ops[0] args[1] ops[1] args[2] ...
  kConcat,       // args[0] ~ args[1] ~ ...
  kBinary,       // args[0] ops[0] args[1]
};

enum class Operator { kAdd, kSub, kMul, kDiv, kFloorDiv, kMod, kPow, kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };

struct Builtin;  // jinja/evaluator.h
struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  ExprKind kind = ExprKind::kConstant;
  int line = 0;
  int depth = 1;  // 1 + the depth of the deepest argument
  std::string name;
  Value constant;
  std::vector<ExprPtr> args;
  std::vector<Operator> ops;
  std::vector<std::string> keywords;
  const Builtin* builtin = nullptr;
  Function function = Function::kRange;
};

// Where a value is assigned: `name`, or an attribute of the namespace `name`.
struct Target {
  std::string name;
  std::string attribute;
};

struct Targets {
  std::vector<Target> names;
  bool unpack = false;  // a, b = ...: the number of values must equal the number of names
};

enum class StatementKind {
  kText,      // text
  kPrint,     // exprs[0]
  kIf,        // exprs[i] is the condition of blocks[i]; an additional block is the else
  kFor,       // targets in exprs[0] if exprs[1] (or null): blocks[0], else blocks[1]
  kSet,       // targets = exprs[0]
  kSetBlock,  // targets = the text that blocks[0] prints; exprs[0], if there, filters it
  kWith,      // blocks[0] in a scope with with_targets[i] = exprs[i]; {% generation %} has no targets
  kFilter,    // prints exprs[0], a filter of the text that blocks[0] prints
  kMacro,     // defines macro
  kBreak,
  kContinue,
};

struct Statement;
using Block = std::vector<Statement>;

struct Statement {
  StatementKind kind = StatementKind::kText;
  int line = 0;
  std::string text;
  std::vector<ExprPtr> exprs;
  std::vector<Block> blocks;
  Targets targets;
  std::vector<Targets> with_targets;
  std::shared_ptr<const Macro> macro;
};

// {% macro name(parameters) %}body{% endmacro %}. Defined only outside of loops, blocks with scopes and other macros,
// so that its body sees the names of the template's outermost scope and its own.
struct Macro {
  std::string name;
  std::vector<std::string> parameters;
  std::vector<ExprPtr> defaults;  // [parameters]; null where there is none
  Block body;
};

// A parsed template. Immutable plain data, shared by all renderings.
struct Program {
  Block body;
};

Result<Program> ParseProgram(std::string_view source);

// The builtin function of this name (functions.cc).
std::optional<Function> FindFunction(std::string_view name);

// ---- expressions (parser.cc, operands.cc) ----

template <class... Exprs>
std::vector<ExprPtr> Children(Exprs... exprs) {
  std::vector<ExprPtr> out;
  (out.push_back(std::move(exprs)), ...);
  return out;
}

// Recursive descent parser from tokens to Expr, in Jinja's order of precedence. It looks up every function, method,
// filter and test; an unknown one is an error that names it.
class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& stream) : stream_(stream) {}

  // `allow_conditional`: accept the form `a if b else c`.
  Result<ExprPtr> ParseExpression(bool allow_conditional = true);
  // The filters of {% filter a|b %} and {% set x | a %}, applied to the name "", which holds the printed text.
  Result<ExprPtr> ParseBlockFilters(bool with_bar);
  // Names that are called and are no builtin function, with the line of the first call.
  const std::vector<std::pair<std::string, int>>& macro_calls() const { return macro_calls_; }
  // One expression, or several separated by commas, which form a tuple.
  Result<ExprPtr> ParseTuple(bool allow_conditional = true, bool in_parentheses = false);

 private:
  struct CallArguments {
    std::vector<ExprPtr> positional;
    std::vector<std::pair<std::string, ExprPtr>> keywords;
  };

  Result<ExprPtr> ParseConditional();
  Result<ExprPtr> ParseOr();
  Result<ExprPtr> ParseAnd();
  Result<ExprPtr> ParseNot();
  Result<ExprPtr> ParseCompare();
  Result<ExprPtr> ParseSum();
  Result<ExprPtr> ParseConcat();
  Result<ExprPtr> ParseProduct();
  Result<ExprPtr> ParsePower();
  Result<ExprPtr> ParseUnary(bool with_filters);
  Result<ExprPtr> ParsePrimary();
  Result<ExprPtr> ParseName();
  Result<ExprPtr> ParseLoop(int line);
  Result<ExprPtr> ParseNumber();
  Result<ExprPtr> ParseList();
  Result<ExprPtr> ParseDict();
  Result<ExprPtr> ParsePostfix(ExprPtr node);
  Result<ExprPtr> ParseAttribute(ExprPtr node);
  Result<ExprPtr> ParseSubscript(ExprPtr node);
  Result<ExprPtr> ParseCall(ExprPtr node);
  Result<ExprPtr> ParseFiltersAndTests(ExprPtr node);
  // The current token is the filter's name.
  Result<ExprPtr> ParseFilter(ExprPtr node);
  Result<ExprPtr> ParseTest(ExprPtr node);
  Result<CallArguments> ParseCallArguments();
  // Makes the call of a builtin: `self`, then one argument per parameter, null where absent.
  Result<ExprPtr> Bind(ExprKind kind, const Builtin& builtin, ExprPtr self, CallArguments arguments, int line);
  // Checks names of tests and filters that are given as strings: select('equalto', ...), map('upper').
  Status CheckNamedArguments(const Expr& node);
  Result<ExprPtr> Make(ExprKind kind, int line, std::vector<ExprPtr> args, std::string name = "");
  Result<ExprPtr> MakeBinary(Operator op, int line, ExprPtr left, ExprPtr right);
  Status Enter();
  void Leave() { --nesting_; }

  TokenStream& stream_;
  int nesting_ = 0;
  std::vector<std::pair<std::string, int>> macro_calls_;
};

}  // namespace infinigen::jinja
