// Wall time of what a command measures.
#pragma once

#include <chrono>

namespace infinigen {

using Clock = std::chrono::steady_clock;

inline double Seconds(Clock::time_point since) { return std::chrono::duration<double>(Clock::now() - since).count(); }

}  // namespace infinigen
