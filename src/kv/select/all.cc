#include "kv/select.h"

namespace infinigen {

const SelectMethod kSelectAll{.name = "all", .summary = "every retained entry"};

}  // namespace infinigen
