#include "base/mmap_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdio>
#include <fstream>

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

TEST(ReadSmallFile, HoldsTheLimit) {
  const std::string path = TempPath("small.txt");
  std::ofstream(path) << "0123456789";
  EXPECT_EQ(ReadSmallFile(path, 10).value(), "0123456789");
  EXPECT_FALSE(ReadSmallFile(path, 9).ok());
}

}  // namespace
}  // namespace infinigen
