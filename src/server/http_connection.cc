#include "server/http_connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/bind_executor.hpp>
#include <boost/beast/core/string.hpp>
#include <thread>
#include <utility>

namespace infinigen {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

// Size of one read.
constexpr size_t kReadBytes = 16 << 10;
// Parsed bytes are erased from input_ when there are this many of them, or when all are parsed.
constexpr size_t kForgetBytes = 1 << 20;
// input_ keeps memory of this size between requests, and up to four times what it holds.
constexpr size_t kKeptInputBytes = 4 << 10;
// Small, so that this server notices a slow reader before the kernel has buffered megabytes for it.
constexpr int kSendBufferBytes = 128 << 10;
// Input sent ahead of the answer to a request that may not send (HttpHandler::may_send): no more is read before.
constexpr size_t kStrangerAheadBytes = 16 << 10;
// Bodies up to this size are sent together with their head.
constexpr size_t kJoinedBytes = 16 << 10;
// Measured: 3 KiB of objects; with TLS, 70 KiB.
constexpr uint64_t kConnectionBytes = 4 << 10;
constexpr uint64_t kTlsBytes = 72 << 10;
// Where memory is short.
constexpr int kMostTries = 100;
// A backlog of so many times the limit is judged at once.
constexpr uint64_t kMostBacklogs = 16;

}  // namespace

// The handler's side of a connection: one request and its reply. It keeps the connection object alive.
class Exchange : public HttpExchange {
 public:
  Exchange(std::shared_ptr<Connection> connection, HttpRequest request, uint64_t number)
      : connection_(std::move(connection)),
        client_(connection_->client_),
        request_(std::move(request)),
        number_(number),
        memory_(client_->memory) {
    memory_.Set(request_.bytes());
  }
  ~Exchange() override {
    if (ended_) return;  // otherwise the handler dropped it without a reply
    try {
      OnConnection([](Connection& c) { c.Close(); });
    } catch (const std::exception&) {
      Abandon();
    }
  }

  const HttpRequest& request() const override { return request_; }
  const std::shared_ptr<Client>& client() const override { return client_; }
  void Reply(HttpReply reply) override {
    Count(&reply);
    OnConnection([reply = std::move(reply)](Connection& c) mutable {
      c.SendHead(std::move(reply), /*stream=*/false);
      c.Finish();
    });
    ended_ = true;
  }
  void Begin(HttpReply head) override {
    OnConnection([head = std::move(head)](Connection& c) mutable {
      const std::string first = std::exchange(head.body, {});
      c.SendHead(std::move(head), /*stream=*/true);
      if (!first.empty()) c.WriteChunk(first, /*beginning=*/true);
    });
  }
  void Write(std::string bytes) override {
    if (bytes.empty()) return;
    OnConnection([bytes = std::move(bytes)](Connection& c) { c.WriteChunk(bytes); });
  }
  void End() override {
    OnConnection([](Connection& c) {
      c.EndChunks();
      c.Finish();
    });
    ended_ = true;
  }
  void Abort(HttpReply error) override {
    OnConnection([error = std::move(error)](Connection& c) mutable { c.Abort(std::move(error)); });
    ended_ = true;
  }
  void OnGone(std::function<void(HttpGone)> gone) override {
    asio::post(connection_->strand_, [c = connection_, number = number_, gone = std::move(gone)]() mutable {
      if (c->exchange_ != number || c->finished_) return;
      c->gone_ = std::move(gone);
      if (c->state_ == Connection::State::kClosed) c->TellGone();
    });
  }
  void Abandon() noexcept override {
    if (!ended_) connection_->abandoned_ = number_;
  }

 private:
  // Counts a reply that its maker has not counted. It exists already, so it is not refused.
  void Count(HttpReply* reply) {
    if (reply->memory.has_account()) return;
    reply->memory = MemoryShare(client_->memory);
    reply->memory.Set(reply->body.capacity());
  }
  template <class F>
  void OnConnection(F f) {
    asio::post(connection_->strand_, [c = connection_, number = number_, f = std::move(f)]() mutable {
      if (c->exchange_ == number && c->state_ == Connection::State::kHandling && !c->finished_)
        c->Guard([&] { f(*c); });
    });
  }

