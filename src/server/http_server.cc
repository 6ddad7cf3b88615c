// The HTTP server: one Connection per client, on a strand of its own, so that its state needs no lock.
//
//            bytes                      parsed                    handled
//   reading ───────► parser ─► head ─► admit? ─► body ─► handle ─► … Reply | Begin Write End ─► reading again
//      ▲                                                               │ queue of bytes to write, bounded for streams
//      └── one read is always under way: also while an answer is made, since its end of file means that nobody waits
//      ──┘
//
// Bytes are parsed by Beast (which refuses every request whose length can be read in two ways) and written by hand.
#include <algorithm>
#include <atomic>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "base/check.h"
#include "server/http.h"

namespace infinigen {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

// Of one read; also what a client may send ahead while its last request is answered.
constexpr size_t kReadBytes = 16 << 10;
constexpr size_t kAheadBytes = 64 << 10;
// Small, so that a slow reader is noticed by us and not hidden by the kernel.
constexpr int kSendBufferBytes = 128 << 10;

class Server;

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Server& server, tcp::socket socket);
  void Start();
  // Any thread.
  void CloseIfIdle();
  void CloseNow();

 private:
  friend class Exchange;
  enum class State { kHandshake, kReading, kHandling, kClosing, kClosed };
  using Parser = http::request_parser<http::string_body>;

  // On the strand, all of them.
  void Handshake();
  void NextRequest();
  void Read();
  void OnRead(error_code error, size_t bytes);
  void Parse();
  bool AdmitHead();
  void Handle();
  void Fail(int status, std::string_view reason);
  void SendHead(const HttpReply& reply, bool stream);
  void Queue(std::string bytes);
  void WriteSome();
  void OnWritten(error_code error, size_t bytes);
  void OnAllWritten();
  void Finish();  // the reply's last byte is queued
  void Close();
  void TellGone();
  void SetDeadline(int seconds);
  void WatchDeadline();
  HttpRequest Head() const;
  template <class F>
  void OnStrand(F f) {
    asio::post(strand_, [self = shared_from_this(), f = std::move(f)]() mutable { f(*self); });
  }

  Server& server_;
  asio::strand<asio::io_context::executor_type> strand_;
  tcp::socket socket_;
  std::optional<asio::ssl::stream<tcp::socket&>> tls_;
  asio::steady_timer timer_;
  Clock::time_point deadline_ = Clock::time_point::max();
  State state_ = State::kHandshake;
  std::string peer_;

  std::vector<char> chunk_;  // where a read that is under way puts its bytes: nobody else's
  std::string input_;        // read and not yet parsed
  std::optional<Parser> parser_;
  bool head_seen_ = false;
  bool reading_ = false;
  uint64_t body_bytes_ = 0;  // counted in the server's sum

  uint64_t exchange_ = 0;  // which of the connection's exchanges is under way
  bool keep_alive_ = false;
  bool chunked_ = false;
  bool replied_ = false;   // head is queued
  bool finished_ = false;  // and the last byte
  bool without_body_ = false;
  std::function<void()> gone_;
  std::deque<std::string> output_;
  size_t written_ = 0;  // of output_.front()
  size_t queued_bytes_ = 0;
  bool writing_ = false;
};

class Exchange : public HttpExchange {
 public:
  Exchange(std::shared_ptr<Connection> connection, HttpRequest request, uint64_t number)
      : connection_(std::move(connection)), request_(std::move(request)), number_(number) {}
  ~Exchange() override {
    if (!ended_) OnConnection([](Connection& c) { c.Close(); });  // nobody is left who could answer
  }

  const HttpRequest& request() const override { return request_; }
  void Reply(HttpReply reply) override {
    ended_ = true;
    OnConnection([reply = std::move(reply)](Connection& c) {
      c.SendHead(reply, /*stream=*/false);
      c.Finish();
    });
  }
  void Begin(HttpReply head) override {
    OnConnection([head = std::move(head)](Connection& c) {
      c.SendHead(head, /*stream=*/true);
      if (!head.body.empty()) WriteChunk(c, head.body);
    });
  }
  void Write(std::string bytes) override {
    if (bytes.empty()) return;
    OnConnection([bytes = std::move(bytes)](Connection& c) { WriteChunk(c, bytes); });
  }
  void End() override {
    ended_ = true;
    OnConnection([](Connection& c) {
      if (c.chunked_) c.Queue("0\r\n\r\n");
      c.Finish();
    });
  }
  void OnGone(std::function<void()> gone) override {
    asio::post(connection_->strand_, [c = connection_, number = number_, gone = std::move(gone)]() mutable {
      if (c->exchange_ != number || c->finished_) return;
      c->gone_ = std::move(gone);
      if (c->state_ == Connection::State::kClosed) c->TellGone();
    });
  }

