#include "model/broken_numbers.h"

#include <algorithm>
#include <atomic>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "base/utf8.h"
#include "tensor/finite.h"

namespace infinigen {
namespace {

// Bytes that a thread reads at a time.
constexpr size_t kPartBytes = size_t{4} << 20;

struct Part {
  size_t tensor;
  size_t first;  // byte; the beginning of a block
};

// "[3, 17]": the number's place in a tensor of this shape.
std::string Position(std::span<const int64_t> shape, int64_t index) {
  std::vector<int64_t> place(shape.size());
  for (size_t i = shape.size(); i-- > 0;) {
    place[i] = index % std::max<int64_t>(shape[i], 1);
    index /= std::max<int64_t>(shape[i], 1);
  }
  return FormatShape(place);
}

}  // namespace

Status CheckFinite(const TensorSource& source, int threads) {
  const std::span<const StoredTensor> tensors = source.tensors();
  std::vector<Part> parts;
  const auto part_bytes = [&](const StoredTensor& tensor) {
    const auto block = static_cast<size_t>(FormatOf(*tensor.type).block_bytes);
    return kPartBytes / block * block;
  };
  for (size_t i = 0; i < tensors.size(); ++i)
    for (size_t first = 0; tensors[i].type && first < tensors[i].bytes.size(); first += part_bytes(tensors[i]))
      parts.push_back({i, first});
  std::atomic<size_t> broken = parts.size();  // the first part with a broken number
  ThreadPool pool(std::max(threads, 1));
  pool.Run(std::ssize(parts), [&](int64_t index, int) {
    const auto at = static_cast<size_t>(index);
    if (at >= broken) return;
    const StoredTensor& tensor = tensors[parts[at].tensor];
    const size_t bytes = std::min(part_bytes(tensor), tensor.bytes.size() - parts[at].first);
    if (!FirstNotFinite(*tensor.type, tensor.bytes.subspan(parts[at].first, bytes))) return;
    size_t before = broken;
    while (at < before && !broken.compare_exchange_weak(before, at)) {
    }
  });
  if (broken == parts.size()) return Ok();
  const StoredTensor& tensor = tensors[parts[broken].tensor];
  const int64_t number = *FirstNotFinite(*tensor.type, tensor.bytes);
  const bool plain = IsPlain(*tensor.type);
  return Invalid("{}: tensor {} has {} at {} (type {}); the file is damaged, or its conversion overflowed", tensor.path,
                 Quoted(tensor.name),
                 plain ? "a number that is NaN or infinite" : "a block whose scale is NaN or infinite",
                 Position(tensor.shape, number), Name(*tensor.type));
}

}  // namespace infinigen
