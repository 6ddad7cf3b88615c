#include "cli/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "cli/options.h"

namespace infinigen {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// One command line with every kind of flag; its stderr is captured.
struct FlagLine {
  std::string text = "unset", choice = "a";
  std::vector<std::string> list;
  int64_t number = 5;
  float real = 0.5f;
  bool on = false;
  std::string file;
  std::string said;

  std::optional<int> Parse(std::vector<std::string> arguments) {
    Flags flags("test", "A test.");
    flags.Text("-x,--text-flag", &text, "TEXT", "text");
    flags.Text("--file", &file, "FILE", "file");
    flags.Choice("--choice", &choice, {"a", "b"}, "choice");
    flags.TextList("--list", &list, "TEXT", "list");
    flags.Integer("-n,--number", &number, -1, 10, "number");
    flags.Real("--real", &real, 0, 1, true, "real");
    flags.Switch("--on", &on, "switch");
    flags.Exclusive({"text-flag", "file"});
    testing::internal::CaptureStderr();
    const std::optional<int> exit_code = flags.Parse(arguments);
    said = testing::internal::GetCapturedStderr();
    return exit_code;
  }
};

// Sets an environment variable for the duration of a test.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Environment() { ::unsetenv(name_); }

 private:
  const char* name_;
};

TEST(Flags, DefaultsStay) {
  FlagLine line;
  EXPECT_EQ(line.Parse({}), std::nullopt);
  EXPECT_EQ(line.text, "unset");
  EXPECT_EQ(line.number, 5);
  EXPECT_FALSE(line.on);
}

TEST(Flags, ValuesInEverySpelling) {
  FlagLine line;
  EXPECT_EQ(line.Parse({"-n", "-1", "--text-flag=a=b", "--real", "1e-1", "--on", "--choice", "b"}), std::nullopt);
  EXPECT_EQ(line.number, -1);
  EXPECT_EQ(line.text, "a=b");
  EXPECT_FLOAT_EQ(line.real, 0.1f);
  EXPECT_TRUE(line.on);
  EXPECT_EQ(line.choice, "b");
}

TEST(Flags, AnyTextIsAValue) {
  for (const char* text : {"", "{}", "[a,b]", "-x", "--on", "a\nb", " ", "\xff"}) {
    FlagLine line;
    EXPECT_EQ(line.Parse({"-x", text}), std::nullopt) << line.said;
    EXPECT_EQ(line.text, text);
    EXPECT_FALSE(line.on);
  }
}

TEST(Flags, ListsTakeOneValueEachTime) {
  FlagLine line;
  EXPECT_EQ(line.Parse({"--list", "a,b", "--list", "[c]", "--on"}), std::nullopt) << line.said;
  EXPECT_THAT(line.list, ElementsAre("a,b", "[c]"));
}

TEST(Flags, TheLastOneWins) {
  FlagLine line;
  EXPECT_EQ(line.Parse({"-n", "1", "-n", "2"}), std::nullopt);
  EXPECT_EQ(line.number, 2);
}

TEST(Flags, UsageErrorsAreOneLineAndTwo) {
  const std::vector<std::pair<std::vector<std::string>, const char*>> cases = {
      {{"--nosuch"}, "'--nosuch' is not a flag of test"},
      {{"stray"}, "'stray' is not a flag of test"},
      {{"-n", "x"}, "'x' is not a whole number"},
      {{"-n", "1.5"}, "'1.5' is not a whole number"},
      {{"-n", "99999999999999999999"}, "99999999999999999999 is too large, the maximum is"},
      {{"-n", "11"}, "11 is too large, the maximum is 10"},
      {{"-n", "-2"}, "-2 is too small, the minimum is -1"},
      {{"--real", "0"}, "must be more than 0"},
      {{"--real", "nan"}, "'nan' is not a number"},
      {{"--real", "1.01"}, "too large"},
      {{"--choice", "c"}, "'c' is unknown, it can be a|b"},
      {{"-n"}, "--number"},
      {{"--file", "f", "-x", "t"}, "--text-flag and --file cannot be combined"},
  };
  for (const auto& [arguments, expected] : cases) {
    FlagLine line;
    EXPECT_EQ(line.Parse(arguments), 2) << arguments[0];
    EXPECT_THAT(line.said, HasSubstr(expected));
    EXPECT_EQ(std::count(line.said.begin(), line.said.end(), '\n'), 1) << line.said;
  }
}

