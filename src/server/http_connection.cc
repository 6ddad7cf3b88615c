#include "server/http_connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/bind_executor.hpp>
#include <utility>

namespace infinigen {

namespace asio = boost::asio;
namespace http = boost::beast::http;
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
// Bodies up to this size are sent together with their head.
constexpr size_t kJoinedBytes = 16 << 10;
// Limit of a chunk's extensions. No known client sends any.
constexpr size_t kExtensionBytes = 4 << 10;
// Limit of a chunk's line: extensions, the size (sixteen digits) and at most three line ends.
constexpr size_t kChunkLineBytes = kExtensionBytes + 32;
// The shortest last chunk: 0 and two line ends, so a chunked body is never complete without so many more bytes. Beast
// asserts that it gets them once it has seen the last chunk's line.
constexpr size_t kLeastLastChunk = 5;

// Whether a head, or trailers, contain a folded line. Beast joins folded lines with a space, but proxies may read them
// as two fields or none, so they are refused.
bool HasFoldedLine(std::string_view fields) {
  fields = fields.substr(0, fields.find("\r\n\r\n"));
  return fields.find("\n ") != fields.npos || fields.find("\n\t") != fields.npos;
}

}  // namespace

void Connection::ChunkLine::operator()(uint64_t size, boost::beast::string_view extensions, error_code& error) {
  if (size == 0) {  // Beast calls this once all trailers have arrived
    last_extensions = extensions.data();
    trailers = extensions.data() + extensions.size();
  }
  if (extensions.size() > kExtensionBytes) error = http::error::bad_chunk_extension;
}

// The handler's side of a connection: one request and its reply. It keeps the connection object alive.
class Exchange : public HttpExchange {
 public:
  Exchange(std::shared_ptr<Connection> connection, HttpRequest request, uint64_t number)
      : connection_(std::move(connection)),
        client_(connection_->client_),
        request_(std::move(request)),
        number_(number),
        body_memory_(client_->memory) {
    body_memory_.Set(request_.body.capacity());
  }
  ~Exchange() override {
    if (ended_) return;  // otherwise the handler dropped it without a reply
    try {
      OnConnection([](Connection& c) { c.Close(); });
    } catch (const std::exception&) {
      connection_->abandoned_ = number_;
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
      if (!first.empty()) c.WriteChunk(first);
    });
  }
  void Write(std::string bytes) override {
    if (bytes.empty()) return;
    OnConnection([bytes = std::move(bytes)](Connection& c) { c.WriteChunk(bytes); });
  }
  void End() override {
    OnConnection([](Connection& c) {
      if (c.chunked_) c.Queue("0\r\n\r\n");
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
  MemoryShare body_memory_;
  std::atomic<bool> ended_{false};
};

Connection::Connection(ConnectionHost& host, tcp::socket socket, std::shared_ptr<Client> client, ClientCount place)
    : host_(host),
      strand_(host.io),
      socket_(std::move(socket)),
      timer_(host.io),
      address_client_(std::move(client)),
      place_(std::move(place)),
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
    const bool idle = c.state_ == State::kHandshake || (c.state_ == State::kReading && !c.head_seen_);
    if (idle) c.Close();
  });
}

void Connection::RefuseUnread() {
  OnStrand([](Connection& c) {
    if (c.state_ == State::kReading && c.head_seen_) c.Fail(503, "the server is shutting down");
  });
}

void Connection::CloseNow() {
  OnStrand([](Connection& c) { c.Close(); });
}

void Connection::Handshake() {
  SetDeadline(host_.limits.idle_s);
  tls_->async_handshake(asio::ssl::stream_base::server,
                        asio::bind_executor(strand_, [self = shared_from_this()](error_code error) {
                          if (error) return self->Close();
                          // The connection may have been closed between the last byte and this call.
                          if (self->state_ != State::kClosed) self->Guard([&] { self->NextRequest(); });
                        }));
}

