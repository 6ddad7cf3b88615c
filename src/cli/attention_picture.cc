#include "cli/attention_picture.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace infinigen {
namespace {

constexpr size_t kMostLines = 16;

// By the share of a column's tokens that were attended to.
const char* Glyph(double share) {
  if (share <= 0) return " ";
  if (share < 0.04) return "·";
  if (share < 0.15) return "░";
  if (share < 0.4) return "▒";
  return share < 0.8 ? "▓" : "█";
}

}  // namespace

AttentionPicture::AttentionPicture(int64_t layers, int64_t rows, size_t columns)
    : rows_(rows), columns_(columns), layers_(static_cast<size_t>(layers)) {
  CHECK(layers > 0 && rows > 0 && columns > 0);
  for (Layer& layer : layers_) layer.counts.resize(columns);
}

SelectionObserver AttentionPicture::Observer() {
  return [this](LayerId layer, SeqSlot, KvHead head, std::span<const int32_t> rows) { Add(layer, head, rows); };
}

size_t AttentionPicture::ColumnOf(int64_t row) const {
  return static_cast<size_t>(std::min(row, rows_ - 1)) * columns_ / static_cast<size_t>(rows_);
}

double AttentionPicture::ColumnRows(size_t column) const {
  // ColumnOf(row) == column for rows [⌈column·rows/columns⌉, ⌈(column+1)·rows/columns⌉).
  const size_t rows = static_cast<size_t>(rows_);
  const auto first = [&](size_t c) { return (c * rows + columns_ - 1) / columns_; };
  return static_cast<double>(first(column + 1) - first(column));
}

void AttentionPicture::Add(LayerId layer, KvHead head, std::span<const int32_t> rows) {
  if (frozen_) return;
  Layer& of = layers_[layer.index()];
  if (head.value() == 0) {  // another step
    of.heads = 0;
    std::fill(of.counts.begin(), of.counts.end(), 0.0);
  }
  ++of.heads;
  seen_ = true;
  for (const int32_t row : rows)
    if (row < rows_) ++of.counts[ColumnOf(row)];
}

std::string AttentionPicture::Draw(int64_t row, const std::string& name) const {
  const size_t per_line = (layers_.size() + kMostLines - 1) / kMostLines;
  std::string text;
  for (size_t first = 0; first < layers_.size(); first += per_line) {
    const size_t last = std::min(first + per_line, layers_.size());
    text += fmt::format("{:>5} ", first);
    for (size_t column = 0; column < columns_; ++column) {
      double attended = 0, whole = 0;
      for (size_t layer = first; layer < last; ++layer) {
        const int64_t heads = std::max<int64_t>(layers_[layer].heads, 1);
        attended += layers_[layer].heads > 0 ? layers_[layer].counts[column] : ColumnRows(column);  // dense: all of it
        whole += ColumnRows(column) * static_cast<double>(heads);
      }
      text += Glyph(whole > 0 ? attended / whole : 0);
    }
    text += "\n";
  }
  const size_t mark = ColumnOf(row);
  const bool before = mark + 2 + name.size() > columns_ && mark > name.size();
  text +=
      before ? fmt::format("      {:>{}} ^\n", name, mark - 1) : fmt::format("      {:>{}} {}\n", "^", mark + 1, name);
  return text;
}

}  // namespace infinigen
