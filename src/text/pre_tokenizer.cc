#include <algorithm>
#include <utility>

#include "text/pipeline.h"

namespace infinigen {

Result<PreTokenizer> PreTokenizer::Create(std::vector<PreTokenizerStep> steps) {
  using Kind = PreTokenizerStep::Kind;
  PreTokenizer result;
  for (size_t i = 0; i < steps.size(); ++i) {
    PreTokenizerStep& step = steps[i];
    if (step.kind == Kind::kByteLevel && i + 1 != steps.size())
      return Unsupported("pre_tokenizer: a step after ByteLevel is not supported");
    std::optional<RegexSplitter> regex;
    if (step.kind == Kind::kSplitRegex || step.kind == Kind::kDigits ||
        (step.kind == Kind::kByteLevel && !step.pattern.empty())) {
      Result<RegexSplitter> compiled = RegexSplitter::Compile(step.pattern);
      if (!compiled.ok()) return Error{compiled.error().kind, "pre_tokenizer: " + compiled.error().message};
      regex = std::move(*compiled);
    }
    result.steps_.push_back({std::move(step), std::move(regex)});
  }
  return result;
}

Status PreTokenizer::Run(std::string_view text, PieceContext context, PreTokenizerScratch& scratch,
                         const Sink& sink) const {
  return Apply(0, text, context, scratch, sink);
}

Status PreTokenizer::Apply(size_t index, std::string_view piece, PieceContext context, PreTokenizerScratch& scratch,
                           const Sink& sink) const {
  using Kind = PreTokenizerStep::Kind;
  if (piece.empty()) return Ok{};
  if (index == steps_.size()) {
    sink(piece);
    return Ok{};
  }
  const PreTokenizerStep& step = steps_[index].spec;
  switch (step.kind) {
    case Kind::kMetaspace:
      return ApplyMetaspace(index, piece, context, scratch, sink);
    case Kind::kByteLevel: {
      if (!step.add_prefix_space || context.continues || piece.starts_with(' '))
        return ApplyIsolated(index, piece, context, scratch, sink);
      return ApplyIsolated(index, " " + std::string(piece), context, scratch, sink);
    }
    case Kind::kSplitRegex:
    case Kind::kDigits:
    case Kind::kSplitString:
      if (step.behavior == SplitBehavior::kIsolated && steps_[index].regex)
        return ApplyIsolated(index, piece, context, scratch, sink);
      return ApplySplit(index, piece, context, scratch, sink);
  }
  return Ok{};
}

// The common case, without a list of ranges: matches and the text between them become pieces.
Status PreTokenizer::ApplyIsolated(size_t index, std::string_view piece, PieceContext context,
                                   PreTokenizerScratch& scratch, const Sink& sink) const {
  const std::optional<RegexSplitter>& regex = steps_[index].regex;
  if (!regex) return Apply(index + 1, piece, context, scratch, sink);
  size_t done = 0;
  while (done < piece.size()) {
    ASSIGN_OR_RETURN(const std::optional<RegexMatch> match, regex->Find(piece, done, scratch.regex));
    const RegexMatch next = match.value_or(RegexMatch{piece.size(), piece.size()});
    RETURN_IF_ERROR(Apply(index + 1, piece.substr(done, next.begin - done), context, scratch, sink));
    if (next.begin > 0) context = {};
    RETURN_IF_ERROR(Apply(index + 1, piece.substr(next.begin, next.end - next.begin), context, scratch, sink));
    context = {};
    done = next.end;
  }
  return Ok{};
}

Status PreTokenizer::ApplySplit(size_t index, std::string_view piece, PieceContext context,
                                PreTokenizerScratch& scratch, const Sink& sink) const {
  const Step& step = steps_[index];
  Ranges ranges;
  size_t done = 0;
  while (done < piece.size()) {
    RegexMatch match{piece.size(), piece.size()};
    if (step.regex) {
      ASSIGN_OR_RETURN(const std::optional<RegexMatch> found, step.regex->Find(piece, done, scratch.regex));
      if (found) match = *found;
    } else if (const size_t hit = piece.find(step.spec.pattern, done); hit != std::string_view::npos) {
      match = {hit, hit + step.spec.pattern.size()};
    }
    if (match.begin > done && !Add(done, match.begin, step.spec.invert, ranges, scratch)) return Ok{};
    if (match.end > match.begin && !Add(match.begin, match.end, !step.spec.invert, ranges, scratch)) return Ok{};
    done = match.end;
  }
  return ApplyRanges(index + 1, piece, ApplyBehavior(ranges, step.spec.behavior), context, scratch, sink);
}

Status PreTokenizer::ApplyMetaspace(size_t index, std::string_view piece, PieceContext context,
                                    PreTokenizerScratch& scratch, const Sink& sink) const {
  const PreTokenizerStep& step = steps_[index].spec;
  std::string text;
  text.reserve(piece.size() + piece.size() / 2);
  for (const char c : piece) {
    if (c == ' ')
      text += step.replacement;
    else
      text += c;
  }
  const bool prepend = step.prepend_scheme == PrependScheme::kAlways ||
                       (step.prepend_scheme == PrependScheme::kFirst && context.text_start);
  if (prepend && !context.continues && !text.starts_with(step.replacement)) text.insert(0, step.replacement);
  if (!step.split) return Apply(index + 1, text, context, scratch, sink);
  Ranges ranges;
  size_t done = 0;
  while (done < text.size()) {
    const size_t hit = std::min(text.find(step.replacement, done), text.size());
    if (hit > done && !Add(done, hit, false, ranges, scratch)) return Ok{};
    if (hit < text.size() && !Add(hit, hit + step.replacement.size(), true, ranges, scratch)) return Ok{};
    done = hit + step.replacement.size();
  }
  return ApplyRanges(index + 1, text, ApplyBehavior(ranges, SplitBehavior::kMergedWithNext), context, scratch, sink);
}

Status PreTokenizer::ApplyRanges(size_t index, std::string_view piece, const Ranges& ranges, PieceContext context,
                                 PreTokenizerScratch& scratch, const Sink& sink) const {
  for (const Range& range : ranges) {
    const PieceContext here = range.begin == 0 ? context : PieceContext{};
    RETURN_IF_ERROR(Apply(index, piece.substr(range.begin, range.end - range.begin), here, scratch, sink));
  }
  return Ok{};
}

// What is not encoded for lack of memory is reported by Pipeline::Encode.
bool PreTokenizer::Add(size_t begin, size_t end, bool match, Ranges& ranges, PreTokenizerScratch& scratch) {
  // Twice: ApplyBehavior makes a second list. While a list grows, its old memory exists too.
  const size_t capacity = std::max(ranges.capacity(), 2 * ranges.size());
  if (scratch.memory != nullptr && !scratch.memory->Raise(&scratch.range_bytes, 3 * capacity * sizeof(Range)))
    return false;
  ranges.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(end), match});
  return true;
}

