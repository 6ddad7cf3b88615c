#include "cli/window_reader.h"

#include "cli/interrupt.h"

namespace infinigen {

WindowReader::~WindowReader() {
  for (const auto& [index, slot] : read_) executor_.Release(slot);
}

Result<std::optional<SeqSlot>> WindowReader::Read(size_t index, std::span<const int32_t> fed) {
  if (const auto known = read_.find(index); known != read_.end()) return std::optional(known->second);
  ASSIGN_OR_RETURN(const SeqSlot slot, executor_.Admit(static_cast<int64_t>(fed.size())));
  const KvMethod& method = executor_.options().method;
  const bool dense = !method.selects() && !method.evicts();
  const Status begun = executor_.BeginPrefill(slot, 0, fed, dense ? PrefillKind::kDense : PrefillKind::kSteps);
  bool whole = false;
  while (begun.ok() && !whole && !Interrupted()) whole = executor_.RunPrefillUnit(slot);
  if (whole) {
    read_.emplace(index, slot);
    return std::optional(slot);
  }
  executor_.Release(slot);
  RETURN_IF_ERROR(begun);
  return std::optional<SeqSlot>();
}

void WindowReader::Leave(size_t index) {
  const auto known = read_.find(index);
  if (known == read_.end() || index < keep_) return;
  executor_.Release(known->second);
  read_.erase(known);
}

}  // namespace infinigen
