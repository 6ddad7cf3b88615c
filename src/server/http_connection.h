// Connection: one client of the HTTP server. It runs on its own strand, so its state needs no lock.
//
//            bytes                      parsed                    handled
//   reading ───────► reader ─► head ─► admit? ─► body ─► handle ─► … Reply | Begin Write End ─► reading again
//      ▲                                                               │ queue of bytes to write, bounded for streams
//      └── one read is always pending, also while a request is handled: end of file means that the client is gone
//
// RequestReader parses the input; output is written without a library.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/io_context_strand.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <deque>
#include <exception>
#include <new>
#include <optional>
#include <utility>

#include "server/http.h"
#include "server/request_reader.h"

namespace infinigen {

class Connection;

// Before the next try, where memory is short.
inline constexpr std::chrono::milliseconds kBetweenTries{50};

// Held by a waiting handler: sets a flag if the handler is destroyed before it was called. Asio does that where it has
// no memory to pass the handler to its strand.
class Pending {
 public:
  explicit Pending(std::atomic<bool>& lost) : lost_(&lost) {}
  Pending(Pending&& other) noexcept : lost_(std::exchange(other.lost_, nullptr)) {}
  Pending& operator=(Pending&&) = delete;
  ~Pending() {
    if (lost_ != nullptr) *lost_ = true;
  }
  void Called() { lost_ = nullptr; }

 private:
  std::atomic<bool>* lost_;
};

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
  // `place`: this connection among those of its client. `memory`: MemoryBytes of its client's account.
  Connection(ConnectionHost& host, boost::asio::ip::tcp::socket socket, std::shared_ptr<Client> client,
             ClientCount place, MemoryShare memory);
  // What a connection takes without a request: objects, the target of reads; with TLS, OpenSSL's and Asio's buffers.
  static uint64_t MemoryBytes(bool tls);
  // These four may be called from any thread.
  void Start();
  void CloseIfIdle();
  void RefuseUnread();  // replies 503 if the body is incomplete
  void CloseNow();
  // Whether one of its handlers was lost since the last call: then it waits for nothing, and must be closed.
  bool TakeLost() { return lost_.exchange(false); }

 private:
  friend class Exchange;
  enum class State { kHandshake, kReading, kHandling, kClosing, kClosed };
  using Clock = std::chrono::steady_clock;
  using error_code = boost::system::error_code;

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
  void ForgetParsed();
  void AdmitHead();
  bool MovePlace();  // false: its client has too many connections
  void Handle();
  void Fail(int status, std::string_view reason, HttpCause cause = HttpCause::kByStatus);
  void SendHead(HttpReply reply, bool stream);
  void Queue(std::string bytes, MemoryShare memory = {});
  void WriteChunk(const std::string& bytes, bool beginning = false);
  uint64_t Backlog() const;
  void EndChunks();
  void Abort(HttpReply error);
  void WriteSome();
  void OnWritten(error_code error, size_t bytes);
  void OnAllWritten();
  void Finish();  // the reply's last byte is queued
  void EndOutput();
  void Close();
  void DropSlow();
  void TellGone() noexcept;
  void SetDeadline(int seconds);
  void WatchDeadline();
  void CheckDeadlines();
  void BeginWindow(Clock::time_point now);
  bool ReadsTooSlowly(Clock::time_point now);
  // Releases input_'s memory where it is much more than the unparsed bytes need.
  void ShrinkInput();
  // Counts input_ and the body. False: the account is overdrawn.
  bool CountInput();
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
  ClientCount place_;  // of the latest client that was not address_client_; of that one before
  const MemoryShare memory_;
  std::atomic<bool> lost_{false};

  std::vector<char> chunk_;  // target of the pending read, which may write to it at any time
  std::string input_;        // bytes read; those from parsed_ on are not parsed yet
  size_t parsed_ = 0;
  std::optional<RequestReader> reader_;  // of the current request
  bool expects_continue_ = false;        // the client waits for 100 before it sends the body
  bool reading_ = false;
  MemoryShare input_memory_;  // of input_, and of the body until its exchange has it

  uint64_t exchange_ = 0;               // number of the current exchange
  std::atomic<uint64_t> abandoned_{0};  // number of an exchange that was dropped when there was no memory to say so
  bool may_send_ = false;               // HttpHandler::may_send of the current request
  bool keep_alive_ = false;
  bool chunked_ = false;
  bool replied_ = false;   // the reply's head is queued
  bool finished_ = false;  // the reply's last byte is queued
  bool without_body_ = false;
  bool lingers_ = true;  // after the last reply it waits for the client to close
  std::string sent_id_;  // X-Request-Id of the reply
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
  uint64_t beginning_end_ = 0;  // the beginning of a stream ends after so many bytes of output
  bool over_backlog_ = false;   // at the latest check of the deadlines
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
