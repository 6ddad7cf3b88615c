// Decode steps that select: compared with an independent forward pass, with full attention when everything is selected,
// and with themselves in other batches, threads and chunks.
#include <gtest/gtest.h>

#include "model/random_model.h"

namespace infinigen {
namespace {

struct Case {
  std::string name;
  ModelConfig config;
  GuessSource from;
  const SelectMethod* select = &kSelectSketch;
  bool tail = false;
  int32_t late = 0;
};
std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const GuessSource from :
       {GuessSource::kSelf, GuessSource::kPrevLayer, GuessSource::kPrevMid, GuessSource::kPrevStep}) {
    for (const ModelConfig& config : {Llama(), Opt(), Mixed(), Capped()}) {
      std::string name = config.name.substr(5) + "_" + std::string(Name(from));
      std::replace(name.begin(), name.end(), '-', '_');
      cases.push_back({name, config, from});
      cases.push_back({name + "_tail", config, from, &kSelectSketch, true});
      if (from != GuessSource::kSelf) cases.push_back({name + "_late", config, from, &kSelectSketch, true, 5});
    }
  }
  cases.push_back({"llama_quest", Llama(), GuessSource::kSelf, &kSelectQuest});
  cases.push_back({"llama_quest_prev_mid", Llama(), GuessSource::kPrevMid, &kSelectQuest});
  cases.push_back({"opt_quest_prev_step", Opt(), GuessSource::kPrevStep, &kSelectQuest});
  cases.push_back({"mixed_quest_prev_layer", Mixed(), GuessSource::kPrevLayer, &kSelectQuest});
  cases.push_back({"capped_quest_prev_layer", Capped(), GuessSource::kPrevLayer, &kSelectQuest});
  cases.push_back({"capped_page_mean", Capped(), GuessSource::kSelf, &kSelectPageMean});
  cases.push_back({"llama_page_mean", Llama(), GuessSource::kSelf, &kSelectPageMean});
  cases.push_back({"llama_page_mean_prev_mid", Llama(), GuessSource::kPrevMid, &kSelectPageMean});
  cases.push_back({"opt_page_mean_prev_step", Opt(), GuessSource::kPrevStep, &kSelectPageMean});
  cases.push_back({"mixed_page_mean_prev_layer", Mixed(), GuessSource::kPrevLayer, &kSelectPageMean});
  return cases;
}
template <class Keep>
std::vector<Case> Cases(Keep keep) {
  std::vector<Case> cases = Cases();
  std::erase_if(cases, [&](const Case& c) { return !keep(c); });
  return cases;
}

class Selecting : public testing::TestWithParam<Case> {
 protected:
  RandomModelWithBases model{GetParam().config, 8, 11};
  const bool pages = GetParam().select->page_rows > 1;
  KvMethod method = GetParam().tail ? WithTail(Sparse(GetParam().from), GetParam().late, GetParam().config.head_dim)
                                    : Sparse(GetParam().from, GetParam().select);
};
class SelectingBySketch : public Selecting {};
class SelectingLate : public Selecting {};
class SelectingByColumns : public Selecting {};
class SelectingAtAnyLength : public Selecting {};

// Rounding may occasionally swap two rows of almost equal score, or move a number of a value's sketch by one of its 15
// steps; a wrong guess changes many rows.
TEST_P(Selecting, EqualsAnIndependentForwardPass) {
  for (const SketchType type : {SketchType::kBF16, SketchType::kInt8, SketchType::kInt4}) {
    if (pages && type != SketchType::kBF16) continue;  // has no sketches
    method.sketch.type = type;
    constexpr uint32_t kSeeds = 4;
    uint32_t reference = 0, cpu = 0;
    for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
      const std::vector<int32_t> ids = model.Ids(156, seed);
      const std::vector<float> want = Independent(model, method, ids, 150);
      const double bound = GetParam().tail ? 20 * kRounding : kRounding;
      reference += Difference(Decode(*model.Make(method, Device::kReference), ids, 150), want) < bound;
      cpu += Difference(Decode(*model.Make(method), ids, 150), want) < bound;
    }
    EXPECT_GE(reference, kSeeds - 1) << Name(type);
    EXPECT_GE(cpu, kSeeds - 1) << Name(type);
  }
}

