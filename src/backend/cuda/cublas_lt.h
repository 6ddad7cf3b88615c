// Availability of cuBLASLt, which is loaded on the first call. Private to backend/cuda.
#pragma once

#include <string>

namespace infinigen {

// The reason why cuBLASLt cannot be used; empty if it can.
const std::string& CublasLtProblem();

}  // namespace infinigen
