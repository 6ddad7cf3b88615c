#include "simulation/history.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "engine/engine.h"
#include "model/random_model.h"

namespace infinigen {
namespace {

constexpr int64_t kVocab = 29;
constexpr int32_t kSimEos = 7;
// Answers that are kept: about 60 MiB.
constexpr size_t kMostKeptTokens = 400'000;

ModelConfig TinyConfig(bool windowed) {
  ModelConfig config{.name = "simulated",
                     .hidden = 16,
                     .heads = 2,
                     .kv_heads = 1,
                     .head_dim = 16,
                     .ffn = 16,
                     .vocab = kVocab,
                     .embed_dim = 16,
                     .max_positions = 1024,
                     .ropes = {RopeConfig()}};
  LayerSpec spec = PlainLayer(config.head_dim);
  spec.qkv_bias = spec.o_bias = true;
  config.SetLayers(2, spec);
  if (windowed) config.specs[0].window = 37;
  config.eos_ids = {kSimEos};
  return config;
}

const RandomModelWithBases& TinyModel(bool windowed) {
  static const RandomModelWithBases plain(TinyConfig(false), 8, 3);
  static const RandomModelWithBases with_windows(TinyConfig(true), 8, 3);
  return windowed ? with_windows : plain;
}

KvMethod Evicting(KvMethod method, const RetainPolicy* retain, double share) {
  method.retain = retain;
  method.limit.share = share;
  return method;
}

// Prompts: the beginning of one of a few texts, then a tail of its own. Lengths lie around the ends of extents. In a
// crowded history answers soon pass the end of an extent.
std::vector<int32_t> DrawPrompt(bool crowded, SplitMix& random) {
  constexpr std::array<size_t, 10> kCuts = {0, 0, 3, 100, 255, 256, 257, 300, 512, 530};
  constexpr std::array<size_t, 8> kLengths = {1, 30, 255, 256, 257, 511, 512, 513};
  constexpr std::array<size_t, 6> kCrowdedLengths = {235, 250, 255, 256, 506, 512};
  const RandomModelWithBases& model = TinyModel(false);
  const size_t cut = random.Pick(kCuts);
  std::vector<int32_t> prompt = model.Ids(600, static_cast<uint32_t>(random.Below(2)));
  prompt.resize(cut);
  size_t tail = 1 + random.Below(3) * 9;
  if (crowded || random.Below(4) == 0)
    if (const size_t length = crowded ? random.Pick(kCrowdedLengths) : random.Pick(kLengths); length > cut)
      tail = length - cut;
  const std::vector<int32_t> own = model.Ids(tail, static_cast<uint32_t>(10 + random.Below(3)));
  prompt.insert(prompt.end(), own.begin(), own.end());
  return prompt;
}

SamplingOptions DrawSampling(SplitMix& random) {
  SamplingOptions sampling{.temperature = 0};
  if (random.Below(5) < 2) return sampling;
  sampling.temperature = 0.9f;
  sampling.seed = random.Below(3);
  switch (random.Below(4)) {
    case 0:
      sampling.frequency_penalty = 0.4f;
      sampling.presence_penalty = 0.2f;
      break;
    case 1:
      sampling.repeat_penalty = 1.3f;
      sampling.repeat_window = 20;
      break;
    case 2:
      sampling.logit_bias = std::make_shared<const std::vector<std::pair<int32_t, float>>>(
          std::vector<std::pair<int32_t, float>>{{kSimEos, 1.5f}, {3, -2.0f}});
      break;
    default:
      break;
  }
  return sampling;
}

// What a request asks of the cache; also what the engine must refuse.
KvWish DrawKv(const SimVariant& variant, SplitMix& random, bool* refused) {
  KvWish wish;
  if (!variant.method.selects()) return wish;
  switch (random.Below(variant.method.evicts() ? 6 : 12)) {
    case 0:
      wish.cap = 0.3;
      break;
    case 1:
      wish.cap = 1.5;
      *refused = true;
      break;
    case 2:
      wish.alpha = 0.5f;
      wish.cap = 0.05;
      break;
    case 6:
    case 7:
      wish.full = true;
      break;
    case 8:
      wish.alpha = variant.method.rule.alpha;
      break;
    default:
      break;
  }
  return wish;
}

// A prompt that goes on after the answer to an earlier one.
bool Continue(const SimVariant& variant, const std::vector<SimRequest>& earlier, Alone& alone, SplitMix& random,
              SimRequest* request) {
  if (earlier.empty() || variant.method.evicts()) return false;
  const SimRequest& before = earlier[random.Below(earlier.size())];
  if (before.refused || before.continues) return false;
  const Request first = SimChoice(variant, before, 0, 0);
  const std::vector<int32_t>& answer = alone.Run(variant, first).tokens;
  std::vector<int32_t> prompt = before.prompts[0];
  request->continues = std::ssize(prompt);
  prompt.insert(prompt.end(), answer.begin(), answer.end());
  prompt.push_back(static_cast<int32_t>(random.Below(kVocab)));
  if (std::ssize(prompt) > kSimContext) return false;
  request->prompts = {prompt};
  request->cache_salt = before.cache_salt;
  request->client = before.client;
  return true;
}

SimRequest DrawRequest(const History& history, Alone& alone, SplitMix& random) {
  constexpr std::array<int64_t, 12> kTokens = {0, 1, 2, 5, 9, 17, 40, 40, 90, 265, 290, 400};
  SimRequest request;
  request.client = random.Below(history.clients.size());
  if (random.Below(6) == 0) request.cache_salt = random.Below(2) == 0 ? "red" : "blue";
  CompletionRequest& body = request.body;
  body.kind = random.Below(4) == 0 ? ApiKind::kChat : ApiKind::kText;
  body.max_tokens = history.crowded && random.Below(3) > 0 ? 300 : random.Pick(kTokens);
  body.sampling = DrawSampling(random);
  body.n = random.Below(5) == 0 ? static_cast<int64_t>(2 + random.Below(2)) : 1;
  body.ignore_eos = history.crowded || random.Below(3) > 0;
  body.stream = random.Below(2) == 0;
  body.include_usage = random.Below(2) == 0;
  if (random.Below(5) == 0) {
    body.logprobs = true;
    body.sampling.top_logprobs = static_cast<int32_t>(random.Below(4));
  }
  for (size_t stops = random.Below(5) == 0 ? 1 + random.Below(2) : 0; stops > 0; --stops)
    body.stops.push_back(fmt::format("{} {}", random.Below(kVocab), random.Below(10)));
  body.kv = DrawKv(*history.variant, random, &request.refused);
  if (random.Below(6) != 0 || !Continue(*history.variant, history.requests, alone, random, &request)) {
    request.continues.reset();
    request.prompts = {DrawPrompt(history.crowded, random)};
    if (random.Below(12) == 0) request.prompts.push_back(DrawPrompt(history.crowded, random));
  } else {
    body.n = 1;
  }
  return request;
}

// When and how a request comes to an early end.
void DrawDeparture(SplitMix& random, SimRequest* request) {
  request->why = random.Below(2) == 0 ? HttpGone::kLeft : HttpGone::kTooSlow;
  const size_t kind = random.Below(12);
  if (kind < 2) request->leaves_s = request->arrives_s + random.Unit() * (kind == 0 ? 0.1 : 4.0);
  if (kind == 2 && request->body.stream) request->leaves_after_writes = static_cast<int64_t>(random.Below(60));
  if (kind == 3 && random.Below(3) == 0) request->write_throws = static_cast<int64_t>(random.Below(20));
}

void DrawTrouble(SplitMix& random, double end_s, History* history) {
  if (random.Below(6) == 0)
    for (size_t faults = 1 + random.Below(3); faults > 0; --faults)
      history->faults.push_back(
          {static_cast<int64_t>(random.Below(random.Below(2) == 0 ? 60 : 1500)), random.Below(2) == 0});
  if (random.Below(10) == 0)
    history->stalls[static_cast<int64_t>(random.Below(200))] =
        random.Pick(std::array{3.0, 12.0, 31.0, 39.0, 44.0, 70.0});
  if (random.Below(4) == 0)
    for (size_t watchers = 1 + random.Below(2); watchers > 0; --watchers) {
      const double arrives = random.Unit() * end_s;
      history->watchers.push_back({arrives, arrives + random.Unit() * end_s, random.Below(history->clients.size())});
    }
  if (random.Below(15) == 0) history->shutdown_s = random.Unit() * (end_s + 1);
}

AloneAnswer RunAlone(Executor& executor, const EngineOptions& options, Request request) {
  AloneAnswer answer;
  Engine engine(executor, options);
  request.on_logprobs = [&](RequestId, const TokenLogprobs& logprobs) { answer.logprobs.push_back(logprobs); };
  request.on_done = [&](RequestId, const RequestResult& result) {
    answer.tokens = result.tokens;
    answer.reason = result.reason;
    answer.kv = result.kv;
  };
  CHECK(engine.Submit(std::move(request)).ok());
  while (engine.RunOnce()) {
  }
  return answer;
}

}  // namespace

const std::vector<SimVariant>& SimVariants() {
  static const std::vector<SimVariant> variants = {
      {"full", false, {}, StoreType::kF32},
      {"full-f16", false, {}, StoreType::kF16},
      {"full-int8", false, {}, StoreType::kInt8},
      {"windows", true, {}, StoreType::kF32},
      {"infinigen-self", false, Sparse(GuessSource::kSelf), StoreType::kF32},
      {"infinigen-layer", false, Sparse(GuessSource::kPrevLayer), StoreType::kF16},
      {"infinigen-mid", false, Sparse(GuessSource::kPrevMid), StoreType::kF32},
      {"infinigen-step", false, Sparse(GuessSource::kPrevStep), StoreType::kF32},
      {"infinigen-int4", false, Sparse(GuessSource::kPrevMid), StoreType::kInt4},
      {"infinigen-windows", true, Sparse(GuessSource::kSelf), StoreType::kF32},
      {"quest", false, Sparse(GuessSource::kSelf, &kSelectQuest), StoreType::kF32},
      {"page-mean", false, Sparse(GuessSource::kSelf, &kSelectPageMean), StoreType::kF32},
      {"h2o", false, Evicting({.preset = "h2o"}, &kRetainH2o, 0.5), StoreType::kF32},
      {"streaming", false, Evicting({.preset = "streaming"}, &kRetainStreaming, 0.3), StoreType::kF32},
      {"counter", false, Evicting(Sparse(GuessSource::kSelf), &kRetainCounter, 0.4), StoreType::kF32},
  };
  return variants;
}

uint64_t SimRowBytes(const SimVariant& variant) {
  const ModelConfig config = TinyConfig(variant.windowed);
  const EntryLayout layout{.type = variant.store, .kv_heads = config.kv_heads, .head_dim = config.head_dim};
  return static_cast<uint64_t>(config.layers) * layout.extent_bytes() / kExtentTokens;
}

std::unique_ptr<Executor> MakeSimModel(const SimVariant& variant, int64_t context, int64_t batch, uint64_t pool_bytes,
                                       int64_t side_tokens) {
  const RandomModelWithBases& model = TinyModel(variant.windowed);
  ExecutorOptions options{.threads = 1,
                          .max_tokens = context,
                          .max_batch = batch,
                          .kv_type = variant.store,
                          .method = variant.method,
                          .pool_limit_bytes = pool_bytes,
                          .side_tokens = side_tokens,
                          .poisons = true};
  options.method.largest_cap = 1.0;
  return MakeExecutor(model.config, model.weights, options, {.bases = model.bases}).value();
}

Request SimChoice(const SimVariant& variant, const SimRequest& request, size_t prompt, int64_t choice) {
  const CompletionRequest& body = request.body;
  Request alone{.prompt = request.prompts[prompt],
                .max_new_tokens = body.max_tokens,
                .sampling = body.sampling,
                .ignore_eos = body.ignore_eos};
  if (variant.method.selects())
    alone.kv = {.full = body.kv.full.value_or(false), .alpha = body.kv.alpha, .cap = body.kv.cap};
  alone.sampling.seed += static_cast<uint64_t>(choice);
  return alone;
}

const AloneAnswer& Alone::Run(const SimVariant& variant, const Request& request) {
  const SamplingOptions& s = request.sampling;
  std::string key =
      fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {} {} {}|", variant.name, request.max_new_tokens,
                  request.ignore_eos, request.kv.full, request.kv.alpha.value_or(-1), request.kv.cap.value_or(-1),
                  s.temperature, s.seed, s.repeat_penalty, s.presence_penalty, s.frequency_penalty,
                  s.logit_bias != nullptr, s.top_k, s.top_p, s.top_logprobs);
  key.append(reinterpret_cast<const char*>(request.prompt.data()), request.prompt.size() * sizeof(int32_t));
  if (const auto found = answers_.find(key); found != answers_.end()) {
    ++hits_;
    return found->second;
  }
  ++runs_;
  if (kept_tokens_ > kMostKeptTokens) {
    answers_.clear();
    kept_tokens_ = 0;
  }
  const std::unique_ptr<Executor> executor = MakeSimModel(variant, kSimContext, 1, 1 << 30, 0);
  AloneAnswer& answer = answers_[key] = RunAlone(*executor, {}, request);
  kept_tokens_ += request.prompt.size() + 8 * answer.tokens.size() + 64;
  return answer;
}

