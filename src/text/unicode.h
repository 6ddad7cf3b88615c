// The character classes that tokenizers need beyond base/utf8.h. Pure functions, any thread.
#pragma once

#include "base/utf8.h"

namespace infinigen {

bool IsNumeric(char32_t code_point);   // general category N
bool IsWordChar(char32_t code_point);  // letter, mark, number or connector: \w of regular expressions

}  // namespace infinigen
