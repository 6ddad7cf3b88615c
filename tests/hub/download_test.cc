// What a download does when the last byte is there. Everything before that needs a server: hub_test.py.
#include "hub/download.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/counted_calls.h"

namespace infinigen {
namespace {

namespace fs = std::filesystem;

class DownloadTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string directory = testing::TempDir() + "download_XXXXXX";
    ASSERT_NE(::mkdtemp(directory.data()), nullptr);
    blob_ = directory + "/blob";
    std::ofstream(blob_ + ".incomplete") << "hello\n";  // all bytes have arrived
  }
  void TearDown() override {
    Counted() = {};
    fs::remove_all(fs::path(blob_).parent_path());
  }
  Status Download() {
    const HubFile file{.path = "file", .bytes = 6, .hash = "ce013625030ba8dba906f756967f9e9ca394464a"};
    return DownloadBlob({}, "/file", "file", file, blob_, {}, [](uint64_t) {});
  }

  std::string blob_;
};

TEST_F(DownloadTest, TheNameOfABlobIsDurable) {
  bool named = false;
  Counted().file_sync = [&] { EXPECT_FALSE(fs::exists(blob_)) << "the file is synced before"; };
  Counted().directory_sync = [&] { named = fs::exists(blob_); };
  ASSERT_TRUE(Download().ok());
  EXPECT_EQ(Counted().file_syncs, 1);
  EXPECT_EQ(Counted().directory_syncs, 1);
  EXPECT_TRUE(named) << "the directory is synced after the rename";
}

TEST_F(DownloadTest, ANameThatIsNotDurableIsAnError) {
  Counted().directory_sync_fails = true;
  const Status status = Download();
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("cannot write the directory through"), std::string::npos)
      << status.error().message;
}

}  // namespace
}  // namespace infinigen
