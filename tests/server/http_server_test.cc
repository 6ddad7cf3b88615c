// The HTTP server with test handlers and plain sockets: whole replies and streams from other threads, disconnects,
// limits, shutdown. Runs under every sanitizer; network_test.py has the tests that need a model.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <new>
#include <stdexcept>
#include <thread>

#include "server/http.h"

namespace infinigen {
namespace {

class Peer {
 public:
  explicit Peer(uint16_t port, int receive_bytes = 0) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_bytes > 0) ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof(receive_bytes));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval patience{20, 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    connected_ = ::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  ~Peer() { ::close(socket_); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  bool connected() const { return connected_; }
  void Send(const std::string& text) {
    ASSERT_EQ(::send(socket_, text.data(), text.size(), MSG_NOSIGNAL), std::ssize(text));
  }
  // Reads until `end`, or until the other side closes.
  std::string Read(const std::string& end) {
    std::string text;
    char buffer[4096];
    while (end.empty() || text.find(end) == std::string::npos) {
      const ssize_t count = ::recv(socket_, buffer, sizeof(buffer), 0);
      if (count <= 0) break;
      text.append(buffer, static_cast<size_t>(count));
    }
    return text;
  }
  // Reads up to `most` bytes, `at_once` at a time with a pause after each; the number that came until it was closed.
  size_t Count(size_t most, size_t at_once = 1 << 16, std::chrono::milliseconds pause = {}) {
    std::string buffer(at_once, '\0');
    size_t count = 0;
    while (count < most) {
      const ssize_t got = ::recv(socket_, buffer.data(), buffer.size(), 0);
      if (got <= 0) break;
      count += static_cast<size_t>(got);
      std::this_thread::sleep_for(pause);
    }
    return count;
  }
  static std::string Get(const std::string& path) { return "GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n"; }

 private:
  int socket_;
  bool connected_ = false;
};

// Replies depending on the path, sometimes later and from another thread.
class Served {
 public:
  explicit Served(HttpLimits limits = {}, std::vector<AddressRange> trusted_proxies = {}) {
    HttpHandler handler{.admit = [](const HttpRequest& head) -> std::unique_ptr<HttpReply> {
                          if (head.path != "/refused") return nullptr;
                          return std::make_unique<HttpReply>(HttpReply{.status = 404, .body = "refused"});
                        },
                        .client = [](const HttpRequest& head) { return head.authorization; },
                        .may_send = [](const HttpRequest& head) { return head.authorization != "stranger"; },
                        .handle = [this](std::shared_ptr<HttpExchange> exchange) { Handle(std::move(exchange)); },
                        .fail =
                            [](const HttpRequest& head, int status, std::string_view reason, HttpCause) {
                              return HttpReply{.status = status,
                                               .body = head.peer + " " + head.path + ": " + std::string(reason)};
                            },
                        .dropped = [this](const HttpRequest& head, const std::string&) { dropped_ += head.path; },
                        .drain = [this] { drained_ = true; },
                        .cut = [this] { cut_ = true; }};
    server_ = HttpServer::Bind({.host = "127.0.0.1",
                                .port = 0,
                                .tls_cert = {},
                                .tls_key = {},
                                .trusted_proxies = std::move(trusted_proxies),
                                .limits = limits},
                               std::move(handler))
                  .value();
    server_->Start();
  }
  ~Served() {
    ending_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

  uint16_t port() const { return server_->port(); }
  HttpServer& server() { return *server_; }
  int gone() const { return gone_; }
  int slow() const { return slow_; }
  std::string dropped() const { return dropped_; }
  void DropHeld() {
    const std::lock_guard lock(mutex_);
    held_.clear();
  }
  void ReplyHeld() {
    while (held() == 0) std::this_thread::yield();
    const std::lock_guard lock(mutex_);
    for (const auto& exchange : held_) exchange->Reply({.body = "held"});
    held_.clear();
  }
  void AbortHeld() {
    const std::lock_guard lock(mutex_);
    for (const auto& exchange : held_) exchange->Abort({.status = 503, .body = "why"});
    held_.clear();
  }
  void AbandonHeld() {
    while (held() == 0) std::this_thread::yield();
    const std::lock_guard lock(mutex_);
    for (const auto& exchange : held_) exchange->Abandon();
  }
  size_t held() {
    const std::lock_guard lock(mutex_);
    return held_.size();
  }
  bool drained() const { return drained_; }
  bool cut() const { return cut_; }

 private:
  void Handle(std::shared_ptr<HttpExchange> exchange) {
    const std::string path = exchange->request().path;
    if (path == "/echo") return exchange->Reply({.body = exchange->request().body});
    if (path == "/forgotten") return;
    if (path == "/throws") throw std::runtime_error("a bug of a library");
    if (path == "/no-memory") throw std::bad_alloc();
    if (path == "/held" || path == "/held-stream") {
      if (path == "/held-stream") exchange->Begin({.type = "text/plain", .body = "begin"});
      exchange->OnGone([this](HttpGone why) {
        slow_ += why == HttpGone::kTooSlow;
        ++gone_;
      });
      const std::lock_guard lock(mutex_);
      held_.push_back(std::move(exchange));
      return;
    }
    exchange->OnGone([this](HttpGone why) {
      slow_ += why == HttpGone::kTooSlow;
      ++gone_;
    });
    const std::lock_guard lock(mutex_);
    threads_.emplace_back([this, exchange, path] {
      if (path == "/endless" || path == "/flood") {
        exchange->Begin({.type = "text/plain", .body = "begin\n"});
        const std::string piece(path == "/flood" ? 1 << 14 : 1, 'x');
        while (!ending_ && gone_ == 0) {
          exchange->Write(piece);
          if (path == "/endless") std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      } else if (path == "/burst") {  // far more at once than a backlog may have
        exchange->Begin({.type = "text/plain", .body = std::string(8 << 20, 'x')});
        for (int i = 0; i < 4; ++i) exchange->Write(std::string(300 << 10, 'x'));
      } else if (path == "/stream") {
        exchange->Begin({.type = "text/plain", .body = "one,"});
        exchange->Write("two,");
        exchange->Write("three");
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        return exchange->Reply({.body = "later"});
      }
      exchange->End();
    });
  }

  std::unique_ptr<HttpServer> server_;
  std::mutex mutex_;
  std::vector<std::thread> threads_;
  std::vector<std::shared_ptr<HttpExchange>> held_;
  std::atomic<bool> ending_{false}, drained_{false}, cut_{false};
  std::atomic<int> gone_{0}, slow_{0};
  std::string dropped_;  // written before the connection counts as closed
};

template <class F>
bool Eventually(F condition) {
  for (int i = 0; i < 2000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

TEST(HttpServer, RepliesInOrderOnOneConnection) {
  Served served;
  Peer client(served.port());
  client.Send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nfirst" + Peer::Get("/later") +
              Peer::Get("/stream") + "GET /refused HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const std::string text = client.Read("");
  const size_t first = text.find("first"), later = text.find("later");
  const size_t stream = text.find("4\r\none,\r\n4\r\ntwo,\r\n5\r\nthree\r\n0\r\n\r\n"), refused = text.find("refused");
  EXPECT_LT(first, later);
  EXPECT_LT(later, stream);
  EXPECT_LT(stream, refused);
  EXPECT_NE(refused, std::string::npos);
  EXPECT_EQ(served.gone(), 0);
}

TEST(HttpServer, TheReplyToHeadHasNoBody) {
  Served served;
  Peer client(served.port());
  client.Send("HEAD /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::string head = client.Read("\r\n\r\n");
  EXPECT_NE(head.find("chunked"), std::string::npos);
  client.Send(Peer::Get("/later"));
  EXPECT_EQ(client.Read("later").substr(0, 15), "HTTP/1.1 200 OK") << "nothing stands between the replies";
}

TEST(HttpServer, WhoLeavesIsNoticed) {
  Served served;
  {
    Peer client(served.port());
    client.Send(Peer::Get("/endless"));
    client.Read("x\r\n");
  }
  EXPECT_TRUE(Eventually([&] { return served.gone() == 1; }));
  EXPECT_TRUE(Eventually([&] { return served.server().counters().connections == 0; }));
}

TEST(HttpServer, WhoSentAheadAndLeftIsNoticed) {
  Served served;
  {
    Peer client(served.port());
    std::string ahead = Peer::Get("/endless");
    while (ahead.size() < 200 << 10) ahead += Peer::Get("/later");
    client.Send(ahead);
    client.Read("x\r\n");
  }
  EXPECT_TRUE(Eventually([&] { return served.gone() == 1; }));
  EXPECT_TRUE(Eventually([&] { return served.server().counters().connections == 0; }));
}

TEST(HttpServer, ARequestMayBeSentAheadButNoMore) {
  HttpLimits limits;
  limits.body_bytes = 100 << 10;
  Served served(limits);
  Peer client(served.port());
  const std::string body(100 << 10, 'b');
  client.Send(Peer::Get("/later") + "POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n" + body);
  const std::string text = client.Read("");
  EXPECT_NE(text.find("later"), std::string::npos);
  EXPECT_EQ(text.substr(text.size() - body.size()), body);
  Peer greedy(served.port());
  greedy.Send(Peer::Get("/endless"));
  greedy.Read("x\r\n");
  greedy.Send(body + body);
  EXPECT_TRUE(Eventually([&] { return served.gone() == 1; }));
}

// What it sends ahead stays in the kernel's buffers until its request is answered.
TEST(HttpServer, AStrangerSendsNoBodyAndLittleAhead) {
  Served served;
  const std::string head = "GET /held HTTP/1.1\r\nHost: x\r\nAuthorization: stranger\r\n";
  Peer with_body(served.port());
  with_body.Send(head + "Content-Length: 5\r\n\r\nhello");
  EXPECT_EQ(with_body.Read("").substr(9, 3), "413");
  Peer client(served.port());
  const std::string body(200 << 10, 'b');
  std::thread sender([&] {
    client.Send(head + "\r\nPOST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: " +
                std::to_string(body.size()) + "\r\n\r\n" + body);
  });
  while (served.held() == 0) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(served.server().counters().memory_bytes, 160 << 10);
  served.ReplyHeld();
  const std::string text = client.Read("");
  sender.join();
  EXPECT_NE(text.find("held"), std::string::npos);
  EXPECT_EQ(text.substr(text.size() - std::min(text.size(), body.size())), body) << "read after the answer";
}

TEST(HttpServer, TargetsMayNameTheServer) {
  Served served;
  Peer client(served.port());
  client.Send("POST HTTP://other:1/echo?a=b HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody");
  EXPECT_EQ(client.Read("body").substr(0, 15), "HTTP/1.1 200 OK");
  client.Send("GET http://other/refused HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(client.Read("refused").substr(0, 12), "HTTP/1.1 404");
}

TEST(HttpServer, OneEmptyLineBeforeARequestIsForgiven) {
  Served served;
  Peer client(served.port());
  client.Send("\r\n" + Peer::Get("/later"));
  EXPECT_NE(client.Read("later").find("200 OK"), std::string::npos);
  client.Send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody\r\n");  // as old clients end a body
  EXPECT_NE(client.Read("body").find("200 OK"), std::string::npos);
  client.Send(Peer::Get("/later"));
  EXPECT_NE(client.Read("later").find("200 OK"), std::string::npos);
  client.Send("\r\n\r\n" + Peer::Get("/later"));
  EXPECT_EQ(client.Read("").substr(0, 12), "HTTP/1.1 400") << "one, not two";
  Peer dripping(served.port());
  dripping.Send("\r");
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  dripping.Send("\n" + Peer::Get("/later"));
  EXPECT_NE(dripping.Read("later").find("200 OK"), std::string::npos);
}

TEST(HttpServer, FoldedTrailersAreRefused) {
  Served served;
  const std::string head = "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  const auto status = [&](const std::string& first, const std::string& second) {
    Peer client(served.port());
    client.Send(head + first);
    if (!second.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    client.Send(second);
    return client.Read("\r\n\r\n").substr(9, 3);
  };
  // What looks folded in a body, or in what follows the request, is not.
  EXPECT_EQ(status("3\r\n\n a\r\n0\r\n\r\n", ""), "200");
  EXPECT_EQ(status("3\r\n\n a\r\n0;x=y\r\nT: x\r\nU: y\r\n\r\n a", ""), "200");
  EXPECT_EQ(status("1\r\na\r\n0\r\nT: x\r\n y\r\n\r\n", ""), "400");
  EXPECT_EQ(status("1\r\na\r\n0;x=y\r\nT: x\r\n\ty: z\r\n\r\n", ""), "400");
  EXPECT_EQ(status("1\r\na\r\n0\r\nT: x\r\n", " y\r\n\r\n"), "400") << "in two pieces";
  EXPECT_EQ(status("1\r\na\r\n0\r\nT x\r\n\r\n", ""), "400") << "no field";
  EXPECT_EQ(status("1\r\na\r\n0;" + std::string(5000, 'x') + "\r\nT: x\r\n\r\n", ""), "400") << "a long extension";
}

TEST(HttpServer, TheLastChunkMayArriveByteByByte) {
  Served served;
  Peer client(served.port());
  client.Send("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (const char c : std::string("0\r\nT: x\r\n\r\n")) {
    client.Send(std::string(1, c));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // so that each byte is parsed by itself
  }
  EXPECT_EQ(client.Read("\r\n\r\n").substr(9, 3), "200");
}

TEST(HttpServer, TrailersHaveOneLimitHoweverTheyArrive) {
  HttpLimits limits;
  limits.header_bytes = 1000;
  Served served(limits);
  const std::string head = "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const auto& [bytes, status] : {std::pair{900, "200"}, {1100, "431"}}) {
    for (const bool in_pieces : {false, true}) {
      Peer client(served.port());
      const std::string last = "0\r\nT: " + std::string(static_cast<size_t>(bytes), 'x') + "\r\n\r\n";
      if (in_pieces) {
        client.Send(head + last.substr(0, 500));
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        client.Send(last.substr(500));
      } else {
        client.Send(head + last);
      }
      EXPECT_EQ(client.Read("\r\n\r\n").substr(9, 3), status) << bytes << (in_pieces ? " in pieces" : "");
    }
  }
}

TEST(HttpServer, ErrorsOfTheConnectionSayWhoseTheyAre) {
  HttpLimits limits;
  limits.body_bytes = 10;
  Served served(limits);
  Peer client(served.port());
  client.Send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 11\r\n\r\n");
  EXPECT_NE(client.Read("").find("\r\n\r\n127.0.0.1 /echo: the body is too long"), std::string::npos);
}

// Connections that come while the server begins to end are closed with the others: nothing waits for drain_s.
TEST(HttpServer, NobodyIsForgottenWhoComesDuringTheEnd) {
  for (int round = 0; round < 10; ++round) {
    Served served;
    std::atomic<bool> ending{false};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([&] {
        std::vector<std::unique_ptr<Peer>> clients;
        while (!ending && clients.size() < 200) clients.push_back(std::make_unique<Peer>(served.port()));
        while (!ending) std::this_thread::yield();
      });
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const auto start = std::chrono::steady_clock::now();
    served.server().Drain();
    served.server().Wait();
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
    ending = true;
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(served.server().counters().connections, 0u);
  }
}

TEST(HttpServer, AfterStopNothingIsCalled) {
  Served served;
  Peer client(served.port()), other(served.port());
  client.Send(Peer::Get("/endless"));
  client.Read("x\r\n");
  served.server().Stop();
  EXPECT_EQ(served.gone(), 1) << "OnGone of a running exchange is called before Stop returns";
  EXPECT_EQ(served.server().counters().connections, 0u);
  EXPECT_EQ(other.Read(""), "");
}

TEST(HttpServer, WhoDoesNotReadIsDropped) {
  Served served;
  Peer client(served.port());
  client.Send(Peer::Get("/flood"));
  EXPECT_TRUE(Eventually([&] { return served.gone() == 1; }));
  EXPECT_EQ(served.server().counters().dropped_slow, 1u);
  EXPECT_EQ(served.slow(), 1);
}

TEST(HttpServer, ABurstOfTheServerIsNotASlowReader) {
  Served served;
  Peer client(served.port());
  client.Send(Peer::Get("/burst"));
  const std::string text = client.Read("\r\n0\r\n\r\n");
  EXPECT_GT(text.size(), size_t{9} << 20);
  EXPECT_TRUE(text.ends_with("\r\n0\r\n\r\n"));
  EXPECT_EQ(served.server().counters().dropped_slow, 0u);
}

// Its owner keeps it, because there was no memory to end it.
TEST(HttpServer, AnAbandonedExchangeIsClosed) {
  Served served;
  Peer client(served.port());
  client.Send(Peer::Get("/held"));
  served.AbandonHeld();
  EXPECT_EQ(client.Read(""), "");
  EXPECT_TRUE(Eventually([&] { return served.gone() == 1; }));
}

TEST(HttpServer, AnExchangeThatNobodyAnswersIsClosed) {
  Served served;
  Peer client(served.port());
  client.Send(Peer::Get("/forgotten"));
  EXPECT_EQ(client.Read(""), "");
}

TEST(HttpServer, Limits) {
  HttpLimits limits;
  limits.body_bytes = 100;
  limits.header_bytes = 1000;
  limits.connections = 2;
  Served served(limits);
  {
    Peer body(served.port()), header(served.port());
    body.Send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 101\r\n\r\n");
    EXPECT_EQ(body.Read("").substr(0, 12), "HTTP/1.1 413");
    header.Send("GET /" + std::string(1100, 'x'));
    EXPECT_EQ(header.Read("").substr(0, 12), "HTTP/1.1 431");
  }
  ASSERT_TRUE(Eventually([&] { return served.server().counters().connections == 0; }));
  Peer one(served.port()), two(served.port());
  ASSERT_TRUE(Eventually([&] { return served.server().counters().connections == 2; }));
  Peer three(served.port());
  EXPECT_EQ(three.Read("").substr(0, 12), "HTTP/1.1 503");
  EXPECT_EQ(served.server().counters().refused, 1u);
}

TEST(HttpServer, ABodyCountsUntilItIsFreed) {
  HttpLimits limits;
  limits.memory_bytes = 140'000;
  Served served(limits);
  const auto post = [](const std::string& path) {
    return "POST " + path + " HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n" + std::string(60'000, 'x');
  };
  const auto echo = [&] {
    Peer client(served.port());
    client.Send(post("/echo"));
    return client.Read("\r\n\r\n").substr(0, 12);
  };
  EXPECT_EQ(echo(), "HTTP/1.1 200");
  ASSERT_TRUE(Eventually([&] { return served.server().counters().memory_bytes == 0; })) << "its client has left";
  { Peer(served.port()).Send(post("/held")); }
  ASSERT_TRUE(Eventually([&] { return served.gone() == 1; }));
  EXPECT_EQ(echo(), "HTTP/1.1 429") << "the client is gone, but its body still counts";
  served.DropHeld();
  EXPECT_TRUE(Eventually([&] { return echo() == "HTTP/1.1 200"; }));
}

// What costs memory counts: a connection itself, and the head of a request whose body does not come.
TEST(HttpServer, ConnectionsAndHeadsCount) {
  Served served;
  const auto used = [&] { return served.server().counters().memory_bytes; };
  {
    Peer silent(served.port());
    ASSERT_TRUE(Eventually([&] { return used() >= 16 << 10; }));
    silent.Send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\nAuthorization: " + std::string(12 << 10, 'a') +
                "\r\n\r\n");
    EXPECT_TRUE(Eventually([&] { return used() >= 28 << 10; })) << used();
  }
  EXPECT_TRUE(Eventually([&] { return used() == 0; })) << used();
}

TEST(HttpServer, AConnectionForWhichThereIsNoMemoryIsRefused) {
  HttpLimits limits;
  limits.memory_bytes = 50'000;
  Served served(limits);
  Peer one(served.port()), two(served.port());
  ASSERT_TRUE(Eventually([&] { return served.server().counters().connections == 2; }));
  EXPECT_EQ(Peer(served.port()).Read("").substr(9, 3), "503");
}

// A connection counts for the key of its latest request.
TEST(HttpServer, AKeyHasItsShareOfConnections) {
  HttpLimits limits;
  limits.connections = 4;
  limits.client_share = 0.5;
  Served served(limits);
  const auto ask = [](Peer& peer, const std::string& key) {
    peer.Send("GET /later HTTP/1.1\r\nHost: x\r\nAuthorization: " + key + "\r\n\r\n");
    return peer.Read("later").substr(9, 3);
  };
  Peer one(served.port()), two(served.port());
  EXPECT_EQ(ask(one, "a") + ask(one, "a") + ask(two, "a"), "200200200");
  {
    Peer three(served.port());
    EXPECT_EQ(ask(three, "a"), "503");
  }
  Peer other(served.port());
  EXPECT_EQ(ask(other, "b"), "200");
  EXPECT_EQ(ask(two, "b"), "200") << "now it is a connection of the other key";
  Peer again(served.port());
  EXPECT_EQ(ask(again, "a"), "200");
}

// All connections come from the proxy: the addresses that it names have their shares.
TEST(HttpServer, AForwardedClientHasItsShareOfConnections) {
  HttpLimits limits;
  limits.connections = 4;
  limits.client_share = 0.5;
  Served served(limits, {AddressRange::Parse("127.0.0.1").value()});
  const auto ask = [](Peer& peer, const std::string& forwarded) {
    peer.Send("GET /later HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: " + forwarded + "\r\n\r\n");
    return peer.Read("later").substr(9, 3);
  };
  Peer one(served.port()), two(served.port());
  EXPECT_EQ(ask(one, "10.0.0.1") + ask(one, "10.0.0.1") + ask(two, "10.0.0.1"), "200200200");
  {
    Peer three(served.port());
    EXPECT_EQ(ask(three, "10.0.0.1"), "503");
  }
  Peer other(served.port());
  EXPECT_EQ(ask(other, "10.0.0.2"), "200");
  EXPECT_EQ(ask(two, "10.0.0.2"), "200") << "now it is a connection of the other client";
  Peer again(served.port());
  EXPECT_EQ(ask(again, "10.0.0.1"), "200");
}

// Input that was sent ahead takes memory while it waits, and none when it is parsed.
TEST(HttpServer, MemoryOfInputIsReleased) {
  Served served;
  Peer client(served.port());
  const std::string body(3 << 20, 'x');
  const auto used = [&] { return served.server().counters().memory_bytes; };
  client.Send(Peer::Get("/held"));
  std::thread sender([&] {
    client.Send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  });
  EXPECT_TRUE(Eventually([&] { return used() >= body.size(); })) << "capacity counts";
  served.ReplyHeld();
  sender.join();
  EXPECT_GT(client.Count(body.size()), 0u);
  EXPECT_TRUE(Eventually([&] { return used() < 64 << 10; })) << used();
}

TEST(HttpServer, AReaderMustKeepTheLeastRate) {
  HttpLimits limits;
  limits.write_s = 1;
  limits.least_rate = 1 << 20;
  limits.body_bytes = 16 << 20;
  Served served(limits);
  const std::string body(12 << 20, 'x');
  const std::string post =
      "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  Peer fast(served.port());
  fast.Send(post);
  EXPECT_GE(fast.Count(body.size()), body.size());
  Peer slow(served.port(), /*receive_bytes=*/4096);
  slow.Send(post);
  // 2 KiB every 20 ms: it always reads something, and would take two minutes.
  const size_t got = slow.Count(body.size(), 2048, std::chrono::milliseconds(20));
  EXPECT_LT(got, body.size()) << "it was disconnected";
  EXPECT_EQ(served.server().counters().dropped_slow, 1u);
  EXPECT_TRUE(Eventually([&] { return served.server().counters().memory_bytes < 64 << 10; }));
  EXPECT_EQ(served.dropped(), "/echo") << "its exchange was over, so that the handler is told";
}

// A stream's reader need not keep the rate: only what waits for it counts.
TEST(HttpServer, ASlowStreamIsNotASlowReader) {
  HttpLimits limits;
  limits.write_s = 1;
  limits.least_rate = 1 << 20;
  Served served(limits);
  Peer client(served.port());
  client.Send(Peer::Get("/endless"));
  const auto start = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - start < std::chrono::milliseconds(2500))
    ASSERT_NE(client.Read("x\r\n"), "");
  EXPECT_EQ(served.gone(), 0);
}

TEST(HttpServer, AnExceptionEndsItsOwnRequest) {
  Served served;
  Peer other(served.port());
  other.Send(Peer::Get("/endless"));
  other.Read("x\r\n");
  for (const auto& [path, status] : {std::pair("/throws", "500"), std::pair("/no-memory", "503")}) {
    Peer client(served.port());
    client.Send(Peer::Get(path));
    EXPECT_EQ(client.Read("").substr(9, 3), status);
  }
  EXPECT_NE(other.Read("x\r\n"), "") << "others go on";
  Peer next(served.port());
  next.Send(Peer::Get("/later"));
  EXPECT_NE(next.Read("later").find("200 OK"), std::string::npos);
}

TEST(HttpServer, AbortSaysWhyWhateverHasBeenSent) {
  Served served;
  Peer whole(served.port()), stream(served.port());
  whole.Send(Peer::Get("/held"));
  stream.Send(Peer::Get("/held-stream"));
  stream.Read("begin");
  ASSERT_TRUE(Eventually([&] { return served.held() == 2; }));
  served.AbortHeld();
  EXPECT_NE(whole.Read("why").find("503"), std::string::npos);
  EXPECT_NE(stream.Read("0\r\n\r\n").find("data: why\n\n"), std::string::npos);
  EXPECT_EQ(served.gone(), 0);
}

// ---- clients ----

TEST(Clients, AddressesAndRanges) {
  EXPECT_EQ(ClientOf("192.0.2.7"), "192.0.2.7");
  EXPECT_EQ(ClientOf("::ffff:192.0.2.7"), "192.0.2.7");
  EXPECT_EQ(ClientOf("2001:db8:1:2:3:4:5:6"), ClientOf("2001:db8:1:2::1"));
  EXPECT_NE(ClientOf("2001:db8:1:2::1"), ClientOf("2001:db8:1:3::1"));
  for (const char* own : {"127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"}) EXPECT_EQ(ClientOf(own), "") << own;
  const auto holds = [](const char* range, const char* address) {
    return AddressRange::Parse(range).value().Contains(address);
  };
  EXPECT_TRUE(holds("10.0.0.0/8", "10.255.1.2"));
  EXPECT_TRUE(holds("10.0.0.0/8", "::ffff:10.1.2.3"));
  EXPECT_FALSE(holds("10.0.0.0/8", "11.0.0.1"));
  EXPECT_TRUE(holds("192.0.2.128/25", "192.0.2.129"));
  EXPECT_FALSE(holds("192.0.2.128/25", "192.0.2.127"));
  EXPECT_TRUE(holds("fd00::/8", "fd12::1"));
  EXPECT_FALSE(holds("fd00::/8", "fe00::1"));
  EXPECT_TRUE(holds("192.0.2.7", "192.0.2.7"));
  EXPECT_FALSE(holds("192.0.2.7", "not an address"));
  EXPECT_TRUE(holds("0.0.0.0/0", "8.8.8.8"));
  for (const char* wrong : {"", "x", "10.0.0.0/33", "10.0.0.0/", "10.0.0.0/-1", "10.0.0.0/8x", "::/129", "/8"})
    EXPECT_FALSE(AddressRange::Parse(wrong).ok()) << wrong;
}

TEST(Clients, ProxiesAreBelievedOnlyWhereTheyAreTrusted) {
  const std::vector<AddressRange> proxies = {AddressRange::Parse("10.0.0.0/8").value()};
  EXPECT_EQ(ClientAddress("10.0.0.1", "192.0.2.7", proxies), "192.0.2.7");
  EXPECT_EQ(ClientAddress("10.0.0.1", "1.1.1.1, 192.0.2.7 , 10.0.0.2", proxies), "192.0.2.7")
      << "the first is its own word";
  EXPECT_EQ(ClientAddress("192.0.2.9", "1.1.1.1", proxies), "192.0.2.9");
  EXPECT_EQ(ClientAddress("10.0.0.1", "", proxies), "10.0.0.1");
  EXPECT_EQ(ClientAddress("10.0.0.1", "9.9.9.9:1234", proxies), "9.9.9.9");
  EXPECT_EQ(ClientAddress("10.0.0.1", "[2001:db8::1]:443", proxies), "2001:db8::1");
  EXPECT_EQ(ClientAddress("10.0.0.1", "[2001:db8::1], 10.0.0.2:80", proxies), "2001:db8::1");
  for (const char* other : {"nonsense", "unknown", "[2001:db8::1", "[::1]x", "9.9.9.9:1:2", ":80", "1.1.1.1, nonsense"})
    EXPECT_EQ(ClientAddress("10.0.0.1", other, proxies), "unknown") << other << ": limited, and not the proxy";
  EXPECT_NE(ClientOf("unknown"), "");
  EXPECT_EQ(ClientAddress("10.0.0.1", "192.0.2.7", {}), "10.0.0.1");
}

TEST(Clients, EachHasItsShare) {
  const auto all = std::make_shared<MemoryAccount>(1000);
  Clients clients(0.5, all);
  const std::shared_ptr<Client> one = clients.Find("one"), two = clients.Find("two"), own = clients.Find("");
  EXPECT_EQ(clients.Find("one"), one);
  EXPECT_TRUE(one->memory->TryTake(500));
  EXPECT_FALSE(one->memory->TryTake(1));
  EXPECT_TRUE(two->memory->TryTake(400));
  EXPECT_FALSE(own->memory->TryTake(101)) << "the whole is bounded too";
  EXPECT_TRUE(own->memory->TryTake(100));
  EXPECT_EQ(all->used(), 1000u);
  one->memory->GiveBack(500);
  EXPECT_EQ(all->used(), 500u);
  ClientCount places = clients.TryCount(one, &Client::places, 3, 10);
  EXPECT_TRUE(places);
  EXPECT_FALSE(clients.TryCount(one, &Client::places, 3, 10));
  EXPECT_TRUE(clients.TryCount(two, &Client::places, 8, 10)) << "one request alone may pass its share";
  EXPECT_TRUE(clients.TryCount(own, &Client::places, 8, 10));
  EXPECT_EQ(two->places, 0);
  places = {};
  EXPECT_EQ(one->places, 0);
}

TEST(HttpServer, SilenceEnds) {
  HttpLimits limits;
  limits.idle_s = 1;
  limits.body_s = 1;
  Served served(limits);
  Peer silent(served.port()), slow(served.port());
  slow.Send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nfir");
  EXPECT_EQ(silent.Read(""), "");
  EXPECT_EQ(slow.Read("").substr(0, 12), "HTTP/1.1 408");
}

TEST(HttpServer, DrainsWhatRunsAndNothingElse) {
  HttpLimits limits;
  limits.drain_s = 1;
  Served served(limits);
  Peer idle(served.port()), later(served.port()), endless(served.port()), half(served.port());
  half.Send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nfir");
  later.Send(Peer::Get("/later"));
  endless.Send(Peer::Get("/endless"));
  endless.Read("begin");
  served.server().Drain();
  EXPECT_EQ(idle.Read(""), "");
  const std::string reply = later.Read("");
  EXPECT_NE(reply.find("later"), std::string::npos);
  EXPECT_NE(reply.find("Connection: close"), std::string::npos);
  EXPECT_EQ(half.Read("").substr(0, 12), "HTTP/1.1 503") << "a client that is still sending gets a reply too";
  served.server().Wait();
  EXPECT_TRUE(served.drained());
  EXPECT_TRUE(served.cut()) << "an exchange can reply before it is cut";
  EXPECT_EQ(served.gone(), 1);  // the endless one, cut
  EXPECT_FALSE(Peer(served.port()).connected());
}

TEST(HttpServer, ManyClientsAtOnce) {
  Served served;
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&, i] {
      Peer client(served.port());
      for (int j = 0; j < 20; ++j) {
        const std::string word = "canary" + std::to_string(100 + i) + std::to_string(100 + j);
        client.Send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(word.size()) + "\r\n\r\n" +
                    word);
        right += client.Read(word).find("200 OK") != std::string::npos;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 160);
}

}  // namespace
}  // namespace infinigen
