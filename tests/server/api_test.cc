// The server's routes and the statuses of their replies match openapi.json.
#include "server/api.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "server/web_files.h"
#include "server/worker.h"

namespace infinigen {
namespace {

nlohmann::json Description() {
  for (const WebFile& file : WebFiles())
    if (file.name == "openapi.json") return nlohmann::json::parse(file.bytes);
  return {};
}

TEST(Description, HasEveryRouteAndNoOther) {
  std::set<std::pair<std::string, std::string>> described;
  const nlohmann::json all = Description();
  for (const auto& [path, methods] : all["paths"].items())
    for (const auto& [method, route] : methods.items()) {
      std::string upper = method;
      for (char& c : upper) c = static_cast<char>(c - 32);
      described.emplace(upper, path);
    }
  const auto known = Api::DescribedRoutes();
  EXPECT_EQ(described, (std::set<std::pair<std::string, std::string>>(known.begin(), known.end())));
}

TEST(Description, SaysHowEveryRouteCanEnd) {
  const nlohmann::json all = Description();
  for (const auto& [path, methods] : all["paths"].items())
    for (const auto& [method, route] : methods.items()) {
      std::set<std::string> wanted = {"200", "400", "431", "503"};
      if (path != "/health") wanted.insert({"401", "403"});
      if (method == "post") wanted.insert({"408", "413", "429"});
      if (method == "post") wanted.insert("500");
      if (path == "/kv") wanted.insert("429");
      if (path.find('{') != std::string::npos) wanted.insert("404");
      std::set<std::string> said;
      for (const auto& [status, reply] : route["responses"].items()) {
        said.insert(status);
        if (!reply.contains("$ref")) continue;
        const std::string pointer = reply["$ref"].get<std::string>().substr(1);
        EXPECT_TRUE(all.contains(nlohmann::json::json_pointer(pointer))) << pointer;
      }
      EXPECT_EQ(said, wanted) << method << " " << path;
    }
}

TEST(Errors, OfTheConnectionHaveTypeCodeAndId) {
  Api api({}, {.log_requests = false});
  const HttpHandler handler = api.handler();
  const auto check = [&](int status, const std::string& type, const std::string& code, bool retry,
                         HttpCause cause = HttpCause::kByStatus) {
    const HttpReply reply = handler.fail({.request_id = "mine-1", .peer = "10.0.0.1"}, status, "why", cause);
    const nlohmann::json error = nlohmann::json::parse(reply.body)["error"];
    EXPECT_EQ(reply.status, status);
    EXPECT_EQ(error["type"], type) << status;
    EXPECT_EQ(error["code"], code) << status;
    EXPECT_EQ(error["message"] == "why", status != 503 || cause == HttpCause::kTooManyConnections);
    std::set<std::pair<std::string, std::string>> headers(reply.headers.begin(), reply.headers.end());
    EXPECT_TRUE(headers.contains({"X-Request-Id", "mine-1"})) << status;
    EXPECT_EQ(headers.contains({"Retry-After", "1"}), retry) << status;
  };
  check(400, "invalid_request_error", "bad_request", false);
  check(408, "invalid_request_error", "timeout", false);
  check(413, "invalid_request_error", "too_large", false);
  check(431, "invalid_request_error", "too_large", false);
  check(429, "rate_limit_error", "too_many_bodies", true);
  check(415, "invalid_request_error", "unsupported_encoding", false);
  check(500, "server_error", "internal_error", false);
  check(505, "invalid_request_error", "bad_request", false);
  check(503, "server_error", "too_many_connections", true, HttpCause::kTooManyConnections);
  check(503, "server_error", "out_of_memory", true, HttpCause::kOutOfMemory);
  check(503, "server_error", "shutting_down", false);
}

TEST(Worker, RunsInOrderAndRefusesWhatIsTooMuch) {
  std::mutex gate;
  std::vector<int> ran;
  {
    Worker worker(2);
    std::atomic<bool> first{false};
    std::unique_lock closed(gate);
    ASSERT_TRUE(worker.Post(
        nullptr,
        [&] {
          first = true;
          const std::lock_guard wait(gate);
          ran.push_back(0);
        },
        [] {}));
    while (!first) std::this_thread::yield();
    EXPECT_TRUE(worker.Post(
        nullptr, [&] { ran.push_back(1); }, [] {}));
    EXPECT_TRUE(worker.Post(
        nullptr, [&] { ran.push_back(2); }, [] {}));
    EXPECT_FALSE(worker.Post(
        nullptr, [&] { ran.push_back(3); }, [] {}))
        << "two wait already";
    closed.unlock();
    std::atomic<bool> last{false};
    while (!worker.Post(
        nullptr, [&] { last = true; }, [] {}))
      std::this_thread::yield();
    while (!last) std::this_thread::yield();
  }
  EXPECT_EQ(ran, (std::vector<int>{0, 1, 2}));
}

TEST(Worker, ClientsTakeTurnsAndHaveTheirShare) {
  std::mutex gate;
  std::string ran;
  {
    Worker worker(6, /*most_of_client=*/3);
    std::atomic<bool> first{false}, last{false};
    std::unique_lock closed(gate);
    ASSERT_TRUE(worker.Post(
        nullptr,
        [&] {
          first = true;
          const std::lock_guard wait(gate);
        },
        [] {}));
    while (!first) std::this_thread::yield();
    const int ids[2] = {};
    const WorkerClient one{.id = &ids[0], .limited = true}, two{.id = &ids[1], .limited = true};
    const auto post = [&](const char* name, WorkerClient client, const void* owner = nullptr) {
      return worker.Post(
          owner, [&ran, name] { ran += name; }, [] {}, client);
    };
    const int owner = 0;
    for (const char* name : {"a", "b", "c"}) EXPECT_TRUE(post(name, one));
    EXPECT_FALSE(post("x", one)) << "its share is taken";
    EXPECT_TRUE(post("1", two)) << "the share of another is free";
    EXPECT_TRUE(post("-", two, &owner));
    EXPECT_TRUE(post("2", two));
    EXPECT_FALSE(post("y", {})) << "all places are taken";
    EXPECT_TRUE(worker.Withdraw(&owner));
    EXPECT_TRUE(worker.Post(
        nullptr, [&last] { last = true; }, [] {}));
    closed.unlock();
    while (!last) std::this_thread::yield();
    EXPECT_TRUE(post("!", one)) << "one of its tasks has run";
    std::atomic<bool> end{false};
    EXPECT_TRUE(worker.Post(
        nullptr, [&end] { end = true; }, [] {}, {.id = one.id}));
    while (!end) std::this_thread::yield();
  }
  EXPECT_EQ(ran, "a1b2c!");
}

TEST(Worker, AtTheEndEveryTaskIsRefusedAlsoTheOneUnderWay) {
  std::mutex gate;
  std::atomic<bool> first{false};
  std::vector<std::string> refused;
  int ran = 0;
  const auto refuse = [&](const std::string& name) { return [&, name] { refused.push_back(name); }; };
  {
    Worker worker(3);
    ASSERT_TRUE(worker.Post(
        nullptr, [&] { ++ran; }, refuse("done long ago")));
    std::unique_lock closed(gate);
    const auto slow = [&] {
      first = true;
      const std::lock_guard wait(gate);
      ++ran;
    };
    while (!worker.Post(nullptr, slow, refuse("under way"))) std::this_thread::yield();
    while (!first) std::this_thread::yield();
    const int waits = 0;
    EXPECT_TRUE(worker.Post(
        &waits, [&] { ++ran; }, refuse("waits")));
    EXPECT_TRUE(worker.Post(
        nullptr, [&] { ++ran; }, refuse("waits too")));
    worker.RefuseAll();
    EXPECT_FALSE(worker.Withdraw(&waits)) << "it is answered";
    EXPECT_FALSE(worker.Post(
        nullptr, [&] { ++ran; }, refuse("comes too late")));
    worker.RefuseAll();  // refuses the running task again; Settle decides which reply counts
    closed.unlock();
  }
  EXPECT_EQ(refused, (std::vector<std::string>{"under way", "waits", "waits too", "under way"}));
  EXPECT_EQ(ran, 2);
}

TEST(Worker, WhatIsWithdrawnIsNeverRunAndItsPlaceIsFree) {
  std::mutex gate;
  const int one = 0, two = 0, three = 0;
  std::atomic<bool> first{false}, second{false}, third{false};
  Worker worker(1);
  std::unique_lock closed(gate);
  ASSERT_TRUE(worker.Post(
      &one,
      [&] {
        first = true;
        const std::lock_guard wait(gate);
      },
      [] {}));
  while (!first) std::this_thread::yield();
  const auto body = std::make_shared<int>();
  ASSERT_TRUE(worker.Post(
      &two, [&second, body] { second = true; }, [] {}));
  EXPECT_FALSE(worker.Post(
      &three, [&] { third = true; }, [] {}));
  EXPECT_FALSE(worker.Withdraw(&one)) << "it runs";
  EXPECT_TRUE(worker.Withdraw(&two));
  EXPECT_EQ(body.use_count(), 1) << "freed at once";
  EXPECT_FALSE(worker.Withdraw(&two));
  ASSERT_TRUE(worker.Post(
      &three, [&] { third = true; }, [] {}));
  closed.unlock();
  while (!third) std::this_thread::yield();
  EXPECT_FALSE(second);
}

}  // namespace
}  // namespace infinigen
