// Stores new keys and values as entries: one warp per (token, KV head, key or value). The pool may be pinned host
// memory; a decode step writes only a few rows, so no copy engine is needed. AppendFetched stores to cells of a fetch
// buffer instead.
#include <algorithm>

#include "backend/cuda/context.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/numbers.cuh"
#include "kv/view.h"

namespace infinigen {
namespace {

constexpr int kAppendWarps = 8;

// Quantised rows are not aligned.
__device__ void StoreHeader(std::byte* to, const GroupHeader& header) {
  const uint16_t parts[2] = {header.scale.bits, header.minimum.bits};
  for (int i = 0; i < 2; ++i) {
    to[2 * i] = static_cast<std::byte>(parts[i] & 255);
    to[2 * i + 1] = static_cast<std::byte>(parts[i] >> 8);
  }
}

// kv/store.cc is the definition. A group has 64 numbers; each lane takes two adjacent ones.
template <class In>
__device__ void StoreCodes(StoreType type, const In* numbers, int64_t dim, std::byte* row, int lane) {
  const int32_t largest = LargestCode(type);
  std::byte* codes = row + StoreHeaderBytes(dim);
  std::byte* high_bits = codes + LowBytes(dim);  // of int6 codes
  if (type == StoreType::kInt6) {
    for (int64_t i = lane; i < HighBytes(dim); i += 32) high_bits[i] = std::byte{0};
    __syncwarp();
  }
  for (int64_t first = 0; first < dim; first += kStoreGroup, row += sizeof(GroupHeader)) {
    const int64_t count = std::min(int64_t{kStoreGroup}, dim - first), at = 2 * lane;
    float pair[2] = {0, 0}, low = kLargestStored, high = -kLargestStored;
    for (int i = 0; i < 2; ++i) {
      if (at + i >= count) continue;
      const float number = AsFloat(numbers[first + at + i]);
      pair[i] = isnan(number) ? 0.0f : fminf(fmaxf(number, -kLargestStored), kLargestStored);
      low = fminf(low, pair[i]);
      high = fmaxf(high, pair[i]);
    }
    const GroupHeader header = FitGroup(-WarpMax(-low), WarpMax(high), largest);
    if (lane == 0) StoreHeader(row, header);
    const float scale = ToFloat(header.scale), minimum = ToFloat(header.minimum);
    uint32_t code[2] = {0, 0};
    for (int i = 0; i < 2; ++i) {
      const float steps = scale > 0 ? rintf(__fdiv_rn(pair[i] - minimum, scale)) : 0.0f;
      if (at + i < count) code[i] = static_cast<uint32_t>(fminf(fmaxf(steps, 0.0f), static_cast<float>(largest)));
    }
    if (type == StoreType::kInt8) {
      for (int i = 0; i < 2; ++i)
        if (at + i < count) codes[first + at + i] = static_cast<std::byte>(code[i]);
    } else if (at < count) {
      codes[(first + at) / 2] = static_cast<std::byte>((code[0] & 15) | (code[1] & 15) << 4);
    }
    if (type == StoreType::kInt6) {
      // Two lanes have the four codes of a byte.
      const uint32_t high = code[0] >> 4 | code[1] >> 4 << 2, next = __shfl_down_sync(~0u, high, 1);
      if (lane % 2 == 0 && at < count) high_bits[HighByte(first + at)] = static_cast<std::byte>(high | next << 4);
    }
  }
}

template <class In>
__device__ void StoreNumbers(StoreType type, const In* numbers, int64_t dim, std::byte* row, int lane) {
  for (int64_t i = lane; i < dim; i += 32) {
    const float number = AsFloat(numbers[i]);
    if (type == StoreType::kF32)
      reinterpret_cast<float*>(row)[i] = number;
    else if (type == StoreType::kF16)
      reinterpret_cast<__half*>(row)[i] = FromFloat<__half>(number);
    else
      reinterpret_cast<__nv_bfloat16*>(row)[i] = FromFloat<__nv_bfloat16>(number);
  }
}

// Where new entries are stored: in the pool, or in cells of a fetch buffer.
struct Targets {
  TokenBatch batch;
  LayerEntries entries;
  FetchBuffer buffer;  // if it has data, entries go here instead of the pool
  const int32_t* own = nullptr;

  const EntryLayout& layout() const { return buffer.data != nullptr ? buffer.layout : entries.layout; }
  // Null if the token has no cell.
  __device__ std::byte* Entry(int64_t token, int64_t head) const {
    const int64_t slot = batch.slots[token];
    if (buffer.data == nullptr) return entries.Entry(slot, head, batch.OwnRow(token, head));
    const int32_t cell = own[token * buffer.layout.kv_heads + head];
    return cell < 0 ? nullptr : buffer.Entry(slot, head, cell);
  }
};

template <class In>
__global__ void AppendRows(const __grid_constant__ Targets to, EntryLayout layout, const In* keys, int64_t key_stride,
                           const In* values, int64_t value_stride) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t item = int64_t{blockIdx.x} * kAppendWarps + threadIdx.x / 32;  // (token, head, side)
  const int64_t side = item % 2, head = item / 2 % layout.kv_heads, token = item / 2 / layout.kv_heads;
  if (token >= to.batch.count) return;
  const In* numbers = (side == 0 ? keys + token * key_stride : values + token * value_stride) + head * layout.head_dim;
  std::byte* row = to.Entry(token, head);
  if (row == nullptr) return;
  row += static_cast<size_t>(side) * layout.key_bytes();
  if (IsQuantised(layout.type))
    StoreCodes(side == 0 ? layout.key_type() : layout.value_type(), numbers, layout.head_dim, row, lane);
  else
    StoreNumbers(layout.type, numbers, layout.head_dim, row, lane);
}

void AppendTo(const Targets& to, const ConstTensor& keys, const ConstTensor& values, cudaStream_t stream) {
  const EntryLayout& layout = to.layout();
  CHECK(keys.type == values.type && keys.cols == layout.kv_heads * layout.head_dim);
  const int64_t items = to.batch.count * layout.kv_heads * 2;
  if (items == 0) return;
  DispatchDevice(keys.type, [&](auto in) {
    using In = decltype(in);
    AppendRows<In><<<static_cast<unsigned>((items + kAppendWarps - 1) / kAppendWarps), kAppendWarps * 32, 0, stream>>>(
        to, layout, reinterpret_cast<const In*>(keys.data), keys.stride, reinterpret_cast<const In*>(values.data),
        values.stride);
  });
  CUDA_CHECK_LAUNCH();
}

}  // namespace

void CudaBackend::Append(Queue queue, const TokenBatch& batch, const ConstTensor& keys, const ConstTensor& values,
                         const LayerEntries& entries) {
  const ZoneClock::Scope timed(context_->zones, CudaZone::kEntries, context_->stream(queue));
  AppendTo({.batch = batch, .entries = entries, .buffer = {}}, keys, values, context_->stream(queue));
}

void CudaBackend::AppendFetched(Queue queue, const TokenBatch& batch, const ConstTensor& keys,
                                const ConstTensor& values, const FetchBuffer& buffer, const FetchList& list) {
  const ZoneClock::Scope timed(context_->zones, CudaZone::kEntries, context_->stream(queue));
  CHECK(list.kv_heads == buffer.layout.kv_heads);
  AppendTo({.batch = batch, .entries = {}, .buffer = buffer, .own = list.own}, keys, values, context_->stream(queue));
}

}  // namespace infinigen
