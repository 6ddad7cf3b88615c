// Expressions of a chat template: from tokens to Expr, by recursive descent in Jinja's order of precedence. Every
// function, method, filter and test is looked up here and refused by name when there is none.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/jinja_ast.h"
#include "text/jinja_lexer.h"

namespace infinigen::jinja {

template <class... Exprs>
std::vector<ExprPtr> Children(Exprs... exprs) {
  std::vector<ExprPtr> out;
  (out.push_back(std::move(exprs)), ...);
  return out;
}

// The tokens with a place in them. The last token is kEnd and is never passed.
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
  // "unexpected ..." about the current token.
  Error Unexpected() const;

  static bool Is(const Token& token, TokenKind kind, std::string_view text) {
    return token.kind == kind && token.text == text;
  }

 private:
  std::vector<Token> tokens_;
  size_t next_ = 0;
};

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& stream) : stream_(stream) {}

  // With or without the form `a if b else c`.
  Result<ExprPtr> ParseExpression(bool allow_conditional = true);
  // An expression, or several with commas between them: a tuple.
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
  Result<ExprPtr> ParseFilter(ExprPtr node);
  Result<ExprPtr> ParseTest(ExprPtr node);
  Result<CallArguments> ParseCallArguments();
  // One argument for each parameter of `builtin`, null where absent, behind `self`.
  Result<ExprPtr> Bind(ExprKind kind, const Builtin& builtin, ExprPtr self, CallArguments arguments, int line);
  // Names of tests and filters given as strings: select('equalto', ...), map('upper').
  Status CheckNamedArguments(const Expr& node);
  Result<ExprPtr> Make(ExprKind kind, int line, std::vector<ExprPtr> args, std::string name = "");
  Result<ExprPtr> MakeBinary(Operator op, int line, ExprPtr left, ExprPtr right);
  Status Enter();
  void Leave() { --nesting_; }

  TokenStream& stream_;
  int nesting_ = 0;
};

}  // namespace infinigen::jinja
