#include "base/machine.h"

#include <algorithm>
#include <charconv>
#include <fstream>

namespace infinigen {
namespace {

// Reads of /proc and /sys files stop here; the values used are in the first lines.
constexpr size_t kMaxFileBytes = 1 << 16;

// Limits from here on mean "no limit": cgroup version 1 writes 2^63 − 4096, the largest multiple of a page.
constexpr uint64_t kUnlimited = uint64_t{1} << 62;

// Empty when the file cannot be read. The kernel reports size 0 for these files, so the length is known after reading.
std::string Read(const std::string& path) {
  std::ifstream file(path);
  std::string text(kMaxFileBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(file.gcount() > 0 ? static_cast<size_t>(file.gcount()) : 0);
  return text;
}

std::optional<uint64_t> ParseNumber(std::string_view text) {
  uint64_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc()) return std::nullopt;
  return value;
}

template <class Line>
void ForEachLine(std::string_view text, Line&& line) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    line(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

// Page cache of a group: charged to the group, but reclaimed under memory pressure.
uint64_t CacheBytes(const std::string& group, bool version2) {
  uint64_t bytes = 0;
  const std::string prefix = version2 ? "" : "total_";
  ForEachLine(Read(group + "/memory.stat"), [&](std::string_view line) {
    for (const char* name : {"inactive_file ", "active_file "}) {
      const std::string key = prefix + name;
      if (line.substr(0, key.size()) == key) bytes += ParseNumber(line.substr(key.size())).value_or(0);
    }
  });
  return bytes;
}

std::optional<uint64_t> GroupAvailable(const std::string& group, bool version2) {
  const auto limit = ParseNumber(Read(group + (version2 ? "/memory.max" : "/memory.limit_in_bytes")));
  const auto usage = ParseNumber(Read(group + (version2 ? "/memory.current" : "/memory.usage_in_bytes")));
  if (!limit || !usage || *limit >= kUnlimited) return std::nullopt;
  const uint64_t cache = CacheBytes(group, version2);
  const uint64_t held = *usage > cache ? *usage - cache : 0;
  return *limit > held ? *limit - held : 0;
}

std::optional<uint64_t> Smaller(std::optional<uint64_t> a, std::optional<uint64_t> b) {
  if (!a || !b) return a ? a : b;
  return std::min(*a, *b);
}

}  // namespace

std::optional<uint64_t> ParseProcKilobytes(std::string_view text, std::string_view name) {
  std::optional<uint64_t> bytes;
  ForEachLine(text, [&](std::string_view line) {
    if (bytes || line.substr(0, name.size()) != name) return;
    line.remove_prefix(name.size());
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
    if (const auto kilobytes = ParseNumber(line)) bytes = *kilobytes * 1024;
  });
  return bytes;
}

std::optional<uint64_t> CgroupAvailable(const std::string& root, std::string_view path, bool version2) {
  // Inside a container the path may be the host's and not exist here; then only the root group has files.
  std::optional<uint64_t> available = GroupAvailable(root, version2);
  while (!path.empty() && path != "/") {
    available = Smaller(available, GroupAvailable(root + std::string(path), version2));
    path = path.substr(0, std::min(path.rfind('/'), path.size()));
  }
  return available;
}

std::optional<uint64_t> AvailableHostMemory() {
  std::optional<uint64_t> available = ParseProcKilobytes(Read("/proc/meminfo"), "MemAvailable:");
  // Lines "hierarchy:controllers:path": version 2 has hierarchy 0 and no controllers.
  ForEachLine(Read("/proc/self/cgroup"), [&](std::string_view line) {
    const size_t first = line.find(':');
    const size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) return;
    const std::string controllers = "," + std::string(line.substr(first + 1, second - first - 1)) + ",";
    const std::string_view path = line.substr(second + 1);
    if (controllers == ",,")
      available = Smaller(available, CgroupAvailable("/sys/fs/cgroup", path, true));
    else if (controllers.find(",memory,") != std::string::npos)
      available = Smaller(available, CgroupAvailable("/sys/fs/cgroup/memory", path, false));
  });
  return available;
}

std::string CpuName() {
  std::string name = "CPU";
  ForEachLine(Read("/proc/cpuinfo"), [&](std::string_view line) {
    const size_t colon = line.find(": ");
    if (name == "CPU" && line.substr(0, 10) == "model name" && colon != std::string_view::npos)
      name = line.substr(colon + 2);
  });
  return name;
}

uint64_t PeakResidentBytes() { return ParseProcKilobytes(Read("/proc/self/status"), "VmHWM:").value_or(0); }

}  // namespace infinigen
