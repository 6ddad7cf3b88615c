// The whole way of a request: the input is what a client sends to a connection; routes, request, tokenizer, chat
// template, engine and formats answer it. Every reply is well-formed: HTTP, JSON or events, valid UTF-8, errors with
// their fields. Nothing is held afterwards. The model is a stub, so that thousands of inputs fit into a second.
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/utf8.h"
#include "engine/fake_executor.h"
#include "fuzz_http.h"
#include "server/api.h"
#include "text/chat_prompt.h"
#include "text/tokenizer.h"

namespace {

using namespace infinigen;
using Json = nlohmann::json;

constexpr int64_t kContext = 40;  // tokens: an answer without a limit is short

// Exchanges that were handed to the Api and are not released yet.
class Outstanding {
 public:
  std::shared_ptr<HttpExchange> Count(std::shared_ptr<HttpExchange> exchange) {
    count_ += 1;
    HttpExchange* raw = exchange.get();
    return {raw, [this, exchange = std::move(exchange)](HttpExchange*) mutable {
              exchange.reset();
              count_ -= 1;
            }};
  }
  int count() const { return count_; }

 private:
  std::atomic<int> count_{0};
};

std::string DataDirectory() {
  const char* given = std::getenv("INFINIGEN_TEST_DATA");
  return given != nullptr ? given : INFINIGEN_TEST_DATA;
}

// An Api over a stub of a model. Never destroyed: its threads run until the process ends.
struct Served {
  Served() : api(AccessOptions{}, ApiOptions{.log_requests = false}) {
    auto loaded = Tokenizer::Load(DataDirectory() + "/fuzz/data/letters");
    CHECK(loaded.ok());
    tokenizer = std::move(*loaded);
    auto made = ChatPrompt::Make(*tokenizer);
    CHECK(made.ok());
    chat.emplace(std::move(*made));
    HttpHandler handler = api.handler();
    handler.admit = [admit = handler.admit](const HttpRequest& head) -> std::unique_ptr<HttpReply> {
      if (head.path == "/kv") return std::make_unique<HttpReply>(HttpReply{.status = 404, .body = "{}"});  // endless
      return admit(head);
    };
    handler.handle = [this, handle = handler.handle](std::shared_ptr<HttpExchange> exchange) {
      handle(outstanding.Count(std::move(exchange)));
    };
    host.emplace(HttpOptions{}, std::move(handler));
    api.Serve({.name = "stub",
               .executor = &executor,
               .tokenizer = tokenizer.get(),
               .chat = &*chat,
               .random_seeds = false,
               .details_json = R"({"model":{},"device":"stub","kv":{}})",
               .max_waiting = 64,
               .heartbeat_s = 0});
  }

  FakeExecutor executor{kContext, 4, 4 * kContext};
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<ChatPrompt> chat;
  Outstanding outstanding;
  Api api;
  std::optional<PairHost> host;
};

void CheckText(std::string_view text) { CHECK(ValidUtf8Prefix(text) == text.size()); }

void CheckError(const Json& body) {
  CHECK(body.is_object() && body.contains("error"));
  const Json& error = body["error"];
  CHECK(error["message"].is_string() && error["type"].is_string() && error.contains("code") && error.contains("param"));
  const std::string& message = error["message"].get_ref<const std::string&>();
  CHECK(!message.empty() && message.size() < 1000 && message.find('\n') == message.npos);
}

// One event or whole body of a completion.
void CheckAnswer(const Json& body) {
  CHECK(body.is_object());
  if (body.contains("error")) return CheckError(body);
  if (!body.contains("usage") || body["usage"].is_null()) return;
  const Json& usage = body["usage"];
  CHECK(usage["prompt_tokens"].get<int64_t>() + usage["completion_tokens"].get<int64_t>() ==
        usage["total_tokens"].get<int64_t>());
  CHECK(usage["prompt_tokens_details"]["cached_tokens"].get<int64_t>() <= usage["prompt_tokens"].get<int64_t>());
}

void CheckEvents(std::string_view body) {
  bool done = false;
  while (!body.empty()) {
    const size_t end = body.find("\n\n");
    CHECK(end != body.npos && !done);
    const std::string_view event = body.substr(0, end);
    body.remove_prefix(end + 2);
    if (event.starts_with(":")) continue;
    CHECK(event.starts_with("data: ") && event.find('\n') == event.npos);
    done = event == "data: [DONE]";
    if (!done) CheckAnswer(Json::parse(event.substr(6)));
  }
}

void CheckReply(const WireReply& reply) {
  CheckText(reply.body);
  if (reply.status == 100 || reply.body.empty()) return;
  if (reply.head.find("\r\nContent-Type: text/event-stream") != std::string::npos) return CheckEvents(reply.body);
  if (reply.head.find("\r\nContent-Type: application/json") == std::string::npos) return;
  const Json body = Json::parse(reply.body);
  if (reply.status >= 400 && reply.body != "{}") CheckError(body);
  CHECK(reply.status < 500 || reply.status == 503 || reply.status == 505);
  if (reply.status == 200 && body.is_object() && body.contains("choices")) CheckAnswer(body);
}

// Whether the input may hold a HEAD request, to which a reply has no body.
bool MayAskHead(std::string_view bytes) { return bytes.find("HEAD ") != bytes.npos; }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Served& served = *new Served;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto settle = [&] {  // replies come from other threads, through the connection's queue
    while (served.outstanding.count() > 0) {
      served.host->io.restart();
      served.host->io.run_one_for(std::chrono::milliseconds(1));
    }
  };
  const std::string answer = served.host->Talk({bytes}, settle);
  CheckText(answer);
  if (MayAskHead(bytes)) return 0;
  ReplyReader reader(answer);
  while (const auto reply = reader.Next(false)) {
    CHECK(reply->whole);
    CheckReply(*reply);
  }
  CHECK(served.host->memory->used() == 0);
  return 0;
}