 private:
  static void WriteChunk(Connection& c, const std::string& bytes);
  template <class F>
  void OnConnection(F f) {
    asio::post(connection_->strand_, [c = connection_, number = number_, f = std::move(f)]() mutable {
      if (c->exchange_ == number && c->state_ == Connection::State::kHandling && !c->finished_) f(*c);
    });
  }

  const std::shared_ptr<Connection> connection_;
  const HttpRequest request_;
  const uint64_t number_;
  std::atomic<bool> ended_{false};
};

class Server : public HttpServer {
 public:
  Server(const HttpOptions& options, HttpHandler handler)
      : options_(options), handler_(std::move(handler)), acceptor_(io_), drain_timer_(io_), signals_(io_) {}
  ~Server() override {
    io_.stop();
    for (std::thread& thread : threads_) thread.join();
    const std::lock_guard lock(mutex_);
    connections_.clear();
  }

  Status Listen();
  uint16_t port() const override { return port_; }
  void Start() override;
  void DrainOnSignals() override;
  void Drain() override {
    asio::post(io_, [this] { BeginDrain(); });
  }
  void Wait() override {
    std::unique_lock lock(mutex_);
    drained_.wait(lock, [this] { return draining_ && connections_.empty(); });
  }
  HttpCounters counters() const override {
    const std::lock_guard lock(mutex_);
    HttpCounters counters = counters_;
    counters.connections = connections_.size();
    return counters;
  }

  void Remove(Connection* connection);
  void CountSlow() {
    const std::lock_guard lock(mutex_);
    ++counters_.dropped_slow;
  }
  bool draining() const { return draining_; }

  asio::io_context& io() { return io_; }
  const HttpLimits& limits() const { return options_.limits; }
  const HttpHandler& handler() const { return handler_; }
  asio::ssl::context* tls() { return tls_ ? &*tls_ : nullptr; }
  std::atomic<uint64_t> body_bytes{0};

 private:
  void Accept();
  void BeginDrain();

  const HttpOptions options_;
  const HttpHandler handler_;
  asio::io_context io_;
  tcp::acceptor acceptor_;
  asio::steady_timer drain_timer_;
  asio::signal_set signals_;
  std::optional<asio::ssl::context> tls_;
  uint16_t port_ = 0;
  std::vector<std::thread> threads_;

  mutable std::mutex mutex_;
  std::condition_variable drained_;
  std::set<std::shared_ptr<Connection>> connections_;
  HttpCounters counters_;
  std::atomic<bool> draining_{false};
};

// ---------------------------------------------------------------------------------------------------- Connection

Connection::Connection(Server& server, tcp::socket socket)
    : server_(server), strand_(asio::make_strand(server.io())), socket_(std::move(socket)), timer_(strand_) {
  if (server.tls() != nullptr) tls_.emplace(socket_, *server.tls());
  error_code ignored;
  const tcp::endpoint peer = socket_.remote_endpoint(ignored);
  peer_ = ignored ? "-" : peer.address().to_string();
  socket_.set_option(tcp::no_delay(true), ignored);
  socket_.set_option(asio::socket_base::send_buffer_size(kSendBufferBytes), ignored);
}

void Connection::Start() {
  OnStrand([](Connection& c) {
    c.WatchDeadline();
    if (c.tls_)
      c.Handshake();
    else
      c.NextRequest();
  });
}

void Connection::CloseIfIdle() {
  OnStrand([](Connection& c) {
    const bool idle = c.state_ == State::kHandshake || (c.state_ == State::kReading && !c.head_seen_);
    if (idle) c.Close();
  });
}

void Connection::CloseNow() {
  OnStrand([](Connection& c) { c.Close(); });
}

void Connection::Handshake() {
  SetDeadline(server_.limits().idle_s);
  tls_->async_handshake(asio::ssl::stream_base::server,
                        asio::bind_executor(strand_, [self = shared_from_this()](error_code error) {
                          if (error) return self->Close();
                          self->NextRequest();
                        }));
}

void Connection::NextRequest() {
  state_ = State::kReading;
  ++exchange_;
  server_.body_bytes -= std::exchange(body_bytes_, 0);
  parser_.emplace();
  parser_->header_limit(server_.limits().header_bytes);
  parser_->body_limit(server_.limits().body_bytes);
  parser_->eager(true);
  head_seen_ = replied_ = finished_ = chunked_ = without_body_ = keep_alive_ = false;
  gone_ = nullptr;
  SetDeadline(server_.limits().idle_s);
  Parse();
}