  const std::shared_ptr<Connection> connection_;
  const std::shared_ptr<Client> client_;
  const HttpRequest request_;
  const uint64_t number_;
  MemoryShare memory_;  // of request_
  std::atomic<bool> ended_{false};
};

uint64_t Connection::MemoryBytes(bool tls) { return kConnectionBytes + kReadBytes + (tls ? kTlsBytes : 0); }

Connection::Connection(ConnectionHost& host, tcp::socket socket, std::shared_ptr<Client> client, ClientCount place,
                       MemoryShare memory)
    : host_(host),
      strand_(host.io),
      socket_(std::move(socket)),
      timer_(host.io),
      address_client_(std::move(client)),
      place_(std::move(place)),
      memory_(std::move(memory)),
      input_memory_(address_client_->memory),
      client_(address_client_) {
  if (host.tls) tls_.emplace(socket_, *host.tls);
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
    const bool idle = c.state_ == State::kHandshake || (c.state_ == State::kReading && !c.reader_->has_head());
    if (idle) c.Close();
  });
}

void Connection::RefuseUnread() {
  OnStrand([](Connection& c) {
    if (c.state_ == State::kReading && c.reader_->has_head()) c.Fail(503, "the server is shutting down");
  });
}

void Connection::CloseNow() {
  OnStrand([](Connection& c) { c.Close(); });
}

void Connection::Handshake() {
  SetDeadline(host_.limits.idle_s);
  auto done = [self = shared_from_this(), pending = Pending(lost_)](error_code error) mutable {
    pending.Called();
    if (error) return self->Close();
    // The connection may have been closed between the last byte and this call.
    if (self->state_ != State::kClosed) self->Guard([&] { self->NextRequest(); });
  };
  tls_->async_handshake(asio::ssl::stream_base::server, asio::bind_executor(strand_, std::move(done)));
}

void Connection::NextRequest() {
  state_ = State::kReading;
  ++exchange_;
  reader_.emplace(host_.limits.header_bytes, host_.limits.body_bytes);
  client_ = address_client_;
  input_memory_.MoveTo(client_->memory);
  ShrinkInput();
  CountInput();
  expects_continue_ = replied_ = finished_ = chunked_ = without_body_ = keep_alive_ = may_send_ = false;
  gone_ = nullptr;
  SetDeadline(host_.limits.idle_s);
  Parse();
}

void Connection::Read() {
  if (reading_ || state_ == State::kClosed) return;
  if (state_ == State::kHandling && !may_send_ && unparsed() >= kStrangerAheadBytes) return;  // NextRequest reads on
  chunk_.resize(kReadBytes);
  const auto buffer = asio::buffer(chunk_);
  auto on_read = [self = shared_from_this(), pending = Pending(lost_)](error_code error, size_t bytes) mutable {
    pending.Called();
    self->Guard([&] { self->OnRead(error, bytes); });
  };
  auto done = asio::bind_executor(strand_, std::move(on_read));
  if (tls_)
    tls_->async_read_some(buffer, std::move(done));
  else
    socket_.async_read_some(buffer, std::move(done));
  reading_ = true;  // not earlier: the call may throw
}

void Connection::OnRead(error_code error, size_t bytes) {
  reading_ = false;
  if (state_ == State::kClosed) return;
  if (state_ == State::kClosing) {  // input is discarded until the client closes
    if (error) return Close();
    return Read();
  }
  if (error) return Close();
  input_.append(chunk_.data(), bytes);
  if (state_ == State::kReading)
    Parse();
  else
    OnReadAhead();
}

// Input that arrives while a request is handled is kept, up to the size of one request. A client that sends more is
// disconnected: if the server stopped reading instead, it would not notice a disconnect. It does stop for requests that
// may not send, which are answered at once.
void Connection::OnReadAhead() {
  const bool fits = unparsed() <= host_.limits.body_bytes + host_.limits.header_bytes;
  if (!CountInput() || !fits) return Close();
  Read();
}

void Connection::ShrinkInput() {
  if (input_.capacity() <= kKeptInputBytes || input_.capacity() / 4 < unparsed()) return;
  std::string(input_, parsed_).swap(input_);  // an assignment would keep the memory
  parsed_ = 0;
}

bool Connection::CountInput() {
  const size_t parsed = reader_ ? reader_->body().capacity() + reader_->head().bytes() : 0;
  return input_memory_.Set(input_.capacity() + parsed);
}

