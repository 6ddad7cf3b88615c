// The public API as a program outside the tree sees it: C++ and C, on the shipped model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <infinigen/infinigen.h>
#include <infinigen/infinigen_c.h>

#include <string>
#include <thread>
#include <vector>

namespace {

namespace ig = infinigen::v1;
using testing::HasSubstr;
using testing::Not;

// One model and engine for all tests: starting it is most of the time.
class Api : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    model_ = new ig::Model(ig::Model::Open());
    engine_ = new ig::Engine(*model_, ig::Options().Set("ctx", "2048").Set("batch", "4").Set("threads", "2"));
  }
  static void TearDownTestSuite() {
    delete engine_;
    delete model_;
  }
  static ig::Request Greedy(std::string prompt, int64_t tokens) {
    return {.prompt = std::move(prompt), .max_tokens = tokens, .sampling = {.temperature = 0}, .ignore_eos = true};
  }

  static ig::Model* model_;
  static ig::Engine* engine_;
};
ig::Model* Api::model_ = nullptr;
ig::Engine* Api::engine_ = nullptr;

template <class F>
std::string ErrorOf(F f, ig::ErrorKind kind = ig::ErrorKind::kInvalid) {
  try {
    f();
  } catch (const ig::Error& error) {
    EXPECT_EQ(error.kind(), kind);
    return error.what();
  }
  return "no error";
}

TEST_F(Api, DescribesTheModel) {
  const ig::ModelInfo info = model_->info();
  EXPECT_EQ(info.name, "infinigen-mini");
  EXPECT_EQ(info.architecture, "llama");
  EXPECT_GT(info.parameters, 17'000'000);
  EXPECT_TRUE(model_->has_tokenizer());
  const std::vector<int32_t> ids = model_->Encode("Hello, world", false);
  EXPECT_EQ(model_->Decode(ids), "Hello, world");
  EXPECT_THROW(model_->Decode(std::vector<int32_t>{-1}), ig::Error);
  EXPECT_THROW(model_->Decode(std::vector<int32_t>{static_cast<int32_t>(model_->info().vocabulary)}), ig::Error);
  EXPECT_THAT(ErrorOf([] { ig::Model::Open("/nowhere"); }, ig::ErrorKind::kIo), HasSubstr("/nowhere"));
}

TEST_F(Api, PlansBeforeAnythingIsAllocated) {
  const ig::Plan plan = ig::MakePlan(*model_, ig::Options().Set("ctx", "1000").Set("batch", "3").Set("kv", "full"));
  EXPECT_TRUE(plan.fits);
  EXPECT_EQ(plan.context, 1000);
  EXPECT_EQ(plan.batch, 3);
  EXPECT_GT(plan.pool_bytes, 0u);
  EXPECT_GT(plan.prefix_bytes, 0u);
  EXPECT_EQ(plan.host_bytes + plan.device_bytes, plan.total_bytes);
  EXPECT_THAT(plan.text, HasSubstr("memory plan"));
  const ig::Plan huge = ig::MakePlan(*model_, ig::Options().Set("ctx", "1000000000").Set("batch", "100"));
  EXPECT_FALSE(huge.fits);
  EXPECT_THAT(huge.refusal, HasSubstr("not enough memory"));
  EXPECT_THAT(ErrorOf([&] { ig::Engine(*model_, ig::Options().Set("ctx", "1000000000").Set("batch", "100")); },
                      ig::ErrorKind::kExhausted),
              HasSubstr("not enough memory"));
}

TEST_F(Api, OptionsAreCheckedWhereTheyAreSet) {
  ig::Options options;
  EXPECT_THAT(ErrorOf([&] { options.Set("kv-cap", "many"); }), HasSubstr("kv-cap: 'many' is not a share"));
  EXPECT_THAT(ErrorOf([&] { options.Set("kv", "nosuch"); }), HasSubstr("nosuch"));
  EXPECT_THAT(ErrorOf([&] { options.Set("colour", "red"); }), HasSubstr("no option 'colour'"));
  EXPECT_THAT(ErrorOf([&] { ig::MakePlan(*model_, ig::Options().Set("kv-evict", "lru")); }), HasSubstr("--kv-limit"));
  bool has_limit = false;
  for (const ig::Options::Description& option : ig::Options::Describe())
    has_limit = has_limit || (option.name == "kv-limit" && !option.help.empty());
  EXPECT_TRUE(has_limit);
}