void Connection::Read() {
  if (reading_ || state_ == State::kClosed) return;
  if (state_ == State::kHandling && input_.size() >= kAheadBytes) return;  // enough was sent ahead
  reading_ = true;
  chunk_.resize(kReadBytes);
  const auto buffer = asio::buffer(chunk_);
  auto done = asio::bind_executor(
      strand_, [self = shared_from_this()](error_code error, size_t bytes) { self->OnRead(error, bytes); });
  if (tls_)
    tls_->async_read_some(buffer, std::move(done));
  else
    socket_.async_read_some(buffer, std::move(done));
}

void Connection::OnRead(error_code error, size_t bytes) {
  reading_ = false;
  if (state_ == State::kClosed) return;
  if (state_ == State::kClosing) {  // whatever still comes is thrown away until the other side closes
    if (error) return Close();
    input_.clear();
    return Read();
  }
  if (error) return Close();
  input_.append(chunk_.data(), bytes);
  if (state_ == State::kReading)
    Parse();
  else
    Read();
}

void Connection::Parse() {
  while (state_ == State::kReading) {
    if (input_.empty()) return Read();
    error_code error;
    const size_t used = parser_->put(asio::buffer(input_), error);
    input_.erase(0, used);
    if (error == http::error::need_more) {
      error = {};
      if (!head_seen_ && !parser_->is_header_done()) {
        if (input_.size() > server_.limits().header_bytes) return Fail(431, "the header is too long");
        return Read();
      }
    }
    if (error == http::error::header_limit) return Fail(431, "the header is too long");
    if (error == http::error::body_limit) return Fail(413, "the body is too long");
    if (error) return Fail(400, error.message());
    if (parser_->is_header_done() && !head_seen_) {
      head_seen_ = true;
      SetDeadline(server_.limits().body_s);
      if (!AdmitHead()) return;
    }
    const uint64_t have = parser_->get().body().size();
    server_.body_bytes += have - body_bytes_;
    body_bytes_ = have;
    if (server_.body_bytes > server_.limits().all_bodies_bytes) return Fail(429, "too many requests are being read");
    if (parser_->is_done()) return Handle();
    if (used == 0) return Read();
  }
}

HttpRequest Connection::Head() const {
  const auto& message = parser_->get();
  const auto field = [&](auto name) {
    const auto value = message[name];
    return std::string(value.data(), value.size());
  };
  HttpRequest head;
  head.method = std::string(message.method_string());
  const std::string target(message.target());
  const size_t mark = target.find('?');
  head.path = target.substr(0, mark);
  if (mark != std::string::npos) head.query = target.substr(mark + 1);
  head.host = field(http::field::host);
  head.origin = field(http::field::origin);
  head.authorization = field(http::field::authorization);
  head.request_id = field("X-Request-Id");
  head.cors_headers = field(http::field::access_control_request_headers);
  head.peer = peer_;
  return head;
}

// False: the request was answered already.
bool Connection::AdmitHead() {
  const auto& message = parser_->get();
  keep_alive_ = message.keep_alive() && !server_.draining();
  without_body_ = message.method() == http::verb::head;
  if (message.version() != 10 && message.version() != 11) return Fail(505, "HTTP/1.0 or 1.1"), false;
  if (message.version() == 11 && message.count(http::field::host) != 1) return Fail(400, "one Host, please"), false;
  if (message.count(http::field::transfer_encoding) > 0 && !message.chunked())
    return Fail(400, "an unknown transfer encoding"), false;
  chunked_ = message.version() == 11;  // of a reply that is a stream
  if (std::unique_ptr<HttpReply> reply = server_.handler().admit(Head())) {
    state_ = State::kHandling;
    keep_alive_ = keep_alive_ && parser_->is_done();
    SendHead(*reply, /*stream=*/false);
    Finish();
    return false;
  }
  const auto length = parser_->content_length();
  if (length && *length > server_.limits().body_bytes) return Fail(413, "the body is too long"), false;
  const bool waits = message.version() == 11 && boost::beast::iequals(message[http::field::expect], "100-continue");
  if (waits && !parser_->is_done()) Queue("HTTP/1.1 100 Continue\r\n\r\n");
  return true;
}

void Connection::Handle() {
  state_ = State::kHandling;
  SetDeadline(-1);
  HttpRequest request = Head();
  request.body = std::move(parser_->get().body());
  const auto exchange = std::make_shared<Exchange>(shared_from_this(), std::move(request), exchange_);
  Read();  // to notice when the client leaves
  server_.handler().handle(exchange);
}

