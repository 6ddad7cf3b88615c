#include "base/new_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "base/counted_calls.h"

namespace infinigen {
namespace {

class NewFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = ::testing::TempDir() + "new_file_XXXXXX";
    ASSERT_NE(::mkdtemp(directory_.data()), nullptr);
  }
  void TearDown() override {
    Counted() = {};
    std::filesystem::remove_all(directory_);
  }

  std::string path() const { return directory_ + "/file"; }
  std::string Content() const {
    std::ifstream file(path());
    return {std::istreambuf_iterator<char>(file), {}};
  }
  int64_t Files() const {
    return std::distance(std::filesystem::directory_iterator(directory_), std::filesystem::directory_iterator());
  }

  std::string directory_;
};

TEST_F(NewFileTest, AppearsWhenItIsComplete) {
  NewFile file(path());
  ASSERT_TRUE(file.Begin().ok());
  ASSERT_TRUE(file.Append("one ").ok());
  ASSERT_TRUE(file.Append("two").ok());
  EXPECT_FALSE(std::filesystem::exists(path()));
  ASSERT_TRUE(file.Finish().ok());
  EXPECT_EQ(Content(), "one two");
  EXPECT_EQ(Files(), 1);
}

TEST_F(NewFileTest, AnAbandonedOneLeavesTheOldFile) {
  std::ofstream(path()) << "old";
  {
    NewFile file(path());
    ASSERT_TRUE(file.Begin(1000).ok());
    ASSERT_TRUE(file.Append("new").ok());
    EXPECT_EQ(Files(), 2);
  }
  EXPECT_EQ(Files(), 1);
  EXPECT_EQ(Content(), "old");
  NewFile file(path());
  ASSERT_TRUE(file.Begin().ok() && file.Append("new").ok() && file.Finish().ok());
  EXPECT_EQ(Content(), "new");
}

TEST_F(NewFileTest, HasTheModeOfTheUmask) {
  const mode_t mask = ::umask(027);
  NewFile file(path());
  const bool written = file.Begin().ok() && file.Finish().ok();
  ::umask(mask);
  ASSERT_TRUE(written);
  struct stat info {};
  ASSERT_EQ(::stat(path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0640u);
}

// The umask belongs to the whole process: a file that another thread creates meanwhile would get a wrong mode.
TEST_F(NewFileTest, LeavesTheUmaskAlone) {
  NewFile file(path());
  ASSERT_TRUE(file.Begin().ok() && file.Append("new").ok() && file.Finish().ok());
  EXPECT_EQ(Counted().umasks, 0);
}

TEST_F(NewFileTest, ItsNameIsDurable) {
  std::string content;
  Counted().file_sync = [&] { EXPECT_FALSE(std::filesystem::exists(path())) << "the file is synced before"; };
  Counted().directory_sync = [&] { content = Content(); };
  NewFile file(path());
  ASSERT_TRUE(file.Begin().ok() && file.Append("new").ok() && file.Finish().ok());
  EXPECT_EQ(Counted().file_syncs, 1);
  EXPECT_EQ(Counted().directory_syncs, 1);
  EXPECT_EQ(content, "new") << "the directory is synced after the file has its name";
}

TEST_F(NewFileTest, ANameThatIsNotDurableIsAnError) {
  Counted().directory_sync_fails = true;
  NewFile file(path());
  ASSERT_TRUE(file.Begin().ok() && file.Append("new").ok());
  const Status status = file.Finish();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message, path() + ": cannot write the directory through to the disk: Input/output error");
  EXPECT_EQ(Content(), "new");
  EXPECT_EQ(Files(), 1);
}

TEST_F(NewFileTest, NamesThePathWhereItCannotBe) {
  NewFile file(directory_ + "/nowhere/file");
  const Status status = file.Begin();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().kind, ErrorKind::kIo);
  EXPECT_NE(status.error().message.find("nowhere/file: cannot write"), std::string::npos) << status.error().message;
}

TEST_F(NewFileTest, ReplacesWhatALinkLeadsTo) {
  const std::string link = directory_ + "/link";
  std::ofstream(path()) << "old";
  std::filesystem::create_symlink(path(), link);
  NewFile file(link);
  ASSERT_TRUE(file.Begin().ok());
  ASSERT_TRUE(file.Append("new").ok());
  ASSERT_TRUE(file.Finish().ok());
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(Content(), "new");
}

TEST_F(NewFileTest, RefusesWhatIsNoFile) {
  ASSERT_EQ(::mkfifo(path().c_str(), 0600), 0);
  NewFile file(path());
  const Status status = file.Begin();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message, path() + ": cannot write: not a regular file");
  EXPECT_TRUE(std::filesystem::is_fifo(path()));
  EXPECT_EQ(Files(), 1);
}

}  // namespace
}  // namespace infinigen
