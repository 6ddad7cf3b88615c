#include "server/chunked_body.h"

#include <algorithm>
#include <charconv>

namespace infinigen {

namespace {

// Longest line of a chunk: its size and extensions. No known client sends extensions; they are ignored.
constexpr size_t kChunkLineBytes = 4 << 10;
constexpr size_t kSizeDigits = 16;

bool IsControl(char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f; }
bool HasControl(std::string_view text) { return std::any_of(text.begin(), text.end(), IsControl); }

// What may stand in a field's name (RFC 9110, 5.6.2).
bool IsToken(std::string_view text) {
  const auto is_token_byte = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
  };
  return !text.empty() && std::all_of(text.begin(), text.end(), is_token_byte);
}

struct Line {
  size_t bytes = 0;  // with its end; 0: incomplete
  bool too_long = false;
  bool bad_end = false;   // not CR LF
  std::string_view text;  // without its end
};

Line FirstLine(std::string_view bytes, size_t limit) {
  const size_t end = bytes.substr(0, limit).find('\n');
  if (end == bytes.npos) return {.too_long = bytes.size() >= limit};
  if (end == 0 || bytes[end - 1] != '\r') return {.bad_end = true};
  return {.bytes = end + 1, .text = bytes.substr(0, end - 1)};
}

}  // namespace

size_t ChunkedBody::Read(std::string_view bytes, std::string* body) {
  size_t used = 0;
  while (!done() && !failed()) {
    const std::string_view rest = bytes.substr(used);
    size_t element = 0;
    switch (state_) {
      case State::kSize:
        element = ReadSize(rest);
        break;
      case State::kData:
        element = ReadData(rest, body);
        break;
      case State::kDataEnd:
        element = ReadDataEnd(rest);
        break;
      default:
        element = ReadTrailer(rest);
        break;
    }
    if (element == 0) break;
    used += element;
  }
  return used;
}

size_t ChunkedBody::ReadSize(std::string_view bytes) {
  const Line line = FirstLine(bytes, kChunkLineBytes);
  if (line.too_long) return Fail({400, "a chunk's extensions are too long"});
  if (line.bad_end) return Fail({400, "a chunk's size does not end with CR LF"});
  if (line.bytes == 0) return 0;
  uint64_t size = 0;
  const char* const begin = line.text.data();
  const auto [digits_end, error] = std::from_chars(begin, begin + line.text.size(), size, 16);
  const size_t digits = static_cast<size_t>(digits_end - begin);
  if (error != std::errc() || digits > kSizeDigits || line.text[0] == '-') return Fail({400, "a chunk's size is bad"});
  const std::string_view extensions = line.text.substr(digits);
  const bool well_formed = extensions.empty() || (extensions[0] == ';' && !HasControl(extensions));
  if (!well_formed) return Fail({400, "a chunk's extensions are bad"});
  if (size > body_left_) return Fail({413, "the body is too long"});
  chunk_left_ = static_cast<size_t>(size);
  body_left_ -= chunk_left_;
  state_ = size == 0 ? State::kTrailers : State::kData;
  return line.bytes;
}

size_t ChunkedBody::ReadData(std::string_view bytes, std::string* body) {
  const size_t count = std::min(chunk_left_, bytes.size());
  body->append(bytes.substr(0, count));
  chunk_left_ -= count;
  if (chunk_left_ == 0) state_ = State::kDataEnd;
  return count;
}

size_t ChunkedBody::ReadDataEnd(std::string_view bytes) {
  constexpr std::string_view kEnd = "\r\n";
  if (!kEnd.starts_with(bytes.substr(0, kEnd.size()))) return Fail({400, "a chunk is longer than its size"});
  if (bytes.size() < kEnd.size()) return 0;
  state_ = State::kSize;
  return kEnd.size();
}

// One trailer (ignored), or the empty line that ends the body.
size_t ChunkedBody::ReadTrailer(std::string_view bytes) {
  const Line line = FirstLine(bytes, trailers_left_);
  if (line.too_long) return Fail({431, "the trailers are too long"});
  if (line.bad_end) return Fail({400, "a trailer does not end with CR LF"});
  if (line.bytes == 0) return 0;
  if (line.text.starts_with(' ') || line.text.starts_with('\t')) return Fail({400, "a trailer line is folded"});
  const size_t colon = line.text.find(':');
  const bool is_field = colon != line.text.npos && IsToken(line.text.substr(0, colon)) && !HasControl(line.text);
  if (!line.text.empty() && !is_field) return Fail({400, "a trailer is not a field"});
  trailers_left_ -= line.bytes;
  if (line.text.empty()) state_ = State::kDone;
  return line.bytes;
}

size_t ChunkedBody::Fail(HttpFault fault) {
  state_ = State::kFailed;
  fault_ = fault;
  return 0;
}

}  // namespace infinigen
