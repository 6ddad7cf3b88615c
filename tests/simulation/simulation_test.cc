// Random histories of the server, each checked against the same requests alone (docs/simulation.md).
//
//   simulation_test                        the tests: fixed seeds, and the proof that planted defects are found
//   simulation_test --seconds N --seed S   histories of the seeds S, S+1, … for N seconds
//   simulation_test --seed S               the history of one seed, described
#include "simulation/simulation.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <optional>
#include <string>

#include "sanitized.h"

namespace infinigen {
namespace {

std::string program = "simulation_test";
char replay[512] = "";

std::string ReplayLine(uint64_t seed) { return fmt::format("replay: {} --seed {}", program, seed); }

// A failed CHECK names the seed too.
void OnAbort(int) { [[maybe_unused]] const ssize_t written = ::write(2, replay, std::strlen(replay)); }

std::string RunSeed(uint64_t seed, Alone& alone, SimCounts* counts, Defect defect = Defect::kNone,
                    bool describe = false) {
  std::snprintf(replay, sizeof(replay), "%s\n", ReplayLine(seed).c_str());
  const History history = DrawHistory(seed, alone);
  if (describe) fmt::print("{}", history.Describe());
  Simulation simulation(history, alone, defect, counts);
  return simulation.Run();
}

// Histories that failed once. The first two: the pool was divided by prefixes, so that a request that fits could not
// grow. The last one: the checker did not count a stream's head as a sign of life.
constexpr uint64_t kPinnedSeeds[] = {303, 496, 20240109};

TEST(Simulation, HistoriesThatFailedOnce) {
  Alone alone;
  SimCounts counts;
  for (const uint64_t seed : kPinnedSeeds) EXPECT_EQ(RunSeed(seed, alone, &counts), "") << ReplayLine(seed);
}

TEST(Simulation, HistoriesSayWhatTheirRequestsSayAlone) {
  Alone alone;
  SimCounts counts;
  const uint64_t histories = kSanitized ? 60 : 700;
  for (uint64_t seed = 1; seed <= histories; ++seed) ASSERT_EQ(RunSeed(seed, alone, &counts), "") << ReplayLine(seed);
  fmt::print("{}\n", counts.Describe());
  EXPECT_GT(counts.compared, counts.choices / 2);
  EXPECT_GT(counts.reused_tokens, 0);
  EXPECT_GT(counts.left, 0);
  if (kSanitized) return;
  for (const int64_t happened : {counts.preemptions, counts.replayed_tokens, counts.exhausted, counts.throws,
                                 counts.stalls, counts.shutdowns, counts.comments, counts.pictures, counts.refused})
    EXPECT_GT(happened, 0) << counts.Describe();
}

TEST(Simulation, OneSeedIsOneHistory) {
  for (const uint64_t seed : {11u, 12u, 13u}) {
    Alone first, second;
    SimCounts a, b;
    EXPECT_EQ(RunSeed(seed, first, &a), RunSeed(seed, second, &b));
    EXPECT_EQ(a.Describe(), b.Describe());
  }
}

// Histories run with poisoned memory: what reads a row that this sequence has not written computes NaN. Here a step
// skips a row, so it attends to one that an earlier sequence had.
TEST(Checker, AReadOfARecycledRowShows) {
  for (const SimVariant& variant : SimVariants()) {
    if (variant.method.evicts()) continue;
    SCOPED_TRACE(variant.name);
    const std::unique_ptr<Executor> executor = MakeSimModel(variant, kSimContext, 1, 1 << 24, 0);
    const std::vector<int32_t> prompt(280, 3);
    std::vector<float> logits(static_cast<size_t>(executor->config().vocab));
    const auto run = [&](int64_t skipped) {
      const SeqSlot slot = executor->Admit(kSimContext).value();
      EXPECT_TRUE(executor->BeginPrefill(slot, 0, prompt).ok());
      while (!executor->RunPrefillUnit(slot)) {
      }
      executor->EndPrefill(slot);
      const StepItem item{.slot = slot, .token = 3, .row = std::ssize(prompt) + skipped};
      executor->Step({&item, 1}, logits);
      executor->Release(slot);
      return std::ranges::all_of(logits, [](float logit) { return std::isfinite(logit); });
    };
    EXPECT_TRUE(run(0));
    EXPECT_FALSE(run(1));
    EXPECT_TRUE(run(0));
  }
}

// Each defect is found within this many histories.
constexpr uint64_t kEnough = 400;

TEST(Checker, FindsPlantedDefects) {
  if (kSanitized) GTEST_SKIP() << "the release build proves the checker";
  Alone alone;
  for (int i = 1; i < static_cast<int>(Defect::kCount); ++i) {
    SimCounts counts;
    std::string found;
    uint64_t seed = 0;
    while (found.empty() && ++seed <= kEnough) found = RunSeed(seed, alone, &counts, static_cast<Defect>(i));
    EXPECT_NE(found, "") << "defect " << i;
    fmt::print("defect {} after {} histories: {}\n", i, seed, found.substr(0, found.find('\n')));
  }
}

// Runs seeds from `seed` on until the time is over. The number of failures.
int LongRun(double seconds, uint64_t seed) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  const auto passed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  Alone alone;
  SimCounts counts;
  int failures = 0;
  uint64_t next = seed;
  for (; passed() < seconds && failures < 20; ++next) {
    const std::string problem = RunSeed(next, alone, &counts);
    if (problem.empty()) continue;
    ++failures;
    fmt::print("FAILED seed {}: {}\n{}\n", next, problem, ReplayLine(next));
    std::fflush(stdout);
  }
  const double cpu_s = static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
  const auto histories = static_cast<double>(counts.histories);
  fmt::print("seeds {} to {}, {} failed; {:.0f} s, {:.0f} histories a minute; {:.0f} s of CPU time, {:.0f} a minute\n",
             seed, next - 1, failures, passed(), histories / passed() * 60, cpu_s, histories / cpu_s * 60);
  fmt::print("{}\nalone: {} runs, {} kept answers used\n", counts.Describe(), alone.runs(), alone.hits());
  return failures;
}

int Main(int argc, char** argv) {
  program = argv[0];
  std::signal(SIGABRT, OnAbort);
  testing::InitGoogleTest(&argc, argv);
  double seconds = 0;
  std::optional<uint64_t> seed;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::string_view(argv[i]) == "--seconds") seconds = std::atof(argv[i + 1]);
    if (std::string_view(argv[i]) == "--seed") seed = std::strtoull(argv[i + 1], nullptr, 10);
  }
  if (seconds > 0) return LongRun(seconds, seed.value_or(1)) > 0 ? 1 : 0;
  if (!seed) return RUN_ALL_TESTS();
  Alone alone;
  SimCounts counts;
  const std::string problem = RunSeed(*seed, alone, &counts, Defect::kNone, /*describe=*/true);
  fmt::print("{}\n{}\n", counts.Describe(), problem.empty() ? "no finding" : "FAILED: " + problem);
  return problem.empty() ? 0 : 1;
}

}  // namespace
}  // namespace infinigen

int main(int argc, char** argv) { return infinigen::Main(argc, argv); }
