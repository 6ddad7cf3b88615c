// The HTTP server: accepts connections up to a limit, and drains them at shutdown. Accepting, signals and shutdown run
// on one control strand; each connection has its own.
#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/beast/http/status.hpp>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "base/check.h"
#include "server/http_connection.h"

namespace infinigen {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

// Freed memory of connections goes back to the system when the account has fallen by so much from its peak.
constexpr uint64_t kTrimBytes = 16 << 20;

// Calls f until it does not throw, for what must happen though memory is short for a while.
template <class F>
void Insist(F&& f) {
  for (;;) {
    try {
      return f();
    } catch (const std::exception&) {
      std::this_thread::sleep_for(kBetweenTries);
    }
  }
}

class Server : public HttpServer, public ConnectionHost {
 public:
  Server(const HttpOptions& options, HttpHandler answers)
      : ConnectionHost(options, std::move(answers)),
        options_(options),
        control_(io),
        acceptor_(io),
        drain_timer_(io),
        signals_(io) {}
  ~Server() override { Stop(); }

  Status Listen();
  uint16_t port() const override { return port_; }
  void Start() override;
  void DrainOnSignals() override;
  void Drain() override { OnControl(&Server::BeginDrain); }
  void Wait() override {
    std::unique_lock lock(mutex_);
    drained_.wait(lock, [this] { return draining && connections_.empty(); });
  }
  void Stop() override;
  HttpCounters counters() const override {
    const std::lock_guard lock(mutex_);
    HttpCounters counters = counters_;
    counters.connections = connections_.size();
    counters.memory_bytes = memory->used();
    return counters;
  }
  Clients& clients() override { return all_clients; }
  double client_share() const override { return limits.client_share; }

 private:
  void Closed(Connection* connection) override;
  void CountSlow() override {
    const std::lock_guard lock(mutex_);
    ++counters_.dropped_slow;
  }
  std::vector<std::shared_ptr<Connection>> Open() const;

  // These run on the control strand.
  void Accept();
  // Any thread: accepts again if Asio dropped the wait for connections because it had no memory.
  void RestoreAccept();
  // Any thread: closes connections whose handlers were dropped for that reason.
  void CloseLost();
  // Any thread.
  void OnControl(void (Server::*run)()) {
    Insist([&] { asio::post(control_, [this, run] { (this->*run)(); }); });
  }
  void OnAccept(tcp::socket socket);
  void Refuse(tcp::socket socket, const std::string& peer);
  void BeginDrain();
  void Cut();
  void CloseAll();
  void After(int seconds, void (Server::*run)());

  const HttpOptions options_;
  asio::io_context::strand control_;
  tcp::acceptor acceptor_;
  asio::steady_timer drain_timer_;
  asio::signal_set signals_;
  uint16_t port_ = 0;
  std::vector<std::thread> threads_;
  bool stopped_ = false;
  std::atomic<bool> accept_lost_{false};

  mutable std::mutex mutex_;
  std::condition_variable drained_;
  std::set<std::shared_ptr<Connection>> connections_;
  HttpCounters counters_;
};

Status Server::Listen() {
  error_code error;
  if (!options_.tls_cert.empty()) {
    tls.emplace(asio::ssl::context::tls_server);
    tls->set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_sslv2 |
                         asio::ssl::context::no_sslv3 | asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1,
                     error);
    // OpenSSL calls this if the key file is encrypted; its default callback would wait for a passphrase at the
    // terminal.
    const auto encrypted = std::make_shared<bool>(false);
    const auto ask = [encrypted](size_t, asio::ssl::context::password_purpose) {
      *encrypted = true;
      return std::string();
    };
    tls->set_password_callback(ask, error);
    if (tls->use_certificate_chain_file(options_.tls_cert, error); error)
      return IoError("--tls-cert {}: {}", options_.tls_cert, error.message());
    tls->use_private_key_file(options_.tls_key, asio::ssl::context::pem, error);
    if (error && *encrypted)
      return IoError(
          "--tls-key {}: the key is encrypted; store it without a passphrase (openssl pkey -in KEY -out PLAIN)",
          options_.tls_key);
    if (error) return IoError("--tls-key {}: {}", options_.tls_key, error.message());
  }
  tcp::resolver resolver(io);
  const auto found = resolver.resolve(options_.host, std::to_string(options_.port),
                                      tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error) return IoError("--host {}: {}", options_.host, error.message());
  const tcp::endpoint endpoint = found.begin()->endpoint();
  const auto failed = [&] {
    return IoError("cannot listen on {}:{}: {}; choose another address with --host and --port", options_.host,
                   options_.port, error.message());
  };
  if (acceptor_.open(endpoint.protocol(), error); error) return failed();
  acceptor_.set_option(asio::socket_base::reuse_address(true), error);
  if (acceptor_.bind(endpoint, error); error) return failed();
  if (acceptor_.listen(1024, error); error) return failed();
  port_ = acceptor_.local_endpoint(error).port();
  return Ok();
}

