// The default calibration text: several kinds of prose, numbers and lines of code, so that many kinds of queries and
// keys occur. About 10 KB, which is more than 2,048 tokens with any common tokenizer.
#pragma once

#include <string_view>

namespace infinigen {

inline constexpr std::string_view kCalibrationTextName = "built-in text";

std::string_view BuiltInCalibrationText();

}  // namespace infinigen
