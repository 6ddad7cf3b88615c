// Random block-quantised matrices for tests.
#pragma once

#include <cstring>
#include <vector>

#include "backend/operands.h"
#include "tensor/weight_view.h"

namespace infinigen {

inline std::vector<WeightType> BlockTypes() {
  std::vector<WeightType> types;
  for (size_t t = 0; t < kWeightFormats.size(); ++t)
    if (!IsPlain(static_cast<WeightType>(t))) types.push_back(static_cast<WeightType>(t));
  return types;
}

// Byte offsets of a block's f16 fields.
inline std::vector<size_t> HalfFields(WeightType type) {
  switch (type) {
    case WeightType::kQ4_1:
    case WeightType::kQ5_1:
    case WeightType::kQ4_K:
    case WeightType::kQ5_K:
      return {0, 2};
    case WeightType::kQ2_K:
      return {80, 82};
    case WeightType::kQ3_K:
      return {108};
    case WeightType::kQ6_K:
      return {208};
    case WeightType::kMxfp4:
      return {};
    default:
      return {0};
  }
}

// Random codes, and scales of ordinary size; the same numbers as f32 in `plain`. The bytes end where the matrix ends,
// so that sanitizers see reads past it.
struct BlockMatrix {
  BlockMatrix(Random& random, WeightType type, int64_t rows, int64_t cols) : plain(DType::kF32, rows, cols) {
    const WeightFormat& format = FormatOf(type);
    const auto block = static_cast<size_t>(format.block_bytes);
    bytes.resize(static_cast<size_t>(rows * cols / format.block_numbers) * block);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.Int(0, 255));
    for (size_t at = 0; at < bytes.size(); at += block) {
      for (const size_t field : HalfFields(type)) {
        const F16 scale = ToF16(random.Normal(0.01f));
        std::memcpy(&bytes[at + field], &scale, sizeof(scale));
      }
      if (type == WeightType::kMxfp4) bytes[at] = static_cast<std::byte>(random.Int(116, 124));
    }
    view = WeightView(bytes.data(), type, rows, cols);
    for (int64_t r = 0; r < rows; ++r) DecodeRow(view, r, {plain.view().as<float>(r), static_cast<size_t>(cols)});
  }

  std::vector<std::byte> bytes;
  WeightView view;
  HostTensor plain;
};

}  // namespace infinigen
