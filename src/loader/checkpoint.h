// Checkpoint: all tensors of a model directory by name, whether they lie in one model.safetensors or in shards named by
// model.safetensors.index.json. Move-only; what it hands out lives as long as it does. Read-only after Open.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "loader/safetensors.h"

namespace infinigen {

// A tensor and the file it lies in. Valid while the Checkpoint lives where it is.
struct TensorRef {
  const SafetensorsFile* file = nullptr;
  const TensorEntry* entry = nullptr;

  explicit operator bool() const { return entry != nullptr; }
  std::span<const std::byte> bytes() const { return file->Data(*entry); }
};

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

class Checkpoint {
 public:
  // Maps and checks every file. Weights in another format (pytorch_model.bin, GGUF) are refused by name.
  static Result<Checkpoint> Open(const std::string& directory);

  TensorRef Find(std::string_view name) const;  // empty when there is none
  std::span<const SafetensorsFile> files() const { return files_; }

 private:
  explicit Checkpoint(std::vector<SafetensorsFile> files) : files_(std::move(files)) {}

  // No tensor name occurs in two files.
  std::vector<SafetensorsFile> files_;
};

}  // namespace infinigen
