// A remote pool and streamed weights give bit-identical results, however late copies run. The backend under test runs
// operations at once, but copies and fetches as late as the tickets allow, which detects a missing Wait and memory that
// is reused too early.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <random>

#include "backend/reference/reference_backend.h"
#include "model/decoder_executor.h"
#include "model/random_model.h"
#include "sanitized.h"

namespace infinigen {
namespace {

class LateBackend : public ReferenceBackend {
 public:
  static constexpr bool pool_is_remote() { return true; }

  void Move(Queue queue, std::span<const ByteMove> moves) {
    for (const ByteMove& move : moves)
      Of(queue).pending.push_back([this, queue, move] { ReferenceBackend::Move(queue, {&move, 1}); });
  }
  void FetchMisses(Queue queue, const TokenBatch& batch, const Selection& selection, const LayerEntries& entries,
                   const FetchBuffer& buffer, const FetchList& list, FetchClock* clock) {
    Of(queue).pending.push_back(
        [=, this] { ReferenceBackend::FetchMisses(queue, batch, selection, entries, buffer, list, clock); });
  }
  void NoteArrived(Queue queue, FetchClock* clock) {
    Of(queue).pending.push_back([=, this] { ReferenceBackend::NoteArrived(queue, clock); });
  }
  Ticket Record(Queue queue) {
    tickets_.push_back({queue, Of(queue).done + Of(queue).pending.size()});
    return {tickets_.size()};
  }
  void Wait(Queue, Ticket ticket) { RunUpTo(ticket); }
  void Synchronize(Ticket ticket) { RunUpTo(ticket); }

 private:
  struct State {
    std::deque<std::function<void()>> pending;
    size_t done = 0;
  };
  struct Point {
    Queue queue;
    size_t done;
  };
  State& Of(Queue queue) { return queues_[static_cast<size_t>(queue)]; }
  void RunUpTo(Ticket ticket) {
    if (ticket.value == 0) return;
    const Point point = tickets_[ticket.value - 1];
    for (State& state = Of(point.queue); state.done < point.done; ++state.done) {
      state.pending.front()();
      state.pending.pop_front();
    }
  }

