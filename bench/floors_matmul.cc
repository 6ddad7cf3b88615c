// The matrix products of one step: decode (every matrix of the model, 1 and 4 rows) and prefill (512 rows, one layer's
// matrices per round, a different layer each time).
#include <fmt/format.h>

#include <thread>

#include "floors.h"
#if INFINIGEN_HAVE_OPENBLAS
#include <cblas.h>
#endif

namespace infinigen::bench {
namespace {

struct Matrix {
  const char* name;
  int64_t n, k;
};
// Each group is one MatMul call of a layer: projections of the same input.
const std::vector<std::vector<Matrix>> kLayerCalls = {
    {{"q", kHidden, kHidden}, {"k", kKvHeads* kHeadDim, kHidden}, {"v", kKvHeads* kHeadDim, kHidden}},
    {{"o", kHidden, kHidden}},
    {{"gate", kFfn, kHidden}, {"up", kFfn, kHidden}},
    {{"down", kHidden, kFfn}},
};

int64_t LayerElements() {
  int64_t sum = 0;
  for (const auto& call : kLayerCalls)
    for (const Matrix& m : call) sum += m.n * m.k;
  return sum;
}

// The weights of the whole model in one block, layer by layer, then the output head.
class Model {
 public:
  Model(Allocator& memory, int64_t layers, WeightType type)
      : layers_(layers), type_(type), weights_(RandomWeightBytes(memory, type, Elements())) {
    Result<Buffer> activations = Buffer::Make(memory, (512 * (kFfn + 2 * kFfn) + 4 * kVocabulary) * sizeof(float));
    CHECK(activations.ok());
    activations_ = std::move(*activations);
    auto* values = reinterpret_cast<float*>(activations_.data());
    for (int64_t i = 0; i < 512 * kFfn; ++i) values[i] = static_cast<float>(i % 1001) * 1e-3f - 0.5f;
  }

  int64_t Elements() const { return layers_ * LayerElements() + kVocabulary * kHidden; }
  const Buffer& weights() const { return weights_; }
  WeightType type() const { return type_; }
  int64_t layers() const { return layers_; }

  // One MatMul call of one layer with m rows.
  void Call(CpuBackend& backend, int64_t layer, size_t call, int64_t m) {
    int64_t offset = layer * LayerElements();
    for (size_t i = 0; i < call; ++i)
      for (const Matrix& matrix : kLayerCalls[i]) offset += matrix.n * matrix.k;
    Run(backend, kLayerCalls[call], offset, m);
  }
  void Head(CpuBackend& backend, int64_t m) {
    Run(backend, {{"head", kVocabulary, kHidden}}, layers_ * LayerElements(), m);
  }
  const float* x() const { return reinterpret_cast<const float*>(activations_.data()); }
  float* out() const { return reinterpret_cast<float*>(activations_.data()) + 512 * kFfn; }

 private:
  void Run(CpuBackend& backend, const std::vector<Matrix>& matrices, int64_t offset, int64_t m) {
    Projection projections[3];
    size_t count = 0;
    const int64_t k = matrices[0].k;
    float* target = out();
    for (const Matrix& matrix : matrices) {
      const WeightFormat& format = FormatOf(type_);
      const std::byte* data = weights_.data() + offset / format.block_numbers * format.block_bytes;
      projections[count].weight = {data, type_, matrix.n, k};
      projections[count].out = {reinterpret_cast<std::byte*>(target), DType::kF32, m, matrix.n, matrix.n};
      offset += matrix.n * k;
      target += m * matrix.n;
      ++count;
    }
    backend.MatMul(Queue::kCompute, {activations_.data(), DType::kF32, m, k, k}, {projections, count});
  }