TEST_F(Api, StreamsTheTextOfTheOutcome) {
  ig::Stream stream = engine_->Submit(Greedy("Once upon a time", 24));
  std::string text;
  while (const std::optional<std::string> piece = stream.Next()) text += *piece;
  const ig::Outcome outcome = stream.Wait();
  EXPECT_EQ(outcome.text, text);
  EXPECT_EQ(outcome.tokens.size(), 24u);
  EXPECT_EQ(outcome.finish_reason, "length");
  EXPECT_GT(outcome.prompt_tokens, 2);
  EXPECT_EQ(outcome.kv.steps, 23) << "the first token comes from the prefill";
  EXPECT_EQ(stream.Next(), std::nullopt) << "and it stays at its end";
  ig::Request tokens = Greedy("", 24);
  tokens.tokens = model_->Encode("Once upon a time");
  EXPECT_EQ(engine_->Submit(tokens).Wait().text, text);
}

TEST_F(Api, RequestsTogetherSayWhatTheySayAlone) {
  const std::vector<std::string> prompts = {"The sea", "A small house", "In the year"};
  std::vector<std::string> alone;
  for (const std::string& prompt : prompts) alone.push_back(engine_->Submit(Greedy(prompt, 16)).Wait().text);
  std::vector<ig::Stream> streams;
  for (const std::string& prompt : prompts) streams.push_back(engine_->Submit(Greedy(prompt, 16)));
  for (size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(streams[i].Wait().text, alone[i]);
}

TEST_F(Api, CancelledHalfWay) {
  ig::Stream stream = engine_->Submit(Greedy("Once upon a time", 1500));
  ASSERT_NE(stream.Next(), std::nullopt);
  std::thread(&ig::Stream::Cancel, &stream).join();
  const ig::Outcome outcome = stream.Wait();
  EXPECT_EQ(outcome.finish_reason, "cancelled");
  EXPECT_LT(outcome.tokens.size(), 1500u);
  { const ig::Stream dropped = engine_->Submit(Greedy("Once upon a time", 1500)); }
  EXPECT_EQ(engine_->Submit(Greedy("The end", 2)).Wait().tokens.size(), 2u) << "a dropped stream frees its place";
}

TEST_F(Api, AStreamThatIsAssignedToCancelsItsRequest) {
  const int64_t before = engine_->statistics().decode_tokens;
  ig::Stream stream = engine_->Submit(Greedy("Once upon a time", 1500));
  ASSERT_NE(stream.Next(), std::nullopt);
  ig::Stream other = engine_->Submit(Greedy("The end", 2));
  stream = std::move(other);
  EXPECT_EQ(stream.Wait().tokens.size(), 2u);
  while (engine_->statistics().running > 0) std::this_thread::yield();
  EXPECT_LT(engine_->statistics().decode_tokens - before, 1400);
}

TEST_F(Api, StopStringsAndSeeds) {
  const std::string text = engine_->Submit(Greedy("Once upon a time", 24)).Wait().text;
  ASSERT_GT(text.size(), 10u);
  ig::Request request = Greedy("Once upon a time", 24);
  request.stop = {text.substr(5, 3)};
  const ig::Outcome outcome = engine_->Submit(request).Wait();
  EXPECT_EQ(outcome.text, text.substr(0, text.find(request.stop[0])));
  EXPECT_EQ(outcome.finish_reason, "stop");
  ig::Request drawn = Greedy("Once upon a time", 24);
  drawn.sampling = {.temperature = 1.0f, .seed = 7};
  EXPECT_EQ(engine_->Submit(drawn).Wait().text, engine_->Submit(drawn).Wait().text);
}

TEST_F(Api, RefusesWhatCanNeverRun) {
  EXPECT_THAT(ErrorOf([] { engine_->Submit({.tokens = std::vector<int32_t>(3000, 5)}); }), HasSubstr("3000 tokens"));
  EXPECT_THAT(ErrorOf([] { engine_->Submit({.tokens = {-1}}); }), HasSubstr("-1"));
  EXPECT_THAT(ErrorOf([] { engine_->Submit({.prompt = "a", .max_tokens = -1}); }), HasSubstr("max_tokens"));
  EXPECT_THAT(ErrorOf([] { engine_->Submit({.prompt = "a", .sampling = {.top_p = 0}}); }), HasSubstr("top_p"));
  EXPECT_THAT(ErrorOf([] { engine_->Submit({.prompt = "a", .kv_cap = 2.0}); }), HasSubstr("cap"));
  EXPECT_THAT(ErrorOf([] { engine_->Submit({}); }), HasSubstr("neither prompt nor tokens"));
}

TEST_F(Api, AnyNumberOfTokensMayBeAskedFor) {
  ig::Stream stream = engine_->Submit({.prompt = "a", .max_tokens = INT64_MAX});
  ASSERT_TRUE(stream.Next().has_value());
  stream.Cancel();
}

TEST_F(Api, ReusesTheBeginningOfAPrompt) {
  std::string prompt;
  for (int i = 0; i < 80; ++i)
    prompt += "The keeper wrote down the wind and the tide of day " + std::to_string(i) + ". ";
  const ig::Outcome first = engine_->Submit(Greedy(prompt, 4)).Wait();
  ASSERT_GT(first.prompt_tokens, 1024);
  const ig::Outcome second = engine_->Submit(Greedy(prompt, 4)).Wait();
  EXPECT_EQ(second.text, first.text);
  EXPECT_GE(second.cached_tokens, 1024);
  EXPECT_LT(second.kv.attended_ratio, 1.0);
  const ig::EngineStatistics statistics = engine_->statistics();
  EXPECT_GE(statistics.reused_tokens, second.cached_tokens);
  EXPECT_GT(statistics.prefix_bytes, 0u);
  EXPECT_GT(statistics.kv.steps, 0);
}

// Streams outlive their engine: they end, as cancelled.
TEST_F(Api, AnEngineThatGoesEndsItsStreams) {
  auto engine = std::make_unique<ig::Engine>(*model_, ig::Options().Set("ctx", "1024").Set("batch", "1"));
  ig::Stream stream = engine->Submit(Greedy("Once upon a time", 900));
  engine.reset();
  EXPECT_EQ(stream.Wait().finish_reason, "cancelled");
}

// ---- C ----

TEST(CApi, NullsAndNonsenseAreErrorsWithASentence) {
  EXPECT_EQ(infinigen_abi_version(), INFINIGEN_ABI_VERSION);
  EXPECT_EQ(infinigen_model_open("/nowhere", nullptr), INFINIGEN_INVALID);
  infinigen_model* model = nullptr;
  EXPECT_EQ(infinigen_model_open("/nowhere", &model), INFINIGEN_IO);
  EXPECT_EQ(model, nullptr);
  EXPECT_THAT(infinigen_last_error(), HasSubstr("/nowhere"));
  infinigen_options* options = nullptr;
  ASSERT_EQ(infinigen_options_new(&options), INFINIGEN_OK);
  EXPECT_STREQ(infinigen_last_error(), "");
  EXPECT_EQ(infinigen_options_set(options, "kv-cap", nullptr), INFINIGEN_INVALID);
  EXPECT_EQ(infinigen_options_set(options, "kv-cap", "x"), INFINIGEN_INVALID);
  EXPECT_THAT(infinigen_last_error(), HasSubstr("kv-cap"));
  infinigen_options_free(options);
  infinigen_request* request = nullptr;
  ASSERT_EQ(infinigen_request_new(&request), INFINIGEN_OK);
  EXPECT_EQ(infinigen_request_set(request, "temp", "warm"), INFINIGEN_INVALID);
  EXPECT_EQ(infinigen_request_set(request, "mood", "1"), INFINIGEN_INVALID);
  EXPECT_EQ(infinigen_request_set(request, "kv-alpha", "inf"), INFINIGEN_OK);
  EXPECT_EQ(infinigen_request_set_tokens(request, nullptr, 3), INFINIGEN_INVALID);
  infinigen_request_free(request);
  infinigen_engine_free(nullptr);
  infinigen_stream_free(nullptr);
}

TEST(ApiOptions, MovedFromOnesCanBeAssigned) {
  ig::Options options, other;
  other.Set("kv", "full");
  const ig::Options taken = std::move(options);
  options = other;
  options.Set("threads", "1");
}

TEST(CApi, APlanIsDescribedAlsoWhereItsLengthIsNotAskedFor) {
  infinigen_model* model = nullptr;
  ASSERT_EQ(infinigen_model_open(nullptr, &model), INFINIGEN_OK);
  char text[8] = {};
  ASSERT_EQ(infinigen_make_plan(model, nullptr, nullptr, text, sizeof(text) - 1, nullptr), INFINIGEN_OK);
  EXPECT_STRNE(text, "");
  infinigen_model_free(model);
}

TEST(CApi, ListsItsOptions) {
  const std::vector<ig::Options::Description> all = ig::Options::Describe();
  ASSERT_EQ(infinigen_option_count(), all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    infinigen_option option = {.size = sizeof(option)};
    ASSERT_EQ(infinigen_option_describe(i, &option), INFINIGEN_OK);
    EXPECT_EQ(option.name, all[i].name);
    EXPECT_EQ(option.value, all[i].value);
    EXPECT_EQ(option.help, all[i].help);
  }
  infinigen_option option = {.size = sizeof(option)};
  EXPECT_EQ(infinigen_option_describe(all.size(), &option), INFINIGEN_INVALID);
  EXPECT_EQ(infinigen_option_describe(0, nullptr), INFINIGEN_INVALID);
}

TEST(CApi, CallbacksWithoutTheirSizeAreRefused) {
  infinigen_model* model = nullptr;
  ASSERT_EQ(infinigen_model_open("", &model), INFINIGEN_OK) << infinigen_last_error();
  infinigen_callbacks callbacks{};
  infinigen_engine* engine = nullptr;
  EXPECT_EQ(infinigen_engine_start(model, nullptr, &callbacks, &engine), INFINIGEN_INVALID);
  EXPECT_THAT(infinigen_last_error(), HasSubstr("callbacks.size"));
  EXPECT_EQ(engine, nullptr);
  infinigen_model_free(model);
}

TEST(CApi, StructsOfAnOlderCallerAreFilledAsFarAsTheyGo) {
  infinigen_model* model = nullptr;
  ASSERT_EQ(infinigen_model_open(nullptr, &model), INFINIGEN_OK) << infinigen_last_error();
  infinigen_model_info info{};
  EXPECT_EQ(infinigen_model_get_info(model, &info), INFINIGEN_INVALID) << "size is 0";
  info.size = offsetof(infinigen_model_info, layers);
  info.layers = -7;
  ASSERT_EQ(infinigen_model_get_info(model, &info), INFINIGEN_OK);
  EXPECT_GT(info.parameters, 17'000'000);
  EXPECT_EQ(info.layers, -7) << "beyond the caller's struct";
  size_t length = 0;
  ASSERT_EQ(infinigen_encode(model, "Hello", 5, false, nullptr, 0, &length), INFINIGEN_OK);
  ASSERT_GT(length, 0u);
  std::vector<int32_t> tokens(length);
  ASSERT_EQ(infinigen_encode(model, "Hello", 5, false, tokens.data(), length, &length), INFINIGEN_OK);
  char text[3] = {};
  ASSERT_EQ(infinigen_decode(model, tokens.data(), tokens.size(), text, 2, &length), INFINIGEN_OK);
  EXPECT_STREQ(text, "He");
  EXPECT_EQ(length, 5u);
  infinigen_model_free(model);
}

}  // namespace