// The published code for Llama has the first three of these errors.
TEST_P(Selecting, EveryMistakeOfTheGuessIsSeen) {
  const std::vector<int32_t> ids = model.Ids(190, 1);
  const std::vector<float> ours = Decode(*model.Make(method), ids, 150);
  const bool guesses = method.from != GuessSource::kSelf, llama = GetParam().config.name == "test-llama";
  const auto seen = [&](GuessMistakes mistakes) {
    return Difference(ours, Independent(model, method, ids, 150, mistakes)) > 100 * kRounding;
  };
  if (!pages) {
    EXPECT_TRUE(seen({.unskewed = true}));
  }
  if (llama) {
    EXPECT_TRUE(seen({.ungrouped = true}));
  }
  if (llama && guesses) {
    EXPECT_TRUE(seen({.unrotated = true}));
  }
  if (method.guesses_from_layer()) {
    EXPECT_TRUE(seen({.no_bias = true}));
  }
  if (method.from == GuessSource::kPrevMid) {
    EXPECT_TRUE(seen({.wrong_norm = true}));
  }
  if (method.has_tail()) {
    EXPECT_TRUE(seen({.no_tail = true}));
    EXPECT_TRUE(seen({.no_level = true}));
    EXPECT_TRUE(seen({.next_value = true}));
    EXPECT_TRUE(seen({.no_means = true}));
    EXPECT_TRUE(seen({.early_mean = true}));
  }
  if (method.has_late()) {
    EXPECT_TRUE(seen({.late_by_guess = true}));
    EXPECT_TRUE(seen({.late_in_tail = true}));
    EXPECT_TRUE(seen({.late_off_by_one = true}));
  }
}

// A mass chooses other rows than a threshold, with the same definitions behind it.
TEST_P(SelectingBySketch, ByMassEqualsAnIndependentForwardPass) {
  method.rule.mass = 0.6f;
  method.rule.cap = 0.5;
  constexpr uint32_t kSeeds = 12;
  uint32_t same = 0;
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    const std::vector<int32_t> ids = model.Ids(156, seed);
    const std::vector<float> want = Independent(model, method, ids, 150);
    const double bound = GetParam().tail ? 20 * kRounding : kRounding;
    same += Difference(Decode(*model.Make(method, Device::kReference), ids, 150), want) < bound;
    same += Difference(Decode(*model.Make(method), ids, 150), want) < bound;
  }
  EXPECT_GE(same, 2 * kSeeds * 3 / 4) << "a share at the limit may be rounded to the other side";
  const std::vector<int32_t> ids = model.Ids(400, 5);
  const std::vector<float> one = Decode(*model.Make(method, Device::kCpu, 1), ids, 300);
  EXPECT_EQ(Decode(*model.Make(method, Device::kCpu, 3), ids, 300), one);
}

TEST_P(Selecting, SelectingEverythingEqualsFullAttentionBitForBit) {
  const std::vector<int32_t> ids = model.Ids(700, 2);
  const KvMethod own = method;
  for (const StoreType type : {StoreType::kF32, StoreType::kInt4}) {
    method = own;
    const auto make = [&](const KvMethod& of) { return model.Make(of, Device::kCpu, 2, 1, type); };
    const std::vector<float> full = Decode(*make({}), ids, 330);
    method.rule = {.alpha = kInfinity, .cap = 1.0, .min_rows = 0};
    EXPECT_EQ(Decode(*make(method), ids, 330), full) << Name(type);
    method.select = &kSelectOracle;
    EXPECT_EQ(Decode(*make(method), ids, 330), full) << Name(type);
  }
}

// Entries in int4 are turned, and so must be everything that meets them: queries, outputs, what a tail knows of values.
// Measured: at most 0.08 with a tail, and 0.28 to 0.53 if its values are not turned; at most 0.17 without one, where a
// selection misses the rows that rounding has moved.
TEST_P(Selecting, Int4EntriesGiveNearlyTheSameLogits) {
  double squares = 0, errors = 0;
  for (const Device device : {Device::kCpu, Device::kReference}) {
    for (uint32_t seed = 1; seed <= 3; ++seed) {
      const std::vector<int32_t> ids = model.Ids(200, seed);
      const std::vector<float> exact = Decode(*model.Make(method, device), ids, 150);
      const std::vector<float> ours = Decode(*model.Make(method, device, 2, 1, StoreType::kInt4), ids, 150);
      for (size_t i = 0; i < ours.size(); ++i) {
        squares += static_cast<double>(exact[i]) * static_cast<double>(exact[i]);
        errors += std::pow(static_cast<double>(ours[i]) - static_cast<double>(exact[i]), 2);
      }
    }
  }
  EXPECT_LT(std::sqrt(errors / squares), method.has_tail() ? 0.15 : 0.25);
}