// An error that leaves the connection in an unknown place: it is closed after the answer.
void Connection::Fail(int status, std::string_view reason) {
  state_ = State::kHandling;
  keep_alive_ = false;
  SendHead(server_.handler().fail(status, reason), /*stream=*/false);
  Finish();
}

void Connection::SendHead(const HttpReply& reply, bool stream) {
  if (replied_) return;
  replied_ = true;
  const bool chunked = stream && chunked_;
  if (stream && !chunked) keep_alive_ = false;
  if (server_.draining()) keep_alive_ = false;
  std::string text = fmt::format("HTTP/1.1 {} {}\r\nServer: infinigen\r\n", reply.status, StatusText(reply.status));
  if (!reply.type.empty()) text += fmt::format("Content-Type: {}\r\n", reply.type);
  for (const auto& [name, value] : reply.headers) text += fmt::format("{}: {}\r\n", name, value);
  if (chunked)
    text += "Transfer-Encoding: chunked\r\n";
  else if (!stream && reply.status != 204)
    text += fmt::format("Content-Length: {}\r\n", reply.body.size());
  text += keep_alive_ ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  if (!stream) chunked_ = false;
  if (!stream && !without_body_) text += reply.body;
  Queue(std::move(text));
}

void Exchange::WriteChunk(Connection& c, const std::string& bytes) {
  if (c.without_body_) return;
  c.Queue(c.chunked_ ? fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes) : bytes);
  if (c.queued_bytes_ > c.server_.limits().backlog_bytes) {
    c.server_.CountSlow();
    c.Close();
  }
}

void Connection::Queue(std::string bytes) {
  if (state_ == State::kClosed) return;
  queued_bytes_ += bytes.size();
  output_.push_back(std::move(bytes));
  if (!writing_) WriteSome();
}

void Connection::WriteSome() {
  writing_ = true;
  SetDeadline(server_.limits().write_s);
  const auto buffer = asio::buffer(output_.front().data() + written_, output_.front().size() - written_);
  auto done = asio::bind_executor(
      strand_, [self = shared_from_this()](error_code error, size_t bytes) { self->OnWritten(error, bytes); });
  if (tls_)
    tls_->async_write_some(buffer, std::move(done));
  else
    socket_.async_write_some(buffer, std::move(done));
}

void Connection::OnWritten(error_code error, size_t bytes) {
  writing_ = false;
  if (state_ == State::kClosed) return;
  if (error) return Close();
  written_ += bytes;
  queued_bytes_ -= bytes;
  if (written_ == output_.front().size()) {
    output_.pop_front();
    written_ = 0;
  }
  if (!output_.empty()) return WriteSome();
  OnAllWritten();
}

// Nothing is left to send; more may come, unless the answer is finished.
void Connection::OnAllWritten() {
  if (!finished_) return SetDeadline(state_ == State::kReading ? server_.limits().body_s : -1);
  if (keep_alive_ && !server_.draining()) return NextRequest();
  // Closing with unread bytes would reset the connection and might cost the client its answer.
  state_ = State::kClosing;
  SetDeadline(2);
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  input_.clear();
  Read();
}

void Connection::Finish() {
  finished_ = true;
  gone_ = nullptr;
  if (state_ != State::kClosed && !writing_ && output_.empty()) OnAllWritten();
}

void Connection::Close() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
  timer_.cancel();
  server_.body_bytes -= std::exchange(body_bytes_, 0);
  TellGone();
  server_.Remove(this);
}

void Connection::TellGone() {
  if (gone_) std::exchange(gone_, nullptr)();
}

void Connection::SetDeadline(int seconds) {
  deadline_ = seconds < 0 ? Clock::time_point::max() : Clock::now() + std::chrono::seconds(seconds);
}

// One timer that looks once a second: deadlines move with every byte, and exactness is worth nothing here.
void Connection::WatchDeadline() {
  timer_.expires_after(std::chrono::seconds(1));
  timer_.async_wait([weak = weak_from_this()](error_code error) {
    const std::shared_ptr<Connection> self = weak.lock();
    if (error || self == nullptr || self->state_ == State::kClosed) return;
    if (Clock::now() >= self->deadline_) {
      if (self->writing_) self->server_.CountSlow();
      const bool late = self->state_ == State::kReading && self->head_seen_ && !self->writing_;
      if (!late) return self->Close();
      self->Fail(408, "the body took too long");
    }
    self->WatchDeadline();
  });
}

// ---------------------------------------------------------------------------------------------------- Server

