#include "text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

namespace infinigen {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// 6 July 2024, 15:04:09: where the clock stood for the golden file.
std::tm StoppedClock() {
  std::tm out = {};
  out.tm_year = 124;
  out.tm_mon = 6;
  out.tm_mday = 6;
  out.tm_hour = 15;
  out.tm_min = 4;
  out.tm_sec = 9;
  out.tm_wday = 6;
  out.tm_yday = 187;
  return out;
}

ChatInput InputOf(const json& given) {
  ChatInput out;
  for (const json& message : given["messages"]) out.messages.push_back({message["role"], message["content"]});
  out.bos_token = given["bos_token"];
  out.eos_token = given["eos_token"];
  out.add_generation_prompt = given["add_generation_prompt"];
  for (const auto& [name, value] : given["variables"].items()) {
    if (value.is_boolean()) {
      out.variables[name] = value.get<bool>();
    } else {
      out.variables[name] = value.get<std::string>();
    }
  }
  out.now = StoppedClock();
  return out;
}

ChatInput Conversation() {
  ChatInput out;
  out.messages = {{"user", "Hello"}, {"assistant", "Hi"}};
  out.bos_token = "<s>";
  out.eos_token = "</s>";
  out.now = StoppedClock();
  return out;
}

Result<std::string> ParseAndRender(std::string_view source, const ChatInput& input) {
  Result<ChatTemplate> parsed = ChatTemplate::Parse(source);
  if (!parsed.ok()) return parsed.error();
  return parsed->Render(input);
}

Result<std::string> ParseAndRender(std::string_view source) { return ParseAndRender(source, Conversation()); }

std::string Shown(const Result<std::string>& result) {
  return result.ok() ? "text: " + *result : "error: " + result.error().message;
}

// Every case against what transformers rendered.
TEST(ChatTemplateGolden, EqualsTransformers) {
  std::ifstream file(std::string(INFINIGEN_TEST_DATA) + "/text/data/chat_templates.json");
  ASSERT_TRUE(file.good());
  const json golden = json::parse(file);
  std::vector<ChatInput> inputs;
  for (const json& given : golden["inputs"]) inputs.push_back(InputOf(given));
  ASSERT_GT(golden["cases"].size(), 9000u);
  int failures = 0;
  for (const json& one : golden["cases"]) {
    const json& source = one[1].is_string() ? one[1] : golden["templates"][one[1].get<size_t>()];
    const std::string outcome = one[3];
    const std::string text = one[4];
    const Result<std::string> result = ParseAndRender(source.get<std::string>(), inputs[one[2].get<size_t>()]);
    bool same = result.ok() == (outcome == "text");
    if (same && outcome == "text") same = *result == text;
    if (same && outcome == "raised") same = result.error().message == text;
    if (same && outcome == "undefined") same = result.error().message.ends_with(": " + text);
    if (same) continue;
    ADD_FAILURE() << one[0] << " " << source << "\n  expected " << outcome << ": " << one[4] << "\n  got "
                  << json(Shown(result)).dump(-1, ' ', false, json::error_handler_t::replace);
    if (++failures > 50) FAIL() << "and more";
  }
}

struct Refusal {
  const char* source;
  const char* message;
};

// What Jinja has and we have not is refused by Parse, with its name and line.
TEST(ChatTemplateParse, RefusesByNameAndLine) {
  const Refusal refusals[] = {
      {"a\n\n{{ x | groupby('y') }}", "chat template: line 3: filter 'groupby' is not supported"},
      {"{{ x | safe }}", "chat template: line 1: filter 'safe' is not supported"},
      {"{% if false %}\n{{ x | sort }}\n{% endif %}", "chat template: line 2: filter 'sort' is not supported"},
      {"{{ x is filter }}", "chat template: line 1: test 'filter' is not supported"},
      {"{{ x is\nsameas y }}", "chat template: line 2: test 'sameas' is not supported"},
      {"{{ 'a'.format(1) }}", "chat template: line 1: method 'format' is not supported"},
      {"{{ messages.append(1) }}", "chat template: line 1: method 'append' is not supported"},
      {"{{ cycler(1) }}", "chat template: line 1: function 'cycler' is not supported"},
      {"{{ open('/etc/passwd') }}", "chat template: line 1: function 'open' is not supported"},
      {"{{ messages[0]() }}",
       "chat template: line 1: a call of anything but a named function or method is not supported"},
      {"{{ ('a'|upper)() }}",
       "chat template: line 1: a call of anything but a named function or method is not supported"},
      {"{{ ''.__class__ }}", "chat template: line 1: attribute '__class__' is not supported"},
      {"{% set ns._x = 1 %}", "chat template: line 1: attribute '_x' is not supported"},
      {"\n{% macro f() %}{% endmacro %}", "chat template: line 2: tag 'macro' is not supported"},
      {"{% include 'x' %}", "chat template: line 1: tag 'include' is not supported"},
      {"{% import 'x' as y %}", "chat template: line 1: tag 'import' is not supported"},
      {"{% from 'x' import y %}", "chat template: line 1: tag 'from' is not supported"},
      {"{% extends 'x' %}", "chat template: line 1: tag 'extends' is not supported"},
      {"{% block x %}{% endblock %}", "chat template: line 1: tag 'block' is not supported"},
      {"{% call f() %}{% endcall %}", "chat template: line 1: tag 'call' is not supported"},
      {"{% filter upper %}{% endfilter %}", "chat template: line 1: tag 'filter' is not supported"},
      {"{% autoescape true %}{% endautoescape %}", "chat template: line 1: tag 'autoescape' is not supported"},
      {"{% do x %}", "chat template: line 1: tag 'do' is not supported"},
      {"\n\n\n{%- raw %}{{ $ }}{% endraw %}", "chat template: line 4: tag 'raw' is not supported"},
      {"{% for x in y recursive %}{% endfor %}", "line 1: a recursive loop ('recursive') is not supported"},
      {"{% for x in y %}{{ loop }}{% endfor %}", "'loop' other than as 'loop.index' and the like is not supported"},
      {"{% for x in y %}{{ loop.changed(x) }}{% endfor %}", "line 1: 'loop.changed' is not supported"},
      {"{% set loop = 1 %}", "line 1: assigning to 'loop' is not supported"},
      {"{% set x | upper %}{% endset %}", "line 1: a filter on a 'set' block is not supported"},
      {"{% set (a, b) = x %}", "line 1: an assignment to names in parentheses is not supported"},
      {"{{ range(*x) }}", "line 1: unpacking of arguments ('*') is not supported"},
      {"{{ dict(**x) }}", "line 1: unpacking of arguments ('**') is not supported"},
      {"{{ x | tojson(default=1) }}", "line 1: argument 'default' of filter 'tojson' is not supported"},
      {"{{ x | trim(1, 2) }}", "line 1: filter 'trim' with 2 arguments is not supported"},
      {"{{ range(stop=2) }}", "line 1: argument 'stop' of function 'range' is not supported"},
      {"{{ x | select('sameas', 1) }}", "line 1: test 'sameas' is not supported"},
      {"{{ x | map('xmlattr') }}", "line 1: filter 'xmlattr' is not supported"},
      {"{{ x | map(y) }}", "line 1: a computed argument 'filter' of filter 'map' is not supported"},
      {"{{ x[1, 2] }}", "line 1: a subscript of several values is not supported"},
      {"{{ self.x }}", "line 1: 'self' is not supported"},
      {"{{ 0x1F }}", "line 1: the number that starts with '0' is not supported"},
      {"{{ '\\N{BULLET}' }}", "line 1: an escape sequence in a string is not supported"},
  };
  for (const Refusal& refusal : refusals) {
    const Result<ChatTemplate> parsed = ChatTemplate::Parse(refusal.source);
    ASSERT_FALSE(parsed.ok()) << refusal.source;
    EXPECT_EQ(parsed.error().kind, ErrorKind::kUnsupported) << refusal.source;
    EXPECT_THAT(parsed.error().message, HasSubstr(refusal.message)) << refusal.source;
    EXPECT_THAT(parsed.error().message, ::testing::StartsWith("chat template: line ")) << refusal.source;
  }
}

TEST(ChatTemplateParse, SyntaxErrorsNameTheirLine) {
  const Refusal errors[] = {
      {"a\n{{ 1 + }}", "chat template: line 2: unexpected '}}'"},
      {"{% if x %}\n", "chat template: line 1: unexpected end of template, expected 'endif'"},
      {"\n{% endfor %}", "chat template: line 2: 'endfor' closes nothing that is open here"},
      {"\n\n{# a", "chat template: line 3: the comment is not closed with '#}'"},
      {"{{ (1 }}", "chat template: line 1: unexpected '}'"},
      {"{{ 'a }}", "chat template: line 1: a string is not closed with '"},
      {"{{ 99999999999999999999 }}", "chat template: line 1: the number 99999999999999999999 is out of range"},
      {"\n{{ x | replace('a') }}", "chat template: line 2: filter 'replace' needs its argument 'new'"},
      {"{% break %}", "chat template: line 1: 'break' outside of a loop"},
      {"{% for i in x %}{% generation %}{% break %}{% endgeneration %}{% endfor %}", "'break' outside of a loop"},
      {"{{ a ? b }}", "chat template: line 1: unexpected character '?'"},
  };
  for (const Refusal& expected : errors) {
    const Result<ChatTemplate> parsed = ChatTemplate::Parse(expected.source);
    ASSERT_FALSE(parsed.ok()) << expected.source;
    EXPECT_EQ(parsed.error().kind, ErrorKind::kInvalid) << expected.source;
    EXPECT_THAT(parsed.error().message, HasSubstr(expected.message)) << expected.source;
  }
}

TEST(ChatTemplateRender, ErrorsNameTheirLine) {
  const Refusal errors[] = {
      {"a\n{{ x.y }}", "chat template: line 2: 'x' is undefined"},
      {"{% for m in messages %}\n\n{{ m.nope.x }}{% endfor %}",
       "chat template: line 3: 'dict object' has no attribute 'nope'"},
      {"{{ '%s' % 1 }}", "chat template: line 1: formatting of strings with '%' is not supported"},
      {"\n{{ messages[0].items }}", "chat template: line 2: the method 'items' as a value is not supported"},
      {"{{ 'a'.upper }}", "the method 'upper' as a value is not supported"},
      {"{{ strftime_now('%c') }}", "strftime_now: '%c' is not supported"},
      {"{{ strftime_now('%') }}", "strftime_now: '%' is not supported"},
      {"{{ 9223372036854775807 + 1 }}", "integer overflow"},
      {"{{ -9223372036854775807 - 2 }}", "integer overflow"},
      {"{{ (-9223372036854775807 - 1) // -1 }}", "integer overflow"},
      {"{{ -(-9223372036854775807 - 1) }}", "integer overflow"},
      {"{{ range(3) }}", "printing a range object is not supported"},
      {"{{ namespace() }}", "printing a namespace object is not supported"},
      {"{{ range }}", "printing a function object is not supported"},
      {"{% set r = messages|select %}{{ r|list|length }}{{ r|list }}", "a filtered sequence is read a second time"},
      {"{% set range = 1 %}{{ range(2) }}", "'range' is not callable"},
      {"{% set range = namespace %}{{ range(2) }}", "assigning to 'range' is not supported"},
  };
  for (const Refusal& expected : errors) {
    const Result<std::string> text = ParseAndRender(expected.source);
    ASSERT_FALSE(text.ok()) << expected.source << " -> " << *text;
    EXPECT_THAT(text.error().message, ::testing::StartsWith("chat template: line ")) << expected.source;
    EXPECT_THAT(text.error().message, HasSubstr(expected.message)) << expected.source;
  }
}

TEST(ChatTemplateRender, RaisedMessagesAreTheTemplatesOwn) {
  const Result<std::string> text =
      ParseAndRender("{% if messages|length > 1 %}{{ raise_exception('Too many') }}{% endif %}");
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.error().message, "Too many");
  EXPECT_EQ(text.error().kind, ErrorKind::kInvalid);
}

