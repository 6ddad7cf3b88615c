// SimExchange: the client's side of one simulated request. It records what the server sends, when, and whether the
// order of calls is one that a connection allows. Used by the simulation's only thread.
#pragma once

#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "server/http.h"

namespace infinigen {

class SimExchange final : public HttpExchange {
 public:
  // `now_s` outlives it. `throws_at`: the write that finds no memory.
  SimExchange(const double& now_s, std::shared_ptr<Client> client, std::optional<int64_t> throws_at)
      : now_s_(now_s), client_(std::move(client)), throws_at_(throws_at), last_sent_s(now_s) {}

  const HttpRequest& request() const override { return request_; }
  const std::shared_ptr<Client>& client() const override { return client_; }
  void Reply(HttpReply reply) override {
    if (aborted) return;
    if (begun || ended) Complain("a second reply");
    status = reply.status;
    body += reply.body;
    Finish();
  }
  void Begin(HttpReply head) override {
    if (aborted) return;
    if (begun || ended) Complain("a stream begins twice");
    begun = true;
    status = head.status;
    Sent();  // the head, also where it is all there is: it goes out at once
    body += head.body;
  }
  void Write(std::string bytes) override {
    if (aborted) return;
    if (!begun || ended) Complain("a write outside of the stream");
    if (throws_at_ == writes++ && bytes.find("\"error\"") == bytes.npos) {
      threw = true;
      throw std::bad_alloc();
    }
    if (gone) return;
    Sent();
    if (bytes.starts_with(": ")) {
      ++comments;
      shortest_silence_s = std::min(shortest_silence_s, silence_s_);
    } else {
      body += bytes;
    }
  }
  void End() override {
    if (aborted) return;
    if (!begun || ended) Complain("a stream ends that is not open");
    Finish();
  }
  void Abort(HttpReply error) override {
    if (ended || gone) return;
    aborted = true;
    if (status == 0) status = error.status;
    Finish();
  }
  void Abandon() noexcept override {
    if (ended || gone) return;
    aborted = true;
    Finish();
  }
  void OnGone(std::function<void(HttpGone why)> gone_callback) override { on_gone = std::move(gone_callback); }

  // The client leaves. False: its answer is complete.
  bool Leave(HttpGone why) {
    if (ended || gone) return false;
    gone = true;
    if (const auto callback = std::exchange(on_gone, {})) callback(why);
    return true;
  }

  std::function<void(HttpGone why)> on_gone;
  int status = 0;
  std::string body;  // without comments
  bool begun = false, ended = false, gone = false, aborted = false, threw = false;
  int64_t writes = 0, comments = 0;
  double shortest_silence_s = 1e9;  // before a comment
  std::string problem;

 private:
  void Complain(const char* what) { problem = what; }
  void Finish() { ended = true; }
  // A stream that begins with a comment sends its head at the same time.
  void Sent() {
    if (now_s_ > last_sent_s) silence_s_ = now_s_ - last_sent_s;
    last_sent_s = now_s_;
  }

  const double& now_s_;
  HttpRequest request_;
  const std::shared_ptr<Client> client_;
  const std::optional<int64_t> throws_at_;
  double silence_s_ = 0;  // before the latest moment at which something was sent

 public:
  double last_sent_s;
};

}  // namespace infinigen
