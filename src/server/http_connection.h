// Connection: one client of the HTTP server, on a strand of its own, so that its state needs no lock.
//
//            bytes                      parsed                    handled
//   reading ───────► parser ─► head ─► admit? ─► body ─► handle ─► … Reply | Begin Write End ─► reading again
//      ▲                                                               │ queue of bytes to write, bounded for streams
//      └── one read is always under way: also while an answer is made, since its end of file means that nobody waits
//
// Bytes are parsed by Beast (which refuses every request whose length can be read in two ways) and written by hand.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <deque>
#include <optional>

#include "server/http.h"

namespace infinigen {

class Connection;

// What connections share; outlives them. Its functions may be called from any thread.
class ConnectionHost {
 public:
  ConnectionHost(const HttpOptions& options, HttpHandler handler_)
      : limits(options.limits), handler(std::move(handler_)) {}
  virtual ~ConnectionHost() = default;

  virtual void Closed(Connection* connection) = 0;
  virtual void CountSlow() = 0;

  const HttpLimits limits;
  const HttpHandler handler;
  boost::asio::io_context io;
  std::optional<boost::asio::ssl::context> tls;
  std::atomic<uint64_t> body_bytes{0};  // of all connections and exchanges: until it is freed
  std::atomic<bool> draining{false};
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(ConnectionHost& host, boost::asio::ip::tcp::socket socket);
  // Any thread, all of them.
  void Start();
  void CloseIfIdle();
  void RefuseUnread();  // a request whose body is not all there
  void CloseNow();

 private:
  friend class Exchange;
  enum class State { kHandshake, kReading, kHandling, kClosing, kClosed };
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  using Clock = std::chrono::steady_clock;
  using error_code = boost::system::error_code;
  // Refuses a chunk whose extensions, which nobody here reads, are long, and remembers where the last one's line ends.
  struct ChunkLine {
    void operator()(uint64_t size, boost::beast::string_view extensions, error_code& error);
    const char* trailers = nullptr;  // in the bytes that are being parsed
  };

  // On the strand, all of them.
  void Handshake();
  void NextRequest();
  void Read();
  void OnRead(error_code error, size_t bytes);
  void OnReadAhead();
  void Parse();
  bool SkipEmptyLine();
  bool AdmitHead();
  bool CheckUnfinished();
  void Handle();
  void Fail(int status, std::string_view reason);
  void SendHead(const HttpReply& reply, bool stream);
  void Queue(std::string bytes);
  void WriteChunk(const std::string& bytes);
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
  // False: all connections together hold too much.
  bool CountBytes(uint64_t bytes);
  size_t unparsed() const { return input_.size() - parsed_; }
  HttpRequest Head() const;
  template <class F>
  void OnStrand(F f) {
    boost::asio::post(strand_, [self = shared_from_this(), f = std::move(f)]() mutable { f(*self); });
  }

  ConnectionHost& host_;
  boost::asio::strand<boost::asio::io_context::executor_type> strand_;
  boost::asio::ip::tcp::socket socket_;
  std::optional<boost::asio::ssl::stream<boost::asio::ip::tcp::socket&>> tls_;
  boost::asio::steady_timer timer_;
  Clock::time_point deadline_ = Clock::time_point::max();
  State state_ = State::kHandshake;
  std::string peer_;

  std::vector<char> chunk_;  // where a read that is under way puts its bytes: nobody else's
  std::string input_;        // read; from parsed_ on not yet parsed
  size_t parsed_ = 0;
  ChunkLine chunk_line_;
  std::optional<Parser> parser_;
  bool begun_ = false;  // the request's line is being read, or more
  bool head_seen_ = false;
  bool folded_ = false;       // a line of the head goes on in the next
  bool in_trailers_ = false;  // the last chunk's line is there, what follows it not all
  bool reading_ = false;
  uint64_t counted_bytes_ = 0;  // in the host's sum: what was read and is no exchange's yet

  uint64_t exchange_ = 0;  // which of the connection's exchanges is under way
  bool keep_alive_ = false;
  bool chunked_ = false;
  bool replied_ = false;   // head is queued
  bool finished_ = false;  // and the last byte
  bool without_body_ = false;
  std::function<void(HttpGone)> gone_;
  bool too_slow_ = false;  // to be waited for
  std::deque<std::string> output_;
  size_t written_ = 0;  // of output_.front()
  size_t queued_bytes_ = 0;
  bool writing_ = false;
};

}  // namespace infinigen
