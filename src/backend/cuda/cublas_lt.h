// Whether the library of matrix products is there; it is loaded by the first who asks. Private to backend/cuda.
#pragma once

#include <string>

namespace infinigen {

// Why not; empty when it is.
const std::string& CublasLtProblem();

}  // namespace infinigen
