// bench_floors: how near the CPU backend comes to what the machine can do, on the llama-3.2-1b shape with random
// weights. Decode reads every weight byte once, so its floor is the read bandwidth; prefill is compared with OpenBLAS
// sgemm of the same shapes. Floor and measurement alternate inside one process, because machines are noisy; medians are
// printed.
//
//   bench_floors [--threads N] [--rounds N] [--depth A,B,..] [--quick] [--only matmul|attention] [--json]
#include "floors.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>

namespace infinigen::bench {

Buffer RandomBf16(Allocator& memory, size_t bytes) {
  Result<Buffer> buffer = Buffer::Make(memory, bytes);
  CHECK(buffer.ok());
  auto* values = reinterpret_cast<BF16*>(buffer->data());
  uint32_t state = 12345;
  for (size_t i = 0; i < bytes / sizeof(BF16); ++i) {
    state = state * 1664525u + 1013904223u;
    values[i] = ToBF16(static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f);
  }
  return std::move(*buffer);
}

void ReadAll(ThreadPool& pool, const Buffer& buffer) {
  constexpr size_t kTask = size_t{1} << 20;
  std::vector<uint64_t> sums(static_cast<size_t>(pool.threads()) * 8);
  pool.Run(static_cast<int64_t>(buffer.bytes() / kTask), [&](int64_t task, int thread) {
    const auto* words = reinterpret_cast<const uint64_t*>(buffer.data() + static_cast<size_t>(task) * kTask);
    uint64_t lanes[16] = {};
    for (size_t i = 0; i < kTask / 8; i += 16)
      for (size_t lane = 0; lane < 16; ++lane) lanes[lane] ^= words[i + lane];
    for (const uint64_t lane : lanes) sums[static_cast<size_t>(thread) * 8] ^= lane;
  });
  volatile uint64_t sink = sums[0];
  (void)sink;
}

namespace {

struct Command {
  Options options;
  std::string only;
  bool json = false;
};

std::vector<int64_t> ParseList(std::string_view text) {
  std::vector<int64_t> values;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    values.push_back(std::strtoll(std::string(text.substr(0, comma)).c_str(), nullptr, 10));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return values;
}

Command Parse(int argc, char** argv) {
  Command command;
  command.options.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (flag == "--json") {
      command.json = true;
    } else if (flag == "--quick") {
      command.options.quick = true;
    } else if (flag == "--threads" && ++i < argc) {
      command.options.threads = std::max(1, std::atoi(value));
    } else if (flag == "--rounds" && ++i < argc) {
      command.options.rounds = std::max(1, std::atoi(value));
    } else if (flag == "--depth" && ++i < argc) {
      command.options.depths = ParseList(value);
    } else if (flag == "--only" && ++i < argc) {
      command.only = value;
    } else {
      fmt::print(stderr, "unknown flag '{}'; see the head of bench/floors.cc\n", flag);
      std::exit(2);
    }
  }
  return command;
}

void Print(const std::vector<Line>& lines, const Command& command, const char* target) {
  if (command.json) {
    nlohmann::json out = {{"simd", target}, {"threads", command.options.threads}};
    for (const Line& line : lines)
      out["results"].push_back({{"name", line.name},
                                {"value", line.value},
                                {"unit", line.unit},
                                {"floor", line.floor},
                                {"ratio", line.ratio()}});
    fmt::print("{}\n", out.dump(2));
    return;
  }
  fmt::print("llama-3.2-1b shape, bf16, {} threads, {}\n", command.options.threads, target);
  fmt::print("{:<44} {:>9} {:>9}  {:<7} {:>6}\n", "", "measured", "floor", "unit", "ratio");
  for (const Line& line : lines) {
    if (line.floor > 0)
      fmt::print("{:<44} {:>9.1f} {:>9.1f}  {:<7} {:>6.2f}\n", line.name, line.value, line.floor, line.unit,
                 line.ratio());
    else
      fmt::print("{:<44} {:>9.1f} {:>9}  {:<7}\n", line.name, line.value, "", line.unit);
  }
}

}  // namespace
}  // namespace infinigen::bench

int main(int argc, char** argv) {
  using namespace infinigen::bench;
  const Command command = Parse(argc, argv);
  std::vector<Line> lines;
  if (command.only.empty() || command.only == "matmul") lines = MatMulFloors(command.options);
  if (command.only.empty() || command.only == "attention")
    for (Line& line : AttentionFloors(command.options)) lines.push_back(std::move(line));
  Print(lines, command, infinigen::CpuBackend(1).simd_target());
  return 0;
}