// A guess leaves most rows out, and late rows are all of them. They join the selection in its order, so that no bit
// differs.
TEST_P(SelectingLate, RowsCompleteASelectionToFullAttentionBitForBit) {
  const std::vector<int32_t> ids = model.Ids(700, 2);
  method.rule.late = 1000;
  const std::unique_ptr<Executor> executor = model.Make(method);
  EXPECT_EQ(Decode(*executor, ids, 330), Decode(*model.Make({}), ids, 330));
  const LayerKvStats stats = executor->instruments().Stats().Selecting();
  EXPECT_EQ(stats.totals.attended, stats.totals.retained);
  EXPECT_GT(stats.late_ratio(), 0.5);
}

// Late rows count as chosen and as attended; there are as many as asked for, unless everything is attended.
TEST_P(SelectingLate, RowsAreCounted) {
  const std::unique_ptr<Executor> executor = model.Make(method);
  method.rule.late = 0;
  const std::unique_ptr<Executor> without = model.Make(method);
  Decode(*executor, model.Ids(200, 8), 150);
  Decode(*without, model.Ids(200, 8), 150);
  const std::vector<LayerKvStats> stats = executor->instruments().Stats().layers;
  size_t selecting = 0;
  for (const LayerKvStats& layer : stats) {
    const uint64_t late = layer.selects ? 50u * 5u * static_cast<uint64_t>(model.config.kv_heads) : 0u;
    EXPECT_EQ(layer.totals.late, late);
    if (!layer.selects || ++selecting > 1) continue;
    // The first layer that selects has the same input in both.
    const SelectionTotals& plain =
        without->instruments().Stats().layers[static_cast<size_t>(&layer - stats.data())].totals;
    EXPECT_EQ(layer.totals.attended, plain.attended + late);
    EXPECT_EQ(layer.totals.chosen, plain.chosen + late);
    EXPECT_EQ(layer.totals.retained, plain.retained);
  }
}

TEST_P(Selecting, StepsInAPrefillEqualSingleSteps) {
  const std::vector<int32_t> ids = model.Ids(600, 3);  // more than one chunk
  const std::unique_ptr<Executor> executor = model.Make(method);
  const std::vector<float> steps = Decode(*executor, ids, 0);
  EXPECT_EQ(AsSteps(*executor, ids), steps);
  method.mean_counts = true;
  const std::unique_ptr<Executor> mean = model.Make(method);
  EXPECT_EQ(AsSteps(*mean, ids), Decode(*mean, ids, 0));
}

// Lists for a long context leave room for few tokens at once, so a run is divided.
TEST_P(SelectingAtAnyLength, ADividedRunEqualsAWholeOne) {
  const std::vector<int32_t> ids = model.Ids(300, 3);
  const std::vector<float> whole = AsSteps(*model.Make(method), ids);
  for (const int64_t context : {int64_t{1} << 17, int64_t{1} << 19}) {  // up to 32, then 8 tokens at once
    const std::unique_ptr<Executor> executor =
        MakeExecutor(model.config, model.weights,
                     {.threads = 2, .max_tokens = context, .kv_type = StoreType::kF32, .method = method},
                     {.bases = model.bases, .tails = model.tails})
            .value();
    EXPECT_EQ(AsSteps(*executor, ids), whole) << context;
  }
}

TEST_P(Selecting, ThreadsDoNotMatter) {
  const std::vector<int32_t> ids = model.Ids(300, 4);
  const std::vector<float> one = Decode(*model.Make(method, Device::kCpu, 1), ids, 200);
  for (const int threads : {2, 3}) EXPECT_EQ(Decode(*model.Make(method, Device::kCpu, threads), ids, 200), one);
}

TEST_P(Selecting, OtherSequencesDoNotMatter) {
  const std::unique_ptr<Executor> together = model.Make(method, Device::kCpu, 2, 3);
  const size_t vocab = static_cast<size_t>(model.config.vocab), steps = 20;
  std::vector<std::vector<int32_t>> ids;
  std::vector<std::vector<float>> alone;
  std::vector<StepItem> items;
  for (uint32_t i = 0; i < 3; ++i) {
    const size_t prefill = 30 + 130 * i;
    ids.push_back(model.Ids(prefill + steps, 5 + i));
    alone.push_back(Decode(*model.Make(method), ids[i], prefill));
    const SeqSlot slot = together->Admit(static_cast<int64_t>(ids[i].size())).value();
    ASSERT_TRUE(together->BeginPrefill(slot, 0, std::span(ids[i]).first(prefill)).ok());
    while (!together->RunPrefillUnit(slot)) {
    }
    together->EndPrefill(slot);
    items.push_back({.slot = slot, .token = 0, .row = static_cast<int64_t>(prefill)});
  }
  std::vector<float> logits(3 * vocab);
  for (size_t step = 0; step < steps; ++step) {
    for (size_t i = 0; i < 3; ++i) items[i].token = ids[i][static_cast<size_t>(items[i].row)];
    together->Step(items, logits);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(std::equal(logits.begin() + static_cast<ptrdiff_t>(i * vocab),
                             logits.begin() + static_cast<ptrdiff_t>((i + 1) * vocab),
                             alone[i].begin() + static_cast<ptrdiff_t>(step * vocab)))
          << "sequence " << i << ", step " << step;
      ++items[i].row;
    }
  }
}

