// A parsed chat template: plain data, immutable after parsing, shared by all renderings.
//
// Invariant: `depth` of an expression is at most kMaxExpressionDepth and statements nest at most kMaxNesting deep, so
// evaluating and destroying may recurse.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/jinja_builtins.h"
#include "text/jinja_value.h"

namespace infinigen::jinja {

inline constexpr int kMaxNesting = 48;           // brackets and blocks as written
inline constexpr int kMaxExpressionDepth = 200;  // also a + b + c + ..., which nests to the left

enum class ExprKind {
  kConstant,     // constant
  kName,         // name
  kLoop,         // loop.name; for loop.cycle, args
  kList,         // args
  kTuple,        // args
  kDict,         // args: key, value, key, value, ...
  kAttribute,    // args[0].name
  kItem,         // args[0][args[1]]
  kSlice,        // args[0][args[1]:args[2]:args[3]]; absent bounds are null
  kCall,         // name(args, keywords[i]=args[n+i])
  kMethod,       // args[0].name(args[1..]); builtin; absent arguments are null
  kFilter,       // args[0] | name(args[1..]), likewise
  kTest,         // args[0] is name(args[1..]), likewise
  kNegate,       // -args[0]
  kPlus,         // +args[0]
  kNot,          // not args[0]
  kAnd,          // args[0] and args[1]
  kOr,           // args[0] or args[1]
  kConditional,  // args[0] if args[1] else args[2], which may be null
  kCompare,      // args[0] ops[0] args[1] ops[1] args[2] ...
  kConcat,       // args[0] ~ args[1] ~ ...
  kBinary,       // args[0] ops[0] args[1]
};

enum class Operator { kAdd, kSub, kMul, kDiv, kFloorDiv, kMod, kPow, kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  ExprKind kind = ExprKind::kConstant;
  int line = 0;
  int depth = 1;
  std::string name;
  Value constant;
  std::vector<ExprPtr> args;
  std::vector<Operator> ops;
  std::vector<std::string> keywords;
  const Builtin* builtin = nullptr;
  Function function = Function::kRange;
};

// What a value is assigned to: `name`, or the attribute of a namespace.
struct Target {
  std::string name;
  std::string attribute;
};

struct Targets {
  std::vector<Target> names;
  bool unpack = false;  // a, b = ...: as many values as names
};

enum class StatementKind {
  kText,      // text
  kPrint,     // exprs[0]
  kIf,        // exprs[i] guards blocks[i]; one more block is the else
  kFor,       // targets in exprs[0] if exprs[1] (or null): blocks[0], else blocks[1]
  kSet,       // targets = exprs[0]
  kSetBlock,  // targets = the text of blocks[0]
  kWith,      // with_targets[i] = exprs[i] around blocks[0]; also {% generation %}, with none
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
};

struct Template {
  Block body;
};

}  // namespace infinigen::jinja