  int64_t layers_;
  WeightType type_;
  Buffer weights_;      // [layers][calls][n][k], then [vocabulary][hidden]
  Buffer activations_;  // x [512][ffn], out
};

void DecodeStep(CpuBackend& backend, Model& model, int64_t m) {
  for (int64_t layer = 0; layer < model.layers(); ++layer)
    for (size_t call = 0; call < kLayerCalls.size(); ++call) model.Call(backend, layer, call, m);
  model.Head(backend, m);
}

void Decode(const Options& options, CpuBackend& backend, ThreadPool& reader, Model& model, std::vector<Line>& lines) {
  const double gigabytes = static_cast<double>(model.weights().bytes()) * 1e-9;
  const std::vector<int64_t> row_counts = {1, 2, 4, 8, 16};
  std::vector<double> read;
  std::vector<std::vector<double>> steps(row_counts.size());
  DecodeStep(backend, model, 1);
  for (int round = 0; round < options.rounds; ++round) {
    read.push_back(Seconds([&] { ReadAll(reader, model.weights()); }));
    for (size_t i = 0; i < row_counts.size(); ++i)
      steps[i].push_back(Seconds([&] { DecodeStep(backend, model, row_counts[i]); }));
  }
  lines.push_back({fmt::format("read bandwidth, {:.2f} GB of {}", gigabytes, Name(model.type())),
                   gigabytes / Median(read), "GB/s", 0});
  for (size_t i = 0; i < row_counts.size(); ++i)
    lines.push_back({fmt::format("decode MatMul, {} rows, {:.1f} ms/step", row_counts[i], Median(steps[i]) * 1e3),
                     gigabytes / Median(steps[i]), "GB/s", gigabytes / Median(read)});
}

#if INFINIGEN_HAVE_OPENBLAS
// OpenBLAS's threads spin for 2^26 cycles after their work, on the cores that the next measurement uses.
constexpr auto kSpinTime = std::chrono::milliseconds(60);

// The same products with sgemm, one f32 copy of the weights per shape.
class Sgemm {
 public:
  Sgemm(Allocator& memory, int threads) {
    openblas_set_num_threads(threads);
    Result<Buffer> buffer = Buffer::Make(memory, static_cast<size_t>(kFfn * kHidden) * 2 * sizeof(float));
    CHECK(buffer.ok());
    weights_ = std::move(*buffer);
    auto* values = reinterpret_cast<float*>(weights_.data());
    for (int64_t i = 0; i < 2 * kFfn * kHidden; ++i) values[i] = static_cast<float>(i % 1003) * 1e-3f - 0.5f;
  }
  void Call(size_t call, int64_t m, const float* x, float* out) {
    const auto* weight = reinterpret_cast<const float*>(weights_.data());
    for (const Matrix& matrix : kLayerCalls[call]) {
      const int rows = static_cast<int>(m), n = static_cast<int>(matrix.n), k = static_cast<int>(matrix.k);
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, n, k, 1.0f, x, k, weight, k, 0.0f, out, n);
      weight += matrix.n * matrix.k;
      out += m * matrix.n;
    }
  }

 private:
  Buffer weights_;
};
#endif

void Prefill(const Options& options, CpuBackend& backend, Model& model, std::vector<Line>& lines) {
  constexpr int64_t kRows = 512;
  std::vector<std::vector<double>> ours(kLayerCalls.size()), theirs(kLayerCalls.size());
#if INFINIGEN_HAVE_OPENBLAS
  const bool compared = model.type() == WeightType::kBF16;
  Sgemm sgemm(backend.compute_memory(), options.threads);
#endif
  for (int round = 0; round < options.rounds; ++round) {
    for (size_t call = 0; call < kLayerCalls.size(); ++call) {
      ours[call].push_back(Seconds([&] { model.Call(backend, round % model.layers(), call, kRows); }));
#if INFINIGEN_HAVE_OPENBLAS
      if (!compared) continue;
      theirs[call].push_back(Seconds([&] { sgemm.Call(call, kRows, model.x(), model.out()); }));
      std::this_thread::sleep_for(kSpinTime);
#endif
    }
  }
  double our_seconds = 0, their_seconds = 0;
  for (size_t call = 0; call < kLayerCalls.size(); ++call) {
    std::string name;
    double gigaflops = 0;
    for (const Matrix& m : kLayerCalls[call]) {
      name += fmt::format("{}{}", name.empty() ? "" : "+", m.name);
      gigaflops += 2e-9 * static_cast<double>(kRows * m.n * m.k);
    }
    our_seconds += Median(ours[call]);
    const double floor = theirs[call].empty() ? 0 : Median(theirs[call]);
    their_seconds += floor;
    lines.push_back({fmt::format("prefill MatMul, 512 rows, {}", name), gigaflops / Median(ours[call]), "GFLOP/s",
                     floor > 0 ? gigaflops / floor : 0});
  }
  const double all = 2e-9 * static_cast<double>(kRows * LayerElements());
  lines.push_back({"prefill MatMul, 512 rows, whole layer", all / our_seconds, "GFLOP/s",
                   their_seconds > 0 ? all / their_seconds : 0});
}

}  // namespace

std::vector<Line> MatMulFloors(const Options& options) {
  std::vector<Line> lines;
  CpuBackend backend(options.threads);
  for (const WeightType type : options.types) {
    Model model(backend.compute_memory(), options.quick ? 4 : kLayers, type);
    {
      ThreadPool reader(options.threads);
      Decode(options, backend, reader, model, lines);
    }
    Prefill(options, backend, model, lines);
  }
  return lines;
}

}  // namespace infinigen::bench
