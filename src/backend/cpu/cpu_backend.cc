#include "backend/cpu/cpu_backend.h"

#include "backend/cpu/attention_plan.h"
#include "backend/cpu/block_product.h"
#include "backend/cpu/select.h"
#include "backend/cpu/sketch_query.h"

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

CpuBackend::CpuBackend(int threads)
    : pool_(threads), vnni_(HasVnni()), block_kernels_(ChooseBlockKernels()), shared_(compute_memory()) {
  private_.reserve(static_cast<size_t>(threads));
  for (int thread = 0; thread < threads; ++thread) private_.emplace_back(compute_memory());
}

const char* CpuBackend::simd_target() const { return HWY_DYNAMIC_DISPATCH(TargetName)(); }

Status CpuBackend::Reserve(int64_t max_tokens, int64_t max_batch, int64_t heads, int64_t kv_heads, int64_t head_dim) {
  const LayerEntries entries{.layout = {StoreType::kF32, kv_heads, head_dim}};
  const AttentionPlan plan(entries, {heads, 1.0f});
  // Sketches are no wider than heads. SelectBy keeps a tally per (token, head) in the memory of attention's partial
  // results.
  const SketchLayout widest{SketchType::kInt8, kv_heads,
                            (head_dim + kSketchDimStep - 1) / kSketchDimStep * kSketchDimStep, kSketchDimStep};
  const int64_t select = ChoiceScratch::Floats(plan.group, std::max(max_tokens, kTailChunk), 1) +
                         std::max(SketchQuery::Floats(widest, plan.group), plan.scratch_floats(plan.group)) + 16;
  // With fewer tasks than half the threads, several threads share the scores of a task.
  const int64_t split = std::min(max_batch * kv_heads, threads() / int64_t{2});
  const int64_t scored = split >= kv_heads ? split * ChoiceScratch::Floats(plan.group, max_tokens, threads()) : 0;
  const int64_t tails = max_batch * heads * TailChunks(max_tokens) * (2 + kMostValueDims);
  RETURN_IF_ERROR(shared_.ReserveAhead(
      std::max(plan.parts_floats(max_batch, max_tokens), max_batch * kv_heads * kTallyFloats + tails + 48 + scored)));
  for (Scratch& scratch : private_)
    RETURN_IF_ERROR(scratch.ReserveAhead(std::max(plan.scratch_floats(plan.group), select)));
  return Ok();
}

}  // namespace infinigen
#endif  // HWY_ONCE
