#include "hub/http_client.h"

#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/write.hpp>
#include <chrono>

#include "base/utf8.h"
#include "hub/name.h"

namespace infinigen {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using Kind = HttpFailure::Kind;

constexpr int kMaxRedirects = 8;
constexpr size_t kBufferBytes = size_t{128} << 10;
constexpr size_t kMaxHeadBytes = size_t{64} << 10;
constexpr std::chrono::milliseconds kPoll{100};  // between two questions whether the work is cancelled

template <class... Args>
HttpFailure Failure(Kind kind, fmt::format_string<Args...> format, Args&&... args) {
  return {kind, IoError("{}", fmt::format(format, std::forward<Args>(args)...))};
}

// One connection for one exchange. Every function that returns a failure leaves the connection unusable.
class Exchange {
 public:
  Exchange(const HttpGet& get, const Url& url) : get_(get), url_(url), socket_(io_) { parser_.emplace(); }

  std::optional<HttpFailure> Connect() {
    error_code error;
    asio::ip::tcp::resolver resolver(io_);
    asio::ip::tcp::resolver::results_type addresses;
    auto failure = Await("finding", &error, [&](auto done) {
      resolver.async_resolve(url_.host, url_.port, [&, done](error_code code, auto found) {
        addresses = std::move(found);
        done(code);
      });
    });
    if (failure) return failure;
    if (error) return Failure(Kind::kConnect, "{}: host not found: {}", url_.authority, error.message());
    failure = Await("connecting", &error, [&](auto done) {
      asio::async_connect(socket_, addresses, [done](error_code code, const auto&) { done(code); });
    });
    if (failure) return failure;
    if (error) return Failure(Kind::kConnect, "{}: cannot connect: {}", url_.authority, error.message());
    connected_ = true;
    return url_.tls ? Handshake() : std::nullopt;
  }

  std::optional<HttpFailure> Send(const std::string& token) {
    http::request<http::empty_body> request(http::verb::get, url_.target, 11);
    request.set(http::field::host, url_.authority);
    request.set(http::field::user_agent, "infinigen");
    request.set(http::field::accept, "*/*");
    request.set(http::field::accept_encoding, "identity");
    request.set(http::field::connection, "close");
    for (const auto& [name, value] : get_.headers) request.set(name, value);
    if (!token.empty()) request.set(http::field::authorization, "Bearer " + token);
    error_code error;
    auto failure = Await("sending to", &error, [&](auto done) {
      WithStream(
          [&](auto& stream) { http::async_write(stream, request, [done](error_code code, size_t) { done(code); }); });
    });
    if (failure) return failure;
    return error ? std::optional(Cut(error)) : std::nullopt;
  }

  std::optional<HttpFailure> ReadHead(HttpHead* head) {
    parser_->header_limit(kMaxHeadBytes);
    parser_->body_limit(boost::none);
    buffer_.reserve(kBufferBytes);
    error_code error;
    auto failure = Await("waiting for", &error, [&](auto done) {
      WithStream([&](auto& stream) {
        http::async_read_header(stream, buffer_, *parser_, [done](error_code code, size_t) { done(code); });
      });
    });
    if (failure) return failure;
    if (error) return Cut(error);
    head->status = static_cast<int>(parser_->get().result_int());
    for (const auto& field : parser_->get())
      head->fields.emplace(LowerCase({field.name_string().data(), field.name_string().size()}),
                           std::string(field.value()));
    return std::nullopt;
  }

  std::optional<HttpFailure> ReadBody() {
    std::vector<char> piece(kBufferBytes);
    while (!parser_->is_done()) {
      auto& body = parser_->get().body();
      body.data = piece.data();
      body.size = piece.size();
      error_code error;
      auto failure = Await("reading from", &error, [&](auto done) {
        WithStream([&](auto& stream) {
          http::async_read_some(stream, buffer_, *parser_, [done](error_code code, size_t) { done(code); });
        });
      });
      if (failure) return failure;
      // Bytes that come without a pause never let Await ask.
      if (get_.cancelled && get_.cancelled()) return Failure(Kind::kCancelled, "{}: cancelled", url_.authority);
      const size_t bytes = piece.size() - body.size;
      if (bytes > 0)
        if (Status taken = get_.on_body({piece.data(), bytes}); !taken.ok())
          return HttpFailure{Kind::kRefused, taken.error()};
      if (error && error != http::error::need_buffer) return Cut(error);
    }
    return std::nullopt;
  }

 private:
  HttpFailure Cut(const error_code& error) const {
    return Failure(Kind::kCut, "{}: the connection broke: {}", url_.authority, error.message());
  }

  template <class Use>
  void WithStream(Use use) {
    if (tls_)
      use(*tls_);
    else
      use(socket_);
  }

