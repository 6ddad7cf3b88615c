// Checkpoint: all tensors of a model directory by name, whether they lie in one model.safetensors or in shards named by
// model.safetensors.index.json. Move-only; what it hands out stays valid when it moves, and lives as long as it does.
// Read-only after Open, so any number of threads may use it.
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

// The weight_map of an index file: tensor names, and for each the shard that holds it.
struct ShardIndex {
  struct Entry {
    std::string tensor;
    uint32_t shard = 0;  // into `shards`
  };
  std::vector<std::string> shards;  // plain file names, each once
  std::vector<Entry> entries;       // ascending by tensor name, each once
};

// `path` is used in messages only.
Result<ShardIndex> ParseShardIndex(std::string_view text, const std::string& path);

class Checkpoint final : public TensorSource {
 public:
  // Maps and checks every file. Weights in another format (pytorch_model.bin, GGUF) are refused by name.
  static Result<Checkpoint> Open(const std::string& directory);

  std::span<const StoredTensor> tensors() const override { return tensors_; }
  std::string where() const override;
  std::span<const SafetensorsFile> files() const { return files_; }

 private:
  Checkpoint(std::vector<SafetensorsFile> files, std::vector<StoredTensor> tensors)
      : files_(std::move(files)), tensors_(std::move(tensors)) {}
  static Result<Checkpoint> Make(std::vector<SafetensorsFile> files);

  std::vector<SafetensorsFile> files_;
  std::vector<StoredTensor> tensors_;  // of all files; views into files_, which does not change
};

}  // namespace infinigen
