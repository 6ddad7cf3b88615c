// AppendBlockMeans: the mean of the 64 values of each block that becomes complete (kv/index_view.h). One block of
// threads per (token, KV head); nearly all of them end at once, because one row in 64 completes a block. A thread takes
// single dimensions and adds the rows in order, so the sums are those of the host form (kv/index.h), bit for bit. The
// values may lie in pinned host memory: 64 rows cross the link once in 64 steps.
#include "backend/cuda/context.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/entry_number.cuh"

namespace infinigen {
namespace {

constexpr int kBlockMeanThreads = 128;
constexpr int kMeansPerThread = static_cast<int>(kMaxHeadDim) / kBlockMeanThreads;

__global__ void AppendBlockMeansKernel(TokenBatch batch, LayerEntries entries, TailBasis basis,
                                       LayerSketches sketches) {
  const int64_t head = blockIdx.x, token = blockIdx.y, last = batch.rows[token], slot = batch.slots[token];
  if (!CompletesBlock(last)) return;
  const int64_t dims = basis.head_dim;
  float means[kMeansPerThread];
  float largest = 0;
  for (int m = 0; m < kMeansPerThread; ++m) {
    const int64_t i = threadIdx.x + m * kBlockMeanThreads;
    means[m] = 0;
    if (i >= dims) continue;
    for (int64_t row = last + 1 - kSketchBlock; row <= last; ++row)
      means[m] += EntryNumber(entries.layout.value_type(), entries.Entry(slot, head, row) + entries.layout.key_bytes(),
                              dims, i);
    means[m] = means[m] * (1.0f / kSketchBlock) - basis.ValueMean(head)[i];
    if (!isfinite(means[m])) means[m] = 0;
    largest = fmaxf(largest, fabsf(means[m]));
  }
  __shared__ float of_warps[kBlockMeanThreads / 32];
  largest = WarpMax(largest);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = largest;
  __syncthreads();
  for (const float of_warp : of_warps) largest = fmaxf(largest, of_warp);

  // The smallest bf16 ≥ largest / 127.
  const float most = static_cast<float>(SketchLayout::kLargestMean), wanted = __fdiv_rn(largest, most);
  const uint32_t bits = __float_as_uint(wanted), up = bits + 0xffffu;
  const auto scale_bits = static_cast<uint16_t>((up >= 0x7f800000u ? bits : up) >> 16);
  const float scale = __uint_as_float(static_cast<uint32_t>(scale_bits) << 16), divided = __fdiv_rn(1.0f, scale);
  const float inverse = isfinite(divided) ? divided : 0.0f;
  const SketchLayout& layout = sketches.layout;
  std::byte* block = sketches.Block(slot, head, last / kSketchBlock);
  if (threadIdx.x == 0) *reinterpret_cast<uint16_t*>(block + layout.mean_scale_offset()) = scale_bits;
  for (int m = 0; m < kMeansPerThread; ++m) {
    const int64_t i = threadIdx.x + m * kBlockMeanThreads;
    if (i >= dims) continue;
    const float value = fminf(fmaxf(rintf(means[m] * inverse), -most), most);
    reinterpret_cast<int8_t*>(block + layout.means_offset())[i] = static_cast<int8_t>(value);
  }
}

}  // namespace

void CudaBackend::AppendBlockMeans(Queue queue, const TokenBatch& batch, const LayerEntries& entries,
                                   const TailBasis& basis, const LayerSketches& sketches) {
  const ZoneClock::Scope timed(context_->zones, CudaZone::kSelection, context_->stream(queue));
  CHECK(sketches.layout.mean_dims == basis.head_dim && entries.layout.head_dim == basis.head_dim);
  CHECK(basis.head_dim <= kMaxHeadDim && batch.own_rows == nullptr);
  if (batch.count == 0) return;
  const dim3 grid(static_cast<unsigned>(basis.kv_heads), static_cast<unsigned>(batch.count));
  AppendBlockMeansKernel<<<grid, kBlockMeanThreads, 0, context_->stream(queue)>>>(batch, entries, basis, sketches);
  CUDA_CHECK_LAUNCH();
}

}  // namespace infinigen
