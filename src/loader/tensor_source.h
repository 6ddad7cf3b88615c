// TensorSource: the tensors of a model by name, independent of the file format. Checkpoint (safetensors) and GgufSource
// implement it; OpenTensorSource selects one of them. Read-only after opening, so any thread may use it. Spans and
// string views from it are valid as long as the source lives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/thread_pool.h"
#include "tensor/weight_view.h"

namespace infinigen {

// One tensor of the model. The source has checked that type, shape and number of bytes agree.
struct StoredTensor {
  std::string_view name;
  std::string_view path;             // the file that contains it, for messages
  std::string_view type_name;        // as the file spells it
  std::optional<WeightType> type;    // nullopt: a type the engine cannot compute with (integers, F64, F8, …)
  std::span<const int64_t> shape;    // outermost dimension first
  std::span<const std::byte> bytes;  // host memory, of any alignment
};

// How the files name tensors; model/family.h has both namings.
enum class TensorNaming : uint8_t {
  kTransformers,  // "model.layers.0.self_attn.q_proj.weight"
  kGguf,          // "blk.0.attn_q.weight"
};

class TensorSource {
 public:
  virtual ~TensorSource() = default;

  // Sorted by name; names are unique.
  virtual std::span<const StoredTensor> tensors() const = 0;
  // The file if there is only one, otherwise the directory. For messages about the whole source.
  virtual std::string where() const = 0;
  virtual TensorNaming naming() const { return TensorNaming::kTransformers; }
  // Reads mapped files into memory (MmapFile::ReadIntoMemory). Spans stay valid, but no other thread may read them
  // meanwhile.
  virtual void ReadIntoMemory(ThreadPool&) const {}

  const StoredTensor* Find(std::string_view name) const;  // null when not found
};

// Opens the weights of a model: a directory with safetensors, or a GGUF file. The error for an unsupported format names
// the format.
Result<std::unique_ptr<const TensorSource>> OpenTensorSource(const std::string& path);

// For example "[64,32]".
std::string FormatShape(std::span<const int64_t> shape);

}  // namespace infinigen
