// Whole models on a GPU: compared with the CPU, with themselves when everything is selected, and over many steps.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <fstream>
#include <utility>

#include "model/cuda_executor.h"
#include "model/random_model.h"

namespace infinigen {
namespace {

class CudaModel : public testing::Test {
 protected:
  void SetUp() override {
    if (const Result<GpuInfo> gpu = FindGpu(); !gpu.ok()) GTEST_SKIP() << gpu.error().message;
  }

  std::unique_ptr<Executor> Make(const KvMethod& method, bool on_device = false, int64_t batch = 1,
                                 StoreType type = StoreType::kF32, int64_t hot_rows = 0) const {
    Result<std::unique_ptr<Executor>> executor = MakeExecutor(model.config, model.weights,
                                                              {.device = Device::kCuda,
                                                               .max_tokens = 1024,
                                                               .max_batch = batch,
                                                               .kv_type = type,
                                                               .method = method,
                                                               .pool_on_device = on_device,
                                                               .hot_rows = hot_rows},
                                                              {.bases = model.bases, .tails = model.tails});
    CHECK(executor.ok());
    return std::move(*executor);
  }

  RandomModelWithBases model{Llama(), 8, 21};
};

// Matrix products are f32 on both sides; attention rounds queries, keys and weights to f16 (2^-11).
constexpr double kHalfRounding = 6e-3;

TEST_F(CudaModel, AgreesWithTheCpu) {
  const std::vector<int32_t> ids = model.Ids(330, 1);
  KvMethod h2o;
  h2o.retain = &kRetainH2o;
  h2o.limit.share = 0.5;
  for (const KvMethod& method : {KvMethod(), h2o}) {
    const std::vector<float> want = Decode(*model.Make(method), ids, 300);
    for (const bool on_device : {false, true})
      EXPECT_LT(Difference(Decode(*Make(method, on_device), ids, 300), want), kHalfRounding) << on_device;
  }
  RandomModelWithBases opt{Opt(), 8, 22};
  std::swap(model.config, opt.config);
  std::swap(model.weights, opt.weights);
  EXPECT_LT(Difference(Decode(*Make({}), ids, 300), Decode(*model.Make({}), ids, 300)), kHalfRounding);
}

// Norms on both sides, soft caps, GELU, and layers with a window whose rings (2,560 rows) are overwritten. Selecting
// everything in the other layers changes nothing.
TEST_F(CudaModel, WindowsAndCapsAgreeWithTheCpu) {
  const RandomModelWithBases capped{Capped(), 8, 23};
  const auto make = [&](Device device, const KvMethod& method, bool on_device) {
    return MakeExecutor(capped.config, capped.weights,
                        {.device = device,
                         .threads = 2,
                         .max_tokens = 3000,
                         .kv_type = StoreType::kF32,
                         .method = method,
                         .pool_on_device = on_device},
                        {.bases = capped.bases})
        .value();
  };
  KvMethod everything = Sparse(GuessSource::kPrevLayer);
  everything.rule.alpha = kInfinity;
  everything.rule.cap = 1.0;
  for (const size_t rows : {size_t{200}, size_t{2900}}) {
    const std::vector<int32_t> ids = capped.Ids(rows, 1);
    const std::vector<float> want = Decode(*make(Device::kCpu, {}, false), ids, rows - 30);
    for (const bool on_device : {false, true})
      EXPECT_LT(Difference(Decode(*make(Device::kCuda, {}, on_device), ids, rows - 30), want), 3 * kHalfRounding)
          << rows << " rows, " << on_device;
    EXPECT_LT(Difference(Decode(*make(Device::kCuda, everything, false), ids, rows - 30), want), 3 * kHalfRounding);
  }
}

KvMethod Everything(GuessSource from) {
  KvMethod method = Sparse(from);
  method.rule.alpha = kInfinity;
  method.rule.cap = 1.0;
  return method;
}

// Entries that are fetched with or without a hot set, or read in the pool, give bit-identical results to a full cache.
TEST_F(CudaModel, SelectingEverythingIsTheFullCache) {
  const std::vector<int32_t> ids = model.Ids(340, 2);
  const std::vector<float> want = Decode(*Make({}), ids, 290);
  EXPECT_EQ(Decode(*Make({}, /*on_device=*/true), ids, 290), want);
  for (const GuessSource from : {GuessSource::kSelf, GuessSource::kPrevMid, GuessSource::kPrevLayer}) {
    EXPECT_EQ(Decode(*Make(Everything(from)), ids, 290), want);
    EXPECT_EQ(Decode(*Make(Everything(from), /*on_device=*/true), ids, 290), want);
    EXPECT_EQ(Decode(*Make(Everything(from), false, 1, StoreType::kF32, /*hot_rows=*/1024), ids, 290), want);
  }
}

// A hot set changes only what is fetched, never results: also one that is just large enough, and with eviction.
TEST_F(CudaModel, HotSetsChangeNoLogit) {
  const std::vector<int32_t> ids = model.Ids(420, 3);
  for (const auto& [evicts, from] : {std::pair{false, GuessSource::kPrevMid},
                                     {false, GuessSource::kPrevLayer},
                                     {true, GuessSource::kPrevMid},
                                     {true, GuessSource::kPrevLayer}}) {
    KvMethod method = Sparse(from);
    const StoreType type = evicts ? StoreType::kF32 : StoreType::kBF16;
    if (evicts) {
      method.retain = &kRetainCounter;
      method.limit.share = 0.6;
    }
    const std::unique_ptr<Executor> cold = Make(method, false, 1, type);
    const std::vector<float> want = Decode(*cold, ids, 300);
    EXPECT_EQ(cold->instruments().Stats().hit_ratio(), 0);
    double last = 0;
    for (const int64_t rows : {221, 300, 600}) {
      const std::unique_ptr<Executor> hot = Make(method, false, 1, type, rows);
      EXPECT_EQ(Decode(*hot, ids, 300), want) << rows;
      // Without a prompt, in a slot that was used before.
      EXPECT_EQ(Decode(*hot, std::span(ids).first(60), 0), Decode(*cold, std::span(ids).first(60), 0));
      EXPECT_GE(hot->instruments().Stats().hit_ratio(), last);
      last = hot->instruments().Stats().hit_ratio();
    }
    EXPECT_GT(last, 0.3);
  }
}

// Late rows are read in the pool, or fetched to cells with or without a hot set: the same bits. If all rows that the
// guess missed are late, the result is that of a full cache.
TEST_F(CudaModel, LateRowsAreTheSameFromPoolAndCells) {
  const std::vector<int32_t> ids = model.Ids(420, 3);
  const std::vector<float> full = Decode(*Make({}), ids, 300);
  for (const GuessSource from : {GuessSource::kPrevMid, GuessSource::kPrevLayer, GuessSource::kPrevStep}) {
    KvMethod method = WithTail(Sparse(from), 7);
    const std::unique_ptr<Executor> cold = Make(method);
    const std::vector<float> want = Decode(*cold, ids, 300);
    const SelectionTotals totals = cold->instruments().Stats().Selecting().totals;
    EXPECT_EQ(totals.late, 7u * 120u * static_cast<uint64_t>(model.config.kv_heads * (model.config.layers - 1)));
    EXPECT_EQ(cold->instruments().Stats().hit_ratio(), 0);
    EXPECT_EQ(Decode(*Make(method, /*on_device=*/true), ids, 300), want);
    for (const int64_t rows : {228, 600}) {
      const std::unique_ptr<Executor> hot = Make(method, false, 1, StoreType::kF32, rows);
      EXPECT_EQ(Decode(*hot, ids, 300), want) << rows;
      EXPECT_GT(hot->instruments().Stats().hit_ratio(), 0);
    }
    method.rule.late = 1000;
    EXPECT_EQ(Decode(*Make(method), ids, 300), full);
    EXPECT_EQ(Decode(*Make(method, /*on_device=*/true), ids, 300), full);
    EXPECT_EQ(Decode(*Make(method, false, 1, StoreType::kF32, 1024), ids, 300), full);
  }
}

// The fetch buffer has room for the method's cap. Sequences with a larger cap read the pool over the link.
TEST_F(CudaModel, ASequenceMayHaveMoreThanTheCap) {
  const std::vector<int32_t> ids = model.Ids(340, 9);
  const std::vector<float> full = Decode(*Make({}), ids, 290);
  for (const GuessSource from : {GuessSource::kSelf, GuessSource::kPrevMid, GuessSource::kPrevLayer}) {
    KvMethod method = Sparse(from);
    const std::vector<float> own = Decode(*Make(method), ids, 290);
    method.largest_cap = 1;
    SelectRule everything = method.rule;
    everything.alpha = kInfinity;
    everything.cap = 1;
    for (const int64_t hot_rows : {0, 300}) {
      const std::unique_ptr<Executor> executor = Make(method, false, 1, StoreType::kF32, hot_rows);
      EXPECT_EQ(Decode(*executor, ids, 290, &everything), full) << hot_rows;
      EXPECT_EQ(Decode(*executor, ids, 290), own) << hot_rows;
      EXPECT_EQ(Decode(*executor, ids, 290, &everything), full) << hot_rows;
    }
  }
}

// Stalls, for whole layers and for selected entries. So little data may always arrive in time, so only an upper bound
// is tested: the stall is not longer than the elapsed time. (FetchTest tests that stalls are counted at all.)
TEST_F(CudaModel, StallsAreNoLongerThanTheElapsedTime) {
  const std::vector<int32_t> ids = model.Ids(340, 9);
  for (const KvMethod& method : {KvMethod(), Sparse(GuessSource::kSelf), Sparse(GuessSource::kPrevLayer)}) {
    const std::unique_ptr<Executor> executor = Make(method);
    const auto start = std::chrono::steady_clock::now();
    Decode(*executor, ids, 290);
    const auto passed = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start);
    const uint64_t waited = executor->instruments().Stats().stall_ns;
    EXPECT_LT(waited, static_cast<uint64_t>(passed.count())) << method.preset;
    const std::unique_ptr<Executor> local = Make(method, /*on_device=*/true);
    Decode(*local, ids, 290);
    EXPECT_EQ(local->instruments().Stats().stall_ns, 0u);
  }
}

// Three sequences of different lengths in one batch, and each alone.
TEST_F(CudaModel, SequencesOfDifferentLengths) {
  const size_t vocab = static_cast<size_t>(model.config.vocab);
  const std::vector<int32_t> ids = model.Ids(500, 4);
  const std::unique_ptr<Executor> executor = Make({}, false, 3);
  std::vector<StepItem> items;
  for (const int64_t length : {31, 257, 480}) {
    StepItem item{.slot = executor->Admit(500).value(), .token = ids[static_cast<size_t>(length)], .row = length};
    CHECK(executor->BeginPrefill(item.slot, 0, std::span(ids).first(static_cast<size_t>(length))).ok());
    while (!executor->RunPrefillUnit(item.slot)) {
    }
    executor->EndPrefill(item.slot);
    items.push_back(item);
  }
  std::vector<float> logits(3 * vocab);
  executor->Step(items, logits);
  for (size_t i = 0; i < items.size(); ++i) {
    const size_t length = static_cast<size_t>(items[i].row);
    const std::vector<float> alone = Decode(*Make({}), std::span(ids).first(length + 1), length);
    EXPECT_LT(Difference({logits.begin() + static_cast<std::ptrdiff_t>(i * vocab),
                          logits.begin() + static_cast<std::ptrdiff_t>((i + 1) * vocab)},
                         alone),
              1e-5);
  }
}

// Two prefills in progress at once, alternating layer by layer.
TEST_F(CudaModel, TwoPromptsAtOnceGiveTheSameLogitsAsAlone) {
  const size_t vocab = static_cast<size_t>(model.config.vocab);
  const std::array<std::vector<int32_t>, 2> ids = {model.Ids(710, 9), model.Ids(130, 10)};
  KvMethod counter = Sparse(GuessSource::kSelf);
  counter.retain = &kRetainCounter;
  counter.limit.share = 0.5;
  for (const KvMethod& method : {KvMethod(), Sparse(GuessSource::kPrevMid), Sparse(GuessSource::kPrevStep), counter}) {
    for (const bool on_device : {false, true}) {
      const std::unique_ptr<Executor> executor = Make(method, on_device, 2);
      std::array<SeqSlot, 2> slots;
      for (size_t i = 0; i < 2; ++i) {
        slots[i] = executor->Admit(std::ssize(ids[i])).value();
        CHECK(executor->BeginPrefill(slots[i], 0, std::span(ids[i]).first(ids[i].size() - 8)).ok());
        if (i == 0) executor->RunPrefillUnit(slots[i]);
      }
      for (std::array<bool, 2> done{}; !done[0] || !done[1];)
        for (const size_t i : {size_t{1}, size_t{0}}) {
          if (std::exchange(done[i], done[i] || executor->RunPrefillUnit(slots[i]))) continue;
          if (done[i]) executor->EndPrefill(slots[i]);
        }
      for (size_t i = 0; i < 2; ++i) {
        std::vector<float> logits;
        for (size_t row = ids[i].size() - 8; row < ids[i].size(); ++row) {
          const StepItem item{.slot = slots[i], .token = ids[i][row], .row = static_cast<int64_t>(row)};
          logits.resize(logits.size() + vocab);
          executor->Step({&item, 1}, std::span(logits).last(vocab));
        }
        EXPECT_EQ(logits, Decode(*Make(method, on_device, 2), ids[i], ids[i].size() - 8)) << method.preset << on_device;
      }
    }
  }
}

// Memory plans, which need no GPU.
TEST(CudaPlan, TheStagesIncludeAnInterleavedPrompt) {
  const ModelConfig config = Llama();
  const auto added = [&](const KvMethod& method, bool on_device) {
    ExecutorOptions options{
        .device = Device::kCuda, .max_tokens = 4096, .max_batch = 4, .method = method, .pool_on_device = on_device};
    const MemoryPlan without = PlanMemory(config, options, 0);
    options.side_tokens = 1000;
    const MemoryPlan with = PlanMemory(config, options, 0);
    EXPECT_EQ(with.prefill_bytes - without.prefill_bytes, 1000 * static_cast<uint64_t>(config.hidden) * sizeof(float));
    EXPECT_EQ(with.total_bytes() - without.total_bytes(),
              with.prefill_bytes - without.prefill_bytes + with.stage_bytes - without.stage_bytes);
    return with.stage_bytes - without.stage_bytes;
  };
  // Two stages of four extents.
  const auto row_bytes = static_cast<uint64_t>(config.kv_heads * 2 * config.head_dim) * sizeof(float);
  EXPECT_EQ(added(Sparse(GuessSource::kPrevMid), false), 2 * 4 * 256 * row_bytes);
  EXPECT_EQ(added(Sparse(GuessSource::kPrevMid), true), 0u);
  EXPECT_EQ(added({}, false), 0u) << "every sequence has its place there";
}

int64_t ResidentKilobytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("VmRSS:", 0) == 0) return std::stoll(line.substr(6));
  return 0;
}

