#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <numeric>
#include <vector>

#include "sanitized.h"

namespace infinigen {
namespace {

TEST(ThreadPool, EveryTaskRunsOnceForAnyTeam) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (int64_t tasks : {0, 1, 2, 3, 64, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(tasks));
      pool.Run(tasks, [&](int64_t task, int thread) {
        ASSERT_GE(thread, 0);
        ASSERT_LT(thread, threads);
        ++runs[static_cast<size_t>(task)];
      });
      for (const auto& count : runs) EXPECT_EQ(count.load(), 1);
    }
  }
}

TEST(ThreadPool, WritesAreVisibleToTheCallerAfterRun) {
  ThreadPool pool(3);
  std::vector<int> squares(257);
  for (int round = 0; round < 2000; ++round) {
    pool.Run(257, [&](int64_t task, int) { squares[static_cast<size_t>(task)] = static_cast<int>(task) + round; });
    for (int i = 0; i < 257; ++i) ASSERT_EQ(squares[static_cast<size_t>(i)], i + round);
  }
}

// More threads than cores, and loops of few short tasks: workers often arrive late. They must not run an old loop or
// miss a new one.
TEST(ThreadPool, LateWorkersDoNoHarm) {
  ThreadPool pool(8);
  for (int round = 0; round < 20000; ++round) {
    std::array<int, 3> runs{};
    pool.Run(3, [&](int64_t task, int) { runs[static_cast<size_t>(task)] += round + 1; });
    for (int value : runs) ASSERT_EQ(value, round + 1);
  }
}

// The destructor meets workers that have not started, that spin, or that are inside the last loop.
TEST(ThreadPool, EndsRightAfterALoop) {
  for (int round = 0; round < (kSanitized ? 500 : 3000); ++round) {
    ThreadPool pool(4);
    std::atomic<int> runs{0};
    for (int loop = 0; loop < round % 3; ++loop) pool.Run(2, [&](int64_t, int) { ++runs; });
    ASSERT_EQ(runs.load(), round % 3 * 2);
  }
}

TEST(ThreadPool, WakesAfterSleeping) {
  ThreadPool pool(2);
  for (int round = 0; round < 3; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));  // far longer than the spinning time
    std::atomic<int64_t> sum{0};
    pool.Run(10, [&](int64_t task, int) { sum += task; });
    EXPECT_EQ(sum.load(), 45);
  }
}

// Whichever thread runs the task that throws, the caller gets the exception, and the pool works on.
TEST(ThreadPool, ATaskThatThrowsReachesTheCaller) {
  for (const int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    for (int64_t bad = 0; bad < 64; ++bad) {
      EXPECT_THROW(pool.Run(64, [&](int64_t task, int) { task == bad ? throw std::bad_alloc() : void(); }),
                   std::bad_alloc);
      std::atomic<int64_t> sum{0};
      pool.Run(10, [&](int64_t task, int) { sum += task; });
      ASSERT_EQ(sum.load(), 45) << threads << " " << bad;
    }
  }
}

}  // namespace
}  // namespace infinigen