void Connection::Parse() {
  while (state_ == State::kReading) {
    const RequestReader::Event event = reader_->Read(std::string_view(input_).substr(parsed_), &parsed_);
    ForgetParsed();
    if (!CountInput()) return Fail(429, "too many requests are being read");
    switch (event) {
      case RequestReader::Event::kFailed:
        return Fail(reader_->fault().status, reader_->fault().reason);
      case RequestReader::Event::kHead:
        SetDeadline(host_.limits.body_s);
        AdmitHead();
        break;
      case RequestReader::Event::kMore:
        if (std::exchange(expects_continue_, false)) Queue("HTTP/1.1 100 Continue\r\n\r\n");
        return Read();
      case RequestReader::Event::kDone:
        return Handle();
    }
  }
}

void Connection::ForgetParsed() {
  if (unparsed() > 0 && parsed_ < kForgetBytes) return;  // erasing copies the rest
  input_.erase(0, parsed_);
  parsed_ = 0;
  ShrinkInput();
}

HttpRequest Connection::Head() const {
  const RequestHead& parsed = reader_->head();
  std::string target = parsed.target;
  HttpRequest head;
  head.method = parsed.method;
  head.host = parsed.host;
  // A target in absolute form (http://host/path) overrides the Host field.
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (target.size() < scheme.size() || !boost::beast::iequals(target.substr(0, scheme.size()), scheme)) continue;
    const size_t end = std::min(target.find_first_of("/?", scheme.size()), target.size());
    head.host = target.substr(scheme.size(), end - scheme.size());
    target.erase(0, end);
    if (target.empty() || target[0] == '?') target.insert(0, 1, '/');
    break;
  }
  const size_t mark = target.find('?');
  head.path = target.substr(0, mark);
  if (mark != std::string::npos) head.query = target.substr(mark + 1);
  head.origin = parsed.origin;
  head.authorization = parsed.authorization;
  head.request_id = parsed.request_id;
  head.cors_headers = parsed.cors_headers;
  head.peer = ClientAddress(peer_, parsed.forwarded, host_.trusted_proxies);
  return head;
}

// Reads on, or sends a reply that refuses the request.
void Connection::AdmitHead() {
  const RequestHead& parsed = reader_->head();
  keep_alive_ = parsed.keep_alive && !host_.draining;
  chunked_ = parsed.http11;  // whether a streamed reply is chunked
  without_body_ = parsed.method == "HEAD";
  const HttpRequest head = Head();
  if (std::unique_ptr<HttpReply> reply = host_.handler.admit(head)) {
    state_ = State::kHandling;
    keep_alive_ = keep_alive_ && !reader_->has_body();
    SendHead(std::move(*reply), /*stream=*/false);
    return Finish();
  }
  may_send_ = !host_.handler.may_send || host_.handler.may_send(head);
  if (!may_send_ && reader_->has_body()) return Fail(413, "a request without a key must not have a body");
  const std::string name = host_.handler.client ? host_.handler.client(head) : std::string();
  client_ = host_.all_clients.Find(name.empty() ? ClientOf(head.peer) : name);
  input_memory_.MoveTo(client_->memory);
  if (client_ != address_client_ && !MovePlace()) {
    lingers_ = false;  // its place is for others
    return Fail(503, "too many connections", HttpCause::kTooManyConnections);
  }
  expects_continue_ = parsed.expects_continue;
}

// The connection counts for the key of its latest request, or the address that a trusted proxy named in it, and no
// longer for the address that it came from.
bool Connection::MovePlace() {
  if (place_.counts_for(client_)) return true;
  ClientCount place =
      host_.all_clients.TryCount(client_, &Client::connections, 1, static_cast<int64_t>(host_.limits.connections));
  if (!place) return false;
  place_ = std::move(place);
  return true;
}

void Connection::Handle() {
  state_ = State::kHandling;
  SetDeadline(-1);
  HttpRequest request = Head();
  request.body = std::exchange(reader_->body(), {});
  const auto exchange = std::make_shared<Exchange>(shared_from_this(), std::move(request), exchange_);
  ShrinkInput();
  CountInput();  // the exchange counts the body from now on
  Read();        // to notice a disconnect
  host_.handler.handle(exchange);
}