std::optional<int64_t> Alone::TokensUntilNoRoom(const History& history, const Request& request) {
  const std::unique_ptr<Executor> executor =
      MakeSimModel(*history.variant, kSimContext, history.batch, history.pool_bytes, history.side_tokens);
  const AloneAnswer answer =
      RunAlone(*executor, {.grows = true, .turn_prefill_tokens = history.turn_prefill_tokens}, request);
  if (answer.reason != FinishReason::kError) return std::nullopt;
  return std::ssize(answer.tokens);
}

History DrawHistory(uint64_t seed, Alone& alone) {
  SplitMix random(SplitMix(seed).Next());
  History history{.seed = seed, .variant = &random.Pick(SimVariants())};
  history.batch = static_cast<int64_t>(1 + random.Below(5));
  constexpr std::array<int64_t, 8> kPoolRows = {300, 512, 700, 900, 1024, 1280, 2000, 6000};
  constexpr std::array<int64_t, 5> kCrowdedRows = {900, 1100, 1280, 1400, 1600};
  history.crowded = random.Below(4) == 0;
  if (history.crowded) history.batch += 1;
  const int64_t rows = history.crowded ? random.Pick(kCrowdedRows) : random.Pick(kPoolRows);
  history.pool_bytes = static_cast<uint64_t>(rows) * SimRowBytes(*history.variant);
  history.side_tokens = random.Below(2) == 0 ? 0 : static_cast<int64_t>(20 + random.Below(200));
  history.turn_prefill_tokens = random.Pick(std::array<int64_t, 3>{0, 64, 256});
  history.reuses_prefixes = random.Below(5) > 0;
  history.shares_prefixes = random.Below(4) == 0;
  if (random.Below(2) == 0)
    history.prefix_limit_bytes = random.Below(8) * SimRowBytes(*history.variant) * kExtentTokens;
  history.max_waiting = random.Below(4) == 0 ? static_cast<int64_t>(random.Below(6)) : 128;
  history.client_share = random.Pick(std::array{0.34, 0.5, 1.0});
  history.account_bytes = random.Below(5) == 0 ? 12'000 : 1 << 20;
  history.heartbeat_s = static_cast<int>(random.Below(3));
  for (size_t clients = 1 + random.Below(3); clients > 0; --clients)
    history.clients.push_back(clients == 3 ? std::string() : fmt::format("client-{}", clients));

  double now = 0;
  for (size_t requests = 1 + random.Below(history.crowded ? 5 : 9); requests > 0; --requests) {
    SimRequest request = DrawRequest(history, alone, random);
    // Many at once, close together, or after a silence in which all is done.
    const size_t gap = history.crowded ? 0 : random.Below(4);
    if (gap > 1) now += random.Unit() * (gap == 2 ? 0.05 : 1.5);
    if (random.Below(12) == 0) now += 20;
    request.arrives_s = now;
    DrawDeparture(random, &request);
    history.requests.push_back(std::move(request));
  }
  DrawTrouble(random, now + 1, &history);
  return history;
}

