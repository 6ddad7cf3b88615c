// The default calibration text: mostly prose, then modern dialogue, numbers and lines of code, so that many kinds of
// queries, keys and values occur. About 58 KB, which is more than 8,192 tokens with any common tokenizer.
#pragma once

#include <string_view>

namespace infinigen {

inline constexpr std::string_view kCalibrationTextName = "built-in text";

std::string_view BuiltInCalibrationText();
extern const std::string_view kCalibrationProse;  // the larger part of it

}  // namespace infinigen
