// The machine as the program finds it: its processor's name, how much host memory this process may still take, and how
// much it has taken. Linux only; read once before a run, from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace infinigen {

// Bytes that can be allocated without swapping or being killed: the smaller of the machine's MemAvailable and of every
// control group above this process (limit − usage; page cache counts as free). nullopt when the machine does not say.
std::optional<uint64_t> AvailableHostMemory();

// The largest resident size this process ever had (VmHWM); 0 when unknown. Mapped files count as far as they were read.
uint64_t PeakResidentBytes();

// The processor as the kernel names it ("AMD EPYC 9354"), or "CPU" when it does not.
std::string CpuName();

// The parts, for tests.
// The bytes of the line "name   123 kB" of a /proc file; nullopt when there is no such line.
std::optional<uint64_t> ParseProcKilobytes(std::string_view text, std::string_view name);
// What a control group still lets us take. `root` is where the hierarchy is mounted, `path` the group's path in it;
// each ancestor's limit counts too. nullopt when no group on the way has a limit.
std::optional<uint64_t> CgroupAvailable(const std::string& root, std::string_view path, bool version2);

}  // namespace infinigen