  // Runs one asynchronous operation. `start` gets the function that the operation calls at its end, and uses only what
  // outlives this call: after a time-out or a cancellation the operation is aborted and awaited.
  template <class Start>
  std::optional<HttpFailure> Await(std::string_view what, error_code* error, Start start) {
    bool finished = false;
    start([&](error_code code) {
      *error = code;
      finished = true;
    });
    const Clock::time_point deadline = Clock::now() + std::chrono::seconds(get_.timeout_s);
    std::optional<HttpFailure> failure;
    while (!finished) {
      io_.restart();
      io_.run_one_for(kPoll);
      if (finished || failure) continue;
      if (get_.cancelled && get_.cancelled())
        failure = Failure(Kind::kCancelled, "{}: cancelled", url_.authority);
      else if (Clock::now() > deadline)
        failure = Failure(connected_ ? Kind::kCut : Kind::kConnect, "{}: {} the server took more than {} s",
                          url_.authority, what, get_.timeout_s);
      error_code ignored;
      if (failure) socket_.close(ignored);  // ends the operation; a look-up of a name ends by itself
    }
    return failure;
  }

  std::optional<HttpFailure> Handshake() {
    error_code error;
    context_.emplace(asio::ssl::context::tls_client);
    SSL_CTX_set_min_proto_version(context_->native_handle(), TLS1_2_VERSION);
    context_->set_default_verify_paths(error);
    if (error)
      return Failure(Kind::kRefused, "{}: cannot read the trusted certificates: {}", url_.authority, error.message());
    tls_.emplace(socket_, *context_);
    tls_->set_verify_mode(asio::ssl::verify_peer, error);
    if (error || !ExpectHost())
      return Failure(Kind::kRefused, "{}: the name of the host is not possible in TLS", url_.authority);
    auto failure = Await("the TLS handshake with", &error, [&](auto done) {
      tls_->async_handshake(asio::ssl::stream_base::client, [done](error_code code) { done(code); });
    });
    if (failure) return failure;
    if (!error) return std::nullopt;
    const long verified = SSL_get_verify_result(tls_->native_handle());
    if (verified != X509_V_OK)
      return Failure(Kind::kRefused,
                     "{}: its certificate is not trusted: {}; if you trust it, name its file in SSL_CERT_FILE",
                     url_.authority, X509_verify_cert_error_string(verified));
    return Failure(Kind::kConnect, "{}: the TLS handshake failed: {}", url_.authority, error.message());
  }

  // Sets the name or address that the certificate must have. A name is also sent, for servers with several.
  bool ExpectHost() {
    SSL* const ssl = tls_->native_handle();
    error_code is_name;
    asio::ip::make_address(url_.host, is_name);
    if (!is_name) return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), url_.host.c_str()) == 1;
    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    return SSL_set1_host(ssl, url_.host.c_str()) == 1 &&
           SSL_ctrl(ssl, SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name, url_.host.data()) == 1;
  }

  const HttpGet& get_;
  Url url_;
  bool connected_ = false;
  asio::io_context io_;
  std::optional<asio::ssl::context> context_;
  asio::ip::tcp::socket socket_;
  std::optional<asio::ssl::stream<asio::ip::tcp::socket&>> tls_;
  boost::beast::flat_buffer buffer_{kBufferBytes};
  std::optional<http::response_parser<http::buffer_body>> parser_;
};

bool IsRedirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

// The exchange with one host. `next` gets the address of a redirect.
std::optional<HttpFailure> RunOne(const HttpGet& get, const Url& url, std::optional<Url>* next) {
  Exchange exchange(get, url);
  if (auto failure = exchange.Connect()) return failure;
  if (auto failure = exchange.Send(url.SameOrigin(get.url) ? get.token : "")) return failure;
  HttpHead head{.host = url.authority};
  if (auto failure = exchange.ReadHead(&head)) return failure;
  const std::string& location = head.Get("location");
  const bool redirect = IsRedirect(head.status) && !location.empty();
  if (Status accepted = get.on_head(head, redirect); !accepted.ok())
    return HttpFailure{Kind::kRefused, accepted.error()};
  if (!redirect) return exchange.ReadBody();
  Result<Url> to = ResolveRedirect(url, location);
  if (!to.ok()) return HttpFailure{Kind::kRefused, to.error()};
  next->emplace(std::move(to).value());
  return std::nullopt;
}

}  // namespace

const std::string& HttpHead::Get(const std::string& lower_name) const {
  static const std::string none;
  const auto found = fields.find(lower_name);
  return found == fields.end() ? none : found->second;
}

std::optional<HttpFailure> RunGet(const HttpGet& get) {
  Url url = get.url;
  for (int hops = 0; hops <= kMaxRedirects; ++hops) {
    std::optional<Url> next;
    try {
      if (auto failure = RunOne(get, url, &next)) return failure;
    } catch (const std::exception& error) {  // of Boost: out of file descriptors or memory
      return Failure(Kind::kRefused, "{}: {}", url.authority, error.what());
    }
    if (!next) return std::nullopt;
    url = std::move(*next);
  }
  return Failure(Kind::kRefused, "{}: more than {} redirects", get.url.authority, kMaxRedirects);
}

}  // namespace infinigen
