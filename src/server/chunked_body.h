// ChunkedBody: reads a body with `Transfer-Encoding: chunked` (RFC 9112, 7.1). Lines are consumed whole, so the outcome
// does not depend on the pieces in which the bytes arrive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace infinigen {

// Why a request cannot be read: the status of the reply and the reason to tell.
struct HttpFault {
  int status = 0;
  std::string_view reason;  // of static storage
};

class ChunkedBody {
 public:
  // Limits: of the decoded body, and of all trailers together.
  ChunkedBody(size_t body_bytes, size_t trailer_bytes) : body_left_(body_bytes), trailers_left_(trailer_bytes) {}

  // Reads from the front of `bytes` and appends data to *body. Returns how many bytes it consumed; what is left belongs
  // to an incomplete line, or follows the body.
  size_t Read(std::string_view bytes, std::string* body);
  bool done() const { return state_ == State::kDone; }
  bool failed() const { return state_ == State::kFailed; }
  const HttpFault& fault() const { return fault_; }  // if failed

 private:
  enum class State { kSize, kData, kDataEnd, kTrailers, kDone, kFailed };

  // Each reads one element and returns its bytes; 0: it is incomplete, or the body failed.
  size_t ReadSize(std::string_view bytes);
  size_t ReadData(std::string_view bytes, std::string* body);
  size_t ReadDataEnd(std::string_view bytes);
  size_t ReadTrailer(std::string_view bytes);
  size_t Fail(HttpFault fault);

  State state_ = State::kSize;
  size_t body_left_, trailers_left_;
  size_t chunk_left_ = 0;
  HttpFault fault_;
};

}  // namespace infinigen
