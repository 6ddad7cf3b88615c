// Skew: the rotation that gathers a key's energy in few columns, so that small sketches suffice, and the same for
// values; one for every layer and KV head of a model. Found once by calibration (model/calibrate.h) and stored in a
// file; docs/skew.md has the theory and the file format.
//
// Matrices are held rounded as in the file, so a skew gives the same sketches whether it was just computed or read.
// Immutable once filled; any thread may read it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "kv/method.h"
#include "kv/view.h"
#include "tensor/dtype.h"
#include "tensor/view.h"

namespace infinigen {

// Numbers in a sketch: ratio · head_dim rounded up to a multiple of 8, at most head_dim rounded down to a multiple
// of 8. If head_dim < 8 the result is 8, and the missing columns are zero. Precondition: 0 < ratio ≤ 1.
int64_t SketchDims(int64_t head_dim, double ratio);

// Hash of the model that a skew belongs to; see IdentifyModel (model/calibrate.h).
struct ModelIdentity {
  uint64_t high = 0;
  uint64_t low = 0;

  bool operator==(const ModelIdentity&) const = default;
  std::string Hex() const;  // 32 digits
};

// The first tokens of a text attract attention whatever they are. Their keys are unlike all others and would distort
// the statistics, so they are left out.
inline constexpr int64_t kCalibrationSinks = 4;

// Second moments of one layer's queries and keys after RoPE, and of its values. Sums are f32 within blocks of 64 rows
// and double across blocks. Keys and values are shifted by the mean of the first rows added, so that a large mean costs
// no precision. Called from one thread; the result does not depend on the size of the thread pool.
class SkewMoments {
 public:
  SkewMoments(int64_t heads, int64_t kv_heads, int64_t head_dim);

  // Adds rows [first_row, first_row + count) of the text: queries [count][heads · head_dim], keys [count][kv_heads ·
  // head_dim], f32, host memory.
  void Add(int64_t first_row, const ConstTensor& queries, const ConstTensor& keys, ThreadPool& threads);
  // The same for values [count][kv_heads · head_dim].
  void AddValues(int64_t first_row, const ConstTensor& values, ThreadPool& threads);

  int64_t kv_heads() const { return kv_heads_; }
  int64_t head_dim() const { return head_dim_; }

  // Zero until rows are added.
  std::vector<double> QueryMoment(KvHead head) const;  // [head_dim][head_dim]: E[q qᵀ] over its query heads
  std::vector<double> KeyMean(KvHead head) const { return keys_[head.index()].Mean(); }  // [head_dim]
  std::vector<double> KeyCovariance(KvHead head) const {
    return keys_[head.index()].Covariance();
  }                                                                                          // [head_dim][head_dim]
  std::vector<double> ValueMean(KvHead head) const { return values_[head.index()].Mean(); }  // [head_dim]
  std::vector<double> ValueCovariance(KvHead head) const {
    return values_[head.index()].Covariance();
  }  // [head_dim][head_dim]

 private:
  struct Sums {
    std::vector<double> products;  // [head_dim][head_dim], upper triangle
    std::vector<double> sum;       // [head_dim]
    int64_t count = 0;
  };

  // Sums of keys or values, minus a shift.
  struct ShiftedSums : Sums {
    std::vector<float> shift;  // [head_dim]; empty until the first rows

    std::vector<double> Mean() const;
    std::vector<double> Covariance() const;
  };

  void AddQueries(KvHead head, const ConstTensor& queries);
  void AddShifted(KvHead head, int64_t begin, const ConstTensor& rows, ShiftedSums& sums) const;

  int64_t heads_, kv_heads_, head_dim_;
  std::vector<Sums> queries_;               // [kv_heads]
  std::vector<ShiftedSums> keys_, values_;  // [kv_heads]
};

// Directions of values that a skew stores, the most that a value sketch can have.
inline constexpr int64_t kValueColumns = kMostValueDims;

// The basis for ProjectionKind::kNone, which needs no calibration: plain dimensions of the key, either the first `dims`
// or columns[kv_head][dims] (see LargestColumns).
SketchMatrices PlainBasis(int64_t kv_heads, int64_t head_dim, int64_t dims);
SketchMatrices PlainBasis(int64_t kv_heads, int64_t head_dim, int64_t dims, std::span<const int32_t> columns);

// A tail basis for weights without structure: no means, and value sketches of the first dimensions.
TailMatrices PlainTail(int64_t kv_heads, int64_t head_dim, int64_t value_dims);

// The `dims` columns of each KV head with the largest sums, ascending; among equal sums, the first. sums
// [kv_heads][head_dim]. The result [kv_heads][dims] contains -1 for columns that do not exist (head_dim < dims).
std::vector<int32_t> LargestColumns(std::span<const double> sums, int64_t kv_heads, int64_t dims);

struct SkewShape {
  int64_t layers = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;

