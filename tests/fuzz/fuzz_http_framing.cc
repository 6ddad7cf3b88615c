// Feeds the input to a connection of the server twice: at once, and in random pieces. The replies are well-formed, the
// same both times, one for each request that the handler got; afterwards the connection holds no memory. The first two
// bytes of the input choose the pieces.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/split_mix.h"
#include "fuzz_http.h"

namespace {

using namespace infinigen;

// What the handler saw, in order.
struct Seen {
  std::string method, path, body;
  bool operator==(const Seen&) const = default;
};
std::vector<Seen> g_seen;  // of the current connection
int g_failed = 0;
bool g_failed_head = false;        // the request that failed was HEAD
constexpr size_t kLongest = 2500;  // bytes of an input

void CheckField(const std::string& value) {
  for (const char c : value) CHECK(c != '\r' && c != '\n' && c != '\0');
}

void Handle(const std::shared_ptr<HttpExchange>& exchange) {
  const HttpRequest& request = exchange->request();
  for (const std::string* value : {&request.method, &request.path, &request.query, &request.host, &request.origin,
                                   &request.authorization, &request.request_id, &request.cors_headers})
    CheckField(*value);
  CHECK(!request.method.empty() && request.body.size() <= 2000);
  g_seen.push_back({request.method, request.path, request.body});
  if (request.path.starts_with("/s")) {
    exchange->Begin({.type = "text/event-stream", .body = "data: 1\n\n"});
    exchange->Write("data: " + std::to_string(request.body.size()) + "\n\n");
    return exchange->End();
  }
  if (request.path.starts_with("/e")) return exchange->Abort({.status = 500, .body = "failed"});
  exchange->Reply({.body = std::to_string(request.body.size()) + request.method});
}

HttpHandler Handler() {
  return {.admit = [](const HttpRequest& head) -> std::unique_ptr<HttpReply> {
            if (!head.path.starts_with("/r")) return nullptr;
            g_seen.push_back({head.method, head.path, "refused"});
            return std::make_unique<HttpReply>(HttpReply{.status = 404, .body = "refused"});
          },
          .client = {},
          .handle = [](std::shared_ptr<HttpExchange> exchange) { Handle(exchange); },
          .fail =
              [](const HttpRequest& head, int status, std::string_view reason, HttpCause) {
                ++g_failed;
                g_failed_head = head.method == "HEAD";
                CHECK(!reason.empty() && status >= 400 && status < 600 && status != 500);
                return HttpReply{.status = status, .body = "failed"};
              },
          .dropped = {},
          .drain = {},
          .cut = {}};
}

HttpOptions Options() {
  HttpOptions options;
  // Small, so that short inputs reach the limits; together larger than an input, because what is sent ahead of an
  // answer counts against both, and the pieces decide how much that is.
  options.limits.header_bytes = 600;
  options.limits.body_bytes = 2000;
  static_assert(kLongest < 600 + 2000);
  options.limits.memory_bytes = 200'000;
  return options;
}

struct Outcome {
  std::vector<Seen> seen;
  std::vector<std::pair<int, std::string>> replies;  // status and body; without an error's, which is the last
};

Outcome Run(PairHost& host, const std::vector<std::string_view>& pieces) {
  g_seen.clear();
  g_failed = 0;
  const std::string answer = host.Talk(pieces, [] {});
  CHECK(host.memory->used() == 0);
  Outcome outcome{.seen = g_seen};
  int errors = 0;
  ReplyReader reader(answer);
  while (true) {
    const size_t index = outcome.replies.size();
    const bool error = index >= g_seen.size();  // the last reply
    std::optional<WireReply> reply = reader.Next(!error && g_seen[index].method == "HEAD");
    if (!reply) break;
    if (reply->status == 100) continue;  // how often depends on the pieces
    // An error that was found before the method counted has a body, to HEAD too.
    CHECK(reply->whole || (error && g_failed_head && reply->body.empty()));
    if (error) {
      ++errors;
      continue;
    }
    outcome.replies.emplace_back(reply->status, std::move(reply->body));
  }
  CHECK(g_failed <= 1 && errors == g_failed);
  CHECK(outcome.replies.size() == outcome.seen.size());
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static PairHost host(Options(), Handler());
  if (size < 2) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 2, std::min(size - 2, kLongest));
  const Outcome whole = Run(host, {bytes});
  SplitMix draw(data[0]);
  const size_t longest = 1 + data[1];
  std::vector<std::string_view> pieces;
  for (std::string_view rest = bytes; !rest.empty();) {
    const size_t count = std::min<size_t>(rest.size(), 1 + draw.Below(longest));
    pieces.push_back(rest.substr(0, count));
    rest.remove_prefix(count);
    if (pieces.size() == 8) {  // each costs several system calls; the rest at once
      pieces.push_back(rest);
      break;
    }
  }
  const Outcome split = Run(host, pieces);
  // Whether an unfinished header is already refused depends on the pieces; what was answered before it does not.
  CHECK(whole.seen == split.seen);
  CHECK(whole.replies == split.replies);
  return 0;
}