TEST_P(Selecting, CountsMatchTheAttendedRows) {
  method.rule = {.alpha = kInfinity, .cap = 0.25, .min_rows = 1, .sinks = 0, .window = 0};
  const std::unique_ptr<Executor> executor = model.Make(method);
  Decode(*executor, model.Ids(200, 8), 100);
  const KvStats stats = executor->instruments().Stats();
  EXPECT_EQ(stats.steps, 100);
  uint64_t rows = 0, chosen = 0;
  for (uint64_t n = 101; n <= 200; ++n) rows += n, chosen += pages ? n / 4 / 16 * 16 : n / 4;
  const uint64_t heads = static_cast<uint64_t>(model.config.kv_heads);
  for (size_t layer = 0; layer < stats.layers.size(); ++layer) {
    const LayerKvStats& of = stats.layers[layer];
    if (const int64_t window = model.config.specs[layer].window; window > 0) {
      EXPECT_FALSE(of.selects);
      EXPECT_EQ(of.totals.attended, static_cast<uint64_t>(100 * window) * heads) << layer;
      continue;
    }
    EXPECT_EQ(of.totals.retained, rows * heads) << layer;
    EXPECT_EQ(of.selects, layer >= static_cast<size_t>(method.dense_layers));
    if (!of.selects) {
      EXPECT_EQ(of.totals.attended, rows * heads) << layer;
      continue;
    }
    EXPECT_EQ(of.totals.chosen, chosen * heads) << layer;
    // In addition the current token unless it was chosen; with pages, the rows after the last complete page.
    uint64_t extra = 0;
    for (uint64_t n = 101; n <= 200; ++n) extra += pages ? (n - 1) % 16 + 1 : 1;
    const uint64_t on_top = of.totals.attended - of.totals.chosen;
    EXPECT_LE(on_top, extra * heads) << layer;
    if (pages) {
      EXPECT_EQ(on_top, extra * heads) << layer;
    }
  }
}

// The prompt chooses columns by Σ|qA| + Σ|kA| over its queries and keys; they are used for every key from then on.
TEST_P(SelectingByColumns, AChosenBasisIsUsedForTheWholeSequence) {
  method.prompt_columns = true;
  const RandomModelWithBases other(GetParam().config, 8, 99);
  const ModelConfig& config = model.config;
  const size_t d = static_cast<size_t>(config.head_dim), kv_heads = static_cast<size_t>(config.kv_heads);
  std::vector<std::vector<double>> told(static_cast<size_t>(config.layers));
  SketchSource source{.bases = model.bases};
  source.rotation = [&](LayerId) {  // swaps the first two dimensions of every head
    std::vector<float> matrix(kv_heads * d * d);
    for (size_t head = 0; head < kv_heads; ++head)
      for (size_t i = 0; i < d; ++i) matrix[(head * d + i) * d + (i < 2 ? 1 - i : i)] = 1;
    return matrix;
  };
  source.choose = [&](LayerId layer, std::span<const double> sums) {
    told[layer.index()].assign(sums.begin(), sums.end());
    return other.bases[layer.index()];
  };
  const std::unique_ptr<Executor> chooses =
      MakeExecutor(config, model.weights,
                   {.threads = 2, .max_tokens = 1024, .kv_type = StoreType::kF32, .method = method}, std::move(source))
          .value();
  std::vector<std::vector<double>> sums(static_cast<size_t>(config.layers), std::vector<double>(kv_heads * d));
  chooses->instruments().ObservePrefill([&](LayerId layer, const PrefillRows& unit) {
    for (const ConstTensor* rows : {&unit.queries, &unit.keys}) {
      const size_t width = static_cast<size_t>(rows->cols), per_kv = width / kv_heads;
      for (int64_t r = 0; r < rows->rows; ++r)
        for (size_t i = 0; i < width; ++i) {
          const size_t column = i % d < 2 ? 1 - i % d : i % d;
          sums[layer.index()][i / per_kv * d + column] += std::fabs(static_cast<double>(rows->as<float>(r)[i]));
        }
    }
  });
  const std::vector<int32_t> ids = model.Ids(620, 12);  // more than one chunk
  const std::vector<float> ours = Decode(*chooses, ids, 600);
  method.prompt_columns = false;
  const std::unique_ptr<Executor> fixed =
      MakeExecutor(config, model.weights,
                   {.threads = 2, .max_tokens = 1024, .kv_type = StoreType::kF32, .method = method},
                   {.bases = other.bases})
          .value();
  EXPECT_EQ(ours, Decode(*fixed, ids, 600));
  for (size_t layer = static_cast<size_t>(method.dense_layers); layer < told.size(); ++layer) {
    if (config.specs[layer].window > 0) continue;
    ASSERT_EQ(told[layer].size(), sums[layer].size());
    for (size_t i = 0; i < sums[layer].size(); ++i) EXPECT_NEAR(told[layer][i], sums[layer][i], 1e-3 * sums[layer][i]);
  }
}

