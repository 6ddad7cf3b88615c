// AnswerCheck: a recorded answer against the same request alone.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "server/openai_format.h"
#include "simulation/simulation.h"
#include "text/text_stream.h"

namespace infinigen {
namespace {

using Json = nlohmann::json;

// One choice as the client has it after the whole reply or all events.
struct Received {
  std::string text;
  Json logprobs;  // lists joined over all events
  std::string finish;
};

struct Reply {
  std::vector<Received> choices;
  Json usage, stats;
  std::string error;  // message
  bool complete = false;
};

void JoinLogprobs(const Json& part, Json* all) {
  if (part.is_null()) return;
  for (const auto& [name, value] : part.items()) {
    if (!value.is_array()) continue;
    for (const Json& each : value) (*all)[name].push_back(each);
  }
}

void TakeChoice(const Json& choice, std::vector<Received>* choices) {
  Received& received = choices->at(choice["index"].get<size_t>());
  if (choice.contains("text")) received.text += choice["text"].get<std::string>();
  for (const char* field : {"message", "delta"})
    if (choice.contains(field) && choice[field].contains("content"))
      received.text += choice[field]["content"].get<std::string>();
  JoinLogprobs(choice["logprobs"], &received.logprobs);
  if (!choice["finish_reason"].is_null()) received.finish = choice["finish_reason"].get<std::string>();
}

void TakeObject(const Json& object, Reply* reply) {
  if (object.contains("error")) {
    reply->error = object["error"]["message"].get<std::string>();
    return;
  }
  for (const Json& choice : object["choices"]) TakeChoice(choice, &reply->choices);
  if (object.contains("usage") && !object["usage"].is_null()) reply->usage = object["usage"];
  if (object.contains("kv_stats")) reply->stats = object["kv_stats"];
}

Reply Read(const SimExchange& exchange, bool stream, size_t choices) {
  Reply reply;
  reply.choices.resize(choices);
  if (!exchange.begun) {
    if (exchange.body.empty()) return reply;
    TakeObject(Json::parse(exchange.body), &reply);
    reply.complete = exchange.ended && reply.error.empty() && !stream;
    return reply;
  }
  const std::string& body = exchange.body;
  for (size_t begin = 0; begin < body.size();) {
    const size_t end = body.find("\n\n", begin);
    const std::string_view event = std::string_view(body).substr(begin + 6, end - begin - 6);
    if (event == "[DONE]")
      reply.complete = true;
    else
      TakeObject(Json::parse(event), &reply);
    begin = end + 2;
  }
  return reply;
}

}  // namespace

struct AnswerCheck::Expected {
  std::vector<Received> choices;
  std::vector<int64_t> tokens;  // generated in each choice
  int64_t prompt_tokens = 0, completion_tokens = 0;
  KvStats kv;
};

AnswerCheck::Expected AnswerCheck::Expect(const SimRequest& request) {
  Expected expected;
  const AnswerHead head{.kind = request.body.kind};
  for (size_t prompt = 0; prompt < request.prompts.size(); ++prompt) {
    expected.prompt_tokens += std::ssize(request.prompts[prompt]);
    for (int64_t i = 0; i < request.body.n; ++i) {
      const AloneAnswer& alone = alone_.Run(*history_.variant, SimChoice(*history_.variant, request, prompt, i));
      TextStream text(nullptr, request.body.stops);
      AnswerChoice choice{.index = 0, .logprobs = request.body.logprobs, .finished = alone.reason};
      std::vector<LoggedToken> logged;
      int64_t count = 0;
      for (const int32_t token : alone.tokens) {
        if (request.body.logprobs)
          logged.push_back(
              {alone.logprobs[static_cast<size_t>(count)], text.decoded_bytes(), text.decoded_characters()});
        choice.text += text.Push(token);
        ++count;
        if (text.stopped()) break;
      }
      choice.text += text.Finish();
      if (text.stopped()) choice.finished = FinishReason::kStopped;
      for (const LoggedToken& token : logged)
        if (!text.stopped() || token.offset_bytes < choice.text.size()) choice.logged.push_back(token);
      Reply one;
      one.choices.resize(1);
      TakeObject(Json::parse(AnswerText(head, {&choice, 1}, {}, {}, nullptr)), &one);
      expected.choices.push_back(std::move(one.choices[0]));
      expected.tokens.push_back(count);
      expected.completion_tokens += count;
      expected.kv.Add(alone.kv);
    }
  }
  return expected;
}

bool AnswerCheck::CannotFit(const SimRequest& request, size_t choice, int64_t generated) const {
  const SimVariant& variant = *history_.variant;
  const size_t prompt = choice / static_cast<size_t>(request.body.n);
  if (variant.windowed || variant.method.evicts()) {
    // The bytes of such a sequence depend on its windows or its budgets, so the pool itself is asked.
    const std::optional<int64_t> tokens = Alone::TokensUntilNoRoom(
        history_, SimChoice(variant, request, prompt, static_cast<int64_t>(choice) % request.body.n));
    return tokens && *tokens <= generated;
  }
  constexpr int64_t kGrowth = 256;
  const int64_t first = std::ssize(request.prompts[prompt]);
  const auto too_many = [&](int64_t rows) {
    const int64_t quota = std::min((rows + kExtentTokens - 1) / kExtentTokens * kExtentTokens, kSimContext);
    return static_cast<uint64_t>(quota) * SimRowBytes(variant) > history_.pool_bytes;
  };
  // At admission, or when it grew by the row after those that it has.
  const int64_t last = std::min(first + std::max<int64_t>(request.body.max_tokens - 1, 0), kSimContext);
  return too_many(std::min(last, first + kGrowth)) || (generated > 0 && too_many(first + generated));
}

std::string AnswerCheck::CheckError(const SimRequest& request, const SimExchange& exchange, const Excuses& excuses,
                                    const Expected& expected, const std::string& error) {
  if (excuses.faulted && (error == "out of memory" || error == "injected")) return {};
  if (excuses.shut_down && error == ShuttingDown().message) return {};
  if (exchange.threw && exchange.status != 500 && error.find("out of memory") != error.npos) return {};
  if (request.refused && exchange.status == 400) return {};
  if (error.find("KV pool") != error.npos || error.find("tokens") != error.npos) {
    for (size_t choice = 0; choice < expected.tokens.size(); ++choice)
      if (CannotFit(request, choice, expected.tokens[choice])) {
        ++counts_.exhausted;
        return {};
      }
  }
  return fmt::format("status {}, error '{}'", exchange.status, error);
}

std::string AnswerCheck::Check(const SimRequest& request, const SimExchange& exchange, const Excuses& excuses) {
  if (!exchange.problem.empty()) return exchange.problem;
  const size_t count = request.prompts.size() * static_cast<size_t>(request.body.n);
  counts_.choices += static_cast<int64_t>(count);
  if (exchange.shortest_silence_s < history_.heartbeat_s - 1e-6)
    return fmt::format("a comment after {:.3f} s", exchange.shortest_silence_s);
  if (!exchange.ended && !exchange.gone) return "no answer";
  const Reply reply = Read(exchange, request.body.stream, count);
  if (request.refused && !exchange.gone && !excuses.last_words)
    return exchange.status == 400 ? std::string()
                                  : fmt::format("status {}, but the kv is not supported", exchange.status);
  const Expected expected = request.refused ? Expected{} : Expect(request);
  const bool cut_short = exchange.gone || (excuses.last_words && exchange.aborted);
  if (!reply.error.empty() && !cut_short)
    if (std::string wrong = CheckError(request, exchange, excuses, expected, reply.error); !wrong.empty()) return wrong;
  if (request.refused) return {};
  const bool whole = reply.complete && !cut_short;
  if (!whole && reply.error.empty() && !cut_short && !exchange.threw) return "an incomplete answer without an error";

  const int64_t cached =
      reply.usage.is_null() ? 0 : reply.usage["prompt_tokens_details"]["cached_tokens"].get<int64_t>();
  if (cached > excuses.most_cached)
    return fmt::format("{} cached tokens, but texts of its salt have at most {}", cached, excuses.most_cached);
  // Entries of an answer's own selecting steps are another computation than a prefill.
  const bool full = request.body.kv.full.value_or(false) || history_.variant->exact_steps();
  const bool knows_cached =
      request.continues && !reply.usage.is_null() && cached <= *request.continues / kExtentTokens * kExtentTokens;
  if (request.continues && !full && !knows_cached) {
    counts_.uncompared += static_cast<int64_t>(count);
    return {};
  }
  for (size_t i = 0; i < count; ++i) {
    const Received& got = reply.choices[i];
    const Received& want = expected.choices[i];
    const bool done = whole || !got.finish.empty();
    if (done ? got.text != want.text : !want.text.starts_with(got.text))
      return fmt::format("choice {} says\n  {}\nand alone\n  {}", i, got.text, want.text);
    if (done && got.finish != want.finish)
      return fmt::format("finish_reason '{}', alone '{}'", got.finish, want.finish);
    if (done && got.logprobs != want.logprobs) return fmt::format("other logprobs in choice {}", i);
    counts_.compared += done;
    counts_.tokens += expected.tokens[i];
  }
  if (!whole) return {};
  if (!reply.usage.is_null() && (reply.usage["prompt_tokens"] != expected.prompt_tokens ||
                                 reply.usage["completion_tokens"] != expected.completion_tokens))
    return "usage counts other tokens";
  if (request.body.stops.empty() && !reply.stats.is_null()) {
    Json want = Json::parse(Compact(StepStatsJson(expected.kv, 0)));
    want["pool_bytes"] = reply.stats["pool_bytes"];
    if (want != reply.stats) return fmt::format("kv_stats {}, alone {}", reply.stats.dump(), want.dump());
  }
  return {};
}

}  // namespace infinigen
