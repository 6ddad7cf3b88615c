// A picture for a terminal: which parts of its context a decode step attended to, context along x, layers along y.
//
//   AttentionPicture picture(layers, rows);
//   executor.instruments().ObserveSelection(picture.Observer());   // every step replaces the one before
//   ...
//   picture.Freeze();                                // keep what was seen last
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/executor.h"

namespace infinigen {

class AttentionPicture {
 public:
  // Of a model with so many layers and a context of about so many rows.
  AttentionPicture(int64_t layers, int64_t rows, size_t columns);

  // Valid as long as the picture is.
  SelectionObserver Observer();
  void Freeze() { frozen_ = true; }

  void Add(LayerId layer, KvHead head, std::span<const int32_t> rows);

  // False when no layer selected anything: then there is nothing to draw.
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

}  // namespace infinigen
