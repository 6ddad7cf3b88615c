#include "base/mmap_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "base/split_mix.h"

namespace infinigen {
namespace {

std::string TempPath(const std::string& name) { return testing::TempDir() + "/" + name; }

TEST(MmapFile, ShowsTheBytes) {
  const std::string path = TempPath("bytes.bin");
  std::ofstream(path) << "hello";
  Result<MmapFile> file = MmapFile::Open(path);
  ASSERT_TRUE(file.ok());
  ASSERT_EQ(file->bytes().size(), 5u);
  EXPECT_EQ(file->bytes()[4], std::byte{'o'});
  MmapFile moved = std::move(file).value();
  EXPECT_EQ(moved.bytes()[0], std::byte{'h'});
}

TEST(MmapFile, EmptyFileIsEmptyNotAnError) {
  const std::string path = TempPath("empty.bin");
  std::ofstream(path).flush();
  Result<MmapFile> file = MmapFile::Open(path);
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(file->bytes().empty());
}

TEST(MmapFile, NamesPathAndReason) {
  const Result<MmapFile> missing = MmapFile::Open(TempPath("no/such/file"));
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.error().message.find("no/such/file"), std::string::npos);
  EXPECT_NE(missing.error().message.find("No such file"), std::string::npos);
  EXPECT_FALSE(MmapFile::Open(testing::TempDir()).ok()) << "a directory is not a file";
}

TEST(MmapFile, RefusesAFifoWithoutHanging) {
  const std::string path = TempPath("fifo");
  std::remove(path.c_str());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_FALSE(MmapFile::Open(path).ok());
  EXPECT_FALSE(ReadSmallFile(path, 10).ok());
}

// The copy has the same addresses and bytes, and no longer depends on the file.
TEST(MmapFile, ReadIntoMemoryOutlivesTheFile) {
  const std::string path = TempPath("large.bin");
  std::string text((size_t{70} << 20) + 12345, '\0');  // more than two pieces, and a part of a page
  SplitMix random(7);
  for (size_t i = 0; i < text.size(); i += 997) text[i] = static_cast<char>(random.Next());
  std::ofstream(path, std::ios::binary) << text;
  const Result<MmapFile> file = MmapFile::Open(path);
  ASSERT_TRUE(file.ok());
  const std::span<const std::byte> before = file->bytes();
  ThreadPool threads(2);
  file->ReadIntoMemory(threads);
  ASSERT_EQ(file->bytes().data(), before.data());
  ASSERT_EQ(file->bytes().size(), text.size());
  ASSERT_EQ(::truncate(path.c_str(), 0), 0);  // a mapped page would now raise SIGBUS
  EXPECT_EQ(std::memcmp(before.data(), text.data(), text.size()), 0);
  std::remove(path.c_str());
}

TEST(ReadSmallFile, HoldsTheLimit) {
  const std::string path = TempPath("small.txt");
  std::ofstream(path) << "0123456789";
  EXPECT_EQ(ReadSmallFile(path, 10).value(), "0123456789");
  EXPECT_FALSE(ReadSmallFile(path, 9).ok());
}

// As when a model is replaced by `cp` while it is served.
TEST(MmapFileDeathTest, ATruncatedFileIsNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::string path = TempPath("shrinks.bin");
  std::ofstream(path) << std::string(1 << 16, 'x');
  EXPECT_EXIT(
      {
        ExplainTruncatedFiles();
        const Result<MmapFile> file = MmapFile::Open(path);
        if (!file.ok() || ::truncate(path.c_str(), 100) != 0) std::_Exit(9);
        const volatile std::byte* bytes = file->bytes().data();
        std::_Exit(bytes[60000] == std::byte{0} ? 7 : 8);
      },
      testing::ExitedWithCode(1), "shrinks.bin: the file cannot be read any more: it was truncated");
  std::remove(path.c_str());
}

TEST(MmapFileDeathTest, OtherBusErrorsKeepTheirSignal) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        ExplainTruncatedFiles();
        std::raise(SIGBUS);
        std::raise(SIGBUS);
      },
      testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace infinigen