TEST(Flags, EnvironmentTwins) {
  const Environment number("INFINIGEN_NUMBER", "7"), text("INFINIGEN_TEXT_FLAG", "from env"), on("INFINIGEN_ON", "1");
  FlagLine line;
  EXPECT_EQ(line.Parse({}), std::nullopt);
  EXPECT_EQ(line.number, 7);
  EXPECT_EQ(line.text, "from env");
  EXPECT_TRUE(line.on);

  FlagLine flag_wins;
  EXPECT_EQ(flag_wins.Parse({"-n", "3"}), std::nullopt);
  EXPECT_EQ(flag_wins.number, 3);

  FlagLine other_source;  // a flag silences the environment of what it excludes
  EXPECT_EQ(other_source.Parse({"--file", "f"}), std::nullopt) << other_source.said;
  EXPECT_EQ(other_source.file, "f");
  EXPECT_EQ(other_source.text, "unset");
}

TEST(Flags, WrongEnvironmentIsNamed) {
  const Environment number("INFINIGEN_NUMBER", "seven");
  FlagLine line;
  EXPECT_EQ(line.Parse({}), 2);
  EXPECT_THAT(line.said, HasSubstr("INFINIGEN_NUMBER: 'seven' is not a whole number"));
  FlagLine unused;
  EXPECT_EQ(unused.Parse({"-n", "1"}), std::nullopt) << "not read when the flag is given";
}

TEST(Flags, EmptyEnvironmentIsNone) {
  const Environment number("INFINIGEN_NUMBER", "");
  FlagLine line;
  EXPECT_EQ(line.Parse({}), std::nullopt);
  EXPECT_EQ(line.number, 5);
}

TEST(IntegerList, Forms) {
  std::vector<int64_t> values;
  EXPECT_EQ(ParseIntegerList("1, 2 ,3", 0, 10, &values), "");
  EXPECT_THAT(values, ElementsAre(1, 2, 3));
  EXPECT_THAT(ParseIntegerList("1,,2", 0, 10, &values), HasSubstr("missing"));
  EXPECT_THAT(ParseIntegerList("", 0, 10, &values), HasSubstr("missing"));
  EXPECT_THAT(ParseIntegerList("1,2,", 0, 10, &values), HasSubstr("missing"));
  EXPECT_THAT(ParseIntegerList("1;2", 0, 10, &values), HasSubstr("'1;2' is not a whole number"));
  EXPECT_THAT(ParseIntegerList("11", 0, 10, &values), HasSubstr("too large"));
}

TEST(DeviceOptions, CudaIsRefusedByName) {
  // Where there is neither a GPU nor a build for one; a machine that has both resolves it.
  if (const Result<DeviceChoice> gpu = ChooseDevice({.device = "cuda"}); !gpu.ok()) {
    EXPECT_THAT(gpu.error().message, HasSubstr("--device cuda: "));
  }
  EXPECT_EQ(ChooseDevice({.device = "cpu", .threads = 3})->threads, 3);
  EXPECT_GE(ChooseDevice({})->threads, 1);
}

TEST(SamplingOptionsOfFlags, RandomSeedsDiffer) {
  SamplingFlags flags;
  EXPECT_NE(ResolveSampling(flags).seed, ResolveSampling(flags).seed);
  flags.seed = 42;
  EXPECT_EQ(ResolveSampling(flags).seed, 42u);
}

}  // namespace
}  // namespace infinigen