TEST(ChatTemplateRender, DateAndVariables) {
  ChatInput input = Conversation();
  EXPECT_EQ(*ParseAndRender("{{ date_string is defined }}", input), "False");
  EXPECT_EQ(*ParseAndRender("{{ strftime_now('%d %b %Y') }}", input), "06 Jul 2024");
  input.date_string = "1 May";
  input.variables["mode"] = "fast";
  input.variables["thinking"] = true;
  input.variables["bos_token"] = "<B>";
  EXPECT_EQ(*ParseAndRender("{{ date_string }} {{ mode }} {{ thinking is true }} {{ bos_token }}", input),
            "1 May fast True <B>");
  input.now.reset();
  const Result<std::string> year = ParseAndRender("{{ strftime_now('%Y') }}", input);
  ASSERT_TRUE(year.ok());
  EXPECT_GE(std::stoi(*year), 2024);
}

TEST(ChatTemplateRender, BytesThatAreNotUtf8PassThrough) {
  ChatInput input = Conversation();
  input.messages[0].content = " \xff\xc3(\xe4\xbd ";
  EXPECT_EQ(*ParseAndRender("{{ messages[0].content|trim }}", input), "\xff\xc3(\xe4\xbd");
  EXPECT_EQ(*ParseAndRender("{{ messages[0].content|length }}", input), "7");
  EXPECT_EQ(*ParseAndRender("{{ messages[0].content|upper }}", input), input.messages[0].content);
  EXPECT_EQ(*ParseAndRender("{{ messages[0].content[::-1][::-1] }}", input), input.messages[0].content);
}

