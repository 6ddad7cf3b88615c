// TensorSource: the tensors of a model by name, whatever file format they come from. Checkpoint (safetensors)
// implements it; another format is another implementation and one more case in OpenTensorSource. Read-only once it is
// open, so any number of threads may use it; what it hands out lives as long as it does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "tensor/weight_view.h"

namespace infinigen {

// The source has checked that name, type, shape and bytes agree.
struct StoredTensor {
  std::string_view name;
  std::string_view path;             // the file that holds it, for messages
  std::string_view type_name;        // as the file spells it
  std::optional<WeightType> type;    // none: the engine does not compute with it (integers, F64, F8, …)
  std::span<const int64_t> shape;    // outermost extent first
  std::span<const std::byte> bytes;  // host memory, of any alignment
};

class TensorSource {
 public:
  virtual ~TensorSource() = default;

  // Ascending by name, each name once.
  virtual std::span<const StoredTensor> tensors() const = 0;
  // The only file, or the directory of several: for messages about all of them.
  virtual std::string where() const = 0;

  const StoredTensor* Find(std::string_view name) const;  // null when there is none
};

// The weights of a model directory. Formats that are not read are refused by name.
Result<std::unique_ptr<const TensorSource>> OpenTensorSource(const std::string& directory);

// "[64,32]".
std::string FormatShape(std::span<const int64_t> shape);

}  // namespace infinigen
