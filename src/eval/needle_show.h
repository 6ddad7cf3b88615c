// Shows one needle case on a text screen: the beginning of the text, the planted sentence with its surroundings, the
// question, the answer, statistics, and a picture of the context's parts that each layer attended to. About 24 lines
// plus the picture; the caller prints them. One thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "eval/needle_case.h"
#include "eval/needle_score.h"
#include "runtime/launch.h"
#include "runtime/report.h"

namespace infinigen {

struct ShowStyle {
  size_t width = 88;  // columns of text
  bool colours = false;
};

// Everything before the answer, up to "Answer:". `source`: a name for the filler.
std::string ShowCase(const NeedleCase& planted, std::string_view source, const ShowStyle& style);

// Everything after the answer.
std::string ShowOutcome(const NeedleCase& planted, const NeedleAnswer& answer, const Timing& timing,
                        const PoolUse& pool, const KvStats& stats, const ExecutorOptions& options,
                        const ShowStyle& style);

// Draws the selections of one decode step: context along x, layers along y, darker where more tokens were attended to.
//
//   AttentionPicture picture(layers, rows, columns);
//   executor.instruments().ObserveSelection(picture.Observer());   // every step replaces the one before
//   ...
//   picture.Freeze();                                              // keeps the last step
class AttentionPicture {
 public:
  // `rows`: approximate rows of the context.
  AttentionPicture(int64_t layers, int64_t rows, size_t columns);

  // Valid as long as the picture is.
  SelectionObserver Observer();
  void Freeze() { frozen_ = true; }

  void Add(LayerId layer, KvHead head, std::span<const int32_t> rows);

  // False: no layer selected anything, so there is nothing to draw.
  bool seen() const { return seen_; }
  // One line per layer, or per group of layers if there are many; below them a mark at `row`, labelled `name`.
  std::string Draw(int64_t row, const std::string& name) const;

 private:
  size_t ColumnOf(int64_t row) const;
  double ColumnRows(size_t column) const;

  int64_t rows_;
  size_t columns_;
  struct Layer {
    int64_t heads = 0;           // number of heads added
    std::vector<double> counts;  // [columns], rows attended to, summed over heads
  };
  std::vector<Layer> layers_;
  bool frozen_ = false, seen_ = false;
};

// The picture with its caption; empty if nothing was selected.
std::string ShowAttention(const NeedleCase& planted, const AttentionPicture& picture);
// Whether new text of an answer contains the beginning of a sought string: the step at which to freeze the picture.
bool BeginsAnswer(const NeedleCase& planted, std::string_view text);

// ---- the parts, for tests ----

// The number of words: runs of bytes that are not spaces.
int64_t CountWords(std::string_view text);

// Breaks `text` into lines of at most `width` columns, each indented by two spaces. Returns the first `most` lines, or
// the last with `from_end`. Line ends count as spaces.
std::string Wrapped(std::string_view text, size_t width, size_t most, bool from_end);

}  // namespace infinigen