// Each would run for hours or fill the memory.
TEST(ChatTemplateLimits, HostileTemplatesEndInAnError) {
  const Refusal hostile[] = {
      {"{% for i in range(10**9) %}x{% endfor %}", "range() of more than 100000 numbers"},
      {"{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}", "too many steps"},
      {"{% set ns = namespace(s='ab') %}{% for i in range(64) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}", "too large"},
      {"{% set ns = namespace(s='ab') %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s %}{% endfor %}", "too large"},
      {"{% set ns = namespace(s=[1]) %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s %}{% endfor %}", "too large"},
      {"{{ 'abc' * 10**15 }}", "too large"},
      {"{{ [1, 2] * 10**18 }}", "too large"},
      {"{{ ('a' * 10**6)|replace('a', 'b' * 10**6) }}", "too large"},
      {"{{ ('a' * 10**6)|replace('', 'b' * 10**6) }}", "too large"},
      {"{% set x = 'a' * 10**6 %}{% for i in range(100) %}{{ x }}{% endfor %}", "prints too much"},
      {"{% set x = 'a' * 10**6 %}{% for i in range(100) %}{% set y %}{{ x }}{% endset %}{% endfor %}",
       "prints too much"},
      {"{% set x = 'a' * 10**6 %}{% for i in range(99999) %}{% if 'b' in x %}{% endif %}{% endfor %}",
       "too many steps"},
      {"{% set x = 'a' * 10**6 %}{% for i in range(99999) %}{% if x|length == 1 %}{% endif %}{% endfor %}",
       "too many steps"},
      {"{% set ns = namespace(s=[]) %}{% for i in range(99) %}{% set ns.s = [ns.s] %}{% endfor %}",
       "nested too deeply"},
      {"{% set ns = namespace(s={}) %}{% for i in range(99) %}{% set ns.s = {1: ns.s} %}{% endfor %}",
       "nested too deeply"},
      // A list whose text is 2^30 items long although it holds 30 lists.
      {"{% set ns = namespace(s=[1]) %}{% for i in range(30) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
       "too many steps"},
      {"{% set ns = namespace(s=[1]) %}{% for i in range(30) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s|tojson "
       "}}",
       "too many steps"},
      {"{% set a = namespace(s=[1]) %}{% set b = namespace(s=[1]) %}{% for i in range(30) %}{% set a.s = [a.s, a.s] %}"
       "{% set b.s = [b.s, b.s] %}{% endfor %}{{ a.s == b.s }}",
       "too many steps"},
  };
  for (const Refusal& expected : hostile) {
    const Result<std::string> text = ParseAndRender(expected.source);
    ASSERT_FALSE(text.ok()) << expected.source;
    EXPECT_EQ(text.error().kind, ErrorKind::kExhausted) << expected.source;
    EXPECT_THAT(text.error().message, HasSubstr(expected.message)) << expected.source;
  }
}

