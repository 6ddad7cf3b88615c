// MatMul: divides all projections of a call into one list of tasks and runs the kernels of matmul-inl.h on them.
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/matmul_plan.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/matmul.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

#include "backend/cpu/matmul-inl.h"

HWY_BEFORE_NAMESPACE();
namespace infinigen::HWY_NAMESPACE {

template <class T>
void MatMulOutsOf(const CpuMatMulPlan& plan, const Projection& p, int64_t begin, int64_t end, float* scratch) {
  if (plan.x.rows == 1 && plan.x.cols <= kShortRow) return DirectOutsOfOneShortRow<T>(plan, p, begin, end);
  if (plan.x.rows == 1) return DirectOutsOfOneLongRow<T>(plan, p, begin, end);
  if (plan.x.rows <= kDirectRows) return DirectOuts<T>(plan, p, begin, end);
  PanelOuts<T>(plan, p, begin, end, scratch);
}

// Outputs [begin, end) of one projection for every row of x. `scratch` belongs to this thread; the direct path does not
// use it.
void MatMulOuts(const CpuMatMulPlan& plan, const Projection& p, int64_t begin, int64_t end, float* scratch) {
  switch (p.weight.type) {
    case WeightType::kF32:
      return MatMulOutsOf<float>(plan, p, begin, end, scratch);
    case WeightType::kF16:
      return MatMulOutsOf<F16>(plan, p, begin, end, scratch);
    case WeightType::kBF16:
      return MatMulOutsOf<BF16>(plan, p, begin, end, scratch);
    default:
      CHECK(false);  // Load rejects it
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace infinigen::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace infinigen {
namespace {

HWY_EXPORT(PackTile);
HWY_EXPORT(RowTileCount);
HWY_EXPORT(MatMulOuts);

// Bytes that a direct task reads: enough to hide the change from one stream to the next, few enough that all threads
// finish at about the same time.
constexpr int64_t kDirectTaskBytes = 128 << 10;

constexpr int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

void CheckOperands(const Tensor& x, std::span<const Projection> projections) {
  CHECK(x.type == DType::kF32 && std::ssize(projections) <= kMaxProjections);
  for (const Projection& p : projections) {
    CHECK(p.weight.cols == x.cols && p.out.type == DType::kF32);
    CHECK(p.out.rows >= x.rows && p.out.cols == p.weight.rows);
    CHECK(!p.bias || (p.bias.type == DType::kF32 && p.bias.cols == p.weight.rows));
  }
}

// Outputs per task; `row_bytes` of the weights. This changes which thread computes an output, never its sum.
int64_t TaskOuts(int64_t m, int64_t outs, int64_t row_bytes, int threads) {
  const int64_t fair = RoundUp((outs + 4 * threads - 1) / (4 * threads), kTileOuts);
  if (m > kDirectRows) return std::clamp(fair, kTileOuts, kPanelOuts);
  return std::clamp(RoundUp(kDirectTaskBytes / std::max<int64_t>(1, row_bytes), kTileOuts), kTileOuts,
                    std::max(fair, kTileOuts));
}

}  // namespace

Status CpuBackend::CheckWeight(WeightType type) {
  if (IsPlain(type)) return Ok();
  return Unsupported("{} weights: the CPU backend multiplies by f32, f16 and bf16 weights", Name(type));
}

Result<WeightView> CpuBackend::Load(const WeightView& weight) {
  RETURN_IF_ERROR(CheckWeight(weight.type));
  return weight;
}

void CpuBackend::MatMul(Queue, const Tensor& x, std::span<const Projection> projections) {
  CheckOperands(x, projections);
  if (x.rows == 0 || projections.empty()) return;
  int64_t outs = 0;
  for (const Projection& p : projections) outs += p.weight.rows;
  const bool serial = threads() == 1 || x.rows * x.cols * outs <= 4 * kSerialWork;

  CpuMatMulPlan plan{.x = x, .packed = nullptr, .padded_k = RoundUp(x.cols, 16), .projections = projections};
  plan.packed = shared_.Reserve(x.rows * plan.padded_k);
  plan.task_outs = TaskOuts(x.rows, outs, projections[0].weight.row_bytes, threads());
  for (size_t i = 0; i < projections.size(); ++i)
    plan.first_task[i + 1] = plan.first_task[i] + RoundUp(projections[i].weight.rows, plan.task_outs) / plan.task_outs;
  const int64_t tasks = plan.first_task[projections.size()];

  const int64_t tiles = HWY_DYNAMIC_DISPATCH(RowTileCount)(x.rows);
  ForRows(tiles, x.cols * 4, [&](int64_t first, int64_t count) {
    for (int64_t tile = first; tile < first + count; ++tile) HWY_DYNAMIC_DISPATCH(PackTile)(plan, tile);
  });
  const auto run = [&](int64_t task, int thread) {
    size_t i = 0;
    while (task >= plan.first_task[i + 1]) ++i;
    const int64_t begin = (task - plan.first_task[i]) * plan.task_outs;
    const int64_t end = std::min(begin + plan.task_outs, projections[i].weight.rows);
    float* scratch = nullptr;
    if (x.rows > kDirectRows) scratch = private_[static_cast<size_t>(thread)].Reserve(kPanelScratchFloats);
    HWY_DYNAMIC_DISPATCH(MatMulOuts)(plan, projections[i], begin, end, scratch);
  };
  if (serial) {
    for (int64_t task = 0; task < tasks; ++task) run(task, 0);
  } else {
    pool_.Run(tasks, run);
  }
}

}  // namespace infinigen
#endif  // HWY_ONCE