void Connection::NextRequest() {
  state_ = State::kReading;
  ++exchange_;
  parser_.emplace();
  client_ = address_client_;
  input_memory_.MoveTo(client_->memory);
  ShrinkInput();
  CountInput(0);
  parser_->header_limit(host_.limits.header_bytes);
  parser_->body_limit(host_.limits.body_bytes);
  parser_->eager(true);
  parser_->on_chunk_header(chunk_line_);
  chunk_line_.trailers = nullptr;
  begun_ = folded_ = head_seen_ = replied_ = finished_ = chunked_ = without_body_ = keep_alive_ = false;
  gone_ = nullptr;
  SetDeadline(host_.limits.idle_s);
  Parse();
}

void Connection::Read() {
  if (reading_ || state_ == State::kClosed) return;
  reading_ = true;
  chunk_.resize(kReadBytes);
  const auto buffer = asio::buffer(chunk_);
  auto done = asio::bind_executor(strand_, [self = shared_from_this()](error_code error, size_t bytes) {
    self->Guard([&] { self->OnRead(error, bytes); });
  });
  if (tls_)
    tls_->async_read_some(buffer, std::move(done));
  else
    socket_.async_read_some(buffer, std::move(done));
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
// disconnected: if the server stopped reading instead, it would not notice a disconnect.
void Connection::OnReadAhead() {
  const bool fits = unparsed() <= host_.limits.body_bytes + host_.limits.header_bytes;
  if (!CountInput(0) || !fits) return Close();
  Read();
}

void Connection::ShrinkInput() {
  if (input_.capacity() <= kKeptInputBytes || input_.capacity() / 4 < unparsed()) return;
  std::string(input_, parsed_).swap(input_);  // an assignment would keep the memory
  parsed_ = 0;
}

bool Connection::CountInput(uint64_t body_bytes) { return input_memory_.Set(input_.capacity() + body_bytes); }

void Connection::Parse() {
  while (state_ == State::kReading) {
    if (unparsed() == 0) {
      input_.clear();
      parsed_ = 0;
      ShrinkInput();
      return Read();
    }
    if (!begun_) {
      if (!SkipEmptyLine()) return Read();
      begun_ = true;
      continue;
    }
    if (head_seen_ && parser_->chunked() && unparsed() < kLeastLastChunk) return Read();
    error_code error;
    const size_t used = parser_->put(asio::buffer(input_.data() + parsed_, unparsed()), error);
    // Looks at all input after the last chunk (HasFoldedLine stops at the empty line), because Beast may report an
    // error before it has consumed the trailers.
    const bool folded_trailer =
        chunk_line_.trailers != nullptr &&
        HasFoldedLine(std::string_view(input_).substr(static_cast<size_t>(chunk_line_.trailers - input_.data())));
    if (!head_seen_ && parser_->is_header_done())
      folded_ = HasFoldedLine(std::string_view(input_).substr(parsed_, used));
    const size_t last_chunk_bytes = LastChunkBytes(parsed_ + used);
    parsed_ += used;
    if (parsed_ >= kForgetBytes) {  // not for every request, because erasing copies the rest
      input_.erase(0, parsed_);
      parsed_ = 0;
    }
    if (error == http::error::need_more) {
      error = {};
      if (!head_seen_ && !parser_->is_header_done()) {
        if (unparsed() > host_.limits.header_bytes) return Fail(431, "the header is too long");
        return Read();
      }
    }
    if (!error && last_chunk_bytes > host_.limits.header_bytes) return Fail(431, "the trailers are too long");
    if (error == http::error::header_limit) return Fail(431, "the header is too long");
    if (error == http::error::body_limit) return Fail(413, "the body is too long");
    if (error == http::error::bad_version) return Fail(505, "this version of HTTP is not supported; use 1.0 or 1.1");
    if (error) return Fail(400, error.message());
    if (folded_trailer) return Fail(400, "a trailer line is folded");
    if (parser_->is_header_done() && !head_seen_) {
      head_seen_ = true;
      SetDeadline(host_.limits.body_s);
      if (!AdmitHead()) return;
    }
    if (!CountInput(parser_->get().body().size())) return Fail(429, "too many requests are being read");
    if (parser_->is_done()) return Handle();
    if (used == 0) return CheckUnfinished() ? Read() : void();
  }
}

// Bytes of the last chunk, from its size to `end`; 0 while it is incomplete.
size_t Connection::LastChunkBytes(size_t end) const {
  if (chunk_line_.trailers == nullptr) return 0;
  size_t begin = static_cast<size_t>(chunk_line_.last_extensions - input_.data());
  while (begin > parsed_ && input_[begin - 1] == '0') --begin;  // the digits of the size
  return end - begin;
}

// Skips one empty line before a request: some clients send it after the previous body (RFC 9112, 2.2). A second one is
// an error of the parser. False: more bytes are needed to decide.
bool Connection::SkipEmptyLine() {
  const std::string_view rest = std::string_view(input_).substr(parsed_);
  if (rest.starts_with("\r\n")) parsed_ += 2;
  return rest != "\r";
}

// Checks the length of input that the parser did not consume because it is incomplete: a chunk's line, or the last
// chunk's line with its trailers. False: it is too long, and the error reply is sent.
bool Connection::CheckUnfinished() {
  std::string_view rest = std::string_view(input_).substr(parsed_);
  if (rest.starts_with("\r\n")) rest.remove_prefix(2);  // the end of the previous chunk
  if (rest.find('\n') == rest.npos) {
    if (rest.size() <= kChunkLineBytes) return true;
    return Fail(400, make_error_code(http::error::bad_chunk_extension).message()), false;
  }
  if (rest.size() <= host_.limits.header_bytes) return true;
  return Fail(431, "the trailers are too long"), false;
}

HttpRequest Connection::Head() const {
  const auto& message = parser_->get();
  const auto field = [&](auto name) {
    const auto value = message[name];
    return std::string(value.data(), value.size());
  };
  HttpRequest head;
  head.method = std::string(message.method_string());
  std::string target(message.target());
  head.host = field(http::field::host);
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
  head.origin = field(http::field::origin);
  head.authorization = field(http::field::authorization);
  head.request_id = field("X-Request-Id");
  head.cors_headers = field(http::field::access_control_request_headers);
  std::string forwarded;
  const auto [first, last] = message.equal_range("X-Forwarded-For");  // each proxy may add a field of its own
  for (auto each = first; each != last; ++each)
    forwarded += (forwarded.empty() ? "" : ",") + std::string(each->value().data(), each->value().size());
  head.peer = ClientAddress(peer_, forwarded, host_.trusted_proxies);
  return head;
}

// False: the request was refused, and the reply is sent.
bool Connection::AdmitHead() {
  const auto& message = parser_->get();
  keep_alive_ = message.keep_alive() && !host_.draining;
  without_body_ = message.method() == http::verb::head;
  if (message.version() != 10 && message.version() != 11)
    return Fail(505, "this version of HTTP is not supported; use 1.0 or 1.1"), false;
  if (message.version() == 11 && message.count(http::field::host) != 1)
    return Fail(400, "the request must have exactly one Host header"), false;
  if (folded_) return Fail(400, "a header line is folded"), false;
  if (message.count(http::field::transfer_encoding) > 0) {
    if (message.version() == 10) return Fail(400, "HTTP/1.0 has no transfer encodings"), false;
    if (!boost::beast::iequals(message[http::field::transfer_encoding], "chunked"))
      return Fail(400, "only the transfer encoding \"chunked\" is supported"), false;
  }
  chunked_ = message.version() == 11;  // whether a streamed reply is chunked
  const HttpRequest head = Head();
  if (std::unique_ptr<HttpReply> reply = host_.handler.admit(head)) {
    state_ = State::kHandling;
    keep_alive_ = keep_alive_ && parser_->is_done();
    SendHead(std::move(*reply), /*stream=*/false);
    Finish();
    return false;
  }
  const std::string name = host_.handler.client ? host_.handler.client(head) : std::string();
  client_ = host_.all_clients.Find(name.empty() ? ClientOf(head.peer) : name);
  input_memory_.MoveTo(client_->memory);
  const auto length = parser_->content_length();
  if (length && *length > host_.limits.body_bytes) return Fail(413, "the body is too long"), false;
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
  ShrinkInput();
  CountInput(0);  // the exchange counts the body from now on
  Read();         // to notice a disconnect
  host_.handler.handle(exchange);
}

// Sends an error reply and closes the connection, because the next request's start is unknown.
void Connection::Fail(int status, std::string_view reason) {
  state_ = State::kHandling;
  keep_alive_ = false;
  SendHead(host_.handler.fail(Head(), status, reason), /*stream=*/false);
  Finish();
}

void Connection::SendHead(HttpReply reply, bool stream) {
  if (replied_) return;
  replied_ = true;
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
  Queue(std::move(text));
  if (has_body && !small) Queue(std::move(reply.body), std::move(reply.memory));
}

void Connection::Abort(HttpReply error) {
  if (!replied_) {
    SendHead(std::move(error), /*stream=*/false);
  } else {
    WriteChunk("data: " + error.body + "\n\n");
    if (chunked_) Queue("0\r\n\r\n");
  }
  Finish();
}

// Called inside a catch; does not throw.
void Connection::OnException(bool out_of_memory) {
  try {
    const bool request_begun = (state_ == State::kReading && begun_) || state_ == State::kHandling;
    if (request_begun && !replied_ && !gone_)
      return Fail(out_of_memory ? 503 : 500, out_of_memory ? "out of memory" : "internal error");
  } catch (const std::exception&) {  // no memory for an answer either
  }
  Close();
}

void Connection::WriteChunk(const std::string& bytes) {
  if (without_body_) return;
  Queue(chunked_ ? fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes) : bytes);
  if (queued_bytes_ > host_.limits.backlog_bytes) DropSlow();
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
  writing_ = true;
  if (window_end_ == Clock::time_point::max()) BeginWindow(Clock::now());
  const std::string& front = output_.front().bytes;
  const auto buffer = asio::buffer(front.data() + written_, front.size() - written_);
  auto done = asio::bind_executor(strand_, [self = shared_from_this()](error_code error, size_t bytes) {
    self->Guard([&] { self->OnWritten(error, bytes); });
  });
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
  written_total_ += bytes;
  queued_bytes_ -= bytes;
  if (written_ == output_.front().bytes.size()) {
    output_.pop_front();
    written_ = 0;
  }
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
  state_ = State::kClosing;
  SetDeadline(2);
  std::string().swap(input_);
  parsed_ = 0;
  CountInput(0);
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
  try {
    TellGone();
  } catch (const std::exception&) {  // the handler could not be told; its exchange has no effect from now on
  }
  host_.Closed(this);
}

