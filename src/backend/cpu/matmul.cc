// MatMul: divides all projections of a call into one list of tasks and runs the kernels on them: matmul-inl.h for plain
// weights, block_product.h for quantised ones.
#include "backend/cpu/block_product.h"
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
      CHECK(false);  // block_product.h multiplies by the others
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
// The same for quantised weights, whose prefetch runs up to 16 KB past the end of a task.
constexpr int64_t kBlockTaskBytes = 512 << 10;

constexpr int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Up to this many rows, block-quantised weights go from memory to registers; with more, they are first unpacked, a
// panel at a time, into cache.
constexpr int64_t kBlockDirectRows = 4;

void CheckOperands(const Tensor& x, std::span<const Projection> projections) {
  CHECK(x.type == DType::kF32 && std::ssize(projections) <= kMaxProjections);
  for (const Projection& p : projections) {
    CHECK(p.weight.cols == x.cols && p.out.type == DType::kF32);
    CHECK(p.out.rows >= x.rows && p.out.cols == p.weight.rows);
    CHECK(!p.bias || (p.bias.type == DType::kF32 && p.bias.cols == p.weight.rows));
  }
}

// Outputs per task, a multiple of `step`. This changes which thread computes an output, never its sum.
int64_t TaskOuts(bool direct, int64_t outs, const WeightView& weight, int threads, int64_t step) {
  const int64_t fair = RoundUp((outs + 4 * threads - 1) / (4 * threads), step);
  if (!direct) return std::clamp(fair, step, kPanelOuts);
  const int64_t bytes = IsPlain(weight.type) ? kDirectTaskBytes : kBlockTaskBytes;
  return std::clamp(RoundUp(bytes / std::max<int64_t>(1, weight.row_bytes), step), step, std::max(fair, step));
}

}  // namespace

// Quantised activations of a call, in scratch memory: row by row, and in tiles if there are many rows.
struct BlockPlan {
  BlockPlan(const BlockKernels& kernels, int64_t rows, int64_t cols)
      : panel(rows > kBlockDirectRows && kernels.panel != nullptr) {
    x.rows = rows;
    x.chunks = RoundUp(cols, kChunkNumbers) / kChunkNumbers;
    packed.rows = rows;
    packed.chunks = x.chunks;
    packed.tile_rows = kernels.tile_rows;
  }
  // Places the arrays one after the other; returns the floats that they take.
  int64_t Place(float* memory) {
    float* next = memory;
    const auto take = [&]<class T>(T*& array, int64_t numbers) {
      array = reinterpret_cast<T*>(next);
      next += RoundUp(numbers * static_cast<int64_t>(sizeof(T)), 64) / static_cast<int64_t>(sizeof(float));
    };
    const int64_t chunks = x.rows * x.chunks;
    take(x.codes, chunks * kChunkCodes);
    take(x.scales, chunks * kChunkGroups);
    take(x.weighted, chunks * kChunkGroups);
    take(x.half_sums, chunks * 2 * kChunkGroups);
    if (panel) {
      const int64_t groups = packed.tiles() * packed.tile_rows * x.chunks * kChunkGroups;
      take(packed.codes, groups * 64);
      take(packed.scales, groups);
      take(packed.weighted, groups);
      take(packed.sums, groups * 3);
    }
    return next - memory;
  }

  bool panel;
  BlockActivations x;
  PackedActivations packed;
};

Status CpuBackend::CheckWeight(WeightType) { return Ok(); }

Result<WeightView> CpuBackend::Load(const WeightView& weight) { return weight; }

void CpuBackend::MatMul(Queue, const Tensor& x, std::span<const Projection> projections) {
  CheckOperands(x, projections);
  if (x.rows == 0 || projections.empty()) return;
  bool plain = false, blocks = false;
  int64_t outs = 0;
  for (const Projection& p : projections) {
    outs += p.weight.rows;
    (IsPlain(p.weight.type) ? plain : blocks) = true;
  }
  // Integer products of a short row are done before other threads are awake.
  const int64_t work = x.rows * x.cols * outs / (blocks ? 2 : 1);
  const bool serial = threads() == 1 || work <= 4 * kSerialWork;

  CpuMatMulPlan plan{.x = x, .packed = nullptr, .padded_k = RoundUp(x.cols, 16), .projections = projections};
  BlockPlan block_plan(block_kernels_, x.rows, x.cols);
  const int64_t packed = plain ? RoundUp(x.rows * plan.padded_k, 16) : 0;
  float* const memory = shared_.Reserve(packed + (blocks ? block_plan.Place(nullptr) : 0));
  if (plain) PackActivations(plan, memory);
  if (blocks) {
    block_plan.Place(memory + packed);
    QuantiseActivations(x, block_plan);
  }
  std::array<bool, kMaxProjections> direct = {};
  for (size_t i = 0; i < projections.size(); ++i) {
    const WeightView& weight = projections[i].weight;
    const bool is_plain = IsPlain(weight.type);
    direct[i] = is_plain ? x.rows <= kDirectRows : !block_plan.panel;
    const int64_t step = is_plain || direct[i] ? kTileOuts : block_kernels_.panel_outs;
    plan.task_outs[i] = TaskOuts(direct[i], outs, weight, threads(), step);
    plan.first_task[i + 1] = plan.first_task[i] + RoundUp(weight.rows, plan.task_outs[i]) / plan.task_outs[i];
  }
  const auto run = [&](int64_t task, int thread) {
    size_t i = 0;
    while (task >= plan.first_task[i + 1]) ++i;
    const Projection& p = projections[i];
    const int64_t begin = (task - plan.first_task[i]) * plan.task_outs[i];
    const int64_t end = std::min(begin + plan.task_outs[i], p.weight.rows);
    Scratch& own = private_[static_cast<size_t>(thread)];
    if (IsPlain(p.weight.type)) {
      HWY_DYNAMIC_DISPATCH(MatMulOuts)(plan, p, begin, end, direct[i] ? nullptr : own.Reserve(kPanelScratchFloats));
    } else if (direct[i]) {
      block_kernels_.direct(block_plan.x, p, begin, end);
    } else {
      float* const scratch = own.Reserve(block_kernels_.PanelFloats(block_plan.x.chunks));
      block_kernels_.panel(block_plan.packed, p, begin, end, scratch);
    }
  };
  const int64_t tasks = plan.first_task[projections.size()];
  if (serial) {
    for (int64_t task = 0; task < tasks; ++task) run(task, 0);
  } else {
    pool_.Run(tasks, run);
  }
}

void CpuBackend::PackActivations(CpuMatMulPlan& plan, float* memory) {
  plan.packed = memory;
  ForRows(HWY_DYNAMIC_DISPATCH(RowTileCount)(plan.x.rows), plan.x.cols * 4, [&](int64_t first, int64_t count) {
    for (int64_t tile = first; tile < first + count; ++tile) HWY_DYNAMIC_DISPATCH(PackTile)(plan, tile);
  });
}

void CpuBackend::QuantiseActivations(const ConstTensor& x, const BlockPlan& plan) {
  ForRows(x.rows, x.cols * 2, [&](int64_t first, int64_t count) {
    for (int64_t row = first; row < first + count; ++row) block_kernels_.quantise(x, row, plan.x);
  });
  if (!plan.panel) return;
  ForRows(plan.packed.tiles(), x.cols * plan.packed.tile_rows, [&](int64_t first, int64_t count) {
    for (int64_t tile = first; tile < first + count; ++tile) block_kernels_.pack(plan.x, tile, plan.packed);
  });
}

}  // namespace infinigen
#endif  // HWY_ONCE