// Sends an error reply and closes the connection, because the next request's start is unknown.
void Connection::Fail(int status, std::string_view reason, HttpCause cause) {
  state_ = State::kHandling;
  keep_alive_ = false;
  without_body_ = reader_->head().method == "HEAD";
  SendHead(host_.handler.fail(Head(), status, reason, cause), /*stream=*/false);
  Finish();
}

void Connection::SendHead(HttpReply reply, bool stream) {
  if (replied_) return;
  SetDeadline(-1);
  const bool chunked = stream && chunked_;
  if (stream && !chunked) keep_alive_ = false;
  if (host_.draining) keep_alive_ = false;
  std::string text = fmt::format("HTTP/1.1 {} {}\r\nServer: infinigen\r\n", reply.status, StatusText(reply.status));
  if (!reply.type.empty()) text += fmt::format("Content-Type: {}\r\n", reply.type);
  for (const auto& [name, value] : reply.headers) text += fmt::format("{}: {}\r\n", name, value);
  if (chunked)
    text += "Transfer-Encoding: chunked\r\n";
  else if (!stream && reply.status != 204)
    text += fmt::format("Content-Length: {}\r\n", reply.body.size());
  text += keep_alive_ ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  if (!stream) chunked_ = false;
  const bool has_body = !stream && !without_body_ && !reply.body.empty();
  const bool small = reply.body.size() <= kJoinedBytes;
  if (has_body && small) text += reply.body;
  sent_id_.clear();
  for (auto& [name, value] : reply.headers)
    if (name == "X-Request-Id") sent_id_ = std::move(value);
  replied_ = true;  // not earlier: an exception above must leave the connection able to reply
  Queue(std::move(text));
  if (has_body && !small) Queue(std::move(reply.body), std::move(reply.memory));
}

void Connection::Abort(HttpReply error) {
  if (!replied_) {
    SendHead(std::move(error), /*stream=*/false);
  } else {
    WriteChunk("data: " + error.body + "\n\n");
    EndChunks();
  }
  Finish();
}

// Called inside a catch; does not throw.
void Connection::OnException(bool out_of_memory) {
  try {
    const bool request_begun = (state_ == State::kReading && reader_->begun()) || state_ == State::kHandling;
    if (request_begun && !replied_ && !gone_ && out_of_memory)
      return Fail(503, "out of memory", HttpCause::kOutOfMemory);
    if (request_begun && !replied_ && !gone_) return Fail(500, "internal error");
  } catch (const std::exception&) {  // no memory for an answer either
  }
  Close();
}

void Connection::WriteChunk(const std::string& bytes, bool beginning) {
  if (without_body_) return;
  Queue(chunked_ ? fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes) : bytes);
  if (beginning) beginning_end_ = written_total_ + queued_bytes_;
  const uint64_t backlog = Backlog();
  if (backlog <= host_.limits.backlog_bytes) return;
  // What one step of the engine sends at once may pass the limit; a reader has until the next check to take it.
  if (backlog > kMostBacklogs * host_.limits.backlog_bytes || client_->memory->overdrawn()) DropSlow();
}

// Unsent bytes of a stream without its beginning, for whose size the client cannot be blamed.
uint64_t Connection::Backlog() const {
  const uint64_t end = written_total_ + queued_bytes_;
  return end - std::min(end, std::max(written_total_, beginning_end_));
}

void Connection::EndChunks() {
  if (chunked_ && !without_body_) Queue("0\r\n\r\n");
}

void Connection::Queue(std::string bytes, MemoryShare memory) {
  if (state_ == State::kClosed) return;
  if (!memory.has_account()) {
    memory = MemoryShare(client_->memory);
    memory.Set(bytes.capacity());
  }
  const size_t size = bytes.size();
  output_.push_back({std::move(bytes), std::move(memory)});
  queued_bytes_ += size;
  if (!writing_) WriteSome();
}

void Connection::WriteSome() {
  if (window_end_ == Clock::time_point::max()) BeginWindow(Clock::now());
  const std::string& front = output_.front().bytes;
  const auto buffer = asio::buffer(front.data() + written_, front.size() - written_);
  auto on_written = [self = shared_from_this(), pending = Pending(lost_)](error_code error, size_t bytes) mutable {
    pending.Called();
    self->Guard([&] { self->OnWritten(error, bytes); });
  };
  auto done = asio::bind_executor(strand_, std::move(on_written));
  if (tls_)
    tls_->async_write_some(buffer, std::move(done));
  else
    socket_.async_write_some(buffer, std::move(done));
  writing_ = true;  // not earlier: the call may throw
}