void Connection::DropSlow() {
  too_slow_ = true;
  host_.CountSlow();
  Close();
}

void Connection::TellGone() {
  if (gone_) std::exchange(gone_, nullptr)(too_slow_ ? HttpGone::kTooSlow : HttpGone::kLeft);
}

void Connection::SetDeadline(int seconds) {
  deadline_ = seconds < 0 ? Clock::time_point::max() : Clock::now() + std::chrono::seconds(seconds);
}

// Checks the deadlines once a second. They move with every byte, so a timer per deadline would cost more.
void Connection::WatchDeadline() {
  timer_.expires_after(std::chrono::seconds(1));
  timer_.async_wait(asio::bind_executor(strand_, [weak = weak_from_this()](error_code error) {
    const std::shared_ptr<Connection> self = weak.lock();
    if (error || self == nullptr || self->state_ == State::kClosed) return;
    self->Guard([&] {
      self->CheckDeadlines();
      if (self->state_ != State::kClosed) self->WatchDeadline();
    });
  }));
}

void Connection::CheckDeadlines() {
  const Clock::time_point now = Clock::now();
  if (ReadsTooSlowly(now)) return DropSlow();
  if (abandoned_ == exchange_ && state_ == State::kHandling && !finished_) return Close();
  if (now < deadline_) return;
  const bool late = state_ == State::kReading && head_seen_;
  if (!late) return Close();
  Fail(408, "the body took too long");
}

}  // namespace infinigen