  std::array<State, 4> queues_;
  std::vector<Point> tickets_;
};

struct Case {
  std::string name;
  KvMethod method;
  StoreType type = StoreType::kF32;
  double weights_on_device = 1.0;
};

KvMethod Evicting(KvMethod method, const RetainPolicy& policy) {
  method.retain = &policy;
  method.limit.share = 0.5;
  return method;
}

std::vector<Case> Cases() {
  const KvMethod full;
  KvMethod dense_first = Evicting(full, kRetainStreaming);
  dense_first.dense_layers = 1;
  if (kSanitized)  // each kind of memory once
    return {{"int8", full, StoreType::kInt8},
            {"streaming_behind_a_dense_layer", dense_first},
            {"infinigen_guessing", Sparse(GuessSource::kPrevMid), StoreType::kF32, 0.5},
            {"quest_guessing_early", Sparse(GuessSource::kPrevLayer, &kSelectQuest)},
            {"late_rows_early", WithTail(Sparse(GuessSource::kPrevLayer), 5)},
            {"counter_early", Evicting(Sparse(GuessSource::kPrevLayer), kRetainCounter)}};
  return {{"full", full},
          {"int8", full, StoreType::kInt8},
          {"half_of_the_weights", full, StoreType::kBF16, 0.5},
          {"no_weights", full, StoreType::kF32, 0.0},
          {"one_layer_streamed", Sparse(GuessSource::kSelf), StoreType::kF32, 0.75},
          {"h2o", Evicting(full, kRetainH2o)},
          {"streaming", Evicting(full, kRetainStreaming), StoreType::kInt4},
          {"streaming_behind_a_dense_layer", dense_first},
          {"infinigen", Sparse(GuessSource::kSelf)},
          {"infinigen_guessing", Sparse(GuessSource::kPrevMid), StoreType::kF32, 0.5},
          {"infinigen_guessing_early", Sparse(GuessSource::kPrevLayer)},
          {"infinigen_tail", WithTail(Sparse(GuessSource::kSelf))},
          {"tail_guessing_early", WithTail(Sparse(GuessSource::kPrevLayer))},
          {"late_rows", WithTail(Sparse(GuessSource::kPrevMid), 5)},
          {"late_rows_early", WithTail(Sparse(GuessSource::kPrevLayer), 5)},
          {"late_rows_of_the_step_before", WithTail(Sparse(GuessSource::kPrevStep), 5)},
          {"quest", Sparse(GuessSource::kSelf, &kSelectQuest)},
          {"quest_guessing_early", Sparse(GuessSource::kPrevLayer, &kSelectQuest)},
          {"page_mean_guessing_early", Sparse(GuessSource::kPrevLayer, &kSelectPageMean)},
          {"counter", Evicting(Sparse(GuessSource::kPrevMid), kRetainCounter)},
          {"counter_early", Evicting(Sparse(GuessSource::kPrevLayer), kRetainCounter)},
          {"late_rows_counter_early", Evicting(WithTail(Sparse(GuessSource::kPrevLayer), 5), kRetainCounter)}};
}

template <class Keep>
std::vector<Case> Cases(Keep keep) {
  std::vector<Case> cases = Cases();
  std::erase_if(cases, [&](const Case& c) { return !keep(c.method); });
  return cases;
}

class RemotePool : public testing::TestWithParam<Case> {
 protected:
  ExecutorOptions Options(int64_t batch) const {
    return {.device = Device::kReference,
            .max_tokens = 700,
            .max_batch = batch,
            .kv_type = GetParam().type,
            .method = GetParam().method,
            .weights_on_device = GetParam().weights_on_device};
  }
  std::unique_ptr<Executor> Remote(int64_t batch = 1) const {
    Result<std::unique_ptr<Executor>> made =
        MakeDecoderExecutor(model.config, model.weights, Options(batch), {.bases = model.bases, .tails = model.tails},
                            "late", std::make_unique<LateBackend>());
    CHECK(made.ok());
    return std::move(*made);
  }
  std::unique_ptr<Executor> Local(int64_t batch = 1) const {
    Result<std::unique_ptr<Executor>> made =
        MakeExecutor(model.config, model.weights, Options(batch), {.bases = model.bases, .tails = model.tails});
    CHECK(made.ok());
    return std::move(*made);
  }

