// The list of backends that the op tests run over, each as a factory. A new backend joins by a factory and one name in
// TestedBackends: operands are made through its own memory (device_operands.h).
#pragma once

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <memory>

#include "backend/cpu/cpu_backend.h"
#include "backend/reference/reference_backend.h"

namespace infinigen {

struct ReferenceFactory {
  using B = ReferenceBackend;
  static std::unique_ptr<B> Make() { return std::make_unique<B>(); }
};

// The CPU backend held to one SIMD target; null where the machine lacks it. Three threads, so that tasks interleave.
template <int64_t kTarget>
struct CpuFactory {
  using B = CpuBackend;
  static std::unique_ptr<B> Make() {
    hwy::SetSupportedTargetsForTest(0);
    if ((hwy::SupportedTargets() & kTarget) == 0) return nullptr;
    hwy::SetSupportedTargetsForTest(kTarget);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    auto backend = std::make_unique<B>(3);
    EXPECT_EQ(std::string(backend->simd_target()), hwy::TargetName(kTarget));
    return backend;
  }
};

// AVX-512 with the byte products that integer sketches are scored by; CpuFactory<HWY_AVX3> is without.
struct CpuVnniFactory {
  using B = CpuBackend;
  static std::unique_ptr<B> Make() {
    hwy::SetSupportedTargetsForTest(0);
    if ((hwy::SupportedTargets() & HWY_AVX3_DL) == 0) return nullptr;
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    return std::make_unique<B>(3);
  }
};

#ifdef INFINIGEN_SANITIZED
// The reference is here the oracle only, and the portable target not compiled (src/backend/cpu/CMakeLists.txt).
using CpuBackends = ::testing::Types<CpuFactory<HWY_AVX3>, CpuFactory<HWY_AVX2>, CpuVnniFactory>;
using TestedBackends = CpuBackends;
#else
using CpuBackends =
    ::testing::Types<CpuFactory<HWY_AVX3>, CpuFactory<HWY_AVX2>, CpuVnniFactory, CpuFactory<HWY_EMU128>>;
using TestedBackends = ::testing::Types<CpuFactory<HWY_AVX3>, CpuFactory<HWY_AVX2>, CpuVnniFactory,
                                        CpuFactory<HWY_EMU128>, ReferenceFactory>;
#endif

struct BackendName {
  template <class Factory>
  static std::string GetName(int i) {
    static const char* const kNames[] = {"CpuAvx512", "CpuAvx2", "CpuVnni", "CpuPortable", "Reference"};
    return kNames[i];
  }
};

// A typed test whose fixture holds the backend under test and the oracle.
template <class Factory>
class OpTest : public ::testing::Test {
 protected:
  using B = typename Factory::B;
  void SetUp() override {
    backend_ = Factory::Make();
    if (backend_ == nullptr) GTEST_SKIP() << "this machine lacks the SIMD target";
  }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }

  B& backend() { return *backend_; }
  ReferenceBackend& reference() { return reference_; }

 private:
  std::unique_ptr<B> backend_;
  ReferenceBackend reference_;
};

}  // namespace infinigen
