#include "backend/cpu/cpu_backend.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/cpu_backend.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace infinigen::HWY_NAMESPACE {

const char* TargetName() { return hwy::TargetName(HWY_TARGET); }

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace infinigen::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace infinigen {
namespace {

HWY_EXPORT(TargetName);

}  // namespace

CpuBackend::CpuBackend(int threads) : pool_(threads), shared_(compute_memory()) {
  private_.reserve(static_cast<size_t>(threads));
  for (int thread = 0; thread < threads; ++thread) private_.emplace_back(compute_memory());
}

const char* CpuBackend::simd_target() const { return HWY_DYNAMIC_DISPATCH(TargetName)(); }

}  // namespace infinigen
#endif  // HWY_ONCE
