// Connection: one client of the HTTP server. It runs on its own strand, so its state needs no lock.
//
//            bytes                      parsed                    handled
//   reading ───────► parser ─► head ─► admit? ─► body ─► handle ─► … Reply | Begin Write End ─► reading again
//      ▲                                                               │ queue of bytes to write, bounded for streams
//      └── one read is always pending, also while a request is handled: end of file means that the client is gone
//
// Beast parses the input (it refuses every request whose length is ambiguous); output is written without it.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/io_context_strand.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <deque>
#include <exception>
#include <new>
#include <optional>

#include "server/http.h"

namespace infinigen {

class Connection;

// State shared by all connections; outlives them. Its functions may be called from any thread.
class ConnectionHost {
 public:
  ConnectionHost(const HttpOptions& options, HttpHandler handler_)
      : limits(options.limits), handler(std::move(handler_)), trusted_proxies(options.trusted_proxies) {}
  virtual ~ConnectionHost() = default;

  virtual void Closed(Connection* connection) = 0;
  virtual void CountSlow() = 0;

  const HttpLimits limits;
  const HttpHandler handler;
  const std::vector<AddressRange> trusted_proxies;
  const std::shared_ptr<MemoryAccount> memory = std::make_shared<MemoryAccount>(limits.memory_bytes);
  Clients all_clients{limits.client_share, memory};
  boost::asio::io_context io;
  std::optional<boost::asio::ssl::context> tls;
  std::atomic<bool> draining{false};
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // `place`: this connection among those of its address.
  Connection(ConnectionHost& host, boost::asio::ip::tcp::socket socket, std::shared_ptr<Client> client,
             ClientCount place);
  // These four may be called from any thread.
  void Start();
  void CloseIfIdle();
  void RefuseUnread();  // replies 503 if the body is incomplete
  void CloseNow();

 private:
  friend class Exchange;
  enum class State { kHandshake, kReading, kHandling, kClosing, kClosed };
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  using Clock = std::chrono::steady_clock;
  using error_code = boost::system::error_code;
  // Refuses a chunk with long extensions (which are ignored anyway), and records where the last chunk's extensions
  // begin and end. The pointers point into the bytes that are being parsed.
  struct ChunkLine {
    void operator()(uint64_t size, boost::beast::string_view extensions, error_code& error);
    const char* last_extensions = nullptr;
    const char* trailers = nullptr;
  };

  // A piece of output, counted until all of it is sent.
  struct Piece {
    std::string bytes;
    MemoryShare memory;
  };

  // All functions below run on the strand.
  //
  // Runs a callback. An exception in it (usually no memory) ends this connection alone.
  template <class F>
  void Guard(F&& f);
  void OnException(bool out_of_memory);
  void Handshake();
  void NextRequest();
  void Read();
  void OnRead(error_code error, size_t bytes);
  void OnReadAhead();
  void Parse();
  size_t LastChunkBytes(size_t end) const;
  bool SkipEmptyLine();
  bool AdmitHead();
  bool CheckUnfinished();
  void Handle();
  void Fail(int status, std::string_view reason);
  void SendHead(HttpReply reply, bool stream);
  void Queue(std::string bytes, MemoryShare memory = {});
  void WriteChunk(const std::string& bytes);
  void Abort(HttpReply error);
  void WriteSome();
  void OnWritten(error_code error, size_t bytes);
  void OnAllWritten();
  void Finish();  // the reply's last byte is queued
  void EndOutput();
  void Close();
  void DropSlow();
  void TellGone();
  void SetDeadline(int seconds);
  void WatchDeadline();
  void CheckDeadlines();
  void BeginWindow(Clock::time_point now);
  bool ReadsTooSlowly(Clock::time_point now);
  // Releases input_'s memory where it is much more than the unparsed bytes need.
  void ShrinkInput();
  // Counts input_ and `body_bytes`. False: the account is overdrawn.
  bool CountInput(uint64_t body_bytes);
  size_t unparsed() const { return input_.size() - parsed_; }
  HttpRequest Head() const;
  template <class F>
  void OnStrand(F f) {
    boost::asio::post(strand_,
                      [self = shared_from_this(), f = std::move(f)]() mutable { self->Guard([&] { f(*self); }); });
  }

  ConnectionHost& host_;
  // asio::strand would end the process where memory for its mutex is short (Boost 1.81).
  boost::asio::io_context::strand strand_;
  boost::asio::ip::tcp::socket socket_;
  std::optional<boost::asio::ssl::stream<boost::asio::ip::tcp::socket&>> tls_;
  boost::asio::steady_timer timer_;
  Clock::time_point deadline_ = Clock::time_point::max();  // of the client's next step; not of reading output
  State state_ = State::kHandshake;
  std::string peer_;
  const std::shared_ptr<Client> address_client_;
  const ClientCount place_;

  std::vector<char> chunk_;  // target of the pending read, which may write to it at any time
  std::string input_;        // bytes read; those from parsed_ on are not parsed yet
  size_t parsed_ = 0;
  ChunkLine chunk_line_;
  std::optional<Parser> parser_;
  bool begun_ = false;  // the first byte of the request line has arrived
  bool head_seen_ = false;
  bool folded_ = false;  // a header line continues on the next line
  bool reading_ = false;
  MemoryShare input_memory_;  // of input_, and of the body until its exchange has it

  uint64_t exchange_ = 0;               // number of the current exchange
  std::atomic<uint64_t> abandoned_{0};  // number of an exchange that was dropped when there was no memory to say so
  bool keep_alive_ = false;
  bool chunked_ = false;
  bool replied_ = false;   // the reply's head is queued
  bool finished_ = false;  // the reply's last byte is queued
  bool without_body_ = false;
  std::function<void(HttpGone)> gone_;
  bool too_slow_ = false;           // the client read too slowly
  std::shared_ptr<Client> client_;  // of the current request
  std::deque<Piece> output_;
  size_t written_ = 0;  // bytes of output_.front()
  size_t queued_bytes_ = 0;
  bool writing_ = false;
  // The window in which the client must read: at its end, written_total_ must have reached window_target_.
  Clock::time_point window_end_ = Clock::time_point::max();
  uint64_t written_total_ = 0, window_target_ = 0;
};

template <class F>
void Connection::Guard(F&& f) {
  try {
    f();
  } catch (const std::bad_alloc&) {
    OnException(/*out_of_memory=*/true);
  } catch (const std::exception&) {
    OnException(/*out_of_memory=*/false);
  }
}

}  // namespace infinigen
