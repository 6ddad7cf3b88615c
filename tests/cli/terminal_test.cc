// The progress line and the messages on stderr.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/console.h"

namespace infinigen {
namespace {

using testing::HasSubstr;

TEST(Terminal, ErrorsStayOnOneLine) { EXPECT_EQ(OneLine("a\nb\r\x1b[2Jc\xc3\xa9"), "a b \\x1b[2Jc\xc3\xa9"); }

TEST(Terminal, ProgressLine) {
  EXPECT_EQ(ProgressLine(0.5, 1000, 10), "prefill  50 % [############------------] 1000 tokens  50 tok/s  ETA 0:10");
  EXPECT_THAT(ProgressLine(0, 1000, 1), HasSubstr("0 tok/s"));
  EXPECT_THAT(ProgressLine(0.01, 100000, 10), HasSubstr("ETA 16:30"));
}

TEST(Terminal, DownloadLine) {
  constexpr uint64_t kMib = 1 << 20;
  EXPECT_EQ(DownloadLine(50 * kMib, 200 * kMib, 1.5 * kMib),
            "downloading  25 % [######------------------] 50.0 MiB of 200.0 MiB  1.50 MiB/s  ETA 1:40");
  EXPECT_EQ(DownloadLine(999, 1000, 0), "downloading  99 % [#######################-] 999 B of 1000 B");
  EXPECT_THAT(DownloadLine(0, 0, 0), HasSubstr("100 %"));
}

// If stderr is not a terminal, only warnings and notices are printed, one line each.
TEST(Terminal, CallbacksWithoutATerminal) {
  Terminal terminal;
  const Callbacks callbacks = terminal.callbacks();
  testing::internal::CaptureStderr();
  callbacks.Warn("a\nb");
  callbacks.Notice("calibrating x");
  callbacks.Status("half done");
  callbacks.Progress({.kind = WorkKind::kCalibration, .done = 1, .total = 2});
  callbacks.Progress({.kind = WorkKind::kPrefill, .done = 1, .total = 2, .tokens = 10});
  callbacks.Progress({.kind = WorkKind::kDownload, .done = 1, .total = 2});
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "infinigen: warning: a b\ncalibrating x\n");
  EXPECT_FALSE(callbacks.Cancelled());
}

}  // namespace
}  // namespace infinigen