// A chat that rewinds to an earlier row and continues with other tokens. A method that selects pages rewinds to the
// start of a page, where its index is reset.
TEST_P(Selecting, RewoundRowsAreForgotten) {
  const size_t vocab = static_cast<size_t>(model.config.vocab), kept = 96;
  const std::vector<int32_t> old_ids = model.Ids(250, 13);
  std::vector<int32_t> ids = model.Ids(160, 14);
  std::copy_n(old_ids.begin(), kept, ids.begin());
  const std::unique_ptr<Executor> executor = model.Make(method);
  const SeqSlot slot = executor->Admit(250).value();
  const auto prefill = [&](size_t first, std::span<const int32_t> tokens) {
    ASSERT_TRUE(executor->BeginPrefill(slot, static_cast<int64_t>(first), tokens).ok());
    while (!executor->RunPrefillUnit(slot)) {
    }
    executor->EndPrefill(slot);
  };
  prefill(0, old_ids);
  prefill(kept, std::span(ids).subspan(kept, 150 - kept));
  std::vector<float> logits(10 * vocab);
  for (size_t row = 150; row < 160; ++row) {
    const StepItem item{.slot = slot, .token = ids[row], .row = static_cast<int64_t>(row)};
    executor->Step({&item, 1}, std::span(logits).subspan((row - 150) * vocab, vocab));
  }
  EXPECT_EQ(logits, Decode(*model.Make(method), ids, 150));
}

// More threads than heads: the scores of a head are computed in several parts.
TEST_P(SelectingAtAnyLength, MoreThreadsThanHeadsSelectTheSameRows) {
  for (const bool mean : {false, true}) {
    method.mean_counts = mean;
    method.rule.alpha = 0.5f;
    std::vector<std::vector<float>> logits;
    for (const int threads : {1, 8}) {
      const std::unique_ptr<Executor> executor =
          MakeExecutor(model.config, model.weights,
                       {.threads = threads, .max_tokens = 9000, .kv_type = StoreType::kF32, .method = method},
                       {.bases = model.bases, .tails = model.tails})
              .value();
      const SeqSlot slot = executor->Admit(9000).value();
      executor->instruments().FillSynthetic(slot, 8999, 5);
      const StepItem item{.slot = slot, .token = 3, .row = 8999};
      logits.emplace_back(static_cast<size_t>(model.config.vocab));
      executor->Step({&item, 1}, logits.back());
      executor->Release(slot);
    }
    EXPECT_EQ(logits[0], logits[1]) << mean;
  }
}

constexpr auto kCaseName = [](const auto& test) { return test.param.name; };
INSTANTIATE_TEST_SUITE_P(Models, Selecting, testing::ValuesIn(Cases()), kCaseName);
INSTANTIATE_TEST_SUITE_P(Models, SelectingBySketch,
                         testing::ValuesIn(Cases([](const Case& c) { return c.select->uses_basis; })), kCaseName);
INSTANTIATE_TEST_SUITE_P(Models, SelectingLate, testing::ValuesIn(Cases([](const Case& c) { return c.late > 0; })),
                         kCaseName);
INSTANTIATE_TEST_SUITE_P(Models, SelectingByColumns,
                         testing::ValuesIn(Cases([](const Case& c) { return c.select->uses_basis && !c.tail; })),
                         kCaseName);
INSTANTIATE_TEST_SUITE_P(Models, SelectingAtAnyLength, testing::ValuesIn(Cases([](const Case& c) {
                           return c.config.positions != PositionKind::kLearned;  // learned positions are too few
                         })),
                         kCaseName);

}  // namespace
}  // namespace infinigen
