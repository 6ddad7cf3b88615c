// Makes a schema that CheckSchema accepts one that xgrammar 0.2.8 enforces. It lets 98.53.033.94 be an address and the
// 31st of February a date, which validators refuse; and in a pattern, an optional group whose last part repeats, as in
// (a[0-9]+)?, loses its beginning.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace infinigen {

// "format" becomes "pattern" where a pattern says exactly the format's common form: date, time, date-time, ipv4, uuid.
// Optional groups of patterns are written as (…){0,1}, which is read well.
void PrepareSchema(nlohmann::ordered_json& schema);

}  // namespace infinigen
