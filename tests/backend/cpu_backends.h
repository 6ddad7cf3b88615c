// Backends for machines without a GPU: the oracle against itself, and the CPU backend on every SIMD target.
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

// Base of the CPU factories. Make() returns null if the machine lacks the SIMD target.
struct AnyCpuFactory : F32Arithmetic {
  using B = CpuBackend;
  static constexpr char kMissing[] = "this machine lacks the SIMD target";
  static void TearDown() { hwy::SetSupportedTargetsForTest(0); }
};

// The CPU backend restricted to one SIMD target. Three threads, so that tasks interleave.
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

// AVX-512 with VNNI, which scores integer sketches; CpuFactory<HWY_AVX3> does without.
struct CpuVnniFactory : AnyCpuFactory {
  static std::unique_ptr<B> Make() {
    hwy::SetSupportedTargetsForTest(0);
    if ((hwy::SupportedTargets() & HWY_AVX3_DL) == 0) return nullptr;
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    return std::make_unique<B>(3);
  }
};

// The best target of this machine, as in production.
struct WidestCpuFactory : AnyCpuFactory {
  static std::unique_ptr<B> Make() { return std::make_unique<B>(3); }
};

// VNNI is used only to score sketches: tests of other operations leave CpuVnniFactory out.
#ifdef INFINIGEN_SANITIZED
// Here the reference is only the oracle, and one target is compiled (src/backend/cpu/CMakeLists.txt).
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
// Backends that fetch (FetchingBackend in backend.h). The CPU backend reads entries in the pool.
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
