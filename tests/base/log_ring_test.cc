#include "base/log_ring.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <sstream>
#include <string>
#include <thread>

namespace infinigen {
namespace {

struct Pipe {
  Pipe() { EXPECT_EQ(::pipe(ends), 0); }
  ~Pipe() {
    ::close(ends[0]);
    ::close(ends[1]);
  }
  // All that comes until `end` does.
  std::string Read(const std::string& end) {
    std::string text;
    char buffer[4096];
    while (text.find(end) == text.npos) {
      const ssize_t got = ::read(ends[0], buffer, sizeof(buffer));
      if (got <= 0) break;
      text.append(buffer, static_cast<size_t>(got));
    }
    return text;
  }
  int ends[2];
};

TEST(LogRing, WritesLinesInOrder) {
  Pipe pipe;
  LogRing log(pipe.ends[1]);
  log.Write("one");
  log.Write(std::string(5000, 'x'));
  log.Write("three");
  EXPECT_EQ(pipe.Read("three\n"), "one\n" + std::string(LogRing::kMaxLineBytes - 1, 'x') + "\nthree\n");
  EXPECT_EQ(log.dropped(), 0u);
}

// Lines that arrived and lines that a note says were dropped, together.
int LinesAccountedFor(const std::string& text) {
  int count = 0;
  std::istringstream lines(text.substr(0, text.rfind('\n') + 1));
  for (std::string line; std::getline(lines, line);) {
    int dropped = 0;
    count += std::sscanf(line.c_str(), "infinigen: %d lines of the log were dropped", &dropped) == 1 ? dropped : 1;
  }
  return count;
}

// A pipe holds 64 KiB: what exceeds pipe and ring is dropped, and nothing waits. The ring may run empty between two of
// the lines, so there can be several notes.
TEST(LogRing, AFullPipeBlocksNothing) {
  Pipe pipe;
  LogRing log(pipe.ends[1], 100);
  for (int i = 0; i < 1000; ++i) log.Write("line " + std::to_string(i) + std::string(500, '.'));
  EXPECT_GT(log.dropped(), 500u);
  EXPECT_LT(log.dropped(), 1000u);
  std::string text;
  while (LinesAccountedFor(text) < 1000) text += pipe.Read("\n");
  EXPECT_EQ(LinesAccountedFor(text), 1000);
  EXPECT_NE(text.find("line 50."), std::string::npos) << "those that found a place are there";
  log.Write("after");
  EXPECT_NE(pipe.Read("after\n").find("after\n"), std::string::npos);
}

TEST(LogRing, EndsThoughThePipeIsFull) {
  Pipe pipe;
  LogRing log(pipe.ends[1], 1000);
  for (int i = 0; i < 1000; ++i) log.Write(std::string(500, '.'));
}

TEST(LogRing, AClosedPipeLosesLines) {
  std::signal(SIGPIPE, SIG_IGN);
  Pipe pipe;
  LogRing log(pipe.ends[1]);
  ::close(pipe.ends[0]);
  pipe.ends[0] = ::dup(pipe.ends[1]);
  log.Write("lost");
  for (int i = 0; i < 2000 && log.dropped() == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(log.dropped(), 1u);
}

}  // namespace
}  // namespace infinigen