  RandomModelWithBases model{Llama(), 8, 5};
};
// Sequences with evicted rows can be neither continued by a prefill nor shared.
class RetainingRemotePool : public RemotePool {};
class SelectingRemotePool : public RemotePool {};
class LateRemotePool : public RemotePool {};

// Prompts of less than one extent, and of several with a partial last one.
TEST_P(RemotePool, PromptAndSteps) {
  for (const size_t prompt : {size_t{0}, size_t{40}, size_t{256}, size_t{300}}) {
    if (kSanitized && prompt != 300) continue;  // PromptAsSteps begins without a prompt
    const std::vector<int32_t> ids = model.Ids(prompt + 12, 3);
    EXPECT_EQ(Decode(*Remote(), ids, prompt), Decode(*Local(), ids, prompt)) << prompt;
  }
}

TEST_P(RemotePool, PromptAsSteps) {
  const std::vector<int32_t> ids = model.Ids(150, 4);
  EXPECT_EQ(AsSteps(*Remote(), ids), AsSteps(*Local(), ids));
}

// One sequence decodes while another is prefilled unit by unit; then both decode; then one is released and a third
// takes its slot.
std::vector<float> Mixed(Executor& executor, const RandomModelWithBases& model) {
  std::vector<float> all, logits(2 * static_cast<size_t>(model.config.vocab));
  const std::vector<int32_t> ids = model.Ids(330, 9);
  const auto prompt = [&](size_t count) { return std::span(ids).first(count); };
  const auto step = [&](std::span<const StepItem> items) {
    const std::span<float> part = std::span(logits).first(items.size() * static_cast<size_t>(model.config.vocab));
    executor.Step(items, part);
    all.insert(all.end(), part.begin(), part.end());
  };
  StepItem first{.slot = executor.Admit(300).value(), .token = 1, .row = 70};
  CHECK(executor.BeginPrefill(first.slot, 0, prompt(70)).ok());
  while (!executor.RunPrefillUnit(first.slot)) {
  }
  executor.EndPrefill(first.slot);
  for (const size_t length : {size_t{280}, size_t{90}}) {
    StepItem second{.slot = executor.Admit(400).value(), .token = 2, .row = static_cast<int64_t>(length)};
    CHECK(executor.BeginPrefill(second.slot, 0, prompt(length)).ok());
    while (!executor.RunPrefillUnit(second.slot)) {
      step({&first, 1});
      ++first.row;
    }
    executor.EndPrefill(second.slot);
    for (int i = 0; i < 5; ++i) {
      const StepItem both[] = {second, first};
      step(both);
      ++first.row, ++second.row;
    }
    executor.Release(second.slot);
  }
  executor.Release(first.slot);
  return all;
}

TEST_P(RemotePool, PromptsBetweenSteps) { EXPECT_EQ(Mixed(*Remote(2), model), Mixed(*Local(2), model)); }

// Two prefills alternate, each in different layers, with steps of a third sequence between their units. Each sequence
// must have the logits that it has alone.
TEST_P(RemotePool, TwoPromptsAtOnce) {
  const size_t vocab = static_cast<size_t>(model.config.vocab);
  const std::unique_ptr<Executor> executor = Remote(3);
  struct Sequence {
    std::vector<int32_t> ids;
    size_t prompt = 0, row = 0;
    SeqSlot slot;
    std::vector<float> logits;
    bool read = false;
  };
  std::vector<Sequence> all;
  for (const size_t prompt : {size_t{20}, size_t{300}, size_t{100}})
    all.push_back({.ids = model.Ids(prompt + (prompt == 20 ? 60 : 6), static_cast<uint32_t>(prompt)),
                   .prompt = prompt,
                   .row = prompt});
  const auto begin = [&](Sequence& sequence) {
    sequence.slot = executor->Admit(std::ssize(sequence.ids)).value();
    CHECK(executor->BeginPrefill(sequence.slot, 0, std::span(sequence.ids).first(sequence.prompt)).ok());
  };
  const auto unit = [&](Sequence& sequence) {
    if (sequence.read) return;
    sequence.read = executor->RunPrefillUnit(sequence.slot);
    if (sequence.read) executor->EndPrefill(sequence.slot);
  };
  const auto step = [&](Sequence& sequence) {
    if (sequence.row == sequence.ids.size()) return;
    const StepItem item{
        .slot = sequence.slot, .token = sequence.ids[sequence.row], .row = static_cast<int64_t>(sequence.row)};
    ++sequence.row;
    sequence.logits.resize(sequence.logits.size() + vocab);
    executor->Step({&item, 1}, std::span(sequence.logits).last(vocab));
  };
  begin(all[0]);
  while (!all[0].read) unit(all[0]);
  begin(all[1]);
  for (int i = 0; i < 7; ++i) unit(all[1]);  // into its second layer
  begin(all[2]);
  for (int turn = 0; !all[1].read || !all[2].read; ++turn) {
    unit(all[2]);
    unit(all[1]);
    if (turn % 3 == 0) step(all[0]);
  }
  for (int i = 0; i < 60; ++i)
    for (Sequence& sequence : all) step(sequence);
  for (const Sequence& sequence : all) {
    executor->Release(sequence.slot);
    EXPECT_EQ(sequence.logits, Decode(*Local(3), sequence.ids, sequence.prompt)) << sequence.prompt;
  }
}

// Rows that exist already are copied to the stage before new ones are appended.
TEST_P(RetainingRemotePool, PromptAfterPrompt) {
  const std::vector<int32_t> ids = model.Ids(420, 6);
  const auto run = [&](Executor& executor) {
    const SeqSlot slot = executor.Admit(420).value();
    for (const int64_t first : {0, 130, 300}) {
      const int64_t end = first == 300 ? 420 : first + 170;
      CHECK(executor
                .BeginPrefill(slot, first,
                              std::span(ids).subspan(static_cast<size_t>(first), static_cast<size_t>(end - first)))
                .ok());
      while (!executor.RunPrefillUnit(slot)) {
      }
      if (end < 420) executor.EndPrefill(slot);
    }
    std::vector<float> logits(static_cast<size_t>(model.config.vocab));
    executor.PrefillLogits(slot, 119, 1, logits);
    executor.Release(slot);
    return logits;
  };
  EXPECT_EQ(run(*Remote()), run(*Local()));
}

// One sequence grows, and shares its prefix with another while its write-outs may still be in progress; then it is
// released, and the other continues. Both must have the logits that they have alone.
TEST_P(RetainingRemotePool, GrowingAndSharing) {
  const size_t vocab = static_cast<size_t>(model.config.vocab), prompt = 510;
  const std::vector<int32_t> a_ids = model.Ids(prompt + 12, 21);
  std::vector<int32_t> b_ids = model.Ids(300 + 12, 22);
  std::copy_n(a_ids.begin(), 256, b_ids.begin());
  for (const bool steps_between : {false, true}) {
    if (kSanitized && !steps_between) continue;
    const std::unique_ptr<Executor> executor = Remote(2);
    std::vector<float> a_logits, b_logits;
    const auto step = [&](SeqSlot slot, const std::vector<int32_t>& ids, size_t row, std::vector<float>& logits) {
      const StepItem item{.slot = slot, .token = ids[row], .row = static_cast<int64_t>(row)};
      logits.resize(logits.size() + vocab);
      executor->Step({&item, 1}, std::span(logits).last(vocab));
    };
    ASSERT_TRUE(executor->sharing()->can_share());
    const SeqSlot a = executor->sharing()->AdmitGrowing(static_cast<int64_t>(prompt), {}).value();
    EXPECT_EQ(executor->sharing()->Quota(a), 512);
    ASSERT_TRUE(executor->BeginPrefill(a, 0, std::span(a_ids).first(prompt)).ok());
    while (!executor->RunPrefillUnit(a)) {
    }
    executor->EndPrefill(a);
    const SharedId shared = executor->sharing()->Share(a, 0).value();
    const SeqSlot b = executor->sharing()->AdmitGrowing(400, std::array{shared}).value();
    ASSERT_TRUE(executor->BeginPrefill(b, 256, std::span(b_ids).subspan(256, 44)).ok());
    size_t row = prompt;
    for (bool done = false; !done;) {
      done = executor->RunPrefillUnit(b);
      if (steps_between && row < 512) step(a, a_ids, row, a_logits), ++row;
    }
    executor->EndPrefill(b);
    for (; row < a_ids.size(); ++row) {
      if (row == 512) {
        ASSERT_TRUE(executor->sharing()->Grow(a, 513).ok());
      }
      step(a, a_ids, row, a_logits);
    }
    executor->Release(a);
    for (row = 300; row < b_ids.size(); ++row) step(b, b_ids, row, b_logits);
    executor->Release(b);
    executor->sharing()->DropShared(shared);
    EXPECT_EQ(executor->instruments().pool_bytes(), 0u);
    EXPECT_EQ(a_logits, Decode(*Local(), a_ids, prompt));
    EXPECT_EQ(b_logits, Decode(*Local(), b_ids, 300));
  }
}

// In this backend every fetch runs only when it is waited for, so each counts as a stall; entries read in place do not.
TEST_P(RemotePool, StallsAreCounted) {
  const std::vector<int32_t> ids = model.Ids(90, 7);
  const std::unique_ptr<Executor> remote = Remote(), local = Local();
  Decode(*remote, ids, 80);
  Decode(*local, ids, 80);
  const uint64_t first = remote->instruments().Stats().stall_ns;
  EXPECT_GT(first, 0u);
  Decode(*remote, ids, 80);
  EXPECT_GT(remote->instruments().Stats().stall_ns, first);
  EXPECT_EQ(local->instruments().Stats().stall_ns, 0u);
}

// Late rows that the hot set holds are not fetched again; the others are fetched in their own trip, and there is room
// for them. Results do not depend on any of this.
TEST_P(LateRemotePool, RowsAreFetchedOnce) {
  const std::vector<int32_t> ids = model.Ids(320, 14);
  const std::vector<float> want = Decode(*Local(), ids, 300);
  uint64_t fetched = 0;
  for (const int64_t hot_rows : {0, 90, 250}) {
    ExecutorOptions options = Options(1);
    options.hot_rows = hot_rows;
    const std::unique_ptr<Executor> remote =
        MakeDecoderExecutor(model.config, model.weights, options, {.bases = model.bases, .tails = model.tails}, "late",
                            std::make_unique<LateBackend>())
            .value();
    EXPECT_EQ(Decode(*remote, ids, 300), want) << hot_rows;
    const KvStats stats = remote->instruments().Stats();
    const SelectionTotals totals = stats.Selecting().totals;
    const uint64_t own = 20 * static_cast<uint64_t>(model.config.kv_heads * (model.config.layers - 1));
    EXPECT_EQ(totals.late, 5 * own);
    EXPECT_EQ(stats.fetch.wanted, totals.attended - own) << "all but the tokens' own rows";
    if (hot_rows == 0) {
      EXPECT_EQ(stats.fetch.fetched, stats.fetch.wanted);
    } else {
      EXPECT_LT(stats.fetch.fetched, fetched) << hot_rows;
    }
    fetched = stats.fetch.fetched;
  }
}

// Statistics of two sequences in the same steps are separate and add up; those of a slot's earlier sequence do not
// count for the next one.
TEST_P(RemotePool, StatsOfASequence) {
  const std::unique_ptr<Executor> executor = Remote(2), alone = Remote(2);
  const std::vector<int32_t> ids = model.Ids(130, 8);
  std::vector<float> logits(2 * static_cast<size_t>(model.config.vocab));
  const auto begin = [&](Executor& on, size_t prompt) {
    const SeqSlot slot = on.Admit(200).value();
    CHECK(on.BeginPrefill(slot, 0, std::span(ids).first(prompt)).ok());
    while (!on.RunPrefillUnit(slot)) {
    }
    on.EndPrefill(slot);
    return StepItem{.slot = slot, .token = 5, .row = static_cast<int64_t>(prompt)};
  };
  StepItem a = begin(*executor, 40), b = begin(*executor, 120);
  const KvStats a_before = executor->instruments().SlotStats(a.slot);
  int64_t told = 0;
  executor->instruments().ObserveSelection(
      [&](LayerId, SeqSlot slot, KvHead, std::span<const int32_t> rows) {
        EXPECT_EQ(slot, b.slot) << "the only one that is observed";
        told += std::ssize(rows);
      },
      b.slot);
  for (int i = 0; i < 6; ++i, ++a.row, ++b.row) executor->Step(std::array{a, b}, logits);
  const KvStats of_a = executor->instruments().SlotStats(a.slot) - a_before,
                of_b = executor->instruments().SlotStats(b.slot), all = executor->instruments().Stats();
  EXPECT_EQ(of_a.steps, 6);
  EXPECT_EQ(all.steps, 6);
  KvStats sum = of_a;
  sum.Add(of_b);
  EXPECT_EQ(sum.All().totals.attended, all.All().totals.attended);
  EXPECT_EQ(sum.All().seen, all.All().seen);
  EXPECT_EQ(sum.Selecting().totals.chosen, all.Selecting().totals.chosen);
  EXPECT_EQ(sum.fetched_bytes, all.fetched_bytes);
  EXPECT_EQ(sum.fetch.wanted, all.fetch.wanted);
  EXPECT_LT(of_a.All().seen, of_b.All().seen);
  EXPECT_EQ(static_cast<uint64_t>(told), of_b.Selecting().totals.attended);

  const auto alone_for = [&](Executor& on) {
    StepItem c = begin(on, 40);
    const KvStats before = on.instruments().SlotStats(c.slot);
    for (int i = 0; i < 6; ++i, ++c.row) on.Step({&c, 1}, std::span(logits).first(logits.size() / 2));
    const KvStats own = on.instruments().SlotStats(c.slot) - before;
    on.Release(c.slot);
    return own;
  };
  executor->instruments().ObserveSelection({});
  executor->Release(b.slot);
  const KvStats of_c = alone_for(*alone), of_next = alone_for(*executor);  // in b's slot
  for (const KvStats& own : {of_c, of_next}) {
    EXPECT_EQ(of_a.All().totals.attended, own.All().totals.attended);
    EXPECT_EQ(of_a.evicted, own.evicted);
    EXPECT_EQ(of_a.fetched_bytes, own.fetched_bytes);
  }
  executor->Release(a.slot);
}

// The fetch buffer has room for the method's cap. A sequence with a larger cap reads the pool; others are not affected.
TEST_P(SelectingRemotePool, ASequenceMayHaveMoreThanTheCap) {
  KvMethod method = GetParam().method;
  method.largest_cap = 1;
  SelectRule everything = method.rule;
  everything.alpha = kInfinity;
  everything.cap = 1;
  const std::vector<int32_t> ids = model.Ids(312, 10);
  const std::vector<float> full = Decode(*model.Make({}, Device::kReference), ids, 300);
  for (const int64_t hot_rows : {0, 250}) {
    const auto remote = [&](int64_t batch) {
      ExecutorOptions options = Options(batch);
      options.method = method;
      options.hot_rows = hot_rows;
      return MakeDecoderExecutor(model.config, model.weights, options, {.bases = model.bases, .tails = model.tails},
                                 "late", std::make_unique<LateBackend>())
          .value();
    };
    const std::unique_ptr<Executor> one = remote(1);
    EXPECT_EQ(Decode(*one, ids, 300, &everything), full);
    EXPECT_EQ(one->instruments().Stats().fetch.fetched, one->instruments().Stats().fetch.wanted);
    const std::vector<float> own = Decode(*Local(), ids, 300);
    EXPECT_EQ(Decode(*one, ids, 300), own) << "its slot has another sequence now";

    const std::unique_ptr<Executor> both = remote(2);
    const size_t vocab = static_cast<size_t>(model.config.vocab);
    std::array<StepItem, 2> items;
    for (StepItem& item : items) {
      item = {.slot = both->Admit(312).value(), .row = 300};
      if (&item == &items[0]) both->SetRule(item.slot, everything);
      CHECK(both->BeginPrefill(item.slot, 0, std::span(ids).first(300)).ok());
      while (!both->RunPrefillUnit(item.slot)) {
      }
      both->EndPrefill(item.slot);
    }
    std::vector<float> logits(2 * vocab);
    for (size_t i = 0; i < 12; ++i) {
      for (StepItem& item : items) item.token = ids[300 + i];
      both->Step(items, logits);
      const auto part = [&](const std::vector<float>& all, size_t at) {
        return std::vector(all.begin() + static_cast<std::ptrdiff_t>(at * vocab),
                           all.begin() + static_cast<std::ptrdiff_t>((at + 1) * vocab));
      };
      ASSERT_EQ(part(logits, 0), part(full, i)) << i;
      ASSERT_EQ(part(logits, 1), part(own, i)) << i;
      for (StepItem& item : items) ++item.row;
    }
    for (const StepItem& item : items) both->Release(item.slot);
  }
}

constexpr auto kCaseName = [](const auto& test) { return test.param.name; };
INSTANTIATE_TEST_SUITE_P(Methods, RemotePool, testing::ValuesIn(Cases()), kCaseName);
INSTANTIATE_TEST_SUITE_P(Methods, RetainingRemotePool,
                         testing::ValuesIn(Cases([](const KvMethod& method) { return !method.evicts(); })), kCaseName);
INSTANTIATE_TEST_SUITE_P(Methods, LateRemotePool, testing::ValuesIn(Cases([](const KvMethod& method) {
                           return method.has_late() && !method.evicts();
                         })),
                         kCaseName);
INSTANTIATE_TEST_SUITE_P(Methods, SelectingRemotePool, testing::ValuesIn(Cases([](const KvMethod& method) {
                           return method.selects() && !method.evicts();
                         })),
                         kCaseName);

// Layers with a window between others, in sequences longer than their rings (512 rows).
TEST(RemoteWindows, EqualALocalPool) {
  const RandomModelWithBases model(Capped(), 8, 5);
  for (const KvMethod& method : {KvMethod(), Sparse(GuessSource::kSelf), Sparse(GuessSource::kPrevLayer),
                                 Evicting(Sparse(GuessSource::kPrevMid), kRetainCounter)}) {
    const ExecutorOptions options{
        .device = Device::kReference, .max_tokens = 700, .kv_type = StoreType::kF32, .method = method};
    const std::unique_ptr<Executor> remote =
        MakeDecoderExecutor(model.config, model.weights, options, {.bases = model.bases, .tails = model.tails}, "late",
                            std::make_unique<LateBackend>())
            .value();
    const std::unique_ptr<Executor> local =
        MakeExecutor(model.config, model.weights, options, {.bases = model.bases, .tails = model.tails}).value();
    const std::vector<int32_t> ids = model.Ids(690, 1);
    EXPECT_EQ(Decode(*remote, ids, 600), Decode(*local, ids, 600)) << Name(method.from);
  }
}

TEST(Streamed, TheRequestedNumberSpreadEvenly) {
  for (const int64_t layers : {1, 2, 7, 40}) {
    for (const double share : {0.0, 0.3, 0.5, 0.7, 1.0}) {
      int64_t streamed = 0, gap = 0, widest = 0;
      for (int64_t layer = 0; layer < layers; ++layer) {
        streamed += IsStreamed(layer, layers, share);
        gap = IsStreamed(layer, layers, share) ? 0 : gap + 1;
        widest = std::max(widest, gap);
      }
      EXPECT_EQ(streamed, std::llround((1 - share) * static_cast<double>(layers)));
      if (streamed > 0) {
        EXPECT_LE(widest, (layers + streamed - 1) / streamed);
      }
    }
  }
}

// Runs everything at once, but records what the weights queue has waited for: a block must not be overwritten while the
// compute queue may still read it.
class WatchedBackend : public ReferenceBackend {
 public:
  Ticket Record(Queue queue) {
    recorded_.push_back(queue == Queue::kCompute ? enqueued_ : 0);
    return {recorded_.size()};
  }
  void Wait(Queue queue, Ticket ticket) {
    if (queue == Queue::kWeights && ticket.value > 0) waited_ = std::max(waited_, recorded_[ticket.value - 1]);
  }
  void Move(Queue queue, std::span<const ByteMove> moves) {
    for (const ByteMove& move : moves) EXPECT_GE(waited_, read_[move.to]) << "still in use";
    ReferenceBackend::Move(queue, moves);
  }
  // The compute queue will read it.
  void Read(const std::byte* place) { read_[place] = ++enqueued_; }

