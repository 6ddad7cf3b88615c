// The watchdog under a clock of the test's own: hangs end the process, pauses of the process do not.
#include "server/watchdog.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

namespace infinigen {
namespace {

using std::chrono::duration;
using Clock = Heartbeat::Clock;

// The default bounds: 30 s, 10 s later the clients are told, 2 s later the process ends.
class WatchdogTest : public ::testing::Test {
 protected:
  // Every time is 720 times as long, so that the watchdog's own thread, which polls every 6 minutes, never does.
  static constexpr int kScale = 720;
  static WatchdogTimes Times() {
    const WatchdogTimes usual;
    return {.least_bound = kScale * usual.least_bound,
            .end_after = kScale * usual.end_after,
            .last_words = kScale * usual.last_words,
            .poll = kScale * usual.poll};
  }

  Clock::time_point At(double second) const {
    return start_ + std::chrono::duration_cast<Clock::duration>(duration<double>(kScale * second));
  }
  static double Seconds(Clock::duration time) { return duration<double>(time).count() / kScale; }
  // Checks every half second of [from, to], as the thread does.
  void Watch(double from, double to) {
    for (double at = from; at <= to; at += 0.5) watchdog_.Check(At(at));
  }

  const Clock::time_point start_ = Clock::now();
  Heartbeat heartbeat_;
  int words_ = 0;
  std::vector<std::string> ends_;
  Watchdog watchdog_{heartbeat_, Times(), [this] { ++words_; },
                     [this](std::string_view message) { ends_.emplace_back(message); }};
};

TEST_F(WatchdogTest, AHangEndsTheProcess) {
  heartbeat_.Begin(At(0));
  Watch(0, 40);
  EXPECT_TRUE(watchdog_.stalled(At(31)));
  EXPECT_EQ(words_, 0);
  Watch(40.5, 42);
  EXPECT_EQ(words_, 1);
  EXPECT_TRUE(ends_.empty());
  Watch(42.5, 50);
  EXPECT_EQ(words_, 1);
  ASSERT_EQ(ends_.size(), 1u);
  EXPECT_NE(ends_[0].find("hung for 30600 s"), std::string::npos) << ends_[0];  // 42.5 s
}

TEST_F(WatchdogTest, APauseOfTheProcessIsNoHang) {
  heartbeat_.Begin(At(0));
  Watch(0, 2);
  watchdog_.Check(At(52));  // stopped for 50 s
  EXPECT_FALSE(watchdog_.stalled(At(52)));
  Watch(52.5, 55);
  heartbeat_.End(At(55));
  EXPECT_EQ(words_, 0);
  EXPECT_NEAR(Seconds(heartbeat_.longest()), 5, 0.01) << "2 s before the pause and 3 s after it";
}

TEST_F(WatchdogTest, ATurnThatEndsBeforeTheNextCheckIsNotTheLongest) {
  heartbeat_.Begin(At(0));
  Watch(0, 2);
  heartbeat_.End(At(52.01));  // the engine's thread runs first after the pause
  EXPECT_NEAR(Seconds(heartbeat_.longest()), 2, 0.01);
  heartbeat_.Begin(At(52.01));
  Watch(52.02, 92);
  EXPECT_EQ(words_, 0);
  Watch(92.5, 96);
  EXPECT_EQ(words_, 1) << "the bound is still 30 s";
  EXPECT_EQ(ends_.size(), 1u);
}

TEST_F(WatchdogTest, AHangIsFoundAcrossPauses) {
  heartbeat_.Begin(At(0));
  Watch(0, 20);
  Watch(120, 140);
  EXPECT_EQ(words_, 0) << "20 s and 20 s";
  Watch(240, 242);
  EXPECT_EQ(words_, 1);
  EXPECT_TRUE(ends_.empty());
  Watch(342, 342);  // a pause during the last words
  EXPECT_TRUE(ends_.empty());
  Watch(342.5, 345);
  EXPECT_EQ(ends_.size(), 1u);
}

TEST_F(WatchdogTest, ALoopThatGoesOnIsNotEnded) {
  heartbeat_.Begin(At(0));
  Watch(0, 41);
  EXPECT_EQ(words_, 1);
  heartbeat_.End(At(41.2));
  Watch(41.5, 100);
  EXPECT_TRUE(ends_.empty());
  heartbeat_.Begin(At(100));
  Watch(100.5, 120);
  EXPECT_TRUE(ends_.empty()) << "another turn";
  Watch(120.5, 400);  // five times the turn of 41.2 s, and 12 s
  EXPECT_EQ(words_, 2);
  EXPECT_EQ(ends_.size(), 1u);
}

TEST_F(WatchdogTest, ALateCheckIsNoPause) {
  heartbeat_.Begin(At(0));
  for (double at = 0; at <= 40; at += 4) watchdog_.Check(At(at));  // a loaded machine
  watchdog_.Check(At(44));
  EXPECT_EQ(words_, 1);
}

}  // namespace
}  // namespace infinigen
