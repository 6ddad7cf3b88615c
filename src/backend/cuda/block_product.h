// Products with block-quantised weights on the device, and the expansion of blocks to plain numbers. Private to
// backend/cuda; called on the thread that drives the backend.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/backend.h"
#include "tensor/view.h"
#include "tensor/weight_view.h"

namespace infinigen {

class CudaContext;

// Up to this many rows of activations are multiplied by the blocks themselves; above, expanding the matrix is cheaper.
inline constexpr int64_t kMostBlockRows = 8;

// All projections have block types and at most kMostBlockRows rows. `scratch` has QuantisedBytes(x.rows, x.cols).
void MultiplyBlocks(CudaContext& context, cudaStream_t stream, const ConstTensor& x,
                    std::span<const Projection> projections, std::byte* scratch);
size_t QuantisedBytes(int64_t rows, int64_t cols);

// Writes rows of a block-quantised matrix as plain numbers: rows ids[0 … out.rows), or all in order if ids is null.
void ExpandBlocks(cudaStream_t stream, const WeightView& weight, const int32_t* ids, const Tensor& out);

}  // namespace infinigen
