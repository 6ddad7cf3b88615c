// The search for the built-in model.
#include "runtime/model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

namespace infinigen {
namespace {

using Places = std::vector<std::string>;

// Without the source tree, whose path differs between machines and always exists.
Places Elsewhere(const std::string& binary, const std::string& data_home, const std::string& home) {
  Places places = BuiltInDirectories(binary, data_home, home);
  const std::string source = std::filesystem::path(INFINIGEN_TEST_DATA).parent_path() / "models/infinigen-mini";
  const auto found = std::find(places.begin(), places.end(), source);
  EXPECT_NE(found, places.end());
  if (found != places.end()) places.erase(found);
  return places;
}

TEST(BuiltInDirectories, TheirOrder) {
  EXPECT_EQ(
      Elsewhere("/opt/it/bin/infinigen", "/data", "/home/clara"),
      (Places{"/opt/it/share/infinigen/models/infinigen-mini", "/opt/it/bin/models/infinigen-mini",
              "/opt/it/models/infinigen-mini", "/opt/models/infinigen-mini", "/data/infinigen/models/infinigen-mini",
              "/usr/local/share/infinigen/models/infinigen-mini", "/usr/share/infinigen/models/infinigen-mini"}));
}

TEST(BuiltInDirectories, UnsetAndRelativeVariables) {
  const Places of_home = {"/home/clara/.local/share/infinigen/models/infinigen-mini",
                          "/usr/local/share/infinigen/models/infinigen-mini",
                          "/usr/share/infinigen/models/infinigen-mini"};
  EXPECT_EQ(Elsewhere("", "", "/home/clara"), of_home);
  EXPECT_EQ(Elsewhere("", "data", "/home/clara"), of_home);
  EXPECT_EQ(Elsewhere("", "", "").size(), 2u);
}

TEST(BuiltInDirectories, NoneTwice) {
  Places places = Elsewhere("/usr/local/bin/infinigen", "/usr/local/share", "");
  std::sort(places.begin(), places.end());
  EXPECT_EQ(std::adjacent_find(places.begin(), places.end()), places.end());
}

TEST(FindBuiltIn, TheFirstThatIsThereOrAnErrorWithAll) {
  const std::filesystem::path root = std::filesystem::path(testing::TempDir()) / "find_built_in";
  std::filesystem::remove_all(root);
  const Places places = {root / "one", root / "two", root / "three"};
  const Result<std::string> none = FindBuiltIn(places);
  ASSERT_FALSE(none.ok());
  for (const std::string& place : places) EXPECT_NE(none.error().message.find(place), std::string::npos);
  std::filesystem::create_directories(places[2]);
  EXPECT_EQ(FindBuiltIn(places).value(), places[2]);
  std::filesystem::create_directories(places[1]);
  EXPECT_EQ(FindBuiltIn(places).value(), places[1]);
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace infinigen
