#include "jinja/template.h"

#include <utility>

#include "jinja/evaluator.h"
#include "jinja/parser.h"

namespace infinigen::jinja {
namespace {

enum class Flow { kNext, kBreak, kContinue };

class Renderer final : public BlockRunner {
 public:
  Renderer(Context& context, const Variables& globals, uint64_t max_output_bytes)
      : context_(context), evaluator_(context, globals, *this), output_left_(max_output_bytes) {}

  Result<std::string> Run(const Program& program) {
    ASSIGN_OR_RETURN(const Flow flow, RunBlock(program.body));
    CHECK(flow == Flow::kNext);  // the parser allows break and continue only in loops
    return std::move(out_);
  }

  Result<std::string> Capture(const Block& block) override {
    std::string printed;
    ASSIGN_OR_RETURN(const Flow flow, RunCaptured(block, printed));
    CHECK(flow == Flow::kNext);  // the parser allows break and continue only in loops of the macro
    return printed;
  }

 private:
  Result<Flow> RunBlock(const Block& block) {
    RETURN_IF_ERROR(context_.Enter());
    Flow flow = Flow::kNext;
    for (size_t i = 0; i < block.size() && flow == Flow::kNext; ++i) {
      ASSIGN_OR_RETURN(flow, RunStatement(block[i]));
    }
    context_.Leave();
    return flow;
  }

  Result<Flow> RunScoped(const Block& block) {
    evaluator_.PushScope();
    Result<Flow> flow = RunBlock(block);
    evaluator_.PopScope();
    return flow;
  }

  Result<Flow> RunStatement(const Statement& statement) {
    RETURN_IF_ERROR(context_.budget.Step());
    context_.line = statement.line;
    switch (statement.kind) {
      case StatementKind::kText:
        RETURN_IF_ERROR(Print(statement.text));
        return Flow::kNext;
      case StatementKind::kPrint:
        return RunPrint(statement);
      case StatementKind::kIf:
        return RunIf(statement);
      case StatementKind::kFor:
        return RunFor(statement);
      case StatementKind::kSet:
        return RunSet(statement);
      case StatementKind::kSetBlock:
        return RunSetBlock(statement);
      case StatementKind::kWith:
        return RunWith(statement);
      case StatementKind::kFilter:
        return RunFilter(statement);
      case StatementKind::kMacro:
        RETURN_IF_ERROR(evaluator_.AssignName(statement.macro->name, Value(statement.macro.get())));
        return Flow::kNext;
      case StatementKind::kBreak:
        return Flow::kBreak;
      case StatementKind::kContinue:
        return Flow::kContinue;
    }
    return Flow::kNext;
  }

  Status Print(std::string_view text) {
    if (text.size() > output_left_) return Exhausted("the template prints more text than the limit allows");
    output_left_ -= text.size();
    RETURN_IF_ERROR(context_.budget.Read(text.size()));
    out_ += text;
    return Ok{};
  }

  Result<Flow> RunPrint(const Statement& statement) {
    ASSIGN_OR_RETURN(const Value value, evaluator_.Evaluate(*statement.exprs[0]));
    if (const std::string* text = value.text()) {
      RETURN_IF_ERROR(Print(*text));
    } else {
      ASSIGN_OR_RETURN(const std::string printed, ToText(context_.budget, value));
      RETURN_IF_ERROR(Print(printed));
    }
    return Flow::kNext;
  }

  Result<Flow> RunIf(const Statement& statement) {
    for (size_t i = 0; i < statement.exprs.size(); ++i) {
      ASSIGN_OR_RETURN(const Value condition, evaluator_.Evaluate(*statement.exprs[i]));
      if (IsTrue(condition)) return RunBlock(statement.blocks[i]);
    }
    if (statement.blocks.size() > statement.exprs.size()) return RunBlock(statement.blocks.back());
    return Flow::kNext;
  }

  // The items of a loop that satisfy its condition.
  Result<SequencePtr> ItemsOf(const Statement& statement) {
    ASSIGN_OR_RETURN(const Value iterable, evaluator_.Evaluate(*statement.exprs[0]));
    ASSIGN_OR_RETURN(SequencePtr all, Iterate(context_.budget, iterable));
    if (!statement.exprs[1]) return all;
    List kept;
    for (const Value& item : all->items) {
      evaluator_.PushScope();
      RETURN_IF_ERROR(evaluator_.Assign(statement.targets, item));
      ASSIGN_OR_RETURN(const Value condition, evaluator_.Evaluate(*statement.exprs[1]));
      evaluator_.PopScope();
      if (IsTrue(condition)) kept.push_back(item);
    }
    ASSIGN_OR_RETURN(const Value list, MakeSequence(context_.budget, SequenceKind::kList, std::move(kept)));
    return *list.If<SequencePtr>();
  }

