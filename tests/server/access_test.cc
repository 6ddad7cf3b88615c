#include "server/access.h"

#include <gtest/gtest.h>

#include <fstream>

namespace infinigen {
namespace {

HttpRequest Head(std::string path, std::string host = "localhost", std::string origin = "", std::string key = "") {
  return {.method = "GET",
          .path = std::move(path),
          .host = std::move(host),
          .origin = std::move(origin),
          .authorization = std::move(key)};
}

int StatusOf(const Access& access, const HttpRequest& head) {
  const std::optional<ApiError> error = access.Check(head);
  return error ? error->status : 200;
}

TEST(Access, KeysGuardAllButHealth) {
  const Access access({.keys = {"k1", "k2"}, .cors_origins = {}, .host = "127.0.0.1"});
  EXPECT_EQ(StatusOf(access, Head("/health")), 200);
  EXPECT_EQ(StatusOf(access, Head("/")), 401);
  EXPECT_EQ(StatusOf(access, Head("/", "localhost", "", "Bearer k2")), 200);
  EXPECT_EQ(StatusOf(access, Head("/", "localhost", "", "bearer  k1")), 200);
  EXPECT_EQ(StatusOf(access, Head("/", "localhost", "", "Bearer k")), 401);
  EXPECT_EQ(StatusOf(access, Head("/", "localhost", "", "Bearer k1k2")), 401);
  EXPECT_EQ(StatusOf(access, Head("/", "localhost", "", "Basic dTprMQ==")), 200);  // u:k1
  EXPECT_EQ(StatusOf(access, Head("/", "localhost", "", "Basic azE=")), 401);      // k1
  EXPECT_EQ(StatusOf(access, Head("/", "localhost", "", "Basic ====")), 401);
}

TEST(Access, KeyFilesOfEveryEditorAreRead) {
  const std::string path = testing::TempDir() + "/keys_of_access_test";
  const auto read = [&](const std::string& text) {
    std::ofstream(path) << text;
    return ReadKeyFile(path).value();
  };
  using Keys = std::vector<std::string>;
  EXPECT_EQ(read("\xEF\xBB\xBFone\r\n  two \t\r\n\tthree"), (Keys{"one", "two", "three"}));
  EXPECT_EQ(read("\xEF\xBB\xBF# who\n  # and why\n \t \nfour five\n"), (Keys{"four five"}));
  std::ofstream(path) << "\xEF\xBB\xBF\r\n  # none\r\n";
  EXPECT_FALSE(ReadKeyFile(path).ok());
}

TEST(Access, KeysThatNoHeaderCarriesAreRefused) {
  for (const char* key : {"k", "four five", "schl\xC3\xBCssel", "-._~+/="}) EXPECT_TRUE(CheckKey(key).ok()) << key;
  for (const char* key : {"", " ", " x", "x ", "x\n", "x\ny", "\tx", "x\x7F"}) EXPECT_FALSE(CheckKey(key).ok()) << key;
  EXPECT_TRUE(CheckKey(std::string(4096, 'k')).ok());
  EXPECT_FALSE(CheckKey(std::string(4097, 'k')).ok());
  const std::string path = testing::TempDir() + "/bad_keys_of_access_test";
  const auto message = [](const std::string& file) { return ReadKeyFile(file).error().message; };
  std::ofstream(path) << "good\nb\x01d\n";
  EXPECT_NE(message(path).find("control characters"), std::string::npos);
  std::ofstream(path) << std::string((1 << 20) + 1, '\n');
  EXPECT_NE(message(path).find("larger than"), std::string::npos);
  EXPECT_NE(message("/dev/zero").find("not a regular file"), std::string::npos);
  EXPECT_NE(message(testing::TempDir()).find("not a regular file"), std::string::npos);
}

TEST(Access, EachKeyIsATenant) {
  const Access access({.keys = {"k1", "k2"}, .cors_origins = {}, .host = ""});
  EXPECT_EQ(access.TenantOf("Bearer k1"), access.TenantOf("Basic dTprMQ=="));
  EXPECT_NE(access.TenantOf("Bearer k1"), access.TenantOf("Bearer k2"));
  EXPECT_EQ(access.TenantOf("Bearer k3"), "");
  EXPECT_EQ(Access({}).TenantOf("Bearer k1"), "");
  EXPECT_EQ(access.TenantOf("Bearer k1").find("k1"), std::string::npos);
}

TEST(Access, AnEmptyKeyNeverFits) {
  const Access access({.keys = {"k1"}, .cors_origins = {}, .host = ""});
  EXPECT_FALSE(access.KeyFits(""));
  EXPECT_FALSE(access.KeyFits("Bearer "));
  EXPECT_FALSE(access.KeyFits("Basic "));
}

TEST(Access, ForeignHostsAreRefusedWithoutKeys) {
  const Access access({.keys = {}, .cors_origins = {"https://page.example:8443"}, .host = "my.host"});
  for (const char* host : {"localhost", "LOCALHOST:80", "127.0.0.1:8080", "[::1]", "[fe80::1]:80", "my.host:1",
                           "page.example", "192.168.0.7", "localhost:", "localhost:65535"})
    EXPECT_TRUE(access.HostFits(host)) << host;
  for (const char* host : {"evil.example",
                           "localhost.evil.example",
                           "127.0.0.1.evil.example",
                           "",
                           "[::1",
                           "my.host.x",
                           "localhost:1@evil.example",
                           "localhost@evil.example",
                           "[::1]evil",
                           "127.0.0.1:80x",
                           "localhost:1:2",
                           "@evil/.localhost",
                           "evil/.localhost",
                           "evil .localhost",
                           "[127.0.0.1]",
                           "[localhost]",
                           "[]",
                           "localhost:65536",
                           "localhost:99999999",
                           "localhost:-1",
                           "localhost:+1"})
    EXPECT_FALSE(access.HostFits(host)) << host;
  EXPECT_EQ(StatusOf(access, Head("/props", "evil.example")), 403);
  EXPECT_EQ(StatusOf(access, Head("/health", "evil.example")), 200);
}

// An origin without a host must not make every malformed Host fit.
TEST(Access, MalformedHostsNeverFit) {
  const Access access({.keys = {}, .cors_origins = {"http://", "https://u:pw@x", "*"}, .host = ""});
  for (const char* host : {"", "evil.com:1@x", "[evil.com", ":80", "x:1:2"})
    EXPECT_FALSE(access.HostFits(host)) << host;
  for (const char* origin : {"https://page.example", "http://localhost:8080", "http://[::1]:80", "app://x"})
    EXPECT_TRUE(IsOrigin(origin)) << origin;
  for (const char* other : {"", "foo", "http://", "https://u:pw@x", "https://x/", "https://x:y", "://", "http://[::1"})
    EXPECT_FALSE(IsOrigin(other)) << other;
}

TEST(Access, ForeignOriginsAreRefused) {
  const Access access({.keys = {}, .cors_origins = {"https://page.example"}, .host = "127.0.0.1"});
  EXPECT_EQ(StatusOf(access, Head("/", "localhost:8080", "http://localhost:8080")), 200);
  EXPECT_EQ(StatusOf(access, Head("/", "localhost:8080", "http://localhost:9090")), 403);
  EXPECT_EQ(StatusOf(access, Head("/", "localhost", "https://page.example")), 200);
  EXPECT_EQ(StatusOf(access, Head("/", "localhost", "null")), 403);
  HttpReply reply;
  access.AddCorsHeaders(Head("/", "localhost", "https://evil.example"), &reply);
  EXPECT_TRUE(reply.headers.empty());
  access.AddCorsHeaders(Head("/", "localhost", "https://page.example"), &reply);
  EXPECT_EQ(reply.headers.at(0).second, "https://page.example");
}

TEST(Access, AStarAllowsAll) {
  const Access access({.keys = {}, .cors_origins = {"*"}, .host = "127.0.0.1"});
  EXPECT_EQ(StatusOf(access, Head("/", "any.example", "https://any.example")), 200);
}

}  // namespace
}  // namespace infinigen