PreTokenizer::Ranges PreTokenizer::ApplyBehavior(const Ranges& ranges, SplitBehavior behavior) {
  Ranges result;
  bool previous_match = false;
  switch (behavior) {
    case SplitBehavior::kIsolated:
      return ranges;
    case SplitBehavior::kRemoved:
      std::copy_if(ranges.begin(), ranges.end(), std::back_inserter(result), [](const Range& r) { return !r.match; });
      return result;
    case SplitBehavior::kContiguous:
      for (const Range& range : ranges) {
        if (!result.empty() && result.back().match == range.match)
          result.back().end = range.end;
        else
          result.push_back(range);
      }
      return result;
    case SplitBehavior::kMergedWithPrevious:
      for (const Range& range : ranges) {
        if (range.match && !previous_match && !result.empty())
          result.back().end = range.end;
        else
          result.push_back(range);
        previous_match = range.match;
      }
      return result;
    case SplitBehavior::kMergedWithNext:
      for (auto range = ranges.rbegin(); range != ranges.rend(); ++range) {
        if (range->match && !previous_match && !result.empty())
          result.back().begin = range->begin;
        else
          result.push_back(*range);
        previous_match = range->match;
      }
      std::reverse(result.begin(), result.end());
      return result;
  }
  return result;
}

}  // namespace infinigen
