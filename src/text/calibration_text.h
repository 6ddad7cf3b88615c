// The text that a model is calibrated on when the user names none: prose of several kinds, figures and lines of code,
// so that queries and keys of many sorts occur. About 10 KB, more than 2,048 tokens with any usual tokenizer.
#pragma once

#include <string_view>

namespace infinigen {

inline constexpr std::string_view kCalibrationTextName = "built-in text";

std::string_view BuiltInCalibrationText();

}  // namespace infinigen