std::string History::Describe() const {
  std::string text = fmt::format(
      "seed {}: {}, batch {}, pool {} rows, side {}, turn {}, prefixes {}{}, limit {}, queue {}, share {}, account {}, "
      "heartbeat {} s, {} clients, {} faults, {} stalls, {} watchers{}\n",
      seed, variant->name, batch, pool_bytes / SimRowBytes(*variant), side_tokens, turn_prefill_tokens, reuses_prefixes,
      shares_prefixes ? " (shared by all)" : "", prefix_limit_bytes, max_waiting, client_share, account_bytes,
      heartbeat_s, clients.size(), faults.size(), stalls.size(), watchers.size(), shutdown_s ? ", shutdown" : "");
  for (size_t i = 0; i < requests.size(); ++i) {
    const SimRequest& r = requests[i];
    text += fmt::format(
        "  request {}: at {:.3f} s, client {}, salt '{}', {} prompts, first {} tokens, n {}, max {}{}{}{}{}{}{}{}\n", i,
        r.arrives_s, r.client, r.cache_salt, r.prompts.size(), r.prompts[0].size(), r.body.n, r.body.max_tokens,
        r.body.stream ? ", stream" : "", r.body.logprobs ? ", logprobs" : "", r.body.stops.empty() ? "" : ", stops",
        r.body.kv.any() ? ", kv" : "", r.continues ? ", continues" : "", r.refused ? ", refused" : "",
        r.leaves_s ? fmt::format(", leaves at {:.3f} s", *r.leaves_s) : "");
  }
  return text;
}

}  // namespace infinigen
