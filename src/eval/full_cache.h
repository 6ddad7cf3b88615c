// FullCache: the predictions of `full`, kept on disk between evaluations. Every evaluation of a method reads the same
// windows with `full` too; from the second one on, they come from here.
//
// A window is one file in the user's cache: the hidden states of its scored rows, f32, from which the executor computes
// the logits again. So the comparison is exact, on the CPU bit for bit, and a window of 4,096 scored tokens of a model
// with 576 hidden numbers and 49,152 tokens takes 9 MiB (as f32 logits 768 MiB). docs/decisions/0012 has the figures.
//
// A file's name is a hash of everything that the numbers depend on: the model's identity, the fed tokens, `from`, the
// device, the types of entries and activations, and the program itself, since another build may round differently.
// The oldest files are deleted when all together exceed the limit. A damaged file is made again, with a warning; a full
// disk gives a warning and no file. Several processes may use the cache at once. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "eval/windows.h"
#include "runtime/callbacks.h"
#include "runtime/launch.h"
#include "runtime/model.h"

namespace infinigen {

class FullCache final : public WindowSource {
 public:
  // `full` runs --kv full and outlives the cache. Without a directory for caches there is none.
  static std::optional<FullCache> Open(const Model& model, Executor& full, int64_t from, uint64_t limit_bytes,
                                       const Callbacks& callbacks);
  FullCache(std::string directory, std::string key, Executor& full, int64_t from, uint64_t limit_bytes,
            Callbacks callbacks);

  Result<bool> Read(size_t index, std::span<const int32_t> fed) override;
  Status Logits(size_t index, int64_t row, int64_t count, std::span<float> logits) override;
  void Leave(size_t index) override { read_.erase(index); }
  size_t most_at_once() const override { return SIZE_MAX; }

  int64_t hits() const { return hits_; }

 private:
  std::string PathOf(std::span<const int32_t> fed) const;
  Result<bool> Make(std::span<const int32_t> fed, std::vector<float>& hidden);
  Status Write(const std::string& path, std::span<const float> hidden) const;
  // Deletes the files that were used longest ago until all together fit the limit.
  void DeleteOldest() const;

  std::string directory_, key_;
  Executor* full_;
  int64_t from_;
  uint64_t limit_bytes_;
  Callbacks callbacks_;
  int64_t hits_ = 0;
  std::map<size_t, std::vector<float>> read_;  // by window: [rows after from][hidden]
};

}  // namespace infinigen
