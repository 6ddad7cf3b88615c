#include "server/request_reader.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <limits>
#include <optional>

namespace infinigen {

namespace http = boost::beast::http;

namespace {

using Parser = http::request_parser<http::empty_body>;
using Message = Parser::value_type;

constexpr std::string_view kHeadEnd = "\r\n\r\n";

// Why Beast refused a head.
HttpFault FaultOf(const boost::system::error_code& error) {
  if (error == http::error::bad_version) return {505, "this version of HTTP is not supported; use 1.0 or 1.1"};
  if (error == http::error::bad_method) return {400, "bad method"};
  if (error == http::error::bad_target) return {400, "bad target"};
  if (error == http::error::bad_field) return {400, "bad name of a header"};
  if (error == http::error::bad_value) return {400, "bad value of a header"};
  if (error == http::error::bad_content_length) return {400, "bad Content-Length"};
  if (error == http::error::bad_transfer_encoding) return {400, "bad Transfer-Encoding"};
  return {400, "the request is not HTTP"};
}

// Beast joins folded lines with a space, but proxies may read them as two fields or none.
bool HasFoldedLine(std::string_view head) { return head.find("\n ") != head.npos || head.find("\n\t") != head.npos; }

// Many proxies read a bare line feed as the end of a line, and others do not.
bool HasBareLineFeed(std::string_view text) {
  for (size_t at = text.find('\n'); at != text.npos; at = text.find('\n', at + 1))
    if (at == 0 || text[at - 1] != '\r') return true;
  return false;
}

// The request line and the empty line at the end are no fields.
size_t FieldsOf(std::string_view head) { return static_cast<size_t>(std::ranges::count(head, '\n')) - 2; }

RequestHead HeadOf(const Message& message) {
  const auto field = [&](auto name) {
    const auto value = message[name];
    return std::string(value.data(), value.size());
  };
  RequestHead head;
  head.method = std::string(message.method_string());
  head.target = std::string(message.target());
  head.host = field(http::field::host);
  head.origin = field(http::field::origin);
  head.authorization = field(http::field::authorization);
  head.request_id = field("X-Request-Id");
  head.cors_headers = field(http::field::access_control_request_headers);
  const auto [first, last] = message.equal_range("X-Forwarded-For");  // each proxy may add a field of its own
  for (auto each = first; each != last; ++each) {
    if (!head.forwarded.empty()) head.forwarded += ',';
    head.forwarded.append(each->value().data(), each->value().size());
  }
  head.http11 = message.version() == 11;
  head.keep_alive = message.keep_alive();
  head.expects_continue = head.http11 && boost::beast::iequals(message[http::field::expect], "100-continue");
  return head;
}

// A target in absolute form overrides the Host: "http:///path".
bool HasEmptyAuthority(std::string_view target) {
  const size_t mark = target.starts_with('/') ? target.npos : target.find("://");
  return mark != target.npos && (mark + 3 == target.size() || target[mark + 3] == '/' || target[mark + 3] == '?');
}

// Why a head that was parsed is refused.
std::optional<HttpFault> CheckHead(std::string_view bytes, const Message& message) {
  if (message.version() != 10 && message.version() != 11)
    return HttpFault{505, "this version of HTTP is not supported; use 1.0 or 1.1"};
  if (message.version() == 11 && message.count(http::field::host) != 1)
    return HttpFault{400, "the request must have exactly one Host header"};
  if (message.count(http::field::host) > 0 && message[http::field::host].empty())
    return HttpFault{400, "the Host header is empty"};
  if (HasEmptyAuthority(message.target())) return HttpFault{400, "the target names no host"};
  if (HasFoldedLine(bytes)) return HttpFault{400, "a header line is folded"};
  // Also equal ones, of which Beast makes one: "Content-Length: 5, 5".
  const auto length = message[http::field::content_length];
  if (message.count(http::field::content_length) > 1 || length.find(',') != length.npos)
    return HttpFault{400, "the request has more than one Content-Length"};
  if (message.count(http::field::transfer_encoding) > 0) {
    if (message.version() == 10) return HttpFault{400, "HTTP/1.0 has no transfer encodings"};
    if (!boost::beast::iequals(message[http::field::transfer_encoding], "chunked"))
      return HttpFault{400, "only the transfer encoding \"chunked\" is supported"};
  }
  const auto [first, last] = message.equal_range(http::field::content_encoding);
  for (auto each = first; each != last; ++each)
    if (!boost::beast::iequals(each->value(), "identity"))
      return HttpFault{415, "content encodings are not supported; send the body as it is"};
  return std::nullopt;
}

}  // namespace

size_t RequestHead::bytes() const {
  size_t sum = 0;
  for (const std::string* text :
       {&method, &target, &host, &origin, &authorization, &request_id, &cors_headers, &forwarded})
    sum += text->capacity();
  return sum;
}

RequestReader::RequestReader(size_t header_bytes, size_t body_bytes)
    : header_bytes_(header_bytes), body_bytes_(body_bytes), chunks_(body_bytes, header_bytes) {}

RequestReader::Event RequestReader::Read(std::string_view bytes, size_t* used) {
  switch (state_) {
    case State::kStart:
      return ReadStart(bytes, used);
    case State::kHead:
      return ReadHead(bytes, used);
    case State::kAdmitted:
      state_ = chunked_ ? State::kChunks : State::kLength;
      return Read(bytes, used);
    case State::kLength:
      return ReadLength(bytes, used);
    default:
      return ReadChunks(bytes, used);
  }
}

// Skips one empty line before a request: some clients send it after the previous body (RFC 9112, 2.2). A second one is
// an error of the parser.
RequestReader::Event RequestReader::ReadStart(std::string_view bytes, size_t* used) {
  if (bytes.empty() || bytes == "\r") return Event::kMore;
  const size_t skipped = bytes.starts_with("\r\n") ? 2 : 0;
  *used += skipped;
  state_ = State::kHead;
  return ReadHead(bytes.substr(skipped), used);
}

RequestReader::Event RequestReader::ReadHead(std::string_view bytes, size_t* used) {
  const size_t end = bytes.find(kHeadEnd, searched_);
  const size_t size = end == bytes.npos ? bytes.size() : end + kHeadEnd.size();
  if (HasBareLineFeed(bytes.substr(0, std::min(size, header_bytes_))))
    return Fail(400, "a line of the header ends with a bare line feed");
  if (size > header_bytes_) return Fail(431, "the header is too long");
  if (end == bytes.npos) {
    searched_ = size - std::min(size, kHeadEnd.size() - 1);
    return Event::kMore;
  }
  *used += size;
  return ParseHead(bytes.substr(0, size));
}

RequestReader::Event RequestReader::ParseHead(std::string_view bytes) {
  if (FieldsOf(bytes) > kMostFields) return Fail(431, "the header has too many fields");
  Parser parser;
  // ReadHead and ReadLength check the lengths.
  parser.header_limit(std::numeric_limits<uint32_t>::max());
  parser.body_limit(boost::none);
  boost::system::error_code error;
  parser.put(boost::asio::buffer(bytes.data(), bytes.size()), error);
  head_ = HeadOf(parser.get());
  if (error) {
    fault_ = FaultOf(error);
    return Event::kFailed;
  }
  if (!parser.is_header_done()) return Fail(400, "the request is not HTTP");
  state_ = State::kAdmitted;
  if (const std::optional<HttpFault> fault = CheckHead(bytes, parser.get())) {
    fault_ = *fault;
    return Event::kFailed;
  }
  chunked_ = parser.chunked();
  content_length_ = parser.content_length().value_or(0);
  return Event::kHead;
}

RequestReader::Event RequestReader::ReadLength(std::string_view bytes, size_t* used) {
  if (content_length_ > body_bytes_) return Fail(413, "the body is too long");
  const size_t count = std::min(bytes.size(), static_cast<size_t>(content_length_) - body_.size());
  body_.append(bytes.substr(0, count));
  *used += count;
  if (body_.size() < content_length_) return Event::kMore;
  state_ = State::kDone;
  return Event::kDone;
}

RequestReader::Event RequestReader::ReadChunks(std::string_view bytes, size_t* used) {
  *used += chunks_.Read(bytes, &body_);
  if (chunks_.failed()) {
    fault_ = chunks_.fault();
    return Event::kFailed;
  }
  if (!chunks_.done()) return Event::kMore;
  state_ = State::kDone;
  return Event::kDone;
}

RequestReader::Event RequestReader::Fail(int status, std::string_view reason) {
  fault_ = {status, reason};
  return Event::kFailed;
}

}  // namespace infinigen
