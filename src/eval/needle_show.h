// One needle case on a screen of text, for people: the text in a few lines, the planted sentence in its surroundings,
// the question, the answer, what it took, and which parts of the context each layer attended to. About 24 lines and a
// picture; the caller writes them. One thread.
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

// Everything before the answer, up to "Answer:". `source`: what the filler is.
std::string ShowCase(const NeedleCase& planted, std::string_view source, const ShowStyle& style);

// What follows the answer.
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
  // For a model with so many layers and a context of about so many rows.
  AttentionPicture(int64_t layers, int64_t rows, size_t columns);

  // Valid as long as the picture is.
  SelectionObserver Observer();
  void Freeze() { frozen_ = true; }

  void Add(LayerId layer, KvHead head, std::span<const int32_t> rows);

  // False: no layer selected anything, and there is nothing to draw.
  bool seen() const { return seen_; }
  // One line for every layer, or for several where there are many; under them a mark at `row` with its name.
  std::string Draw(int64_t row, const std::string& name) const;

 private:
  size_t ColumnOf(int64_t row) const;
  double ColumnRows(size_t column) const;

  int64_t rows_;
  size_t columns_;
  struct Layer {
    int64_t heads = 0;           // that were added
    std::vector<double> counts;  // [columns] rows attended to, Σ over heads
  };
  std::vector<Layer> layers_;
  bool frozen_ = false, seen_ = false;
};

// The picture with its caption; empty where nothing was selected.
std::string ShowAttention(const NeedleCase& planted, const AttentionPicture& picture);
// Whether new text of an answer holds the beginning of what was asked for: the step to freeze the picture at.
bool BeginsAnswer(const NeedleCase& planted, std::string_view text);

// ---- the parts, for tests ----

// Words of a text: runs of bytes that are no spaces.
int64_t CountWords(std::string_view text);

// `text` in lines of at most `width` columns, each after two spaces. At most `most` lines: the first ones, or with
// `from_end` the last ones. Line ends count as spaces.
std::string Wrapped(std::string_view text, size_t width, size_t most, bool from_end);

}  // namespace infinigen