// A second sequence continues from a shared prefix, with the pool on the host or on the device.
TEST_F(CudaModel, SharedPrefixesGiveTheSameLogitsAsAlone) {
  const size_t vocab = static_cast<size_t>(model.config.vocab), prompt = 300;
  const std::vector<int32_t> ids = model.Ids(prompt + 10, 8);
  for (const KvMethod& method :
       {KvMethod(), Sparse(GuessSource::kPrevLayer), Sparse(GuessSource::kSelf, &kSelectQuest)}) {
    for (const bool on_device : {false, true}) {
      const std::unique_ptr<Executor> executor = Make(method, on_device, 2);
      const auto say = [&](std::span<const SharedId> prefix, SharedId* shared) {
        const int64_t first = 256 * static_cast<int64_t>(prefix.size());
        const SeqSlot slot = executor->sharing()->AdmitGrowing(512, prefix).value();
        const std::span<const int32_t> rest = std::span(ids).first(prompt).subspan(static_cast<size_t>(first));
        CHECK(executor->BeginPrefill(slot, first, rest).ok());
        while (!executor->RunPrefillUnit(slot)) {
        }
        executor->EndPrefill(slot);
        if (shared != nullptr) *shared = executor->sharing()->Share(slot, 0).value();
        std::vector<float> logits;
        for (size_t row = prompt; row < ids.size(); ++row) {
          const StepItem item{.slot = slot, .token = ids[row], .row = static_cast<int64_t>(row)};
          logits.resize(logits.size() + vocab);
          executor->Step({&item, 1}, std::span(logits).last(vocab));
        }
        executor->Release(slot);
        return logits;
      };
      SharedId shared;
      const std::vector<float> first = say({}, &shared);
      EXPECT_LT(Difference(say(std::array{shared}, nullptr), first), kHalfRounding) << method.preset << on_device;
      executor->sharing()->DropShared(shared);
    }
  }
}

