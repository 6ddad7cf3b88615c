#include "kv/select.h"

#include <algorithm>
#include <array>

namespace infinigen {
namespace {

constexpr std::array<const SelectMethod*, 5> kMethods = {&kSelectAll, &kSelectSketch, &kSelectQuest, &kSelectPageMean,
                                                         &kSelectOracle};

}  // namespace

std::span<const SelectMethod* const> SelectMethods() { return kMethods; }

const SelectMethod* FindSelectMethod(std::string_view name) {
  const auto found = std::find_if(kMethods.begin(), kMethods.end(), [&](const auto* m) { return m->name == name; });
  return found == kMethods.end() ? nullptr : *found;
}

}  // namespace infinigen
