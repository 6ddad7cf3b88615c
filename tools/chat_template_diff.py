#!/usr/bin/env python3
"""Compares our rendering of chat templates with transformers' over many conversations.

    tools/chat_template_diff.py FOLDER_OR_FILE... [--binary build/release/render_chat] [--show 3]

Every *.jinja file is rendered by transformers' render_jinja_template and by the test helper render_chat, with the clock
fixed. Prints a line per template and, for the first differences, both texts around the place where they part. A template
that we refuse by name ("... is not supported") is counted apart. Exit code 1 if a text differs, 77 without transformers.

    tools/chat_template_diff.py tests/jinja/data/templates --golden tests/jinja/data/chat_families.json

writes what transformers renders for a part of the conversations, which the test JinjaGolden compares.
"""

import argparse
import datetime
import itertools
import json
import pathlib
import subprocess
import sys

NOW = datetime.datetime(2024, 7, 6, 15, 4, 9)

SYSTEM = {"role": "system", "content": "You are terse. "}
USER = {"role": "user", "content": " What is 2+2? "}
ASSISTANT = {"role": "assistant", "content": "4\n"}
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Current weather of a \"city\" <b>&</b> Zürich.",
    "parameters": {"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string", "description": "City name"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
        "days": {"type": ["integer", "null"], "description": "How many"},
        "where": {"type": "object", "properties": {"lat": {"type": "number"}, "lon": {"type": "number"}}},
        "tags": {"type": "array", "items": {"type": "string"}}}}}}
PLAIN = {"type": "function", "function": {
    "name": "add", "description": "Sum of two numbers.", "return": {"type": "number"},
    "parameters": {"type": "object", "required": ["a", "b"], "properties": {
        "a": {"type": "integer", "description": "First"}, "b": {"type": "integer", "description": "Second"}}}}}
CLOCK = {"type": "function", "function": {
    "name": "clock", "description": "Time of day.", "parameters": {"type": "object", "properties": {}}}}


def call(name, arguments, number="a1b2c3d4e"):
    return {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}


CALLS = {"role": "assistant", "content": "", "tool_calls": [
    call("get_weather", {"city": "Zürich", "days": 3, "where": {"lat": 47.4, "lon": -8.5}, "tags": ["a", "b"], "exact": True, "x": None})]}
CALL_WITH_TEXT = {"role": "assistant", "content": "I look.", "tool_calls": [call("clock", {})]}
TWO_CALLS = {"role": "assistant", "content": None, "tool_calls": [
    call("get_weather", {"city": "Paris"}, "000000001"), call("clock", {}, "000000002")]}
TEXT_CALL = {"role": "assistant", "content": "", "tool_calls": [call("clock", "{\"zone\": \"UTC\"}")]}
RESULT = {"role": "tool", "name": "get_weather", "tool_call_id": "a1b2c3d4e", "content": "{\"temperature\": 21}"}
RESULT2 = {"role": "tool", "name": "clock", "tool_call_id": "000000002", "content": "12:00"}
THOUGHT = {"role": "assistant", "content": "<think>\nsum\n</think>\n\n4"}
# transformers gives messages with a reasoning both names before it renders.
REASONED = {"thinking": "I add.", "role": "assistant", "reasoning_content": "I add.", "content": "4"}

CONVERSATIONS = {
    "user": [USER],
    "system": [SYSTEM, USER],
    "turns": [USER, ASSISTANT, {"role": "user", "content": "And \"3+3\"? <b>&amp;</b> Grüße 你好 🙂 \u2028é"}],
    "system-turns": [SYSTEM, USER, ASSISTANT, {"role": "user", "content": "Thanks.\n\nBye"}],
    "assistant-last": [SYSTEM, USER, ASSISTANT],
    "assistant-first": [ASSISTANT, USER],
    "two-users": [USER, USER],
    "odd-role": [USER, {"role": "critic", "content": "hm"}],
    "developer": [{"role": "developer", "content": "Be kind."}, USER],
    "late-system": [USER, SYSTEM],
    "empty": [],
    "blank": [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}, {"role": "user", "content": " "}],
    "spaces": [{"role": "system", "content": "\n\n s\t"}, {"role": "user", "content": "\r\n\t\u00a0 x \u3000\n"}],
    "no-content": [USER, {"role": "assistant", "content": None}, USER],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "One."}, {"type": "text", "text": " Two."}]}],
    "system-parts": [{"role": "system", "content": [{"type": "text", "text": "Be terse."}]}, USER],
    "thinking": [USER, THOUGHT, USER],
    "thinking-last": [USER, THOUGHT],
    "reasoning": [USER, REASONED, USER],
    "reasoning-last": [SYSTEM, USER, REASONED],
    "switches": [{"role": "system", "content": "/no_think Be brief. /system_override"}, {"role": "user", "content": "Hi /think"}],
    "call": [USER, CALLS],
    "result": [SYSTEM, USER, CALLS, RESULT],
    "result-turns": [USER, CALLS, RESULT, ASSISTANT, USER],
    "call-text": [USER, CALL_WITH_TEXT, RESULT2, ASSISTANT, {"role": "user", "content": "More"}],
    "two-calls": [SYSTEM, USER, TWO_CALLS, RESULT, RESULT2],
    "two-calls-turns": [USER, TWO_CALLS, RESULT, RESULT2, ASSISTANT, USER],
    "text-call": [USER, TEXT_CALL, RESULT2],
    "chain": [USER, CALLS, RESULT, CALL_WITH_TEXT, RESULT2, REASONED],
    "reasoned-call": [USER, {"thinking": "Look it up.", **CALLS, "reasoning_content": "Look it up."}, RESULT, REASONED, USER],
    "many": [SYSTEM] + [USER, ASSISTANT] * 4 + [USER],
}
EXTRAS = [{}, {"enable_thinking": False}, {"enable_thinking": True, "date_string": "01 Jan 2025"},
          {"tools_in_user_message": False, "thinking": True, "reasoning_effort": "high", "xml_tools": [WEATHER],
           "functions": "[]", "datetime": "noon"}]
