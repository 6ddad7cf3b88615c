#include "loader/tensor_source.h"

#include <algorithm>
#include <utility>

#include "loader/checkpoint.h"

namespace infinigen {

const StoredTensor* TensorSource::Find(std::string_view name) const {
  const std::span<const StoredTensor> all = tensors();
  const auto found =
      std::lower_bound(all.begin(), all.end(), name,
                       [](const StoredTensor& tensor, std::string_view wanted) { return tensor.name < wanted; });
  return found != all.end() && found->name == name ? &*found : nullptr;
}

Result<std::unique_ptr<const TensorSource>> OpenTensorSource(const std::string& directory) {
  ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(directory));
  return std::unique_ptr<const TensorSource>(std::make_unique<Checkpoint>(std::move(checkpoint)));
}

std::string FormatShape(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape.begin(), shape.end(), ","));
}

}  // namespace infinigen