 private:
  uint64_t enqueued_ = 0, waited_ = 0;
  std::vector<uint64_t> recorded_;
  std::map<const std::byte*, uint64_t> read_;
};

TEST(Streamed, NothingIsOverwrittenThatComputeMayStillRead) {
  ModelConfig config = Llama();
  config.SetLayers(7, config.specs.front());
  const RandomModelWithBases model(config, 8, 5);
  for (const double on_device : {0.0, 0.4}) {
    WatchedBackend backend;
    WeightStream<WatchedBackend> stream(backend);
    std::vector<LayerWeights> layers = model.weights.layers;
    ASSERT_TRUE(stream.Start(layers, on_device).ok());
    const auto use = [&](int64_t layer) {
      const size_t at = static_cast<size_t>(layer);
      const WeightView there = stream.Use(LayerId(layer), layers[at]).q.weight;
      const WeightView& wanted = model.weights.layers[at].q.weight;
      ASSERT_EQ(std::memcmp(there.data, wanted.data, static_cast<size_t>(wanted.bytes())), 0) << layer;
      backend.Read(there.data);
    };
    // Two prompts of several chunks, with occasional steps that also use the next layer's weights.
    std::mt19937 random(3);
    std::array<int64_t, 2> at{};
    for (int turn = 0; turn < 2000; ++turn) {
      int64_t& layer = at[random() % 2];
      use(layer);
      if (random() % 3 == 0) {
        stream.Done(LayerId(layer));
        layer = (layer + 1) % config.layers;
      }
      if (random() % 4 != 0) continue;
      for (int64_t step = 0; step < config.layers; ++step) {
        use(step);
        if (step + 1 < config.layers) use(step + 1);
        stream.Done(LayerId(step));
      }
    }
  }
}

// A prompt chooses its sketch columns by its own sums only, even if another prompt runs between its units.
TEST(PromptColumns, AreSeparateForConcurrentPrompts) {
  const RandomModelWithBases model(Llama(), 8, 5);
  const size_t width = static_cast<size_t>(model.config.head_dim), heads = static_cast<size_t>(model.config.kv_heads);
  KvMethod method = Sparse(GuessSource::kPrevMid);
  method.prompt_columns = true;
  const auto make = [&] {
    SketchSource source{.bases = model.bases};
    source.rotation = [&](LayerId) {
      std::vector<float> matrix(heads * width * width);
      for (size_t i = 0; i < heads * width; ++i) matrix[i * width + i % width] = 1;
      return matrix;
    };
    source.choose = [&](LayerId layer, std::span<const double> sums) {  // the columns with the largest sums
      SketchMatrices chosen = model.bases[layer.index()];
      const auto most = static_cast<size_t>(std::ranges::max_element(sums) - sums.begin());
      std::rotate(chosen.query.begin(), chosen.query.begin() + static_cast<int64_t>(8 * (most % width)),
                  chosen.query.end());
      chosen.key = chosen.query;
      chosen.key_offset[0] = static_cast<float>(sums[0] / 100);
      return chosen;
    };
    return MakeExecutor(model.config, model.weights,
                        {.device = Device::kReference, .max_tokens = 700, .max_batch = 2, .method = method},
                        std::move(source))
        .value();
  };
  const std::array<std::vector<int32_t>, 2> ids = {model.Ids(300, 1), model.Ids(160, 2)};
  const std::unique_ptr<Executor> executor = make();
  std::array<SeqSlot, 2> slots;
  std::array<size_t, 2> prompts = {290, 150};
  for (size_t i = 0; i < 2; ++i) {
    slots[i] = executor->Admit(std::ssize(ids[i])).value();
    ASSERT_TRUE(executor->BeginPrefill(slots[i], 0, std::span(ids[i]).first(prompts[i])).ok());
  }
  for (std::array<bool, 2> done{}; !done[0] || !done[1];)
    for (size_t i = 0; i < 2; ++i)
      if (!done[i]) done[i] = executor->RunPrefillUnit(slots[i]);
  for (size_t i = 0; i < 2; ++i) {
    executor->EndPrefill(slots[i]);
    std::vector<float> logits(10 * static_cast<size_t>(model.config.vocab));
    for (size_t row = prompts[i]; row < ids[i].size(); ++row) {
      const StepItem item{.slot = slots[i], .token = ids[i][row], .row = static_cast<int64_t>(row)};
      const size_t vocab = static_cast<size_t>(model.config.vocab);
      executor->Step({&item, 1}, std::span(logits).subspan((row - prompts[i]) * vocab, vocab));
    }
    EXPECT_EQ(logits, Decode(*make(), ids[i], prompts[i])) << i;
  }
}

}  // namespace
}  // namespace infinigen
