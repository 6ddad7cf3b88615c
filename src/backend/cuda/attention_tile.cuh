// Inner loop of decode attention: one warp, 16 entries and up to 8 query heads at a time. Private to
// attention_decode.cu.
//
// Scores are K · Qᵀ and the weighted sum of values is Vᵀ · Pᵀ: entries or dims are the 16 rows of a product, heads its
// 8 columns. So one head costs as much as eight, and a lane finds the scores, weights and sums of its two heads (2t and
// 2t + 1) in the same columns everywhere. Only the transposition of the weights crosses lanes.
//
// A tile copies entries to shared memory (Stage) and multiplies them from there (Scores, AddValues). It may process
// dims in any order, as long as query and key, or value and output, agree.
//     HalfTile   16-bit entries, copied unchanged, or f32 entries rounded on the way
//     CodeTile   int8 and int4 entries, copied unchanged; codes are multiplied exactly, as integers in f16. Scale and
//                minimum of a key are applied after the product, those of a value before it, together with the weight.
#pragma once

#include "backend/cuda/attention.cuh"

namespace infinigen {

inline constexpr int kTileRows = 16;
inline constexpr int kTileHeads = 8;

// Up to 8 query heads of one token that read the same KV head, and the layout of their entries.
struct TileShape {
  ConstTensor queries;
  int64_t query = 0;  // offset of the first head, in elements
  int heads = 0;
  int dim = 0;
  int key_bytes = 0, entry_bytes = 0;
  int groups = 0;  // groups of a quantised key
  StoreType type = StoreType::kBF16;
  uint32_t piece_inverse = 0;  // 2^16 / pieces of an entry, rounded up
};

// Calls use(i, first, second) for `count` pairs of numbers of this lane's head (g): dims dim_of(i, 0) and dim_of(i, 1).
// Numbers past the end of a head, and heads past the last, are zero.
template <class Number, int kCount, class DimOf, class Use>
__device__ inline void ForQueryPairs(const TileShape& shape, DimOf dim_of, Use use) {
  const int head = threadIdx.x % 32 / 4;
  const Number* from = reinterpret_cast<const Number*>(shape.queries.data) + shape.query + head * shape.dim;
  Number numbers[kCount][2];
#pragma unroll
  for (int i = 0; i < kCount; ++i)
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      const int dim = dim_of(i, x);
      numbers[i][x] = head < shape.heads && dim < shape.dim ? from[dim] : FromFloat<Number>(0.0f);
    }
#pragma unroll
  for (int i = 0; i < kCount; ++i) use(i, AsFloat(numbers[i][0]), AsFloat(numbers[i][1]));
}
template <int kCount, class DimOf, class Use>
__device__ inline void ForQueryPairs(const TileShape& shape, DimOf dim_of, Use use) {
  if (shape.queries.type == DType::kF32)
    ForQueryPairs<float, kCount>(shape, dim_of, use);
  else if (shape.queries.type == DType::kF16)
    ForQueryPairs<__half, kCount>(shape, dim_of, use);
  else
    ForQueryPairs<__nv_bfloat16, kCount>(shape, dim_of, use);
}

}  // namespace infinigen