  int64_t heads() const { return layers * kv_heads; }
  bool operator==(const SkewShape&) const = default;
};

// The model and text that a skew was calibrated on.
struct SkewOrigin {
  ModelIdentity model;
  int64_t tokens = 0;
  int64_t positions = 0;  // the longest sequence, in tokens, that it was calibrated for
  std::string text;       // name of the text
};

class Skew {
 public:
  // A layer is zero until FitLayer. Precondition: the sizes are positive, head_dim ≤ 512.
  Skew(const SkewShape& shape, SkewOrigin origin);

  // Fails when the moments are not finite, which means that the model is broken.
  Status FitLayer(LayerId layer, const SkewMoments& moments, ThreadPool& threads);

  const SkewShape& shape() const { return shape_; }
  const SkewOrigin& origin() const { return origin_; }

  // The sketch basis of a layer, from the first `dims` columns or from columns[kv_head][dims] (see LargestColumns).
  // Columns are balanced: in each, centred keys of the calibration text have RMS 1.
  SketchMatrices Basis(LayerId layer, ProjectionKind kind, int64_t dims) const;
  SketchMatrices Basis(LayerId layer, ProjectionKind kind, int64_t dims, std::span<const int32_t> columns) const;

  // The tail basis of a layer, with `value_dims` ≤ kValueColumns columns.
  TailMatrices Tail(LayerId layer, int64_t value_dims) const;

  // The rotation A, not balanced: [kv_heads][head_dim][head_dim], columns are eigenvectors. A prompt chooses its own
  // columns by Σ|qA| + Σ|kA|.
  std::vector<float> Rotation(LayerId layer) const;

  // Share of E[(q·(k − mean))²] that the first `dims` columns hold, averaged over KV heads. Precondition: not kNone.
  double HeldEnergy(LayerId layer, ProjectionKind kind, int64_t dims) const;

  // One KV head as in the file. Matrices are stored by column: [column][head_dim].
  struct Head {
    std::vector<F16> rotation;
    std::vector<F16> pair_query, pair_key;            // balanced; each column is divided by its scale
    std::vector<float> key_mean;                      // [head_dim]
    std::vector<float> rotation_rms;                  // [column] RMS of centred keys
    std::vector<float> pair_query_scale;              // [column]
    std::vector<float> pair_key_scale;                // [column]
    std::vector<float> rotation_energy, pair_energy;  // [column]
    std::vector<F16> value;         // [kValueColumns][head_dim], orthonormal columns; zero past head_dim
    std::vector<float> value_mean;  // [head_dim]
  };
  const Head& head(LayerId layer, KvHead head) const { return heads_[Index(layer, head)]; }
  Head& mutable_head(LayerId layer, KvHead head) { return heads_[Index(layer, head)]; }  // for ParseSkew

 private:
  size_t Index(LayerId layer, KvHead head) const;

  SkewShape shape_;
  SkewOrigin origin_;
  std::vector<Head> heads_;  // [layers][kv_heads]
};

// ---- the file (format: docs/skew.md) ----

inline constexpr uint32_t kSkewVersion = 2;  // of the file format

// The content of a skew file. The name of the text is cut to 255 bytes.
std::string SerialiseSkew(const Skew& skew);

// Checks every size against the bytes at hand before using it; errors state file, place and reason. `path` is used in
// messages only.
Result<Skew> ParseSkew(std::span<const std::byte> file, const std::string& path);

// A file ends with this checksum of all bytes before it.
uint64_t SkewChecksum(std::span<const std::byte> bytes);

// Reads a file. Fails if it belongs to another model or has another shape.
Result<Skew> ReadSkew(const std::string& path, const ModelIdentity& model, const SkewShape& shape);

// Whether the file is a skew file of an earlier format version, which is to be made again.
bool IsOutdatedSkew(const std::string& path);

// Writes the file atomically: to a temporary file in the same directory, which is then renamed.
Status WriteSkew(const Skew& skew, const std::string& path);

}  // namespace infinigen
