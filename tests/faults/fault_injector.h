// Fault injection for tests: a program linked with fault_injector.cc can let chosen calls of a class fail. The
// classes are allocations, mappings, reads, writes and so on (kFaultClasses). docs/faults.md says how to use it.
//
// Any thread may call these functions, also inside an allocation. Only calls between the beginning and the end of main
// are counted.
#pragma once

#include <array>
#include <string_view>

namespace infinigen {

enum class FaultClass { kAlloc, kMap, kRead, kWrite, kSync, kClose, kOpen, kThread, kPin, kCuda, kNone };
inline constexpr std::array<std::string_view, 10> kFaultClasses = {"alloc", "map",  "read",   "write", "sync",
                                                                   "close", "open", "thread", "pin",   "cuda"};

// Counts a call. True: the caller must fail it, without having done its work.
bool InjectFault(FaultClass kind);

}  // namespace infinigen
