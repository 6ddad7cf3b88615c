// Parses the input as a safetensors file. The tensors of an accepted file cover its data section exactly.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "loader/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace infinigen;
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
  size_t data_begin = 0;
  const Result<std::vector<TensorEntry>> tensors = ParseSafetensorsHeader(file, "f.safetensors", &data_begin);
  if (!tensors.ok()) {
    CHECK(tensors.error().message.find('\n') == std::string::npos);
    return 0;
  }
  uint64_t covered = 0;
  for (const TensorEntry& tensor : *tensors) {
    CHECK(tensor.begin <= tensor.end && tensor.end <= size - data_begin);
    CHECK(tensor.rank <= kMaxTensorRank);
    covered += tensor.end - tensor.begin;
  }
  CHECK(covered == size - data_begin);
  return 0;
}
