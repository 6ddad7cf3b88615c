// hf: names, which names may become paths, addresses and redirects.
#include "hub/name.h"

#include <gtest/gtest.h>

#include "hub/url.h"

namespace infinigen {
namespace {

TEST(HubName, HasUpToFourParts) {
  const HubName name = ParseHubName("hf:Org-1/Na.me_2@refs/pr/3:sub dir/m-Q8_0.gguf").value();
  EXPECT_EQ(name.org, "Org-1");
  EXPECT_EQ(name.name, "Na.me_2");
  EXPECT_EQ(name.revision, "refs/pr/3");
  EXPECT_EQ(name.wanted, "sub dir/m-Q8_0.gguf");
  EXPECT_EQ(name.directory(), "models--Org-1--Na.me_2");
  EXPECT_EQ(name.Text(), "hf:Org-1/Na.me_2@refs/pr/3:sub dir/m-Q8_0.gguf");
  EXPECT_EQ(ParseHubName("hf:a/b").value().revision, "main");
  EXPECT_EQ(ParseHubName("hf:a/b@main:Q4_K_M").value().Text(), "hf:a/b:Q4_K_M");
}

TEST(HubName, EverythingElseIsRefused) {
  for (const char* text : {"hf:",           "hf:a",      "hf:/b",         "hf:a/",      "hf:a/b/c",   "hf:../b",
                           "hf:a/..",       "hf:.a/b",   "hf:a--b/c",     "hf:a/b..c",  "hf:a b/c",   "hf:a/b\n",
                           "hf:a/b@",       "hf:a/b@..", "hf:a/b@x/../y", "hf:a/b@-x",  "hf:a/b@x y", "hf:a/b:",
                           "hf:a/b:/etc/x", "hf:a/b:..", "hf:a/b:x/../y", "hf:a/b:x\\y"}) {
    const Result<HubName> name = ParseHubName(text);
    ASSERT_FALSE(name.ok()) << text;
    EXPECT_EQ(name.error().message.find('\n'), std::string::npos);
  }
  EXPECT_FALSE(ParseHubName("hf:a/" + std::string(97, 'x')).ok());
  EXPECT_FALSE(IsHubName("./hf:a/b"));
  EXPECT_FALSE(IsHubName("HF:a/b"));
}

TEST(HubName, ComesBackFromADirectory) {
  HubName name;
  ASSERT_TRUE(ParseRepositoryDirectory("models--a-b--c.d", &name));
  EXPECT_EQ(name.repository(), "a-b/c.d");
  for (const char* text : {"datasets--a--b", "models--a", "models----b", "models--a--b--c", "models--..--b"})
    EXPECT_FALSE(ParseRepositoryDirectory(text, &name)) << text;
}

TEST(SafePath, StaysBelowItsDirectory) {
  for (const char* path : {"a", "a/b.c", "a b/ä", "..a/b..", ".gitattributes"}) EXPECT_TRUE(IsSafePath(path)) << path;
  for (const char* path : {"", "/", "/a", "a/", "a//b", ".", "..", "./a", "a/..", "a/../b", "a\\b", "a\nb", "a\x7f"})
    EXPECT_FALSE(IsSafePath(path)) << path;
  EXPECT_FALSE(IsSafePath(std::string_view("a\0b", 3)));
  EXPECT_TRUE(IsSafePath(std::string(255, 'x')));
  EXPECT_FALSE(IsSafePath(std::string(256, 'x')));
  std::string deep = "x";
  while (deep.size() <= 1024) deep += "/x";
  EXPECT_FALSE(IsSafePath(deep));
}

TEST(Url, IsSplit) {
  const Url url = ParseUrl("HTTPS://Hub.Example:8443/a/b?c=d#e").value();
  EXPECT_TRUE(url.tls);
  EXPECT_EQ(url.host, "hub.example");
  EXPECT_EQ(url.port, "8443");
  EXPECT_EQ(url.target, "/a/b?c=d");
  EXPECT_EQ(url.Text(), "https://hub.example:8443/a/b?c=d");
  EXPECT_EQ(ParseUrl("https://h").value().port, "443");
  EXPECT_EQ(ParseUrl("http://h?x").value().target, "/?x");
  EXPECT_EQ(ParseUrl("http://[::1]:80/").value().host, "::1");
  for (const char* text : {"", "h", "ftp://h", "http://", "http:///x", "http://h:0", "http://h:x", "http://h:65536",
                           "http://u@h/", "http://[::1/", "http://[::1]x/", "http://h/a b", "http://h/\r\nX: y"})
    EXPECT_FALSE(ParseUrl(text).ok()) << text;
  EXPECT_FALSE(ParseUrl("http://h/" + std::string(9000, 'x')).ok());
}

TEST(Url, OriginsDifferBySchemeHostAndPort) {
  const Url url = ParseUrl("https://hub.co/x").value();
  EXPECT_TRUE(url.SameOrigin(ParseUrl("https://HUB.co:443/y").value()));
  for (const char* other : {"http://hub.co:443/x", "https://hub.co:444/x", "https://x.hub.co/x", "https://hub.com/x"})
    EXPECT_FALSE(url.SameOrigin(ParseUrl(other).value())) << other;
}

TEST(Url, RedirectsAreRelativeToTheirReply) {
  const Url from = ParseUrl("https://h/a/b?c").value();
  const auto to = [&](const char* location) { return ResolveRedirect(from, location).value().Text(); };
  EXPECT_EQ(to("https://other/x"), "https://other/x");
  EXPECT_EQ(to("//other/x"), "https://other/x");
  EXPECT_EQ(to("/x?y"), "https://h/x?y");
  EXPECT_EQ(to("x#f"), "https://h/a/x");
  EXPECT_EQ(to("?z"), "https://h/a/b?z");
  EXPECT_EQ(to("/x?u=http://y"), "https://h/x?u=http://y");
  for (const char* location : {"", "http://other/x", "HTTP://h/x", "ftp://h/x", "/a b", "/a\nb"})
    EXPECT_FALSE(ResolveRedirect(from, location).ok()) << location;
  EXPECT_TRUE(ResolveRedirect(ParseUrl("http://h/").value(), "https://h/x").value().tls);
}

TEST(Url, NamesAreEncoded) {
  EXPECT_EQ(PercentEncode("a b/ü?.gguf", true), "a%20b/%C3%BC%3F.gguf");
  EXPECT_EQ(PercentEncode("refs/pr/1", false), "refs%2Fpr%2F1");
}

}  // namespace
}  // namespace infinigen
