// The backends of a machine without a GPU: the oracle against itself, and the CPU backend on every SIMD target.
#pragma once

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <memory>
#include <string>
#include <type_traits>

#include "backend/arithmetic.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/reference/reference_backend.h"

namespace infinigen {

struct ReferenceFactory : F32Arithmetic {
  using B = ReferenceBackend;
  static std::unique_ptr<B> Make() { return std::make_unique<B>(); }
  static void TearDown() {}
};

// On other targets than the machine's best; null where it lacks them.
struct AnyCpuFactory : F32Arithmetic {
  using B = CpuBackend;
  static constexpr char kMissing[] = "this machine lacks the SIMD target";
  static void TearDown() { hwy::SetSupportedTargetsForTest(0); }
};

// The CPU backend held to one SIMD target; null where the machine lacks it. Three threads, so that tasks interleave.
template <int64_t kTarget>
struct CpuFactory : AnyCpuFactory {
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
struct CpuVnniFactory : AnyCpuFactory {
  static std::unique_ptr<B> Make() {
    hwy::SetSupportedTargetsForTest(0);
    if ((hwy::SupportedTargets() & HWY_AVX3_DL) == 0) return nullptr;
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    return std::make_unique<B>(3);
  }
};

// As users have it.
struct WidestCpuFactory : AnyCpuFactory {
  static std::unique_ptr<B> Make() { return std::make_unique<B>(3); }
};

// Byte products are used where sketches are scored and nowhere else: tests of the rest leave CpuVnniFactory out.
#ifdef INFINIGEN_SANITIZED
// The reference is here the oracle only, and one target is compiled (src/backend/cpu/CMakeLists.txt).
using TestedBackends = ::testing::Types<WidestCpuFactory>;
using CpuBackends = TestedBackends;
using SketchingBackends = TestedBackends;
#else
using TestedBackends =
    ::testing::Types<CpuFactory<HWY_AVX3>, CpuFactory<HWY_AVX2>, CpuFactory<HWY_EMU128>, ReferenceFactory>;
using CpuBackends =
    ::testing::Types<CpuFactory<HWY_AVX3>, CpuFactory<HWY_AVX2>, CpuVnniFactory, CpuFactory<HWY_EMU128>>;
using SketchingBackends = ::testing::Types<CpuFactory<HWY_AVX3>, CpuFactory<HWY_AVX2>, CpuVnniFactory,
                                           CpuFactory<HWY_EMU128>, ReferenceFactory>;
#endif
// Those that fetch (backend.h). The CPU reads entries where they are.
using FetchingBackends = ::testing::Types<ReferenceFactory>;

struct BackendName {
  template <class Factory>
  static std::string GetName(int) {
    if constexpr (std::is_same_v<Factory, ReferenceFactory>) return "Reference";
    if constexpr (std::is_same_v<Factory, WidestCpuFactory>) return "CpuWidest";
    if constexpr (std::is_same_v<Factory, CpuVnniFactory>) return "CpuVnni";
    if constexpr (std::is_same_v<Factory, CpuFactory<HWY_AVX3>>) return "CpuAvx512";
    return std::is_same_v<Factory, CpuFactory<HWY_AVX2>> ? "CpuAvx2" : "CpuPortable";
  }
};

}  // namespace infinigen
