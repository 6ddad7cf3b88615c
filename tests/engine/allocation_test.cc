// Decode steps allocate no memory, neither from the heap nor from the system, also when a sequence enters a new extent
// or block. Counted at operator new and mmap, for the whole program.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "engine/engine.h"
#include "model/executor.h"

namespace {

std::atomic<int64_t> allocations{0};

}  // namespace

void* operator new(size_t bytes) {
  ++allocations;
  if (void* data = std::malloc(bytes); data != nullptr) return data;
  throw std::bad_alloc();
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  ++allocations;
  const size_t align = static_cast<size_t>(alignment);
  if (void* data = std::aligned_alloc(align, (bytes + align - 1) / align * align); data != nullptr) return data;
  throw std::bad_alloc();
}
void operator delete(void* data) noexcept { std::free(data); }
void operator delete(void* data, size_t) noexcept { std::free(data); }
void operator delete(void* data, std::align_val_t) noexcept { std::free(data); }
void operator delete(void* data, size_t, std::align_val_t) noexcept { std::free(data); }

extern "C" void* mmap(void* address, size_t bytes, int protection, int flags, int file, off_t offset) noexcept {
  ++allocations;
  return reinterpret_cast<void*>(::syscall(SYS_mmap, address, bytes, protection, flags, file, offset));
}

namespace infinigen {
namespace {

struct Case {
  const char* name;
  KvMethod method;
};

KvMethod Sparse(GuessSource from, bool mean, const SelectMethod* select = &kSelectSketch) {
  KvMethod method{.preset = "infinigen", .select = select, .from = from};
  method.rule = {.alpha = 3.0f, .cap = 0.2, .min_rows = 16, .sinks = 2, .window = 8};
  method.dense_layers = from == GuessSource::kSelf ? 0 : 1;
  method.sketch.dims = 8;
  method.mean_counts = mean;
  return method;
}

// About 300 of 1,020 to 1,220 tokens are retained, so that most steps evict.
KvMethod Limited(const RetainPolicy& policy, GuessSource from) {
  KvMethod method = Sparse(from, false, policy.needs_selection() ? &kSelectSketch : &kSelectAll);
  method.retain = &policy;
  method.limit.share = 0.3;
  return method;
}

class Allocation : public testing::TestWithParam<Case> {};

TEST_P(Allocation, AStepAllocatesNothing) {
  ModelConfig config{.name = "test",
                     .hidden = 64,
                     .heads = 8,
                     .kv_heads = 2,
                     .head_dim = 16,
                     .ffn = 96,
                     .vocab = 101,
                     .embed_dim = 64,
                     .max_positions = 4096,
                     .ropes = {RopeConfig()}};
  LayerSpec spec = PlainLayer(config.head_dim);
  config.SetLayers(3, spec);
  config.specs[1].qk_norm = QkNorm::kHead;
  const Weights weights = RandomWeights(config, WeightType::kBF16, 1, 1).value();
  SketchMatrices basis{.query = std::vector<float>(2 * 16 * 8, 0.25f),
                       .key = std::vector<float>(2 * 16 * 8, 0.25f),
                       .key_offset = std::vector<float>(2 * 8)};
  for (size_t i = 0; i < basis.query.size(); i += 3) basis.query[i] = basis.key[i] = -0.5f;
  const std::unique_ptr<Executor> executor =
      MakeExecutor(
          config, weights,
          {.threads = 2, .max_tokens = 1500, .max_batch = 3, .kv_type = StoreType::kBF16, .method = GetParam().method},
          {.bases = std::vector<SketchMatrices>(3, basis)})
          .value();
  Engine engine(*executor);
  int64_t first = 0, last = 0, tokens = 0;
  for (int sequence = 0; sequence < 3; ++sequence) {
    Request request{.prompt = std::vector<int32_t>(static_cast<size_t>(20 + 100 * sequence), 7),
                    .max_new_tokens = 1000,
                    .ignore_eos = true};
    request.sampling.temperature = 0;
    // From the first step in which all requests decode to the last but one; no request begins or ends in between.
    request.on_token = [&](RequestId, int32_t) {
      ++tokens;
      if (tokens == 30) first = allocations;
      if (tokens == 2900) last = allocations;
      return true;
    };
    ASSERT_TRUE(engine.Submit(std::move(request)).ok());
  }
  while (engine.RunOnce()) {
  }
  ASSERT_EQ(tokens, 3000);
  EXPECT_GT(first, 0);
  EXPECT_EQ(last - first, 0);
}

INSTANTIATE_TEST_SUITE_P(Methods, Allocation,
                         testing::Values(Case{"full", {}}, Case{"self", Sparse(GuessSource::kSelf, false)},
                                         Case{"mean", Sparse(GuessSource::kSelf, true)},
                                         Case{"prev_layer", Sparse(GuessSource::kPrevLayer, false)},
                                         Case{"prev_mid", Sparse(GuessSource::kPrevMid, false)},
                                         Case{"prev_step", Sparse(GuessSource::kPrevStep, false)},
                                         Case{"quest", Sparse(GuessSource::kSelf, false, &kSelectQuest)},
                                         Case{"quest_mid", Sparse(GuessSource::kPrevMid, true, &kSelectQuest)},
                                         Case{"page_mean", Sparse(GuessSource::kSelf, false, &kSelectPageMean)},
                                         Case{"counter", Limited(kRetainCounter, GuessSource::kSelf)},
                                         Case{"lru_mid", Limited(kRetainLru, GuessSource::kPrevMid)},
                                         Case{"h2o", Limited(kRetainH2o, GuessSource::kSelf)}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace infinigen
