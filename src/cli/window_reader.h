// Windows of a text as one executor reads them, each from an empty cache. The residual stream of a window that was read
// stays until it is left, so that its logits can be asked for in slices.
//
// A reader may keep windows: read once, they are there for everybody who asks again. That is how many methods are
// compared with `full` on a text that full reads once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>

#include "base/result.h"
#include "model/executor.h"

namespace infinigen {

class WindowReader {
 public:
  // `executor` outlives it, and has a place for each of the first `keep` windows and for one more where there are more.
  explicit WindowReader(Executor& executor, size_t keep = 0) : executor_(executor), keep_(keep) {}
  ~WindowReader();
  WindowReader(const WindowReader&) = delete;
  WindowReader& operator=(const WindowReader&) = delete;

  // The slot of window `index`, which feeds `fed`, always the same for the same index. nullopt: Ctrl-C.
  Result<std::optional<SeqSlot>> Read(size_t index, std::span<const int32_t> fed);
  // Gives the window back unless it is kept; nothing where it was not read.
  void Leave(size_t index);

  Executor& executor() const { return executor_; }

 private:
  Executor& executor_;
  const size_t keep_;
  std::map<size_t, SeqSlot> read_;
};

}  // namespace infinigen
