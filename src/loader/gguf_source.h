// GgufSource: all tensors of a GGUF model, stored in one file or in several parts NAME-00001-of-0000N.gguf. Move-only;
// views from it survive a move and are valid as long as it lives. Read-only after Open, so any thread may use it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/gguf_name.h"
#include "base/result.h"
#include "loader/gguf.h"
#include "loader/tensor_source.h"

namespace infinigen {

class GgufSource final : public TensorSource {
 public:
  // `path` is the file, or any part of a split model; all parts must be in the same directory.
  static Result<GgufSource> Open(const std::string& path);

  std::span<const StoredTensor> tensors() const override { return tensors_; }
  std::string where() const override { return files_[0].path(); }
  void ReadIntoMemory(ThreadPool& threads) const override {
    for (const auto& file : files_) file.ReadIntoMemory(threads);
  }
  TensorNaming naming() const override { return TensorNaming::kGguf; }

  // The metadata of the model: that of the first part.
  const GgufMetadata& metadata() const { return files_[0].metadata(); }
  uint32_t version() const { return files_[0].version(); }
  // All files, in the order of the parts.
  std::vector<std::string> paths() const;

 private:
  GgufSource(std::vector<GgufFile> files, std::vector<StoredTensor> tensors)
      : files_(std::move(files)), tensors_(std::move(tensors)) {}
  static Result<GgufSource> Make(std::vector<GgufFile> files);

  std::vector<GgufFile> files_;
  std::vector<StoredTensor> tensors_;  // of all files, sorted by name; views into files_
};

// True for a name that ends in .gguf and for a regular file that starts with the format's magic.
bool LooksLikeGguf(const std::string& path);

}  // namespace infinigen