void Server::Start() {
  asio::post(control_, [this] { Accept(); });
  for (int i = 0; i < options_.threads; ++i)
    threads_.emplace_back([this] {
      const auto work = asio::make_work_guard(io);
      while (!io.stopped()) {
        try {
          io.run();
        } catch (const std::exception&) {  // from a callback that belongs to no connection: the others go on
          RestoreAccept();
          CloseLost();
        }
      }
    });
}

void Server::RestoreAccept() {
  Insist([this] {
    if (!accept_lost_ || draining) return;
    asio::post(control_, [this] {
      if (accept_lost_.exchange(false)) Accept();
    });
  });
}

void Server::CloseLost() {
  for (;;) {
    std::shared_ptr<Connection> lost;
    {
      const std::lock_guard lock(mutex_);
      const auto found =
          std::find_if(connections_.begin(), connections_.end(), [](const auto& each) { return each->TakeLost(); });
      if (found == connections_.end()) return;
      lost = *found;
    }
    Insist([&] { lost->CloseNow(); });
  }
}

void Server::Accept() {
  if (draining) return;
  accept_lost_ = false;
  auto on_accept = [this, pending = Pending(accept_lost_)](error_code error, tcp::socket socket) mutable {
    if (draining) return pending.Called();
    if (error) {  // usually out of file descriptors: try again when connections have closed
      const auto timer = std::make_shared<asio::steady_timer>(io, std::chrono::milliseconds(50));
      return timer->async_wait(
          asio::bind_executor(control_, [this, timer, later = std::move(pending)](error_code) mutable {
            later.Called();
            Accept();
          }));
    }
    pending.Called();
    Insist([&] {  // the server must not stop accepting because memory was short
      if (socket.is_open()) OnAccept(std::exchange(socket, tcp::socket(io)));
      Accept();
    });
  };
  acceptor_.async_accept(asio::bind_executor(control_, std::move(on_accept)));
}

void Server::OnAccept(tcp::socket socket) {
  error_code error;
  const tcp::endpoint endpoint = socket.remote_endpoint(error);
  const std::string peer = error ? "-" : endpoint.address().to_string();
  const bool proxy = std::any_of(trusted_proxies.begin(), trusted_proxies.end(),
                                 [&](const AddressRange& range) { return range.Contains(peer); });
  const std::shared_ptr<Client> client = all_clients.Find(proxy ? std::string() : ClientOf(peer));
  ClientCount place = all_clients.TryCount(client, &Client::connections, 1, static_cast<int64_t>(limits.connections));
  MemoryShare share(client->memory);
  const bool room = share.TryAdd(Connection::MemoryBytes(tls.has_value()));
  std::shared_ptr<Connection> connection;
  {
    const std::lock_guard lock(mutex_);
    if (!place || !room || connections_.size() >= limits.connections) {
      ++counters_.refused;
    } else {
      connection = std::make_shared<Connection>(*this, std::move(socket), client, std::move(place), std::move(share));
      connections_.insert(connection);
      ++counters_.accepted;
    }
  }
  if (connection)
    connection->Start();
  else
    Refuse(std::move(socket), peer);
}