Status Server::Listen() {
  error_code error;
  if (!options_.tls_cert.empty()) {
    tls_.emplace(asio::ssl::context::tls_server);
    tls_->set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_sslv2 |
                          asio::ssl::context::no_sslv3 | asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1,
                      error);
    if (tls_->use_certificate_chain_file(options_.tls_cert, error); error)
      return IoError("--tls-cert {}: {}", options_.tls_cert, error.message());
    if (tls_->use_private_key_file(options_.tls_key, asio::ssl::context::pem, error); error)
      return IoError("--tls-key {}: {}", options_.tls_key, error.message());
  }
  tcp::resolver resolver(io_);
  const auto found = resolver.resolve(options_.host, std::to_string(options_.port),
                                      tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error) return IoError("--host {}: {}", options_.host, error.message());
  const tcp::endpoint endpoint = found.begin()->endpoint();
  const auto failed = [&] {
    return IoError("cannot listen on {}:{}: {}; choose another with --port", options_.host, options_.port,
                   error.message());
  };
  if (acceptor_.open(endpoint.protocol(), error); error) return failed();
  acceptor_.set_option(asio::socket_base::reuse_address(true), error);
  if (acceptor_.bind(endpoint, error); error) return failed();
  if (acceptor_.listen(1024, error); error) return failed();
  port_ = acceptor_.local_endpoint(error).port();
  return Ok();
}

void Server::Start() {
  asio::post(io_, [this] { Accept(); });
  for (int i = 0; i < options_.threads; ++i)
    threads_.emplace_back([this] {
      const auto work = asio::make_work_guard(io_);
      io_.run();
    });
}

void Server::Accept() {
  acceptor_.async_accept([this](error_code error, tcp::socket socket) {
    if (draining_ || error == asio::error::operation_aborted) return;
    if (error) {  // out of file descriptors, mostly: others will close theirs
      const auto timer = std::make_shared<asio::steady_timer>(io_, std::chrono::milliseconds(50));
      return timer->async_wait([this, timer](error_code) { Accept(); });
    }
    std::shared_ptr<Connection> connection;
    {
      const std::lock_guard lock(mutex_);
      if (connections_.size() >= options_.limits.connections) {
        ++counters_.refused;
      } else {
        ++counters_.accepted;
        connection = std::make_shared<Connection>(*this, std::move(socket));
        connections_.insert(connection);
      }
    }
    if (connection) {
      connection->Start();
    } else if (!tls_) {  // one try, without waiting: the least that is polite
      const HttpReply reply = handler_.fail(503, "too many connections");
      const std::string text = fmt::format(
          "HTTP/1.1 503 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nRetry-After: 1\r\nConnection: close\r\n\r\n{}",
          StatusText(503), reply.type, reply.body.size(), reply.body);
      socket.non_blocking(true, error);
      socket.write_some(asio::buffer(text), error);
      socket.shutdown(tcp::socket::shutdown_send, error);
    }
    Accept();
  });
}

void Server::Remove(Connection* connection) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(connections_.begin(), connections_.end(),
                                  [&](const auto& held) { return held.get() == connection; });
  if (found != connections_.end()) connections_.erase(found);
  drained_.notify_all();
}

void Server::DrainOnSignals() {
  asio::post(io_, [this] {
    error_code ignored;
    signals_.add(SIGTERM, ignored);
    signals_.add(SIGINT, ignored);
    signals_.async_wait([this](error_code error, int) {
      if (error) return;
      signals_.clear(error);  // the next one ends the process
      BeginDrain();
    });
  });
}

void Server::BeginDrain() {
  if (draining_.exchange(true)) return;
  error_code ignored;
  acceptor_.close(ignored);
  std::vector<std::shared_ptr<Connection>> open;
  {
    const std::lock_guard lock(mutex_);
    open.assign(connections_.begin(), connections_.end());
    drained_.notify_all();
  }
  for (const auto& connection : open) connection->CloseIfIdle();
  if (handler_.drain) handler_.drain();
  drain_timer_.expires_after(std::chrono::seconds(options_.limits.drain_s));
  drain_timer_.async_wait([this](error_code error) {
    if (error) return;
    std::vector<std::shared_ptr<Connection>> left;
    {
      const std::lock_guard lock(mutex_);
      left.assign(connections_.begin(), connections_.end());
    }
    for (const auto& connection : left) connection->CloseNow();
  });
}

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::Bind(const HttpOptions& options, HttpHandler handler) {
  auto server = std::make_unique<Server>(options, std::move(handler));
  RETURN_IF_ERROR(server->Listen());
  return std::unique_ptr<HttpServer>(std::move(server));
}

std::string_view StatusText(int status) {
  const auto text = http::obsolete_reason(static_cast<http::status>(status));
  return {text.data(), text.size()};
}

}  // namespace infinigen
