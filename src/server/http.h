// The HTTP/1.1 server as its handlers see it: requests, replies, limits. The implementation is in http_server.cc and
// http_connection.cc, the only files that use Boost.
//
// A connection carries one exchange at a time. The handler replies from any thread, immediately or later, with either a
// whole reply (Reply) or a stream (Begin, Write…, End). If the client disconnects, or reads too slowly, the exchange
// ends: the OnGone callback runs, and further writes are dropped.
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
#include "server/clients.h"
#include "server/memory_account.h"

namespace infinigen {

struct HttpRequest {
  std::string method;
  std::string path;                                     // of the target (also of http://host/path), before '?'
  std::string query;                                    // after '?'
  std::string host, origin, authorization, request_id;  // header fields; empty when absent
  std::string cors_headers;                             // Access-Control-Request-Headers
  std::string body;
  std::string peer;  // address of the client, behind trusted proxies too

  size_t bytes() const {  // memory that the texts take
    size_t sum = 0;
    for (const std::string* text :
         {&method, &path, &query, &host, &origin, &authorization, &request_id, &cors_headers, &body, &peer})
      sum += text->capacity();
    return sum;
  }
};

struct HttpReply {
  int status = 200;
  std::string type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;  // without line ends; the server adds its own
  MemoryShare memory{};                                      // of the body, where its maker has counted it
};

enum class HttpGone : uint8_t { kLeft, kTooSlow };

class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  virtual const HttpRequest& request() const = 0;
  // The client that sent the request, with its account of memory. Lives as long as the exchange.
  virtual const std::shared_ptr<Client>& client() const = 0;
  virtual void Reply(HttpReply reply) = 0;
  virtual void Begin(HttpReply head) = 0;  // head.body is the beginning of the stream
  virtual void Write(std::string bytes) = 0;
  virtual void End() = 0;
  // Ends the exchange with an error: sends `error` whole if no reply has begun, otherwise its body as the last event of
  // the stream. Without effect on an exchange that has ended.
  virtual void Abort(HttpReply error) = 0;
  // `gone` is called once, on any thread, when the client can no longer be answered; immediately if that is already so.
  // It is never called after the reply has ended, and must not call back into the exchange. A second call of OnGone
  // replaces the callback.
  virtual void OnGone(std::function<void(HttpGone why)> gone) = 0;
  // The handler gives up, because there is no memory for an error: the connection is closed within about a second.
  // Without effect on an exchange that has ended.
  virtual void Abandon() noexcept = 0;
};

// Errors that a connection finds, where the status does not say which.
enum class HttpCause : uint8_t { kByStatus, kOutOfMemory, kTooManyConnections };

// All functions are called on I/O threads.
struct HttpHandler {
  // Called before the body is read. A reply refuses the request and ends the exchange; nullptr accepts it.
  std::function<std::unique_ptr<HttpReply>(const HttpRequest& head)> admit;
  // The name of the client that sent an accepted request, for Clients::Find. Empty: the client of the address.
  std::function<std::string(const HttpRequest& head)> client;
  // Whether an accepted request may have a body, and others sent ahead of its answer. Null: all may.
  std::function<bool(const HttpRequest& head)> may_send;
  std::function<void(std::shared_ptr<HttpExchange> exchange)> handle;
  // Called for errors that the connection finds (a malformed request, a limit); returns the reply and logs it. `head`
  // holds what was parsed so far; its peer is always set.
  std::function<HttpReply(const HttpRequest& head, int status, std::string_view reason, HttpCause cause)> fail;
  // A client was dropped because it read a reply too slowly whose last byte was made already, so that no exchange
  // exists any more. `id`: the X-Request-Id of the reply. May be null.
  std::function<void(const HttpRequest& head, const std::string& id)> dropped;
  // The server begins to shut down: endless streams should end now.
  std::function<void()> drain;
  // drain_s has passed: all exchanges should end with an error. Requests whose body is incomplete get `fail` with 503.
  // Connections that are still open kLastWordsSeconds later are closed.
  std::function<void()> cut;
};

inline constexpr int kLastWordsSeconds = 2;

struct HttpLimits {
  uint32_t header_bytes = 16 << 10;
  uint64_t body_bytes = 8 << 20;
  uint64_t memory_bytes = 256 << 20;  // the server's MemoryAccount
  size_t connections = 2048;
  double client_share = 1;  // of connections, places and memory that one client may hold; 1: no limit
  // Unsent bytes of a stream, not counting its beginning (Begin): a reader is disconnected that has so many for longer
  // than a second or two, or sixteen times as many.
  size_t backlog_bytes = 256 << 10;
  int idle_s = 60;                 // time for a request's header to arrive
  int body_s = 120;                // time for its body to arrive
  int write_s = 30;                // a client must read what was unsent this long ago, or at the least rate
  uint64_t least_rate = 64 << 10;  // bytes per second
  int drain_s = 30;                // time for running exchanges to finish after shutdown begins
};

struct HttpOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;  // 0: any free one
  std::string tls_cert, tls_key;
  std::vector<AddressRange> trusted_proxies;  // whose X-Forwarded-For names the client
  int threads = 2;
  HttpLimits limits;
};

struct HttpCounters {
  uint64_t connections = 0;  // open now
  uint64_t accepted = 0, refused = 0, dropped_slow = 0;
  uint64_t memory_bytes = 0;  // of the account, now
};

class HttpServer {
 public:
  // Binds and listens. Connections are accepted after Start.
  static Result<std::unique_ptr<HttpServer>> Bind(const HttpOptions& options, HttpHandler handler);
  virtual ~HttpServer() = default;  // Stop()

  virtual uint16_t port() const = 0;
  virtual void Start() = 0;
  // Call before Start. Makes SIGTERM and SIGINT call Drain; a second signal has the system's default action.
  virtual void DrainOnSignals() = 0;
  // Shuts down: accepts no connections, closes idle ones, and gives running exchanges drain_s to finish.
  virtual void Drain() = 0;
  // Waits until drained.
  virtual void Wait() = 0;
  // Closes every connection and joins the I/O threads. Afterwards neither handlers nor OnGone callbacks are called.
  virtual void Stop() = 0;
  virtual HttpCounters counters() const = 0;
  virtual Clients& clients() = 0;
  virtual double client_share() const = 0;
};

// "Not Found" for 404; empty for unknown numbers.
std::string_view StatusText(int status);

}  // namespace infinigen