  Result<Flow> RunFor(const Statement& statement) {
    ASSIGN_OR_RETURN(const SequencePtr sequence, ItemsOf(statement));
    const List& items = sequence->items;
    Loop loop{&items, 0};
    bool completed = false;  // an iteration reached the end of the body; otherwise Jinja runs the else block
    for (; loop.index < items.size(); ++loop.index) {
      RETURN_IF_ERROR(context_.budget.Step());
      evaluator_.PushScope();
      evaluator_.PushLoop(&loop);
      RETURN_IF_ERROR(evaluator_.Assign(statement.targets, items[loop.index]));
      ASSIGN_OR_RETURN(const Flow flow, RunBlock(statement.blocks[0]));
      evaluator_.PopLoop();
      evaluator_.PopScope();
      if (flow == Flow::kBreak) break;
      if (flow == Flow::kNext) completed = true;
    }
    if (!completed) return RunScoped(statement.blocks[1]);
    return Flow::kNext;
  }

  Result<Flow> RunSet(const Statement& statement) {
    ASSIGN_OR_RETURN(const Value value, evaluator_.Evaluate(*statement.exprs[0]));
    RETURN_IF_ERROR(evaluator_.Assign(statement.targets, value));
    return Flow::kNext;
  }

  Result<Flow> RunSetBlock(const Statement& statement) {
    std::string printed;
    ASSIGN_OR_RETURN(const Flow flow, RunCaptured(statement.blocks[0], printed));
    if (flow != Flow::kNext) return flow;
    ASSIGN_OR_RETURN(Value value, MakeText(context_.budget, std::move(printed)));
    if (!statement.exprs.empty()) {
      ASSIGN_OR_RETURN(value, ApplyFilters(*statement.exprs[0], value));
    }
    RETURN_IF_ERROR(evaluator_.Assign(statement.targets, value));
    return Flow::kNext;
  }

  Result<Flow> RunFilter(const Statement& statement) {
    std::string printed;
    ASSIGN_OR_RETURN(const Flow flow, RunCaptured(statement.blocks[0], printed));
    if (flow != Flow::kNext) return flow;
    ASSIGN_OR_RETURN(Value value, MakeText(context_.budget, std::move(printed)));
    ASSIGN_OR_RETURN(value, ApplyFilters(*statement.exprs[0], value));
    ASSIGN_OR_RETURN(const std::string text, ToText(context_.budget, value));
    RETURN_IF_ERROR(Print(text));
    return Flow::kNext;
  }

  // Runs `block` in a scope of its own; `printed` receives its output.
  Result<Flow> RunCaptured(const Block& block, std::string& printed) {
    std::string outer = std::exchange(out_, std::string());
    ASSIGN_OR_RETURN(const Flow flow, RunScoped(block));
    printed = std::exchange(out_, std::move(outer));
    return flow;
  }

  // `filters` read their input as the name "", which no template can spell.
  Result<Value> ApplyFilters(const Expr& filters, const Value& text) {
    evaluator_.PushScope();
    RETURN_IF_ERROR(evaluator_.AssignName("", text));
    ASSIGN_OR_RETURN(Value value, evaluator_.Evaluate(filters));
    evaluator_.PopScope();
    return value;
  }

  // As in Jinja, the values are evaluated outside the new scope.
  Result<Flow> RunWith(const Statement& statement) {
    List values;
    for (const ExprPtr& expr : statement.exprs) {
      ASSIGN_OR_RETURN(Value value, evaluator_.Evaluate(*expr));
      values.push_back(std::move(value));
    }
    evaluator_.PushScope();
    for (size_t i = 0; i < values.size(); ++i) {
      RETURN_IF_ERROR(evaluator_.Assign(statement.with_targets[i], values[i]));
    }
    ASSIGN_OR_RETURN(const Flow flow, RunBlock(statement.blocks[0]));
    evaluator_.PopScope();
    return flow;
  }

  Context& context_;
  Evaluator evaluator_;
  uint64_t output_left_;
  std::string out_;  // output of the innermost set block, or of the template
};

}  // namespace

Result<Template> Template::Parse(std::string_view source) {
  ASSIGN_OR_RETURN(Program program, ParseProgram(source));
  return Template(std::make_shared<const Program>(std::move(program)));
}

Result<std::string> Template::Render(const Variables& variables, const RenderLimits& limits, const std::tm& now) const {
  Context context{.budget = Budget(limits.steps, limits.made_bytes), .now = now};
  Result<std::string> text = Renderer(context, variables, limits.output_bytes).Run(*program_);
  if (text.ok() || context.raised) return text;
  return Error{text.error().kind, fmt::format("chat template: line {}: {}", context.line, text.error().message)};
}

}  // namespace infinigen::jinja
