// The GPU backend, with its pool in either memory. Make() returns null without a GPU, and the tests are skipped.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "backend/arithmetic.h"
#include "backend/cuda/cuda_backend.h"

namespace infinigen {

// Sums are f32. Factors are rounded before tensor cores multiply them.
struct TensorCoreArithmetic {
  static constexpr DType kActivations[] = {DType::kF32, DType::kF16, DType::kBF16};
  static constexpr double ProductRounding(DType weight) { return weight == DType::kF32 ? 0 : Rounding(weight); }
  // bf16 entries are multiplied as bf16, all others as f16.
  static constexpr double AttentionRounding(StoreType type) {
    return Rounding(type == StoreType::kBF16 ? DType::kBF16 : DType::kF16);
  }
  // A multiple of 8, up to 256: models with other head_dims are rejected when they are loaded.
  static constexpr int64_t HeadDim(int64_t wanted) { return (wanted + 7) / 8 * 8; }
};

template <bool kPoolOnDevice>
struct AnyCudaFactory : TensorCoreArithmetic {
  using B = CudaBackend;
  static constexpr char kMissing[] = "no GPU";
  static std::unique_ptr<B> Make() {
    if (!FindCudaDevice().ok()) return nullptr;
    return B::Open({.activation = DType::kF32, .pool_on_device = kPoolOnDevice}).value();
  }
  static void TearDown() {}
};
using CudaFactory = AnyCudaFactory<true>;
using CudaHostPoolFactory = AnyCudaFactory<false>;

using TestedBackends = ::testing::Types<CudaFactory, CudaHostPoolFactory>;
using FetchingBackends = TestedBackends;
using SketchingBackends = TestedBackends;

struct BackendName {
  template <class Factory>
  static std::string GetName(int i) {
    static const char* const kNames[] = {"Cuda", "CudaHostPool"};
    return kNames[i];
  }
};

}  // namespace infinigen
