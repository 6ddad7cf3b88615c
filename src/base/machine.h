// Facts about the machine: the processor's name, how much host memory this process may still allocate, and its peak
// memory use. Linux only (/proc and control groups); any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace infinigen {

// Bytes that can be allocated without swapping or being killed: the minimum of the machine's MemAvailable and, for
// every control group that contains this process, limit − usage (page cache counts as free). nullopt when unknown.
std::optional<uint64_t> AvailableHostMemory();

// Peak resident size of this process (VmHWM); 0 when unknown. Includes the parts of mapped files that were read.
uint64_t PeakResidentBytes();

// The processor's name as the kernel reports it ("AMD EPYC 9354"); "CPU" when unknown.
std::string CpuName();

// ---- parts, declared for tests ----

// Parses the line "name   123 kB" of a /proc file into bytes; nullopt when there is no such line.
std::optional<uint64_t> ParseProcKilobytes(std::string_view text, std::string_view name);
// Bytes that a control group and its ancestors still allow. `root`: mount point of the hierarchy; `path`: the group's
// path below it. nullopt when none of these groups has a limit.
std::optional<uint64_t> CgroupAvailable(const std::string& root, std::string_view path, bool version2);

}  // namespace infinigen
