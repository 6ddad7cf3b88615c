#include "base/machine.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace infinigen {
namespace {

TEST(Machine, TheProcessorHasAName) { EXPECT_FALSE(CpuName().empty()); }

TEST(Machine, ReadsTheNamedLine) {
  const char* text = "MemTotal:       100 kB\nMemAvailable:     42 kB\nHugepagesize:    2048 kB\n";
  EXPECT_EQ(ParseProcKilobytes(text, "MemAvailable:"), 42u * 1024);
  EXPECT_EQ(ParseProcKilobytes(text, "SwapTotal:"), std::nullopt);
  EXPECT_EQ(ParseProcKilobytes("", "MemTotal:"), std::nullopt);
}

class Cgroup : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "/cgroup_XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    root_ = name;
    std::filesystem::create_directories(root_ + "/a/b");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& file, const std::string& text) { std::ofstream(root_ + file) << text; }

  std::string root_;
};

TEST_F(Cgroup, TheTightestAncestorCounts) {
  Write("/a/memory.max", "1000\n");
  Write("/a/memory.current", "700\n");
  Write("/a/memory.stat", "anon 500\ninactive_file 60\nactive_file 40\n");
  Write("/a/b/memory.max", "max\n");
  Write("/a/b/memory.current", "10\n");
  EXPECT_EQ(CgroupAvailable(root_, "/a/b", true), 400u) << "page cache counts as free memory";
  EXPECT_EQ(CgroupAvailable(root_, "/elsewhere", true), std::nullopt);
}

TEST_F(Cgroup, VersionOneSaysUnlimitedAsAHugeNumber) {
  Write("/memory.limit_in_bytes", "9223372036854771712\n");
  Write("/memory.usage_in_bytes", "5\n");
  EXPECT_EQ(CgroupAvailable(root_, "/", false), std::nullopt);
  Write("/a/memory.limit_in_bytes", "100\n");
  Write("/a/memory.usage_in_bytes", "150\n");
  EXPECT_EQ(CgroupAvailable(root_, "/a", false), 0u) << "usage above the limit leaves 0 and does not wrap";
}

TEST(Machine, ThisMachineAnswers) {
  const auto available = AvailableHostMemory();
  ASSERT_TRUE(available.has_value());
  EXPECT_GT(*available, 1u << 20);
  EXPECT_GT(PeakResidentBytes(), 1u << 20);
}

}  // namespace
}  // namespace infinigen
