// Layers with a sliding window: sequences longer than their rings, continued at earlier rows, in any chunks; and the
// memory that rings save.
#include <gtest/gtest.h>

#include "model/random_model.h"

namespace infinigen {
namespace {

constexpr int64_t kContext = 1500;

class Windows : public testing::TestWithParam<Device> {
 protected:
  std::unique_ptr<Executor> Make(const KvMethod& method = {}) const {
    return MakeExecutor(model.config, model.weights, Options(method), {.bases = model.bases}).value();
  }
  ExecutorOptions Options(const KvMethod& method) const {
    return {.device = GetParam(),
            .threads = 2,
            .max_tokens = kContext,
            .max_batch = 2,
            .kv_type = StoreType::kF32,
            .method = method};
  }
  // The reference backend has chunks of 64 tokens, the CPU backend of 512.
  int64_t ring() const { return PoolOptions::RingFor(21, GetParam() == Device::kReference ? 64 : 512); }

  // Logits of the last row after prefills of the given parts of `ids`, in slot `slot`.
  std::vector<float> Prefill(Executor& executor, SeqSlot slot, std::span<const int32_t> ids,
                             std::vector<int64_t> begins) const {
    std::vector<float> logits(static_cast<size_t>(model.config.vocab));
    begins.push_back(std::ssize(ids));
    for (size_t part = 0; part + 1 < begins.size(); ++part) {
      const int64_t first = begins[part], count = begins[part + 1] - first;
      CHECK(
          executor.BeginPrefill(slot, first, ids.subspan(static_cast<size_t>(first), static_cast<size_t>(count))).ok());
      while (!executor.RunPrefillUnit(slot)) {
      }
      executor.PrefillLogits(slot, count - 1, 1, logits);
      executor.EndPrefill(slot);
    }
    return logits;
  }

  RandomModelWithBases model{Capped(), 8, 11};
};

// The ring has been overwritten more than once at the end of the sequence.
TEST_P(Windows, SequencesLongerThanTheRingEqualAnIndependentForwardPass) {
  const int64_t rows = ring() + 150;
  ASSERT_LT(rows, kContext);
  const std::vector<int32_t> ids = model.Ids(static_cast<size_t>(rows), 1);
  const size_t prefill = static_cast<size_t>(rows - 30);
  const std::vector<float> want = Independent(model, {}, ids, prefill);
  EXPECT_LT(Difference(Decode(*Make(), ids, prefill), want), kRounding);
  RandomModelWithBases windowless = RandomModelWithBases(Capped(), 8, 11);
  for (LayerSpec& spec : windowless.config.specs) spec.window = 0;
  EXPECT_GT(Difference(Independent(windowless, {}, ids, prefill), want), 100 * kRounding) << "windows change nothing";
}

TEST_P(Windows, ChunksAndStepsGiveTheSameBits) {
  const std::vector<int32_t> ids = model.Ids(static_cast<size_t>(ring() + 90), 2);
  const std::unique_ptr<Executor> executor = Make();
  const SeqSlot slot = executor->Admit(kContext).value();
  const std::vector<float> whole = Prefill(*executor, slot, ids, {0});
  EXPECT_EQ(Prefill(*executor, slot, ids, {0, 1, 100, 356, ring() - 20, ring() + 63}), whole);
  const std::vector<float> steps = Decode(*Make(), ids, ids.size() - 40);
  if (GetParam() == Device::kCpu) {
    EXPECT_EQ(std::vector<float>(steps.end() - model.config.vocab, steps.end()), whole);
  }
}

TEST_P(Windows, AnEarlierRowCanBeContinuedWhileItsWindowIsThere) {
  const std::vector<int32_t> ids = model.Ids(static_cast<size_t>(ring() + 300), 3);
  const std::unique_ptr<Executor> executor = Make();
  const SeqSlot slot = executor->Admit(kContext).value(), fresh = executor->Admit(kContext).value();
  EXPECT_EQ(executor->FirstRestart(slot), 0);
  Prefill(*executor, slot, std::span(ids).first(300), {0});
  EXPECT_EQ(executor->FirstRestart(slot), 0) << "nothing is overwritten yet";
  Prefill(*executor, slot, ids, {300});
  EXPECT_EQ(executor->FirstRestart(slot), 300 + 21 - 1);
  // Other tokens from the first possible row on.
  std::vector<int32_t> other = ids;
  other.resize(500);
  for (size_t row = 320; row < other.size(); ++row) other[row] = (ids[row] + 7) % 61;
  const std::vector<float> got = Prefill(*executor, slot, other, {320});
  EXPECT_EQ(got, Prefill(*executor, fresh, other, {0}));
  EXPECT_EQ(executor->FirstRestart(slot), 320) << "rows that a longer sequence has overwritten stay lost";
  Prefill(*executor, slot, other, {0});
  EXPECT_EQ(executor->FirstRestart(slot), 0);
}

TEST_P(Windows, RingsAreWhatThePlanSays) {
  const int64_t row_bytes = 2 * 16 * 2 * 4;  // two KV heads of 16 f32 numbers
  const MemoryPlan plan = PlanMemory(model.config, Options({}), 0);
  EXPECT_EQ(plan.pool_bytes, static_cast<uint64_t>(2 * row_bytes * 2 * (kContext + ring())));
  const std::unique_ptr<Executor> executor = Make();
  const SeqSlot slot = executor->Admit(kContext).value();
  Prefill(*executor, slot, model.Ids(kContext, 1), {0});
  EXPECT_EQ(executor->instruments().pool_peak_bytes(), plan.pool_bytes / 2);
  EXPECT_NE(executor->sharing(), nullptr);
  EXPECT_FALSE(executor->sharing()->can_share());
}

// A limit in bytes is what layers with neither a window nor density have left.
TEST_P(Windows, ALimitInBytesIsKept) {
  KvMethod method = Sparse(GuessSource::kSelf);
  method.retain = &kRetainLru;
  const uint64_t row_bytes = 2 * 16 * 2 * 4;
  method.limit.bytes = 2 * row_bytes * static_cast<uint64_t>(2 * ring() + 2 * 100);
  const std::unique_ptr<Executor> executor = Make(method);
  const std::vector<int32_t> ids = model.Ids(1400, 4);
  Decode(*executor, ids, 1390);
  EXPECT_LE(executor->instruments().pool_peak_bytes(), method.limit.bytes / 2);
  EXPECT_GT(executor->instruments().pool_peak_bytes(), method.limit.bytes / 2 - 4 * row_bytes);
}

INSTANTIATE_TEST_SUITE_P(Each, Windows, testing::Values(Device::kReference, Device::kCpu),
                         [](const auto& of) { return of.param == Device::kCpu ? "cpu" : "reference"; });

}  // namespace
}  // namespace infinigen