std::string Repeat(std::string_view text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

TEST(ChatTemplateLimits, SourceIsBounded) {
  const auto error_of = [](const std::string& source) {
    const Result<ChatTemplate> parsed = ChatTemplate::Parse(source);
    return parsed.ok() ? std::string() : parsed.error().message;
  };
  EXPECT_EQ(error_of(std::string(1 << 20, 'a')), "");
  EXPECT_THAT(error_of(std::string((1 << 20) + 1, 'a')), HasSubstr("1048577 bytes, at most 1048576 are accepted"));
  EXPECT_THAT(error_of("{{ " + Repeat("1,", 150'000) + " }}"), HasSubstr("more than 200000 tokens"));
  EXPECT_THAT(error_of("{{ " + Repeat("(", 50'000) + Repeat(")", 50'000) + " }}"),
              HasSubstr("nested more than 48 deep"));
  EXPECT_THAT(error_of("{{ " + Repeat("[", 50'000) + Repeat("]", 50'000) + " }}"),
              HasSubstr("nested more than 48 deep"));
  EXPECT_THAT(error_of("{{ " + Repeat("x[", 50'000) + Repeat("]", 50'000) + " }}"),
              HasSubstr("nested more than 48 deep"));
  EXPECT_THAT(error_of("{{ " + Repeat("{1:", 30'000) + Repeat("} ", 30'000) + " }}"),
              HasSubstr("nested more than 48 deep"));
  EXPECT_THAT(error_of("{{ " + Repeat("not ", 100'000) + "1 }}"), HasSubstr("nested more than 48 deep"));
  EXPECT_THAT(error_of("{{ " + Repeat("-", 100'000) + "1 }}"), HasSubstr("nested more than 48 deep"));
  EXPECT_THAT(error_of("{{ " + Repeat("1 if 1 else ", 30'000) + "1 }}"), HasSubstr("nested more than 48 deep"));
  EXPECT_THAT(error_of(Repeat("{% if 1 %}", 10'000)), HasSubstr("nested more than 48 deep"));
  EXPECT_THAT(error_of(Repeat("{% for x in y %}", 10'000)), HasSubstr("nested more than 48 deep"));
  EXPECT_THAT(error_of("{{ " + Repeat("1 + ", 50'000) + "1 }}"), HasSubstr("more than 200 levels"));
  EXPECT_THAT(error_of("{{ x" + Repeat(".y", 50'000) + " }}"), HasSubstr("more than 200 levels"));
  EXPECT_THAT(error_of("{{ x" + Repeat("|trim", 50'000) + " }}"), HasSubstr("more than 200 levels"));
  EXPECT_EQ(error_of("{{ " + Repeat("1 ~ ", 10'000) + "1 }}"), "");
  EXPECT_EQ(error_of("{% if 1 %}" + Repeat("{% elif 1 %}", 10'000) + "{% endif %}"), "");
}

// The limits grow with the input: a long conversation and a long message are no attack.
TEST(ChatTemplateLimits, LongConversationsRender) {
  const char* source =
      "{% for m in messages %}{% set content = '<' + m.role + '>' + m['content'] | trim + '</>' %}"
      "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}";
  ChatInput input = Conversation();
  input.messages.assign(20'000, {"user", "Hello"});
  const Result<std::string> many = ParseAndRender(source, input);
  ASSERT_TRUE(many.ok()) << many.error().message;
  EXPECT_EQ(many->size(), 3 + 20'000 * std::string("<user>Hello</>").size());
  input.messages.assign(2, {"user", std::string(20'000'000, 'x')});
  const Result<std::string> large = ParseAndRender(source, input);
  ASSERT_TRUE(large.ok()) << large.error().message;
  EXPECT_EQ(large->size(), 3 + 2 * (20'000'000 + std::string("<user></>").size()));
}

TEST(ChatTemplate, OneTemplateRendersInManyThreads) {
  const Result<ChatTemplate> parsed = ChatTemplate::Parse(
      "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + loop.index %}{{ m.content }}{% endfor "
      "%}={{ ns.n }}"
      "{{ [1, 'a'] + messages|map(attribute='role')|list }}");
  ASSERT_TRUE(parsed.ok());
  std::vector<std::thread> threads;
  std::vector<std::string> texts(8);
  for (size_t i = 0; i < texts.size(); ++i) {
    threads.emplace_back([&, i] {
      ChatInput input = Conversation();
      input.messages[0].content = std::to_string(i);
      for (int turn = 0; turn < 200; ++turn) texts[i] = *parsed->Render(input);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(texts[i], std::to_string(i) + "Hi=3[1, 'a', 'user', 'assistant']");
  }
}

}  // namespace
}  // namespace infinigen
