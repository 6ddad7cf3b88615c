// Fields of config.json that do not change what a trained model computes. For hf_config.cc only.
#pragma once

#include <string_view>

namespace infinigen {

// Training settings, bookkeeping and sampling defaults, as transformers 4.x and 5.x write them.
bool IsHarmlessConfigField(std::string_view name);

}  // namespace infinigen
