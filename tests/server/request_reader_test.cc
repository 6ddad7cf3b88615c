#include "server/request_reader.h"

#include <gtest/gtest.h>

#include "base/split_mix.h"

namespace infinigen {
namespace {

using Event = RequestReader::Event;

// What a reader with small limits makes of bytes that arrive in the given pieces: the body, or the status of its fault,
// or "more".
std::string Outcome(const std::vector<std::string>& pieces, size_t* left = nullptr) {
  RequestReader reader(/*header_bytes=*/200, /*body_bytes=*/100);
  std::string input;
  for (const std::string& piece : pieces) {
    input += piece;
    for (bool more = false; !more;) {
      size_t used = 0;
      const Event event = reader.Read(input, &used);
      input.erase(0, used);
      if (left != nullptr) *left = input.size();
      if (event == Event::kFailed) return std::to_string(reader.fault().status);
      if (event == Event::kDone) return reader.body();
      more = event == Event::kMore;
    }
  }
  return "more";
}

std::string Chunked(const std::string& body) {
  return "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + body;
}

// Each request with its outcome; what follows a request is not consumed.
const std::vector<std::pair<std::string, std::string>>& Cases() {
  static const std::vector<std::pair<std::string, std::string>> cases = {
      {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", ""},
      {"\r\nPOST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody", "body"},
      {"\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n", "400"},
      {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 101\r\n\r\n", "413"},
      {"GET / HTTP/1.1\r\nHost: x\r\nX: " + std::string(200, 'x'), "431"},
      {"GET / HTTP/1.1\r\nHost: x\r\nX: " + std::string(200, 'x') + "\r\n\r\n", "431"},
      {"GET / HTTP/1.1\r\nHost: x\r\nX: a\r\n b\r\n\r\n", "400"},
      {"GET / HTTP/3.0\r\nHost: x\r\n\r\n", "505"},
      {"GET / HTTP/1.1\r\n\r\n", "400"},
      {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nb", "400"},
      {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1, 1\r\n\r\nb", "400"},
      {"GET / HTTP/1.1\nHost: x\n\n", "400"},
      {"GET / HTTP/1.1\r\nHost: x\r\nX: y\nContent-Length: 3\r\n\r\n", "400"},
      {"\nGET / HTTP/1.1\r\nHost: x\r\n\r\n", "400"},
      {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n\n\n", "\n\n"},
      {"POST / HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nb", "415"},
      {"POST / HTTP/1.1\r\nHost: x\r\nContent-Encoding: Identity\r\nContent-Length: 1\r\n\r\nb", "b"},
      {Chunked("3\r\nabc\r\n2;a=\"b\"\r\nde\r\n0\r\n\r\n"), "abcde"},
      {Chunked("0;x\r\nT: x\r\nU:\r\n\r\n"), ""},
      {Chunked("0000000000000003\r\nabc\r\n0\r\n\r\n"), "abc"},
      {Chunked("00000000000000003\r\nabc\r\n0\r\n\r\n"), "400"},
      {Chunked("3\r\nabcd\r\n0\r\n\r\n"), "400"},
      {Chunked("3\nabc\r\n0\r\n\r\n"), "400"},
      {Chunked("\r\nabc\r\n0\r\n\r\n"), "400"},
      {Chunked("-3\r\nabc\r\n0\r\n\r\n"), "400"},
      {Chunked("0x3\r\nabc\r\n0\r\n\r\n"), "400"},
      {Chunked("3 \r\nabc\r\n0\r\n\r\n"), "400"},
      {Chunked("3;\x01\r\nabc\r\n0\r\n\r\n"), "400"},
      {Chunked("3;" + std::string(5000, 'x') + "\r\nabc\r\n0\r\n\r\n"), "400"},
      {Chunked("65\r\n"), "413"},
      {Chunked("ffffffffffffffff\r\n"), "413"},
      {Chunked("60\r\n" + std::string(96, 'x') + "\r\n5\r\n"), "413"},
      {Chunked("0\r\nT: x\r\n y\r\n\r\n"), "400"},
      {Chunked("0\r\nno field\r\n\r\n"), "400"},
      {Chunked("0\r\nT : x\r\n\r\n"), "400"},
      {Chunked("0\r\nT: x\n\r\n"), "400"},
      {Chunked("0\r\nT: \x1b[m\r\n\r\n"), "400"},
      {Chunked("0\r\nT: " + std::string(190, 'x') + "\r\n\r\n"), ""},
      {Chunked("0\r\nT: " + std::string(200, 'x') + "\r\n\r\n"), "431"},
      {Chunked("0\r\n" + std::string(200, 'T')), "431"},
      {Chunked("0\r\n"), "more"},
  };
  return cases;
}

TEST(RequestReader, ReadsWholeRequests) {
  for (const auto& [bytes, outcome] : Cases()) EXPECT_EQ(Outcome({bytes}), outcome) << bytes;
}

TEST(RequestReader, TheOutcomeDoesNotDependOnThePieces) {
  SplitMix draw(1);
  for (const auto& [bytes, outcome] : Cases()) {
    for (int round = 0; round < 30; ++round) {
      const size_t longest = 1 + draw.Below(round == 0 ? 1 : 40);
      std::vector<std::string> pieces;
      for (size_t begin = 0; begin < bytes.size(); begin += pieces.back().size())
        pieces.push_back(bytes.substr(begin, 1 + draw.Below(longest)));
      EXPECT_EQ(Outcome(pieces), outcome) << bytes << " in pieces of at most " << longest;
    }
  }
}

TEST(RequestReader, AHeadHasAtMostAHundredFields) {
  for (const auto& [fields, expected] : {std::pair<size_t, Event>{100, Event::kHead}, {101, Event::kFailed}}) {
    RequestReader reader(/*header_bytes=*/16 << 10, /*body_bytes=*/100);
    std::string head = "GET / HTTP/1.1\r\nHost: x\r\n";
    for (size_t i = 1; i < fields; ++i) head += "a:\r\n";
    size_t used = 0;
    EXPECT_EQ(reader.Read(head + "\r\n", &used), expected) << fields;
    EXPECT_EQ(reader.fault().status, expected == Event::kFailed ? 431 : 0);
    EXPECT_LT(reader.head().bytes(), 400U) << "what is not used is not kept";
  }
}

TEST(RequestReader, WhatFollowsARequestIsLeft) {
  for (const std::string& request :
       {std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), Chunked("1\r\na\r\n0\r\n\r\n")}) {
    size_t left = 0;
    Outcome({request + "GET /next"}, &left);
    EXPECT_EQ(left, 9U) << request;
  }
}

// A body may be refused by its head alone, so the head comes first, and only once.
TEST(RequestReader, TheHeadComesBeforeTheBody) {
  RequestReader reader(200, 100);
  size_t used = 0;
  const std::string head = "POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n";
  EXPECT_EQ(reader.Read(head + "b", &used), Event::kHead);
  EXPECT_EQ(used, head.size());
  EXPECT_EQ(reader.head().target, "/p");
  EXPECT_TRUE(reader.has_head() && reader.has_body() && reader.body().empty());
  EXPECT_EQ(reader.Read("", &used), Event::kMore);
  EXPECT_EQ(reader.Read("b", &used), Event::kDone);
}

}  // namespace
}  // namespace infinigen