TEST_F(CudaModel, TwoThousandStepsLeakNothing) {
  for (const KvMethod& method : {KvMethod(), Sparse(GuessSource::kPrevMid), Sparse(GuessSource::kPrevLayer)}) {
    const std::unique_ptr<Executor> executor = Make(method);
    const SeqSlot slot = executor->Admit(1024).value();
    std::vector<float> logits(static_cast<size_t>(model.config.vocab));
    int64_t resident = 0;
    uint64_t free_bytes = 0;
    for (int64_t step = 0; step < 2000; ++step) {
      const StepItem item{.slot = slot, .token = 1, .row = step % 1000};
      executor->Step({&item, 1}, logits);
      if (step == 1000) {
        resident = ResidentKilobytes();
        free_bytes = FindGpu()->free_bytes;
      }
    }
    EXPECT_LE(ResidentKilobytes() - resident, 512);
    EXPECT_EQ(FindGpu()->free_bytes, free_bytes);
    executor->Release(slot);
  }
}

TEST_F(CudaModel, TooLittleMemoryIsAnError) {
  const Result<std::unique_ptr<Executor>> small = MakeExecutor(
      model.config, model.weights,
      {.device = Device::kCuda, .max_tokens = 1024, .max_batch = 1, .device_memory_bytes = uint64_t{1} << 20});
  ASSERT_FALSE(small.ok());
  EXPECT_EQ(small.error().kind, ErrorKind::kExhausted);
  EXPECT_NE(small.error().message.find("GPU memory"), std::string::npos) << small.error().message;
}

}  // namespace
}  // namespace infinigen
