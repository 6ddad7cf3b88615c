#include "jinja/template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "jinja/json_value.h"

namespace infinigen::jinja {
namespace {

using ::testing::HasSubstr;

constexpr RenderLimits kLimits = {.steps = 1'000'000, .made_bytes = 32 << 20, .output_bytes = 4 << 20};

// 6 July 2024.
std::tm StoppedClock() {
  std::tm out = {};
  out.tm_year = 124;
  out.tm_mon = 6;
  out.tm_mday = 6;
  return out;
}

Value TextValue(std::string text) { return Value(std::make_shared<const std::string>(std::move(text))); }

// {"messages": [{"role": "user", "content": `question`}, {"role": "assistant", "content": "Hi"}]}
Variables Conversation(const std::string& question = "Hello") {
  Budget budget(1000, 100'000);
  const auto message = [&](const char* role, const std::string& content) {
    return MakeDict(budget, {{TextValue("role"), TextValue(role)}, {TextValue("content"), TextValue(content)}}).value();
  };
  return {{"messages",
           MakeSequence(budget, SequenceKind::kList, {message("user", question), message("assistant", "Hi")}).value()}};
}

Result<std::string> ParseAndRender(std::string_view source, const Variables& variables = Conversation()) {
  const Result<Template> parsed = Template::Parse(source);
  if (!parsed.ok()) return parsed.error();
  return parsed->Render(variables, kLimits, StoppedClock());
}

struct Refusal {
  const char* source;
  const char* message;
};

// Parse rejects unsupported parts of Jinja; the error has name and line.
TEST(JinjaParse, RefusesByNameAndLine) {
  const Refusal refusals[] = {
      {"a\n\n{{ x | groupby('y') }}", "chat template: line 3: filter 'groupby' is not supported"},
      {"{{ x | forceescape }}", "chat template: line 1: filter 'forceescape' is not supported"},
      {"{% if false %}\n{{ x | random }}\n{% endif %}", "chat template: line 2: filter 'random' is not supported"},
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
      {"\n{% for x in y %}{% macro f() %}{% endmacro %}{% endfor %}",
       "chat template: line 2: a macro inside a loop, a macro or a block with its own scope is not supported"},
      {"{% macro f() %}{% macro g() %}{% endmacro %}{% endmacro %}", "line 1: a macro inside a loop, a macro"},
      {"{% macro range() %}{% endmacro %}", "line 1: a macro with the name 'range' is not supported"},
      {"{% macro f(caller) %}{% endmacro %}", "line 1: a parameter 'caller' is not supported"},
      {"{% macro f() %}{{ varargs }}{% endmacro %}", "line 1: 'varargs' is not supported"},
      {"{% macro f() %}\n{{ g() }}{% endmacro %}", "line 2: function 'g' is not supported"},
      {"{% include 'x' %}", "chat template: line 1: tag 'include' is not supported"},
      {"{% import 'x' as y %}", "chat template: line 1: tag 'import' is not supported"},
      {"{% from 'x' import y %}", "chat template: line 1: tag 'from' is not supported"},
      {"{% extends 'x' %}", "chat template: line 1: tag 'extends' is not supported"},
      {"{% block x %}{% endblock %}", "chat template: line 1: tag 'block' is not supported"},
      {"{% call f() %}{% endcall %}", "chat template: line 1: tag 'call' is not supported"},
      {"{% filter urlize %}{% endfilter %}", "chat template: line 1: filter 'urlize' is not supported"},
      {"{% autoescape true %}{% endautoescape %}", "chat template: line 1: tag 'autoescape' is not supported"},
      {"{% do x %}", "chat template: line 1: tag 'do' is not supported"},
      {"\n\n\n{%- raw %}{{ $ }}{% endraw %}", "chat template: line 4: tag 'raw' is not supported"},
      {"{% for x in y recursive %}{% endfor %}", "line 1: a recursive loop ('recursive') is not supported"},
      {"{% for x in y %}{{ loop }}{% endfor %}", "'loop' without an attribute (such as 'loop.index') is not supported"},
      {"{% for x in y %}{{ loop.changed(x) }}{% endfor %}", "line 1: 'loop.changed' is not supported"},
      {"{% set loop = 1 %}", "line 1: assigning to 'loop' is not supported"},
      {"{% set (a, b) = x %}", "line 1: an assignment to names in parentheses is not supported"},
      {"{{ range(*x) }}", "line 1: unpacking of arguments ('*') is not supported"},
      {"{{ dict(**x) }}", "line 1: unpacking of arguments ('**') is not supported"},
      {"{{ x | tojson(default=1) }}", "line 1: argument 'default' of filter 'tojson' is not supported"},
      {"{{ x | trim(1, 2) }}", "line 1: filter 'trim' with 2 arguments is not supported"},
      {"{{ range(stop=2) }}", "line 1: argument 'stop' of function 'range' is not supported"},
      {"{{ x | select('sameas', 1) }}", "line 1: test 'sameas' is not supported"},
      {"{{ x | map('xmlattr') }}", "line 1: filter 'xmlattr' is not supported"},
      {"{{ x | map(y) }}", "line 1: a computed argument 'filter' of filter 'map' is not supported"},
      {"{{ x[1, 2] }}", "line 1: a subscript with several values is not supported"},
      {"{{ self.x }}", "line 1: 'self' is not supported"},
      {"{{ 0x1F }}", "line 1: the form of the number that starts with '0' is not supported"},
      {"{{ '\\N{BULLET}' }}", "line 1: an escape sequence in a string is not supported"},
  };
  for (const Refusal& refusal : refusals) {
    const Result<Template> parsed = Template::Parse(refusal.source);
    ASSERT_FALSE(parsed.ok()) << refusal.source;
    EXPECT_EQ(parsed.error().kind, ErrorKind::kUnsupported) << refusal.source;
    EXPECT_THAT(parsed.error().message, HasSubstr(refusal.message)) << refusal.source;
    EXPECT_THAT(parsed.error().message, ::testing::StartsWith("chat template: line ")) << refusal.source;
  }
}

TEST(JinjaParse, SyntaxErrorsNameTheirLine) {
  const Refusal errors[] = {
      {"a\n{{ 1 + }}", "chat template: line 2: unexpected '}}'"},
      {"{% if x %}\n", "chat template: line 1: unexpected end of template, expected 'endif'"},
      {"\n{% endfor %}", "chat template: line 2: 'endfor' without a matching tag before it"},
      {"\n\n{# a", "chat template: line 3: the comment is not closed with '#}'"},
      {"{{ (1 }}", "chat template: line 1: unexpected '}'"},
      {"{{ 'a }}", "chat template: line 1: a string is not closed with '"},
      {"{{ 99999999999999999999 }}", "chat template: line 1: the number 99999999999999999999 is out of range"},
      {"\n{{ x | replace('a') }}", "chat template: line 2: filter 'replace' needs the argument 'new'"},
      {"{% break %}", "chat template: line 1: 'break' is only allowed inside a loop"},
      {"{% for i in x %}{% generation %}{% break %}{% endgeneration %}{% endfor %}",
       "'break' is only allowed inside a loop"},
      {"{{ a ? b }}", "chat template: line 1: unexpected character '?'"},
      {"{% macro f(a, a) %}{% endmacro %}", "line 1: the parameter 'a' occurs twice"},
      {"{% macro f(a=1, b) %}{% endmacro %}", "line 1: a parameter without a default follows one with a default"},
      {"{% for i in x %}{{ i }}{% endfor %}{% macro f() %}{% break %}{% endmacro %}", "'break' is only allowed inside"},
      {"{% macro f %}{% endmacro %}", "expected '('"},
  };
  for (const Refusal& expected : errors) {
    const Result<Template> parsed = Template::Parse(expected.source);
    ASSERT_FALSE(parsed.ok()) << expected.source;
    EXPECT_EQ(parsed.error().kind, ErrorKind::kInvalid) << expected.source;
    EXPECT_THAT(parsed.error().message, HasSubstr(expected.message)) << expected.source;
  }
}

TEST(JinjaRender, ErrorsNameTheirLine) {
  const Refusal errors[] = {
      {"a\n{{ x.y }}", "chat template: line 2: 'x' is undefined"},
      {"{% for m in messages %}\n\n{{ m.nope.x }}{% endfor %}",
       "chat template: line 3: 'dict object' has no attribute 'nope'"},
      {"{{ '%s' % 1 }}", "chat template: line 1: string formatting with '%' is not supported"},
      {"\n{{ messages[0].items }}", "chat template: line 2: the method 'items' as a value is not supported"},
      {"{{ 'a'.upper }}", "the method 'upper' as a value is not supported"},
      {"{{ strftime_now('%c') }}", "strftime_now: format '%c' is not supported"},
      {"{{ strftime_now('%') }}", "strftime_now: format '%' is not supported"},
      {"{{ 9223372036854775807 + 1 }}", "integer overflow"},
      {"{{ -9223372036854775807 - 2 }}", "integer overflow"},
      {"{{ (-9223372036854775807 - 1) // -1 }}", "integer overflow"},
      {"{{ -(-9223372036854775807 - 1) }}", "integer overflow"},
      {"{{ range(3) }}", "printing a range object is not supported"},
      {"{{ namespace() }}", "printing a namespace object is not supported"},
      {"{{ range }}", "printing a function object is not supported"},
      {"{% set r = messages|select %}{{ r|list|length }}{{ r|list }}", "a filtered sequence is read a second time"},
      {"{% set range = 1 %}{{ range(2) }}", "'range' is not callable"},
      {"{{ f() }}{% macro f() %}{% endmacro %}", "'f' is undefined"},
      {"{% macro f() %}{% endmacro %}{% set f = 1 %}{{ f() }}", "'f' is not callable"},
      {"{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "macro 'f' takes not more than 1 argument(s)"},
      {"{% macro f(a) %}{% endmacro %}{{ f(1, a=2) }}", "macro 'f' is given an argument that it does not take"},
      {"{% macro f(a) %}{{ a.b }}{% endmacro %}{{ f() }}", "parameter 'a' was not provided"},
      {"{% macro f() %}{% endmacro %}{{ f }}", "printing a macro object is not supported"},
      {"{{ ('a' | safe).upper() }}", "a method of the result of filter 'safe' is not supported"},
      {"{% macro f() %}{{ loop.index }}{% endmacro %}{% for m in messages %}{{ f() }}{% endfor %}",
       "'loop' is undefined"},
      {"{% set range = namespace %}{{ range(2) }}", "calling 'range' after an assignment to 'range' is not supported"},
  };
  for (const Refusal& expected : errors) {
    const Result<std::string> text = ParseAndRender(expected.source);
    ASSERT_FALSE(text.ok()) << expected.source << " -> " << *text;
    EXPECT_THAT(text.error().message, ::testing::StartsWith("chat template: line ")) << expected.source;
    EXPECT_THAT(text.error().message, HasSubstr(expected.message)) << expected.source;
  }
}

// A macro sees the template's names as they are when it is called, and not those of its callers.
TEST(JinjaRender, MacrosSeeTheOutermostScopeAndTheirOwn) {
  EXPECT_EQ(*ParseAndRender("{% macro f(a, b=a ~ '!') %}{{ a }}{{ b }}{{ x }}{% endmacro %}"
                            "{% set x = 1 %}{{ f('p') }} {{ f('p', b=2) }}{% set x = 3 %} {{ f(b=4, a=5) }}"),
            "pp!1 p21 543");
  EXPECT_EQ(*ParseAndRender("{% macro f() %}{{ x is defined }}{% set y = 1 %}{% endmacro %}"
                            "{% for x in [1] %}{{ f() }}{{ y is defined }}{% endfor %}"),
            "FalseFalse");
  EXPECT_EQ(*ParseAndRender("{% macro f(n) %}{{ n }}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(9) }}"),
            "9876543210");
  EXPECT_EQ(*ParseAndRender("{% macro f() %}{% for i in 'ab' %}{{ loop.index }}{% endfor %}{% endmacro %}"
                            "{% for m in messages %}{{ f() }}{{ loop.index }} {% endfor %}"),
            "121 122 ");
}

// Expected texts are those of transformers (tools/chat_template_diff.py --golden).
TEST(JinjaGolden, TemplatesOfModelFamilies) {
  using nlohmann::ordered_json;
  const std::string folder = std::string(INFINIGEN_TEST_DATA) + "/jinja/data/";
  std::ifstream file(folder + "chat_families.json");
  ASSERT_TRUE(file.good());
  const ordered_json golden = ordered_json::parse(file);
  ASSERT_GE(golden["cases"].size(), 400u);
  std::map<std::string, Result<Template>> templates;
  for (const auto& entry : std::filesystem::directory_iterator(folder + "templates")) {
    std::ifstream source(entry.path());
    const std::string text((std::istreambuf_iterator<char>(source)), {});
    templates.emplace(entry.path().filename(), Template::Parse(text));
  }
  for (const ordered_json& one : golden["cases"]) {
    const Result<Template>& parsed = templates.at(one[0]);
    ASSERT_TRUE(parsed.ok()) << one[0] << parsed.error().message;
    const ordered_json& given = golden["inputs"][one[1].get<size_t>()];
    const Result<std::string> rendered = parsed->Render(VariablesOf(given), kLimits, GoldenClock());
    const std::string outcome = one[2], expected = one[3];
    ASSERT_EQ(rendered.ok(), outcome == "text")
        << one[0] << given << (rendered.ok() ? *rendered : rendered.error().message);
    if (outcome == "error") continue;  // the words are Python's
    EXPECT_EQ(rendered.ok() ? *rendered : rendered.error().message, expected) << one[0] << given;
  }
}

TEST(JinjaRender, RaisedMessagesAreTheTemplatesOwn) {
  const Result<std::string> text =
      ParseAndRender("{% if messages|length > 1 %}{{ raise_exception('Too many') }}{% endif %}");
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.error().message, "Too many");
  EXPECT_EQ(text.error().kind, ErrorKind::kInvalid);
}

TEST(JinjaRender, BytesThatAreNotUtf8PassThrough) {
  const std::string bytes = " \xff\xc3(\xe4\xbd ";
  const Variables variables = {{"x", TextValue(bytes)}};
  EXPECT_EQ(*ParseAndRender("{{ x|trim }}", variables), "\xff\xc3(\xe4\xbd");
  EXPECT_EQ(*ParseAndRender("{{ x|length }}", variables), "7");
  EXPECT_EQ(*ParseAndRender("{{ x|upper }}", variables), bytes);
  EXPECT_EQ(*ParseAndRender("{{ x[::-1][::-1] }}", variables), bytes);
}

std::string Repeat(std::string_view text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

// Without limits, each of these would run for hours or exhaust memory.
TEST(JinjaLimits, HostileTemplatesEndInAnError) {
  struct HostileTemplate {
    std::string source;
    const char* message;
  };
  const HostileTemplate hostile[] = {
      {"{% for i in range(10**9) %}x{% endfor %}", "range() of more than 100000 numbers"},
      {"{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}", "too many steps"},
      {"{% set ns = namespace(s='ab') %}{% for i in range(64) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}", "too large"},
      {"{% set ns = namespace(s='ab') %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s %}{% endfor %}", "too large"},
      {"{% set ns = namespace(s=[1]) %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s %}{% endfor %}", "too large"},
      {"{{ 'abc' * 10**15 }}", "too large"},
      {"{{ [1, 2] * 10**18 }}", "too large"},
      {"{{ ('a' * 10**6)|replace('a', 'b' * 10**6) }}", "too large"},
      {"{{ ('a' * 10**6)|replace('', 'b' * 10**6) }}", "too large"},
      {"{% set x = 'a' * 10**6 %}{% for i in range(100) %}{{ x }}{% endfor %}", "prints more text than the limit"},
      {"{% set x = 'a' * 10**6 %}{% for i in range(100) %}{% set y %}{{ x }}{% endset %}{% endfor %}",
       "prints more text than the limit"},
      {"{% set x = 'a' * 10**6 %}{% for i in range(99999) %}{% if 'b' in x %}{% endif %}{% endfor %}",
       "too many steps"},
      {"{% set x = 'a' * 10**6 %}{% for i in range(99999) %}{% if x|length == 1 %}{% endif %}{% endfor %}",
       "too many steps"},
      {"{% set ns = namespace(s=[]) %}{% for i in range(99) %}{% set ns.s = [ns.s] %}{% endfor %}",
       "nested too deeply"},
      {"{% set ns = namespace(s={}) %}{% for i in range(99) %}{% set ns.s = {1: ns.s} %}{% endfor %}",
       "nested too deeply"},
      // A list that prints as 2^30 items although it consists of 30 lists.
      {"{% set ns = namespace(s=[1]) %}{% for i in range(30) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
       "too many steps"},
      {"{% set ns = namespace(s=[1]) %}{% for i in range(30) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s|tojson "
       "}}",
       "too many steps"},
      {"{% set a = namespace(s=[1]) %}{% set b = namespace(s=[1]) %}{% for i in range(30) %}{% set a.s = [a.s, a.s] %}"
       "{% set b.s = [b.s, b.s] %}{% endfor %}{{ a.s == b.s }}",
       "too many steps"},
      {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "nested more than 600 deep"},
      {"{% macro f() %}{{ g() }}{% endmacro %}{% macro g(a=f()) %}{{ a }}{% endmacro %}{{ f() }}",
       "nested more than 600 deep"},
      {"{% macro f() %}" + Repeat("{% if 1 %}", 40) + "{{ " + Repeat("1 + ", 190) + "f()|length }}" +
           Repeat("{% endif %}", 40) + "{% endmacro %}{{ f() }}",
       "nested more than 600 deep"},
      {"{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}", "too many steps"},
      {"{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}{% set s = namespace(t='ab') %}{% for i in range(60) %}"
       "{% set s.t = f(s.t) %}{% endfor %}",
       "prints more text than the limit"},
      {"{% for i in range(99999) %}{% if range(99999) | sort | length %}{% endif %}{% endfor %}", "too "},
      {"{% if range(99999) | unique | list | length %}{% endif %}", "too many steps"},
      {"{{ ('a\n' * 10**6) | indent(64) | indent(64) }}", "too large"},
  };
  for (const HostileTemplate& expected : hostile) {
    const Result<std::string> text = ParseAndRender(expected.source);
    ASSERT_FALSE(text.ok()) << expected.source;
    EXPECT_EQ(text.error().kind, ErrorKind::kExhausted) << expected.source;
    EXPECT_THAT(text.error().message, HasSubstr(expected.message)) << expected.source;
  }
}

TEST(JinjaLimits, SourceIsBounded) {
  const auto error_of = [](const std::string& source) {
    const Result<Template> parsed = Template::Parse(source);
    return parsed.ok() ? std::string() : parsed.error().message;
  };
  EXPECT_EQ(error_of(std::string(1 << 20, 'a')), "");
  EXPECT_THAT(error_of(std::string((1 << 20) + 1, 'a')), HasSubstr("1048577 bytes; at most 1048576 are allowed"));
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

TEST(Jinja, OneTemplateRendersInManyThreads) {
  const Result<Template> parsed = Template::Parse(
      "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + loop.index %}{{ m.content }}{% endfor "
      "%}={{ ns.n }}"
      "{{ [1, 'a'] + messages|map(attribute='role')|list }}");
  ASSERT_TRUE(parsed.ok());
  std::vector<std::thread> threads;
  std::vector<std::string> texts(8);
  for (size_t i = 0; i < texts.size(); ++i) {
    threads.emplace_back([&, i] {
      const Variables variables = Conversation(std::to_string(i));
      for (int turn = 0; turn < 200; ++turn) texts[i] = *parsed->Render(variables, kLimits, StoppedClock());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(texts[i], std::to_string(i) + "Hi=3[1, 'a', 'user', 'assistant']");
  }
}

}  // namespace
}  // namespace infinigen::jinja
