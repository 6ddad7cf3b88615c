// Shared by the benchmarks of the CPU backend: the model shape, timing, and one line of the report.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "tensor/buffer.h"
#include "tensor/weight_view.h"

namespace infinigen::bench {

// llama-3.2-1b.
inline constexpr int64_t kLayers = 16, kHidden = 2048, kHeads = 32, kKvHeads = 8, kHeadDim = 64, kFfn = 8192,
                         kVocabulary = 128256;

struct Line {
  std::string name;
  double value = 0;  // in `unit`
  std::string unit;
  double floor = 0;  // limit that it is compared with, same unit; 0: none
  double ratio() const { return floor > 0 ? value / floor : 0; }
};

template <class Body>
double Seconds(Body&& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

inline double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
  return values[values.size() / 2];
}

// Memory filled with random bf16 numbers in [-1, 1].
Buffer RandomBf16(Allocator& memory, size_t bytes);
// Memory filled with random weights of a stored type, of unit deviation. `numbers` is a multiple of the block size.
Buffer RandomWeightBytes(Allocator& memory, WeightType type, int64_t numbers);
// Reads the whole buffer once with all threads of `pool`.
void ReadAll(ThreadPool& pool, const Buffer& buffer);
// Parses a list such as "1,2,3".
std::vector<int64_t> ParseList(std::string_view text);

struct Options {
  int threads = 1;
  int rounds = 5;
  bool quick = false;  // fewer layers, for quick checks during development
  std::vector<int64_t> depths = {2048, 8192, 32768};
  std::vector<WeightType> types = {WeightType::kBF16};  // of the weights, for MatMulFloors
};

// Decode against read bandwidth, prefill against sgemm (bf16 weights only), for each type of weights.
std::vector<Line> MatMulFloors(const Options& options);
// Attention over a full cache, decode against read bandwidth.
std::vector<Line> AttentionFloors(const Options& options);

}  // namespace infinigen::bench
