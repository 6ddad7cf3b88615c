// Checkpoint: all tensors of a Hugging Face model directory, stored either in one model.safetensors or in several
// shards listed by model.safetensors.index.json. Move-only; spans and string views from it survive a move and are valid
// as long as the checkpoint lives. Read-only after Open, so any thread may use it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "loader/safetensors.h"
#include "loader/tensor_source.h"

namespace infinigen {

// The weight_map of an index file: which shard contains each tensor.
struct ShardIndex {
  struct Entry {
    std::string tensor;
    uint32_t shard = 0;  // index into `shards`
  };
  std::vector<std::string> shards;  // file names without a directory, unique
  std::vector<Entry> entries;       // sorted by tensor name, unique
};

// `path` is used in messages only.
Result<ShardIndex> ParseShardIndex(std::string_view text, const std::string& path);

class Checkpoint final : public TensorSource {
 public:
  // Maps and checks every file. The error for weights in another format (pytorch_model.bin, GGUF) names the file.
  static Result<Checkpoint> Open(const std::string& directory);

  std::span<const StoredTensor> tensors() const override { return tensors_; }
  std::string where() const override;
  void ReadIntoMemory(ThreadPool& threads) const override {
    for (const auto& file : files_) file.ReadIntoMemory(threads);
  }

 private:
  Checkpoint(std::vector<SafetensorsFile> files, std::vector<StoredTensor> tensors)
      : files_(std::move(files)), tensors_(std::move(tensors)) {}
  static Result<Checkpoint> Make(std::vector<SafetensorsFile> files);

  std::vector<SafetensorsFile> files_;
  std::vector<StoredTensor> tensors_;  // of all files, sorted by name; views into files_
};

}  // namespace infinigen
