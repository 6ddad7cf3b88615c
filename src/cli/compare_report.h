// The table of `eval compare`: one line a method, as Markdown, CSV or JSON. Cells of what was not measured are empty,
// in JSON null.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/compare.h"

namespace infinigen {

// Columns of a part that was not asked for are left out. Markdown is for people: sizes with units, shares in percent;
// CSV has every number as it is.
std::string CompareTable(const CompareTask& task, const CompareResult& result, bool csv);

// {"full": {...}, "results": [...]}: a result has the fields that eval ppl, eval needle and bench have.
nlohmann::ordered_json CompareJson(const CompareResult& result, const StatsDetail& detail);

}  // namespace infinigen
