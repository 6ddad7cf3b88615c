// RequestReader: reads one HTTP/1 request from bytes that arrive in any pieces. It needs no network, and its outcome
// does not depend on the pieces: a head is parsed once all of it is there.
//
//   empty line? ─► head ─► kHead ─► body (Content-Length or chunked) ─► kDone
//
// Beast parses the head; what the server needs of it is copied, and the parser's memory, many times the size of a head
// of short fields, is freed at once. Requests whose length two readers could understand differently are refused
// (request smuggling): more than one length, other transfer encodings, folded lines, lines that end with a bare line
// feed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "server/chunked_body.h"

namespace infinigen {

// What the server uses of a request's head. Header fields are empty when absent.
struct RequestHead {
  std::string method, target;
  std::string host, origin, authorization, request_id, cors_headers;
  std::string forwarded;  // all X-Forwarded-For fields, joined by commas
  bool http11 = false;    // else HTTP/1.0
  bool keep_alive = false;
  bool expects_continue = false;  // the client waits for 100 before it sends the body

  size_t bytes() const;  // memory that the texts take
};

class RequestReader {
 public:
  // A head may have so many fields, as many as the usual proxies accept.
  static constexpr size_t kMostFields = 100;
  enum class Event { kMore, kHead, kDone, kFailed };

  RequestReader(size_t header_bytes, size_t body_bytes);

  // Reads from the front of `bytes` and adds what it consumed to *used. kHead comes once, before any byte of the body;
  // kMore: the rest of `bytes` is incomplete and must be given again with more. Not to be called after kDone or
  // kFailed.
  Event Read(std::string_view bytes, size_t* used);

  bool begun() const { return state_ != State::kStart; }  // the first byte has arrived
  bool has_head() const { return state_ >= State::kAdmitted; }
  bool has_body() const { return chunked_ || content_length_ > 0; }
  const RequestHead& head() const { return head_; }  // after kFailed: what was parsed
  std::string& body() { return body_; }
  const HttpFault& fault() const { return fault_; }  // after kFailed

 private:
  enum class State { kStart, kHead, kAdmitted, kLength, kChunks, kDone };

  Event ReadStart(std::string_view bytes, size_t* used);
  Event ReadHead(std::string_view bytes, size_t* used);
  Event ReadLength(std::string_view bytes, size_t* used);
  Event ReadChunks(std::string_view bytes, size_t* used);
  Event ParseHead(std::string_view bytes);
  Event Fail(int status, std::string_view reason);

  const size_t header_bytes_, body_bytes_;
  State state_ = State::kStart;
  RequestHead head_;
  bool chunked_ = false;
  size_t searched_ = 0;  // bytes of an incomplete head in which its end is not
  uint64_t content_length_ = 0;
  ChunkedBody chunks_;
  std::string body_;
  HttpFault fault_;
};

}  // namespace infinigen
