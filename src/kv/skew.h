// Skew: the change of basis that makes small sketches possible, for every layer and KV head of one model. Found once by
// calibration (model/calibrate.h), kept in a file (kv/skew_file.h); what it is and why: docs/skew.md.
//
// The matrices are held in the rounded form of the file, so a skew that was just computed and one that was read give
// the same sketches. Immutable once filled; any thread may read it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "kv/ids.h"
#include "kv/method.h"
#include "tensor/dtype.h"
#include "tensor/view.h"

namespace infinigen {

// Numbers per sketch: ratio · head_dim rounded up to a multiple of 8, at most head_dim rounded down to one; 8 when
// head_dim is less (the columns that are missing are zero). 0 < ratio ≤ 1.
int64_t SketchDims(int64_t head_dim, double ratio);

// Which model a skew belongs to; see model/identity.h.
struct ModelIdentity {
  uint64_t high = 0;
  uint64_t low = 0;

  bool operator==(const ModelIdentity&) const = default;
  std::string Hex() const;  // 32 digits
};

// The first tokens of a text draw attention whatever they are; their keys are unlike all others and would bend the
// statistics.
inline constexpr int64_t kCalibrationSinks = 4;

// Second moments of one layer's queries and keys, as they are attended with (after RoPE). Sums are taken in f32 over
// blocks of 64 rows and in double over blocks; keys are shifted by the mean of the first rows seen, so that a large
// mean costs no precision. One thread calls; the pool helps. The result does not depend on its number of threads.
class SkewMoments {
 public:
  SkewMoments(int64_t heads, int64_t kv_heads, int64_t head_dim);

  // Rows [first_row, first_row + count) of the text: queries [count][heads · head_dim], keys [count][kv_heads ·
  // head_dim], f32, on the host.
  void Add(int64_t first_row, const ConstTensor& queries, const ConstTensor& keys, ThreadPool& threads);

  int64_t kv_heads() const { return kv_heads_; }
  int64_t head_dim() const { return head_dim_; }

  // Each is zero as long as nothing was added to it.
  std::vector<double> QueryMoment(KvHead head) const;    // [head_dim][head_dim]: E[q qᵀ] over its query heads
  std::vector<double> KeyMean(KvHead head) const;        // [head_dim]
  std::vector<double> KeyCovariance(KvHead head) const;  // [head_dim][head_dim]

 private:
  struct Sums {
    std::vector<double> products;  // [head_dim][head_dim], upper triangle
    std::vector<double> sum;       // [head_dim]
    int64_t count = 0;
  };

  void AddQueries(KvHead head, const ConstTensor& queries);
  void AddKeys(KvHead head, int64_t begin, const ConstTensor& keys);

  int64_t heads_, kv_heads_, head_dim_;
  std::vector<Sums> queries_;              // [kv_heads]
  std::vector<Sums> keys_;                 // [kv_heads], of keys minus shift
  std::vector<std::vector<float>> shift_;  // [kv_heads][head_dim]; empty until the first keys
};

// Bases (SketchMatrices, kv/method.h) have balanced columns: centred keys of the calibration text have RMS 1 in each.
// That of plain dimensions, for ProjectionKind::kNone, knows no text and takes them as they are: the first `dims`, or
// columns[kv_head][dims] of them (see Skew::Basis).
SketchMatrices PlainBasis(int64_t kv_heads, int64_t head_dim, int64_t dims);
SketchMatrices PlainBasis(int64_t kv_heads, int64_t head_dim, int64_t dims, std::span<const int32_t> columns);

// The `dims` columns of each KV head with the largest sums, ascending; of equal sums the earlier. sums
// [kv_heads][head_dim]. The result, [kv_heads][dims], holds -1 for columns that do not exist (head_dim < dims).
std::vector<int32_t> LargestColumns(std::span<const double> sums, int64_t kv_heads, int64_t dims);

struct SkewShape {
  int64_t layers = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;

  int64_t heads() const { return layers * kv_heads; }
  bool operator==(const SkewShape&) const = default;
};

// What a skew was calibrated on.
struct SkewOrigin {
  ModelIdentity model;
  int64_t tokens = 0;
  int64_t positions = 0;  // it is made for sequences of up to so many tokens
  std::string text;       // name of the text
};

class Skew {
 public:
  // Every layer's numbers are zero until FitLayer. Precondition: the shape's sizes are positive, head_dim ≤ 512.
  Skew(const SkewShape& shape, SkewOrigin origin);

  // Refused when the moments are not finite: a broken model.
  Status FitLayer(LayerId layer, const SkewMoments& moments, ThreadPool& threads);

  const SkewShape& shape() const { return shape_; }
  const SkewOrigin& origin() const { return origin_; }

  // With the first `dims` columns, or with columns[kv_head][dims] of each head, as LargestColumns gives them.
  SketchMatrices Basis(LayerId layer, ProjectionKind kind, int64_t dims) const;
  SketchMatrices Basis(LayerId layer, ProjectionKind kind, int64_t dims, std::span<const int32_t> columns) const;

  // The rotation itself, not balanced: [kv_heads][head_dim][head_dim], a column is an eigenvector. What the columns of
  // a prompt are chosen by: Σ|qA| + Σ|kA|.
  std::vector<float> Rotation(LayerId layer) const;

  // The share of E[(q·(k − mean))²] that the first `dims` columns hold; the mean over KV heads. Not for kNone.
  double HeldEnergy(LayerId layer, ProjectionKind kind, int64_t dims) const;

  // One KV head's numbers as they lie in the file. Columns are contiguous: [column][head_dim].
  struct Head {
    std::vector<F16> rotation;
    std::vector<F16> pair_query, pair_key;            // balanced; each column divided by its scale
    std::vector<float> key_mean;                      // [head_dim]
    std::vector<float> rotation_rms;                  // [column]: of centred keys
    std::vector<float> pair_query_scale;              // [column]
    std::vector<float> pair_key_scale;                // [column]
    std::vector<float> rotation_energy, pair_energy;  // [column]
  };
  const Head& head(LayerId layer, KvHead head) const { return heads_[Index(layer, head)]; }
  Head& mutable_head(LayerId layer, KvHead head) { return heads_[Index(layer, head)]; }  // for the reader of files

 private:
  size_t Index(LayerId layer, KvHead head) const;

  SkewShape shape_;
  SkewOrigin origin_;
  std::vector<Head> heads_;  // [layers][kv_heads]
};

}  // namespace infinigen
