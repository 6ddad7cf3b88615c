// Shared by the HTTP targets: connections of the real server over a socket pair, driven by this thread, and a strict
// reader of what they answer.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/ip/tcp.hpp>
#include <cctype>
#include <charconv>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "server/http_connection.h"

namespace infinigen {

// One reply: head and body, chunks joined.
struct WireReply {
  int status = 0;
  std::string head, body;
  bool whole = false;  // all of it has arrived
};

// Reads replies one after another. A reply that breaks HTTP's rules is a defect of the server.
class ReplyReader {
 public:
  explicit ReplyReader(std::string_view bytes) : rest_(bytes) {}

  // The next reply; empty at the end of the bytes.
  std::optional<WireReply> Next(bool without_body) {
    if (rest_.empty()) return std::nullopt;
    WireReply reply;
    const size_t end = rest_.find("\r\n\r\n");
    CHECK(end != rest_.npos);
    reply.head = std::string(rest_.substr(0, end + 2));
    rest_.remove_prefix(end + 4);
    ReadStatus(reply);
    CheckLines(reply.head);
    if (reply.status == 100 || reply.status == 204 || without_body) {
      reply.whole = true;
    } else if (reply.head.find("\r\nTransfer-Encoding: chunked\r\n") != std::string::npos) {
      ReadChunks(reply);
    } else if (const auto length = Length(reply.head)) {
      const size_t has = std::min<size_t>(*length, rest_.size());
      reply.body = std::string(rest_.substr(0, has));
      reply.whole = has == *length;
      rest_.remove_prefix(has);
    } else {  // a stream to an old client: it ends with the connection
      reply.body = std::string(std::exchange(rest_, {}));
      reply.whole = true;
    }
    return reply;
  }

 private:
  static void ReadStatus(WireReply& reply) {
    constexpr std::string_view kVersion = "HTTP/1.1 ";
    CHECK(reply.head.starts_with(kVersion) && reply.head.size() > kVersion.size() + 4);
    const char* digits = reply.head.data() + kVersion.size();
    const auto [end, error] = std::from_chars(digits, digits + 3, reply.status);
    CHECK(error == std::errc() && end == digits + 3 && reply.status >= 100 && reply.status < 600);
  }
  // No bare CR or LF, no control character, a colon in each line but the first.
  static void CheckLines(std::string_view head) {
    for (size_t line = 0; !head.empty(); ++line) {
      const size_t end = head.find("\r\n");
      CHECK(end != head.npos);
      const std::string_view text = head.substr(0, end);
      for (const char c : text) CHECK(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f);
      CHECK(line == 0 || text.find(": ") != text.npos);
      head.remove_prefix(end + 2);
    }
  }
  static std::optional<size_t> Length(const std::string& head) {
    constexpr std::string_view kName = "\r\nContent-Length: ";
    const size_t at = head.find(kName);
    if (at == std::string::npos) return std::nullopt;
    CHECK(head.find(kName, at + 1) == std::string::npos);
    return std::stoull(head.substr(at + kName.size()));
  }
  void ReadChunks(WireReply& reply) {
    while (!rest_.empty()) {
      const size_t end = rest_.find("\r\n");
      if (end == rest_.npos) return;
      size_t size = 0;
      const auto [last, error] = std::from_chars(rest_.data(), rest_.data() + end, size, 16);
      CHECK(error == std::errc() && last == rest_.data() + end);
      rest_.remove_prefix(end + 2);
      if (rest_.size() < size + 2) return;
      CHECK(rest_.substr(size, 2) == "\r\n");
      reply.body += rest_.substr(0, size);
      rest_.remove_prefix(size + 2);
      reply.whole = size == 0;
      if (reply.whole) return;
    }
  }

  std::string_view rest_;
};

// The host of connections over socket pairs. One thread.
class PairHost final : public ConnectionHost {
 public:
  PairHost(const HttpOptions& options, HttpHandler handler) : ConnectionHost(options, std::move(handler)) {}

  void Closed(Connection* connection) override { closed = closed || connection == current_.get(); }
  void CountSlow() override {}

  // Sends the pieces to a new connection and returns what it answers. `settle` returns once nothing is being handled.
  template <class F>
  std::string Talk(const std::vector<std::string_view>& pieces, F&& settle) {
    int ends[2];
    CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    closed = false;
    std::string answer;
    {
      boost::asio::ip::tcp::socket socket(io);
      socket.assign(boost::asio::ip::tcp::v4(), ends[0]);
      current_ =
          std::make_shared<Connection>(*this, std::move(socket), all_clients.Find(""), ClientCount(), MemoryShare());
      current_->Start();
    }
    for (std::string_view piece : pieces) {
      while (!piece.empty() && !closed) {
        const ssize_t sent = ::send(ends[1], piece.data(), piece.size(), MSG_NOSIGNAL);
        const bool failed = sent < 0 && errno != EAGAIN;
        if (sent > 0) piece.remove_prefix(static_cast<size_t>(sent));
        Turn(ends[1], answer, settle);
        if (failed) break;
      }
    }
    ::close(ends[1]);
    current_->CloseNow();
    io.restart();
    io.poll();
    CHECK(closed);
    current_.reset();
    return answer;
  }

  bool closed = false;

 private:
  // Runs callbacks and reads answers until both are quiet.
  template <class F>
  void Turn(int fd, std::string& answer, F&& settle) {
    for (bool moved = true; moved;) {
      settle();
      io.restart();
      moved = io.poll() > 0;
      char buffer[16384];
      for (ssize_t got; (got = ::recv(fd, buffer, sizeof(buffer), 0)) > 0; moved = true)
        answer.append(buffer, static_cast<size_t>(got));
    }
  }

  std::shared_ptr<Connection> current_;
};

}  // namespace infinigen