// Tries once, without blocking, to send 503.
void Server::Refuse(tcp::socket socket, const std::string& peer) {
  if (tls) return;
  error_code error;
  const HttpReply reply = handler.fail({.peer = peer}, 503, "too many connections", HttpCause::kTooManyConnections);
  std::string text = fmt::format("HTTP/1.1 503 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n",
                                 StatusText(503), reply.type, reply.body.size());
  for (const auto& [name, value] : reply.headers) text += fmt::format("{}: {}\r\n", name, value);
  text += "\r\n" + reply.body;
  socket.non_blocking(true, error);
  socket.write_some(asio::buffer(text), error);
  socket.shutdown(tcp::socket::shutdown_send, error);
}

void Server::Closed(Connection* connection) {
  if (memory->FellBy(kTrimBytes)) ::malloc_trim(0);
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(connections_.begin(), connections_.end(),
                                  [&](const auto& held) { return held.get() == connection; });
  if (found != connections_.end()) connections_.erase(found);
  drained_.notify_all();
}

std::vector<std::shared_ptr<Connection>> Server::Open() const {
  const std::lock_guard lock(mutex_);
  return {connections_.begin(), connections_.end()};
}

void Server::DrainOnSignals() {
  CHECK(threads_.empty());
  error_code ignored;
  signals_.add(SIGTERM, ignored);
  signals_.add(SIGINT, ignored);
  // Not bound to the strand: where memory is short, Asio would drop the handler.
  signals_.async_wait([this](error_code error, int) {
    if (error) return;
    signals_.clear(error);  // the next signal ends the process
    OnControl(&Server::BeginDrain);
  });
}

void Server::BeginDrain() {
  {
    const std::lock_guard lock(mutex_);
    if (draining.exchange(true)) return;
    drained_.notify_all();
  }
  // From here on no connection is added, because Accept runs on this strand too.
  error_code ignored;
  acceptor_.close(ignored);
  Insist([&] {
    for (const auto& connection : Open()) connection->CloseIfIdle();
  });
  if (handler.drain) Insist(handler.drain);
  After(limits.drain_s, &Server::Cut);
}

void Server::Cut() {
  if (handler.cut) Insist(handler.cut);
  Insist([&] {
    for (const auto& connection : Open()) connection->RefuseUnread();
  });
  After(kLastWordsSeconds, &Server::CloseAll);
}

void Server::CloseAll() {
  Insist([&] {
    for (const auto& connection : Open()) connection->CloseNow();
  });
}

void Server::After(int seconds, void (Server::*run)()) {
  drain_timer_.expires_after(std::chrono::seconds(seconds));
  Insist([&] {
    drain_timer_.async_wait([this, run](error_code error) {
      if (!error) OnControl(run);
    });
  });
}

void Server::Stop() {
  if (std::exchange(stopped_, true)) return;
  draining = true;
  io.stop();
  for (std::thread& thread : threads_) thread.join();
  // The I/O threads have ended: this thread closes the open connections and runs their OnGone callbacks.
  io.restart();
  error_code ignored;
  acceptor_.close(ignored);
  for (const auto& connection : Open()) connection->CloseNow();
  io.poll();
}

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::Bind(const HttpOptions& options, HttpHandler handler) {
  try {
    auto server = std::make_unique<Server>(options, std::move(handler));
    RETURN_IF_ERROR(server->Listen());
    return std::unique_ptr<HttpServer>(std::move(server));
  } catch (const boost::system::system_error& error) {  // of Asio: out of file descriptors
    return IoError("cannot start the server: {}", error.what());
  }
}

std::string_view StatusText(int status) {
  const auto text = http::obsolete_reason(static_cast<http::status>(status));
  return {text.data(), text.size()};
}

}  // namespace infinigen
