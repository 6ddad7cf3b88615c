// HTTP/1.1 without its library: what a handler sees of a request, and how it answers. The server behind it is
// server/http_server.cc and http_connection.cc, the only files that know Boost.
//
// A connection carries one exchange at a time. Its reply is either whole (Reply) or a stream (Begin, Write…, End),
// given from any thread, at once or later. A client that went away, or reads too slowly to be waited for, ends the
// exchange: OnGone is told, and what is written afterwards goes nowhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace infinigen {

struct HttpRequest {
  std::string method;
  std::string path;                                     // of the target, before any '?'; of http://host/path too
  std::string query;                                    // after it
  std::string host, origin, authorization, request_id;  // header fields; empty when absent
  std::string cors_headers;                             // Access-Control-Request-Headers
  std::string body;
  std::string peer;  // address of the client
};

struct HttpReply {
  int status = 200;
  std::string type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;  // without line ends; the server's own are added
};

enum class HttpGone : uint8_t { kLeft, kTooSlow };

class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  virtual const HttpRequest& request() const = 0;
  virtual void Reply(HttpReply reply) = 0;
  virtual void Begin(HttpReply head) = 0;  // head.body are the first bytes
  virtual void Write(std::string bytes) = 0;
  virtual void End() = 0;
  // `gone` is called once, from any thread, when the client cannot be answered any more; at once if that is already so.
  // Never after the reply's end. It must not call back into the exchange. A second `gone` takes the first one's place.
  virtual void OnGone(std::function<void(HttpGone why)> gone) = 0;
};

// All on an I/O thread.
struct HttpHandler {
  // Before the body is read: a reply here ends the exchange and the connection. nullptr: read on.
  std::function<std::unique_ptr<HttpReply>(const HttpRequest& head)> admit;
  std::function<void(std::shared_ptr<HttpExchange> exchange)> handle;
  // An error of the connection's own (a malformed request, a limit): its body, and for the record. `head` as far as it
  // was understood; the peer is always there.
  std::function<HttpReply(const HttpRequest& head, int status, std::string_view reason)> fail;
  // The server was told to end: streams without an end of their own should end now.
  std::function<void()> drain;
  // drain_s are over: whoever still runs should say so and end (requests that are not all there end with `fail`, 503).
  // What is left kLastWordsSeconds later is cut.
  std::function<void()> cut;
};

inline constexpr int kLastWordsSeconds = 2;

struct HttpLimits {
  uint32_t header_bytes = 16 << 10;
  uint64_t body_bytes = 8 << 20;
  uint64_t all_bodies_bytes = 256 << 20;  // of requests that are being read or answered, or were sent ahead
  size_t connections = 2048;
  size_t backlog_bytes = 256 << 10;  // of a stream: what a slow reader may leave unread
  int idle_s = 60;                   // until a request's header is complete
  int body_s = 120;                  // until its body is
  int write_s = 30;                  // without a byte taken
  int drain_s = 30;                  // for running exchanges, once the server was told to end
};

struct HttpOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;  // 0: any free one
  std::string tls_cert, tls_key;
  int threads = 2;
  HttpLimits limits;
};

struct HttpCounters {
  uint64_t connections = 0;  // open now
  uint64_t accepted = 0, refused = 0, dropped_slow = 0;
};

class HttpServer {
 public:
  // Binds and listens; nothing is accepted before Start.
  static Result<std::unique_ptr<HttpServer>> Bind(const HttpOptions& options, HttpHandler handler);
  virtual ~HttpServer() = default;  // Stop()

  virtual uint16_t port() const = 0;
  virtual void Start() = 0;
  // Before Start. From now on SIGTERM and SIGINT drain: no new connection, idle ones are closed, running exchanges have
  // drain_s. A second signal finds the system's default action.
  virtual void DrainOnSignals() = 0;
  virtual void Drain() = 0;
  // Until drained.
  virtual void Wait() = 0;
  // Closes every connection and ends the I/O threads: from here on no handler is called, and no OnGone.
  virtual void Stop() = 0;
  virtual HttpCounters counters() const = 0;
};

// "Not Found"; empty for numbers that nobody here uses.
std::string_view StatusText(int status);

}  // namespace infinigen