void Connection::OnWritten(error_code error, size_t bytes) {
  writing_ = false;
  if (state_ == State::kClosed) return;
  if (error) return Close();
  written_ += bytes;
  written_total_ += bytes;
  queued_bytes_ -= bytes;
  if (written_ == output_.front().bytes.size()) {
    output_.pop_front();
    written_ = 0;
  }
  if (Backlog() <= host_.limits.backlog_bytes) over_backlog_ = false;
  if (!output_.empty()) return WriteSome();
  window_end_ = Clock::time_point::max();
  OnAllWritten();
}

// Called when all queued output is sent.
void Connection::OnAllWritten() {
  if (!finished_) return;
  if (keep_alive_ && !host_.draining) return NextRequest();
  EndOutput();
}

void Connection::BeginWindow(Clock::time_point now) {
  const uint64_t seconds = static_cast<uint64_t>(std::max(host_.limits.write_s, 1));
  window_end_ = now + std::chrono::seconds(seconds);
  window_target_ = written_total_ + std::min<uint64_t>(queued_bytes_, seconds * host_.limits.least_rate);
}

bool Connection::ReadsTooSlowly(Clock::time_point now) {
  if (now < window_end_) return false;
  if (written_total_ < window_target_) return true;
  BeginWindow(now);
  return false;
}

// Shuts down the sending side and gives the client 2 s to close its own. Closing a socket with unread input would reset
// the connection, and the client could lose the reply.
void Connection::EndOutput() {
  if (!lingers_) return Close();
  state_ = State::kClosing;
  SetDeadline(2);
  std::string().swap(input_);
  parsed_ = 0;
  CountInput();
  Read();
  if (tls_)  // close_notify proves to the client that the end was not forged (truncation attack)
    return tls_->async_shutdown(asio::bind_executor(strand_, [self = shared_from_this()](error_code) {
      error_code ignored;
      self->socket_.shutdown(tcp::socket::shutdown_send, ignored);
    }));
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
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
  input_memory_.Set(0);
  if (!writing_) output_.clear();  // otherwise the pending write may still read it
  TellGone();
  host_.Closed(this);
}

void Connection::DropSlow() {
  too_slow_ = true;
  host_.CountSlow();
  if (finished_ && host_.handler.dropped) {
    try {
      host_.handler.dropped(Head(), sent_id_);
    } catch (const std::exception&) {  // no memory for a line of the log
    }
  }
  Close();
}

// Where memory is short, the handler is told again and again: otherwise a request would run without its client.
void Connection::TellGone() noexcept {
  const auto gone = std::exchange(gone_, nullptr);
  for (int tries = 0; gone && tries < kMostTries; ++tries) {
    try {
      return gone(too_slow_ ? HttpGone::kTooSlow : HttpGone::kLeft);
    } catch (const std::exception&) {
      std::this_thread::sleep_for(kBetweenTries);
    }
  }
}

void Connection::SetDeadline(int seconds) {
  deadline_ = seconds < 0 ? Clock::time_point::max() : Clock::now() + std::chrono::seconds(seconds);
}

// Checks the deadlines once a second. They move with every byte, so a timer per deadline would cost more.
void Connection::WatchDeadline() {
  timer_.expires_after(std::chrono::seconds(1));
  auto check = [self = shared_from_this(), pending = Pending(lost_)](error_code error) mutable {
    pending.Called();
    if (error || self->state_ == State::kClosed) return;
    self->Guard([&] {
      self->CheckDeadlines();
      if (self->state_ != State::kClosed) self->WatchDeadline();
    });
  };
  timer_.async_wait(asio::bind_executor(strand_, std::move(check)));
}

void Connection::CheckDeadlines() {
  const Clock::time_point now = Clock::now();
  const bool over = !finished_ && Backlog() > host_.limits.backlog_bytes;
  if (ReadsTooSlowly(now) || (over && over_backlog_)) return DropSlow();
  over_backlog_ = over;
  if (abandoned_ == exchange_ && state_ == State::kHandling && !finished_) return Close();
  if (now < deadline_) return;
  const bool late = state_ == State::kReading && reader_->has_head();
  if (!late) return Close();
  Fail(408, "the body took too long");
}

}  // namespace infinigen
