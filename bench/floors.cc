// bench_floors: compares the CPU backend with the limits of the machine, on the llama-3.2-1b shape with random weights.
// Decode reads every weight byte once, so its floor is the read bandwidth; prefill is compared with OpenBLAS sgemm of
// the same shapes. Floor and measurement alternate in one process, because machines are noisy; medians are printed.
//
//   bench_floors [--threads N] [--rounds N] [--depth A,B,..] [--types bf16,q4_k,..] [--quick]
//                [--only matmul|attention] [--json]
#include "floors.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>

namespace infinigen::bench {

namespace {

struct Command {
  Options options;
  std::string only;
  bool json = false;
};

std::vector<WeightType> ParseTypes(std::string_view text) {
  std::vector<WeightType> types;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::optional<WeightType> type = WeightTypeNamed(text.substr(0, comma));
    if (!type || (IsPlain(*type) && *type != WeightType::kBF16)) {
      fmt::print(stderr, "--types: '{}' is not bf16 or a block type\n", text.substr(0, comma));
      std::exit(2);
    }
    types.push_back(*type);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return types;
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
    } else if (flag == "--types" && ++i < argc) {
      command.options.types = ParseTypes(value);
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
  fmt::print("llama-3.2-1b shape, {} threads, {}\n", command.options.threads, target);
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