TOOLS = [None, [WEATHER], [PLAIN, CLOCK]]


def inputs():
    """Yields (name, variables of the template) for all combinations."""
    for (name, messages), tools, prompt, extra in itertools.product(CONVERSATIONS.items(), TOOLS, [False, True], EXTRAS):
        label = f"{name}, {len(tools or [])} tools, prompt {prompt}, {extra and sorted(extra)[0] or 'plain'}"
        yield label, {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": prompt,
                      "bos_token": "<s>", "eos_token": "</s>", **extra}


def stop_clock():
    from transformers.utils import chat_template_utils

    class StoppedClock(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return NOW

    chat_template_utils.datetime = StoppedClock


def reference(template, given):
    """("text", text), ("raised", message of raise_exception) or ("error", reason)."""
    import jinja2
    from transformers.utils import chat_template_utils
    given = json.loads(json.dumps(given))  # templates can change lists
    messages = given.pop("messages")
    try:
        return "text", chat_template_utils.render_jinja_template(conversations=[messages], chat_template=template, **given)[0][0]
    except jinja2.exceptions.UndefinedError as error:
        return "error", error.message
    except Exception as error:
        kind = "raised" if type(error) is jinja2.exceptions.TemplateError else "error"
        return kind, str(error)


def same(kind, text, ours):
    (our_kind, our_text), = ours.items()
    if kind == "error":
        return our_kind != "text"  # both fail; the words differ
    return (our_kind, our_text) == (kind, text)


def parting(a, b):
    at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    return a[max(0, at - 60):at + 60], b[max(0, at - 60):at + 60]


def render_ours(binary, templates, given):
    lines = [json.dumps({"template": template, "inputs": given}) for template in templates]
    out = subprocess.run([binary], input="\n".join(lines) + "\n", capture_output=True, text=True, check=True).stdout
    return [json.loads(line) for line in out.splitlines()]


def write_golden(path, files, templates, cases):
    """Each conversation twice, with the other choices in turn, so that every choice occurs with every template."""
    step = len(cases) // len(CONVERSATIONS)
    chosen = [cases[i * step + (7 * i + 11 * k) % step] for i in range(len(CONVERSATIONS)) for k in range(2)]
    lines = [json.dumps([file.name, index, *reference(template, given)])
             for file, template in zip(files, templates) for index, (_, given) in enumerate(chosen)]
    inputs = ",\n".join(json.dumps(given) for _, given in chosen)
    path.write_text('{"inputs": [\n' + inputs + '\n], "cases": [\n' + ",\n".join(lines) + "\n]}\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=pathlib.Path)
    parser.add_argument("--binary", default="build/release/render_chat")
    parser.add_argument("--show", type=int, default=3, help="differences shown per template")
    parser.add_argument("--golden", type=pathlib.Path, metavar="FILE", help="write expected texts instead of comparing")
    arguments = parser.parse_args()
    try:
        stop_clock()
    except ImportError as error:
        print(f"skipped: {error}")
        return 77
    files = sorted(file for path in arguments.paths for file in (path.glob("*.jinja") if path.is_dir() else [path]))
    cases = list(inputs())
    templates = [file.read_text(encoding="utf-8") for file in files]
    if arguments.golden:
        write_golden(arguments.golden, files, templates, cases)
        return 0
    different = refused = failed = 0
    for file, template, ours in zip(files, templates, render_ours(arguments.binary, templates, [given for _, given in cases])):
        wrong, reasons, errors = [], set(), 0
        for (label, given), mine in zip(cases, ours):
            kind, text = reference(template, given)
            errors += kind != "text"
            if same(kind, text, mine):
                continue
            if "unsupported" in mine:
                reasons.add(mine["unsupported"])
            else:
                wrong.append((label, kind, text, mine))
        different += len(wrong)
        refused += bool(reasons)
        failed += errors
        state = f"{len(wrong)} differ" if wrong else "; ".join(sorted(reasons)) if reasons else "same"
        print(f"{file.name}: {len(cases)} cases, {errors} errors in both: {state}")
        for label, kind, text, mine in wrong[:arguments.show]:
            (our_kind, our_text), = mine.items()
            theirs, shown = parting(text, our_text)
            print(f"    {label}\n      transformers {kind}: {theirs!r}\n      ours {our_kind}: {shown!r}")
    print(f"{len(files)} templates, {len(files) * len(cases)} cases: {different} differ, {refused} templates refused by name, "
          f"{failed} cases are errors in transformers too")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
