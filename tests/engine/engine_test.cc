// The engine's rules, tested with a fake executor.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <string>

#include "engine/fake_executor.h"

namespace infinigen {
namespace {

TEST(Engine, SequencesOfDifferentLengthsEachGetTheirOwnText) {
  FakeExecutor executor(100, 3, 1000);
  FakeClient client;
  Engine engine(executor);
  const std::vector<std::vector<int32_t>> prompts = {{1}, {2, 3}, {9, 9, 9, 9}, {4, 1}, {30}};
  for (size_t i = 0; i < prompts.size(); ++i)
    ASSERT_TRUE(engine.Submit(client.Make(prompts[i], 5 + static_cast<int64_t>(i))).ok());
  while (engine.RunOnce()) {
  }
  ASSERT_EQ(client.results.size(), prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i)
    EXPECT_EQ(client.results[static_cast<int32_t>(i)].tokens, Expected(prompts[i], 5 + i));
  EXPECT_TRUE(executor.clean());
}

TEST(Engine, PrefillUnitsAlternateWithDecodeSteps) {
  FakeExecutor executor(100, 2, 1000);
  FakeClient client;
  Engine engine(executor);
  ASSERT_TRUE(engine.Submit(client.Make({1}, 7)).ok());
  ASSERT_TRUE(engine.Submit(client.Make({2}, 2)).ok());
  while (engine.RunOnce()) {
  }
  EXPECT_EQ(executor.log, "ppp1p1p1p211")
      << "a decoding request waits for one unit at a time, never for a whole prompt";
}

TEST(Engine, StopsAtLengthContextEosAndOnRequestOfTheClient) {
  FakeExecutor executor(6, 4, 1000);
  FakeClient client;
  Engine engine(executor);
  ASSERT_TRUE(engine.Submit(client.Make({1, 1, 1}, 100)).ok());  // 0: context of 6 rows, the seventh token needs none
  ASSERT_TRUE(engine.Submit(client.Make({1}, 2)).ok());          // 1: length
  ASSERT_TRUE(engine.Submit(client.Make({48}, 5)).ok());         // 2: 48 + 1 = EOS at once
  Request stopped = client.Make({1}, 5);
  stopped.on_token = [](RequestId, int32_t) { return false; };
  ASSERT_TRUE(engine.Submit(std::move(stopped)).ok());  // 3
  Request ignoring = client.Make({48}, 2);
  ignoring.ignore_eos = true;
  ASSERT_TRUE(engine.Submit(std::move(ignoring)).ok());  // 4
  ASSERT_TRUE(engine.Submit(client.Make({7}, 0)).ok());  // 5: prefill only
  while (engine.RunOnce()) {
  }
  EXPECT_EQ(client.results[0].tokens.size(), 4u);
  EXPECT_EQ(client.results[0].reason, FinishReason::kLength);
  EXPECT_EQ(client.results[1].tokens.size(), 2u);
  EXPECT_EQ(client.results[1].reason, FinishReason::kLength);
  EXPECT_TRUE(client.results[2].tokens.empty());
  EXPECT_EQ(client.results[2].reason, FinishReason::kEos);
  EXPECT_EQ(client.results[3].tokens.size(), 1u);
  EXPECT_EQ(client.results[3].reason, FinishReason::kStopped);
  EXPECT_EQ(client.results[4].tokens, (std::vector<int32_t>{kEos, 1}));
  EXPECT_TRUE(client.results[5].tokens.empty());
  EXPECT_EQ(client.results[5].reason, FinishReason::kLength);
  EXPECT_TRUE(executor.clean());
}

TEST(Engine, RejectsRequestsThatCanNeverRun) {
  FakeExecutor executor(4, 1, 1000);
  FakeClient client;
  Engine engine(executor);
  EXPECT_FALSE(engine.Submit(client.Make({}, 1)).ok());
  const Result<RequestId> too_long = engine.Submit(client.Make({1, 2, 3, 4, 5}, 1));
  ASSERT_FALSE(too_long.ok());
  EXPECT_EQ(too_long.error().message, "the prompt has 5 tokens, the context holds 4");
  EXPECT_FALSE(engine.Submit(client.Make({kVocab}, 1)).ok());
  EXPECT_FALSE(engine.Submit(client.Make({-1}, 1)).ok());
  EXPECT_FALSE(engine.RunOnce());
}

TEST(Engine, WaitsForMemoryInOrderAndFailsOnlyWhenWaitingCannotHelp) {
  FakeExecutor executor(100, 4, 20);
  FakeClient client;
  std::vector<int32_t> finished;
  Engine engine(executor);
  const auto submit = [&](std::vector<int32_t> prompt, int64_t n) {
    Request request = client.Make(std::move(prompt), n);
    request.on_done = [&](RequestId id, const RequestResult& result) {
      finished.push_back(id.value());
      client.results[id.value()] = result;
    };
    ASSERT_TRUE(engine.Submit(std::move(request)).ok());
  };
  submit({1}, 15);  // 15 rows
  submit({2}, 10);  // must wait
  submit({3}, 2);   // would fit, but must not overtake
  submit({4}, 50);  // never fits
  submit({5}, 2);
  while (engine.RunOnce()) {
  }
  EXPECT_EQ(client.results[0].tokens.size(), 15u);
  EXPECT_EQ(client.results[1].tokens.size(), 10u);
  EXPECT_EQ(client.results[3].reason, FinishReason::kError);
  EXPECT_EQ(client.results[3].error, "50 rows asked for, 20 free");
  EXPECT_EQ(client.results[4].tokens.size(), 2u);
  EXPECT_EQ(finished.front(), 0);
  EXPECT_TRUE(executor.clean());
}

TEST(Engine, CancellationFreesEverythingInEveryState) {
  for (int turns = 0; turns < 8; ++turns) {  // cancelled while queued, prefilling, decoding
    FakeExecutor executor(100, 1, 1000);
    FakeClient client;
    Engine engine(executor);
    const RequestId a = engine.Submit(client.Make({1}, 50)).value();
    const RequestId b = engine.Submit(client.Make({2}, 50)).value();
    for (int i = 0; i < turns; ++i) ASSERT_TRUE(engine.RunOnce());
    engine.Cancel(a);
    engine.Cancel(b);
    engine.Cancel(RequestId(77));
    EXPECT_FALSE(engine.RunOnce());
    EXPECT_EQ(client.results[0].reason, FinishReason::kCancelled);
    EXPECT_EQ(client.results[1].reason, FinishReason::kCancelled);
    EXPECT_TRUE(executor.clean());
  }
}

TEST(Engine, AFailingPrefillEndsItsRequestWithTheReason) {
  FakeExecutor executor(100, 2, 1000);
  FakeClient client;
  Engine engine(executor);
  ASSERT_TRUE(engine.Submit(client.Make({1}, 50)).ok());
  while (executor.log.find('1') == std::string::npos) engine.RunOnce();
  ASSERT_TRUE(engine.Submit(client.Make({2}, 50)).ok());
  executor.fail_prefill = true;
  while (engine.RunOnce()) {
  }
  EXPECT_EQ(client.results[1].reason, FinishReason::kError);
  EXPECT_EQ(client.results[1].error, "no memory for the prompt");
  EXPECT_EQ(client.results[0].tokens, Expected({1}, 50)) << "its neighbour goes on";
  EXPECT_TRUE(executor.clean());
}

// A conversation of `turns`: each prompt is the previous one, its answer, and new tokens.
TEST(Engine, HeldRowsAreNotComputedAgain) {
  FakeExecutor executor(100, 1, 100);
  FakeClient client;
  {
    Engine engine(executor);
    const auto run = [&](const std::vector<int32_t>& prompt, int64_t n) {
      Request request = client.Make(prompt, n);
      request.hold_rows = true;
      const int32_t id = engine.Submit(std::move(request)).value().value();
      while (engine.RunOnce()) {
      }
      EXPECT_EQ(client.results[id].tokens, Expected(prompt, static_cast<size_t>(n)));
      return client.results[id];
    };
    std::vector<int32_t> prompt = {1, 2, 3};
    const RequestResult first = run(prompt, 5);
    prompt.insert(prompt.end(), first.tokens.begin(), first.tokens.end());
    prompt.push_back(9);
    // The last token of an answer has no row yet.
    EXPECT_EQ(run(prompt, 4).reused_tokens, 7);
    prompt.resize(4);  // back to the middle of the held rows
    prompt.push_back(11);
    EXPECT_EQ(run(prompt, 2).reused_tokens, 4);
    EXPECT_EQ(run(prompt, 0).reused_tokens, 4) << "the same prompt again still needs the logits of its last token";
    EXPECT_EQ(run({8}, 2).reused_tokens, 0);
    EXPECT_EQ(executor.prefilled, (std::vector<int64_t>{3, 2, 1, 1, 1}));
    EXPECT_FALSE(executor.clean());

    ASSERT_TRUE(engine.Submit(client.Make({5}, 60)).ok());
    while (engine.RunOnce()) {
    }
    EXPECT_TRUE(executor.clean()) << "another request took the room";
    EXPECT_EQ(run({8, 1}, 2).reused_tokens, 0);
    engine.DropHeld();
    EXPECT_TRUE(executor.clean());
    run({8, 1}, 2);
  }
  EXPECT_TRUE(executor.clean());
}

TEST(Engine, ACancelledConversationHoldsOnlyCompleteRows) {
  for (int turns = 0; turns < 9; ++turns) {
    FakeExecutor executor(100, 1, 100);
    FakeClient client;
    Engine engine(executor);
    Request request = client.Make({1, 2}, 3);
    request.hold_rows = true;
    ASSERT_TRUE(engine.Submit(std::move(request)).ok());
    while (engine.RunOnce()) {
    }
    std::vector<int32_t> prompt = {1, 2};
    prompt.insert(prompt.end(), client.results[0].tokens.begin(), client.results[0].tokens.end());
    for (int32_t more = 0; more < 2; ++more) {
      prompt.push_back(20 + more);
      request = client.Make(prompt, 30);
      request.hold_rows = true;
      const RequestId id = engine.Submit(std::move(request)).value();
      for (int i = 0; more == 0 && i < turns; ++i) engine.RunOnce();
      if (more == 0) engine.Cancel(id);
      while (engine.RunOnce()) {
      }
    }
    // Cancelled during the prefill (turns 1 and 2): the rows up to the first answer. Later: the whole second prompt.
    EXPECT_EQ(client.results[2].reused_tokens, turns < 3 ? 4 : 6) << turns;
    EXPECT_EQ(client.results[2].tokens, Expected(prompt, 30)) << turns;
  }
}

TEST(Engine, DestructionReleasesRunningRequests) {
  FakeExecutor executor(100, 2, 1000);
  FakeClient client;
  {
    Engine engine(executor);
    ASSERT_TRUE(engine.Submit(client.Make({1}, 50)).ok());
    ASSERT_TRUE(engine.RunOnce());
  }
  EXPECT_TRUE(executor.clean());
}

// ---- exceptions ----

TEST(Recovery, WhatAStepThrowsEndsItsRequestsAndNoOther) {
  for (const bool in_prefill : {false, true}) {
    FakeExecutor executor(100, 2, 1000);
    FakeClient client;
    Engine engine(executor);
    for (int32_t token = 1; token <= 4; ++token) ASSERT_TRUE(engine.Submit(client.Make({token}, 10)).ok());
    int steps = 0;
    executor.throw_in_prefill = in_prefill;
    executor.on_step = [&] {
      if (++steps == 3) throw std::bad_alloc();
    };
    bool thrown = false;
    for (bool more = true; more;) {
      try {
        more = engine.RunOnce();
      } catch (const std::bad_alloc&) {
        thrown = true;
        executor.throw_in_prefill = false;
        steps = 10;
        engine.Recover("there was no memory");
      }
    }
    EXPECT_TRUE(thrown);
    EXPECT_EQ(executor.resets, 1);
    EXPECT_TRUE(executor.clean());
    for (int32_t i = 0; i < 4; ++i) {
      const RequestResult& result = client.results[i];
      if (i < 2) {
        EXPECT_EQ(result.reason, FinishReason::kError) << i;
        EXPECT_EQ(result.error, "there was no memory");
      } else {
        EXPECT_EQ(result.tokens, Expected({i + 1}, 10)) << i;
      }
    }
  }
}

// ---- clients ----

// The order in which requests are finished, one at a time.
std::vector<int64_t> Order(const std::vector<std::string>& clients) {
  FakeExecutor executor(100, 1, 1000);
  Engine engine(executor);
  std::vector<int64_t> order;
  for (const std::string& client : clients) {
    Request request{.prompt = {1}, .max_new_tokens = 2, .sampling = {.temperature = 0}, .client = client};
    request.on_done = [&](RequestId id, const RequestResult&) { order.push_back(id.value()); };
    EXPECT_TRUE(engine.Submit(std::move(request)).ok());
  }
  while (engine.RunOnce()) {
  }
  EXPECT_TRUE(executor.clean());
  return order;
}

TEST(Clients, TakeTurnsInTheQueue) {
  using Ids = std::vector<int64_t>;
  EXPECT_EQ(Order({"", "", "", ""}), (Ids{0, 1, 2, 3}));
  EXPECT_EQ(Order({"a", "a", "a", "a", "b", "b", "c"}), (Ids{0, 4, 6, 1, 5, 2, 3}));
}

TEST(Clients, OneThatFloodsDoesNotKeepAnotherOut) {
  FakeExecutor executor(10000, 4, 100000);
  FakeClient client;
  Engine engine(executor, {.client_running = 2});
  const auto submit = [&](const std::string& name, int64_t n) {
    Request request = client.Make({1}, n);
    request.ignore_eos = true;
    request.client = name;
    return engine.Submit(std::move(request)).value();
  };
  for (int i = 0; i < 6; ++i) submit("flood", 5000);
  engine.RunOnce();
  EXPECT_EQ(engine.stats().running, 2);
  const RequestId late = submit("other", 5);
  for (int i = 0; i < 20; ++i) engine.RunOnce();
  EXPECT_TRUE(client.results.contains(late.value()));
  EXPECT_EQ(engine.stats().running, 2);
  submit("", 5);
  submit("", 5);
  engine.RunOnce();
  EXPECT_EQ(engine.stats().running, 4) << "requests without a client are not limited";
}

// Each sequence makes a step longer, so half of the slots are left free where there are others.
TEST(Clients, HaveHalfOfTheSlotsWhereThereAreOthers) {
  FakeExecutor executor(10000, 8, 100000);
  FakeClient client;
  Engine engine(executor, {.client_running = 7});
  const auto submit = [&](const std::string& name, int64_t n) {
    Request request = client.Make({1}, n);
    request.ignore_eos = true;
    request.client = name;
    return engine.Submit(std::move(request)).value();
  };
  const auto run = [&](int turns) {
    for (int i = 0; i < turns; ++i) engine.RunOnce();
  };
  std::vector<RequestId> flood;
  for (int i = 0; i < 20; ++i) flood.push_back(submit("flood", 9000));
  run(20);
  EXPECT_EQ(engine.stats().running, 7) << "it is alone";
  submit("other", 3);
  run(20);
  EXPECT_EQ(engine.stats().running, 7) << "what runs goes on";
  for (int i = 0; i < 5; ++i) engine.Cancel(flood[static_cast<size_t>(i)]);
  run(20);
  EXPECT_EQ(engine.stats().running, 4) << "the other was here a moment ago";
  run(kSharedTurns + 20);
  EXPECT_EQ(engine.stats().running, 7) << "it is alone again";
}

// A client that fills the batch must not make the steps of others as long as its own.
TEST(Clients, DecodeForAboutTheSameTime) {
  FakeExecutor executor(10000, 8, 100000);
  FakeClient client;
  std::chrono::steady_clock::time_point now{};
  int noise_every = 0, steps = 0;
  std::map<std::string, int64_t> tokens;
  executor.on_step = [&] {
    now += std::chrono::milliseconds(executor.log.back() - '0');
    if (noise_every > 0 && ++steps % noise_every == 0) now += std::chrono::milliseconds(20);
  };
  Engine engine(executor, {.client_running = 7, .now = [&] { return now; }});
  const auto submit = [&](const std::string& name) {
    Request request = client.Make({1}, 9000);
    request.ignore_eos = true;
    request.client = name;
    int64_t* const count = &tokens[name];
    request.on_token = [count](RequestId, int32_t) { return ++*count > 0; };
    EXPECT_TRUE(engine.Submit(std::move(request)).ok());
  };
  for (int i = 0; i < 7; ++i) submit("flood");
  for (int i = 0; i < 20; ++i) engine.RunOnce();
  submit("other");
  const auto rate = [&] {  // tokens a second
    const int64_t before = tokens["other"];
    const auto start = now;
    for (int i = 0; i < 200; ++i) engine.RunOnce();
    return static_cast<double>(tokens["other"] - before) / std::chrono::duration<double>(now - start).count();
  };
  EXPECT_GT(rate(), 500) << "a step alone takes 1 ms";
  noise_every = 50;
  EXPECT_GT(rate(), 350) << "a slow step now and then, as on a busy machine, does not end the further steps for long";
  noise_every = 0;
  executor.on_step = [&] { now += std::chrono::microseconds(executor.log.back() == '1' ? 1000 : 1900); };
  EXPECT_GT(rate(), 600) << "a common step takes not quite two steps alone: 526 a second without further ones";
  executor.on_step = [&] { now += std::chrono::milliseconds(8); };  // as on a GPU
  EXPECT_GT(rate(), 115) << "a common step takes 8 ms, and one alone would too";
}

// A request waits for those that were there before it, and for no later client's whole queue.
TEST(Clients, NewOnesDoNotStarveOldOnes) {
  FakeExecutor executor(100, 1, 1000);
  Engine engine(executor);
  std::vector<std::string> order;
  const auto submit = [&](const std::string& client, const std::string& name) {
    Request request{.prompt = {1}, .max_new_tokens = 2, .sampling = {.temperature = 0}, .client = client};
    request.on_done = [&order, name](RequestId, const RequestResult&) { order.push_back(name); };
    EXPECT_TRUE(engine.Submit(std::move(request)).ok());
  };
  for (int i = 0; i < 3; ++i) submit("old", "old" + std::to_string(i));
  for (int i = 0; order.size() < 300; ++i) {
    submit("new" + std::to_string(i), "new");
    engine.RunOnce();
  }
  EXPECT_NE(std::ranges::find(order, "old2"), order.end());
}

// ---- request states ----

TEST(RequestState, FinalStatesAreFinalAndCancelIsAlwaysPossibleBefore) {
  using enum RequestState;
  for (RequestState from : {kQueued, kAdmitted, kPrefilling, kDecoding, kPreempted})
    EXPECT_TRUE(MayFollow(from, kCancelled));
  for (RequestState final_state : {kDone, kCancelled})
    for (RequestState to : {kQueued, kAdmitted, kPrefilling, kDecoding, kPreempted, kDone, kCancelled})
      EXPECT_FALSE(MayFollow(final_state, to));
}

TEST(RequestState, NoStateIsSkipped) {
  using enum RequestState;
  EXPECT_TRUE(MayFollow(kQueued, kAdmitted));
  EXPECT_FALSE(MayFollow(kQueued, kPrefilling));
  EXPECT_FALSE(MayFollow(kAdmitted, kDecoding));
  EXPECT_FALSE(MayFollow(kDecoding, kPrefilling));
  EXPECT_TRUE(MayFollow(kDecoding, kPreempted));
  EXPECT_TRUE(MayFollow(kPreempted, kQueued));
}

}  // namespace
}  // namespace infinigen
