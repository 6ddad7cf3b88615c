// NewFile: a file that appears under its name when it is complete and not before. It is written to a temporary file
// beside that name; a failed or abandoned one leaves nothing behind, and a file that had the name stays as it was. If
// the name is a link, the file that it leads to is replaced; devices, pipes and directories are refused. One thread.
// Errors name the path.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace infinigen {

// Writes the directory of `path` through to the disk, so that a file that was created or renamed there keeps its name
// when the machine loses power.
Status SyncDirectoryOf(const std::string& path);

class NewFile {
 public:
  explicit NewFile(std::string path) : path_(std::move(path)) {}
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  // Creates the temporary file. bytes > 0: reserves the space, so that a full disk is reported before the work.
  Status Begin(uint64_t bytes = 0);
  bool begun() const { return fd_ >= 0; }
  Status Append(std::string_view bytes);
  // Writes the file through to the disk, gives it its name, and writes that through too. After an error of the last
  // step the file has its name.
  Status Finish();

 private:
  bool Create();          // false: errno says why
  Error Failure() const;  // of the last call to the operating system

  std::string path_;
  std::string temporary_;  // empty until Begin, and after Finish
  int fd_ = -1;
};

}  // namespace infinigen
