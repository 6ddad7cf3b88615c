#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/kv_watch.h"
#include "server/metrics.h"
#include "server/openai_format.h"

namespace infinigen {
namespace {

const AnswerHead kChat{.kind = ApiKind::kChat, .id = "chatcmpl-1", .created = 5, .model = "m"};
const AnswerHead kText{.kind = ApiKind::kText, .id = "cmpl-1", .created = 5, .model = "m"};

TEST(Format, ErrorsHaveNullsForWhatIsNotSaid) {
  EXPECT_EQ(ErrorBody({.message = "no"}),
            R"({"error":{"message":"no","type":"invalid_request_error","param":null,"code":null}})");
  const HttpReply reply = ErrorReply({.status = 429, .message = "later", .retry_after_s = 3});
  EXPECT_EQ(reply.status, 429);
  EXPECT_EQ(reply.headers.at(0), (std::pair<std::string, std::string>("Retry-After", "3")));
}

TEST(Format, ChunksOfAChat) {
  EXPECT_EQ(
      Event(RoleChunk(kChat, 0)),
      "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":5,\"model\":\"m\",\"choices\":"
      "[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]}"
      "\n\n");
  AnswerChoice choice{.index = 1, .text = "hi"};
  EXPECT_EQ(Compact(ChunkJson(kChat, choice, nullptr)["choices"]),
            R"([{"index":1,"delta":{"content":"hi"},"logprobs":null,"finish_reason":null}])");
  choice.text.clear();
  choice.finished = FinishReason::kEos;
  EXPECT_EQ(Compact(ChunkJson(kChat, choice, nullptr)["choices"]),
            R"([{"index":1,"delta":{},"logprobs":null,"finish_reason":"stop"}])");
}

TEST(Format, WholeAnswers) {
  const std::vector<AnswerChoice> choices = {{.index = 0, .text = "x", .finished = FinishReason::kLength}};
  const Usage usage{.prompt_tokens = 3, .completion_tokens = 2, .cached_tokens = 1};
  const auto chat = nlohmann::json::parse(AnswerText(kChat, choices, usage, {{"steps", 3}}, nullptr));
  EXPECT_EQ(chat["kv_stats"]["steps"], 3);
  EXPECT_EQ(chat["object"], "chat.completion");
  EXPECT_EQ(chat["choices"][0]["message"]["content"], "x");
  EXPECT_EQ(chat["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(chat["usage"]["total_tokens"], 5);
  EXPECT_EQ(chat["usage"]["prompt_tokens_details"]["cached_tokens"], 1);
  EXPECT_EQ(nlohmann::json::parse(AnswerText(kText, choices, usage, {}, nullptr))["choices"][0]["text"], "x");
}

TEST(Format, LogprobsOfBothKinds) {
  AnswerChoice choice{.index = 0, .text = "7 8", .logprobs = true};
  choice.logged = {{.values = {{7, -0.5f}, {{7, -0.5f}, {9, -1.5f}}}, .offset_bytes = 0, .offset_characters = 0},
                   {.values = {{8, -1.0f}, {}}, .offset_bytes = 1, .offset_characters = 1}};
  // Without a tokenizer a token's text is its id.
  const auto chat = ChunkJson(kChat, choice, nullptr)["choices"][0]["logprobs"]["content"];
  EXPECT_EQ(chat[0]["token"], "7");
  EXPECT_EQ(chat[0]["bytes"], nlohmann::ordered_json::array({55}));
  EXPECT_EQ(chat[0]["top_logprobs"][1]["logprob"], -1.5);
  const auto text = ChunkJson(kText, choice, nullptr)["choices"][0]["logprobs"];
  EXPECT_EQ(Compact(text), R"({"tokens":["7","8"],"token_logprobs":[-0.5,-1.0],)"
                           R"("top_logprobs":[{"7":-0.5,"9":-1.5},{}],"text_offset":[0,1]})");
}

TEST(Metrics, TheQueueIsBounded) {
  Metrics metrics;
  EXPECT_TRUE(metrics.TryEnter(2, 3));
  EXPECT_FALSE(metrics.TryEnter(2, 3));
  EXPECT_TRUE(metrics.TryEnter(1, 3));
  metrics.Started(10, 4);
  EXPECT_EQ(metrics.running(), 1);
  EXPECT_EQ(metrics.waiting(), 2);
  metrics.Finished(FinishReason::kLength, /*started=*/true, 1.0);
  metrics.Finished(FinishReason::kCancelled, /*started=*/false, 1.0);
  EXPECT_EQ(metrics.running(), 0);
  EXPECT_EQ(metrics.waiting(), 1);
  EXPECT_TRUE(metrics.TryEnter(2, 3));
}

TEST(Metrics, WhoLeavesWasNeverThere) {
  Metrics metrics;
  EXPECT_TRUE(metrics.TryEnter(3, 3));
  metrics.Leave(2);
  EXPECT_EQ(metrics.waiting(), 1);
  EXPECT_TRUE(metrics.TryEnter(2, 3));
  EXPECT_EQ(metrics.Render({}).find("_total{"), std::string::npos) << "nothing ended";
}

TEST(Metrics, OnlyWhatEndedWellIsASuccess) {
  Metrics metrics;
  EXPECT_TRUE(metrics.TryEnter(5, 5));
  for (const FinishReason reason : {FinishReason::kEos, FinishReason::kLength, FinishReason::kLength,
                                    FinishReason::kCancelled, FinishReason::kError})
    metrics.Finished(reason, /*started=*/false, 1.0);
  const std::string text = metrics.Render({});
  const auto at = [&](const std::string& line) { return text.find("\ninfinigen_" + line + "\n") != text.npos; };
  EXPECT_TRUE(at("request_success_total{finished_reason=\"stop\"} 1"));
  EXPECT_TRUE(at("request_success_total{finished_reason=\"length\"} 2"));
  EXPECT_TRUE(at("request_failures_total{reason=\"cancelled\"} 1"));
  EXPECT_TRUE(at("request_failures_total{reason=\"error\"} 1"));
  EXPECT_EQ(text.find("success_total{finished_reason=\"cancelled"), text.npos);
  EXPECT_EQ(text.find("success_total{finished_reason=\"error"), text.npos);
}

TEST(Metrics, HitsAreSaidWhereEntriesAreFetched) {
  Metrics metrics;
  metrics.Update({.pool_bytes = 1});
  EXPECT_NE(metrics.Render({}).find("\ninfinigen_kv_hit_ratio NaN\n"), std::string::npos);
  EngineSnapshot fetching;
  fetching.kv.fetches = true;
  metrics.Update(fetching);
  EXPECT_EQ(metrics.Render({}).find("hit_ratio NaN\n"), std::string::npos);
}

TEST(Metrics, MissedAttentionIsSaidWhereItIsEstimated) {
  Metrics metrics;
  metrics.Update({.pool_bytes = 1});
  EXPECT_NE(metrics.Render({}).find("\ninfinigen_kv_tail_mass NaN\n"), std::string::npos);
  EngineSnapshot estimating;
  estimating.kv.layers.resize(2);
  estimating.kv.layers[1].selects = true;
  estimating.kv.layers[1].tail_mass.Add(0.5);
  estimating.kv.layers[1].tail_mass.Add(0.25);
  metrics.Update(estimating);
  EXPECT_NE(metrics.Render({}).find("\ninfinigen_kv_tail_mass 0.375\n"), std::string::npos);
}

TEST(Metrics, HistogramsAreCumulative) {
  Histogram histogram({1, 2});
  for (const double value : {0.5, 1.0, 1.5, 9.0}) histogram.Observe(value);
  std::string text;
  histogram.Render("x", "help", &text);
  EXPECT_EQ(
      text,
      "# HELP infinigen_x help\n# TYPE infinigen_x histogram\ninfinigen_x_bucket{le=\"1\"} 2\n"
      "infinigen_x_bucket{le=\"2\"} 3\ninfinigen_x_bucket{le=\"+Inf\"} 4\ninfinigen_x_sum 12\ninfinigen_x_count 4\n");
}

TEST(KvPicture, SharesOfColumns) {
  KvPicture picture(2);
  std::vector<int32_t> rows;
  for (int32_t row = 0; row < 512; row += 4) rows.push_back(row);  // every fourth: one of two columns, half of it
  rows.push_back(511);
  picture.Add(LayerId(0), KvHead(0), rows);
  const std::vector<int32_t> all_of_last = {510, 511};
  picture.Add(LayerId(0), KvHead(1), all_of_last);
  const auto layers = picture.Layers(512);
  ASSERT_EQ(layers[0].size(), 256u);
  EXPECT_EQ(layers[0][0], 64);  // one of four (two rows, two heads), rounded up
  EXPECT_EQ(layers[0][1], 0);
  EXPECT_EQ(layers[0][255], 192);                   // three of four
  EXPECT_EQ(layers[1][0], 255);                     // a layer that selects nothing attends to all
  picture.Add(LayerId(0), KvHead(0), all_of_last);  // another step starts anew
  EXPECT_EQ(picture.Layers(512)[0][0], 0);
  EXPECT_EQ(picture.Layers(512)[0][255], 255);
  const std::vector<int32_t> few = {0, 2};
  picture.Add(LayerId(1), KvHead(0), few);
  EXPECT_EQ(Compact(picture.Layers(3)[1]), "[255,0,255]");
  picture.Clear();
  EXPECT_EQ(picture.rows(), 0);
  picture.Add(LayerId(1), KvHead(0), few);
  EXPECT_EQ(picture.rows(), 3);
}

}  // namespace
}  // namespace infinigen
