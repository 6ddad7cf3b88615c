#!/usr/bin/env python3
"""Answers that follow a schema or a grammar, and calls of tools, with the shipped model under a template that has tools.
Standard library only. Skipped where the build has no grammars.

usage: structured_test.py INFINIGEN [unittest arguments]
"""

import json
import pathlib
import shutil
import sys
import tempfile
import unittest

from served import Server

BINARY = ""
SERVER = None
ROOT = pathlib.Path(__file__).resolve().parents[2]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Who are you?"}]
HOT = {"temperature": 1.5, "top_k": 0, "top_p": 1, "min_p": 0}
WEATHER = {"type": "function", "function": {
    "name": "weather", "description": "The weather of a place",
    "parameters": {"type": "object", "properties": {"place": {"type": "string", "maxLength": 12}, "days": {"$ref": "#/$defs/n"}},
                   "required": ["place", "days"], "additionalProperties": False,
                   "$defs": {"n": {"type": "integer", "minimum": 1, "maximum": 9}}}}}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}
FOLDER = None


def setUpModule():
    global SERVER, FOLDER
    FOLDER = tempfile.TemporaryDirectory()
    model = pathlib.Path(FOLDER.name) / "model"
    shutil.copytree(ROOT / "models" / "infinigen-mini", model)
    template = (ROOT / "tests" / "jinja" / "data" / "templates" / "chatml_tools.jinja").read_text()
    config = json.loads((model / "tokenizer_config.json").read_text())
    config["chat_template"] = template
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    (model / "chat_template.jinja").unlink(missing_ok=True)
    SERVER = Server(BINARY, "--batch", 8, "-m", model)
    reply = SERVER.post(TEXT, {"prompt": "a", "grammar": "root ::= \"a\"", "max_tokens": 2})
    if reply.status == 400 and "xgrammar" in reply.error["message"]:
        SERVER.stop()
        print("skipped: this build has no grammars")
        sys.exit(77)


def tearDownModule():
    code = SERVER.stop()
    FOLDER.cleanup()
    assert code == 0, (code, SERVER.log[-3:])


class Structured(unittest.TestCase):
    def ask(self, path=CHAT, **fields):
        body = {"messages": HELLO, "max_tokens": 300, **HOT, **fields}
        if path == TEXT:
            body["prompt"] = body.pop("messages")[0]["content"]
        reply = SERVER.post(path, body)
        self.assertEqual(reply.status, 200, reply.body)
        return reply.json["choices"]

    def refused(self, parameter, says, path=CHAT, **fields):
        body = {"messages": HELLO, "prompt": "a", "max_tokens": 4, **fields}
        reply = SERVER.post(path, body)
        self.assertEqual(reply.status, 400, reply.body)
        self.assertEqual(reply.error["param"], parameter)
        self.assertIn(says, reply.error["message"])

    def schema(self, schema, **fields):
        given = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        return self.ask(response_format=given, **fields)

    def test_answers_follow_the_schema(self):
        schema = {"type": "object", "properties": {
            "zeta": {"type": "string", "maxLength": 10}, "alpha": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
            "kind": {"enum": ["a", "b"]}}, "required": ["zeta", "alpha", "kind"], "additionalProperties": False}
        seen = set()
        for seed in range(4):
            for choice in self.schema(schema, seed=10 * seed, n=4):
                self.assertEqual(choice["finish_reason"], "stop")
                answer = json.loads(choice["message"]["content"])
                self.assertEqual(list(answer), ["zeta", "alpha", "kind"])
                self.assertLessEqual(len(answer["zeta"]), 10)
                self.assertTrue(len(answer["alpha"]) <= 3 and answer["kind"] in "ab")
                seen.add(choice["message"]["content"])
        self.assertGreater(len(seen), 8)

    def test_the_same_seed_gives_the_same_answer_in_a_stream(self):
        schema = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4}
        given = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        body = {"messages": HELLO, "max_tokens": 300, **HOT, "seed": 3, "response_format": given}
        whole = SERVER.post(CHAT, body).json["choices"][0]["message"]["content"]
        events, done = SERVER.stream(CHAT, {**body})
        self.assertTrue(done)
        self.assertEqual("".join(e["choices"][0]["delta"].get("content") or "" for e in events), whole)

    def test_any_object_and_grammars(self):
        for choice in self.ask(response_format={"type": "json_object"}, n=4, seed=1):
            if choice["finish_reason"] == "stop":
                self.assertIsInstance(json.loads(choice["message"]["content"]), dict)
            self.assertTrue(choice["message"]["content"].startswith("{"))
        for choice in self.ask(TEXT, grammar='root ::= ("yes" | "no") "\\n" [0-9]{3}', n=6, seed=2, ignore_eos=True):
            self.assertRegex(choice["text"], r"^(yes|no)\n[0-9]{3}$")
            self.assertEqual(choice["finish_reason"], "stop")

    def test_faults_are_named_with_their_place(self):
        def schema(inner):
            return {"type": "json_schema", "json_schema": {"name": "n", "schema": inner}}
        self.refused("response_format", "/properties/a/type", response_format=schema({"properties": {"a": {"type": "text"}}}))
        self.refused("response_format", "outside of the schema", response_format=schema({"$ref": "https://example.org/a.json"}))
        self.refused("response_format", "/not", response_format=schema({"not": {}}))
        self.refused("grammar", "the grammar does not compile", grammar="root ::= (")
        self.refused("grammar", "the grammar does not compile", path=TEXT, grammar="start ::= \"a\"")

    def test_a_forced_call_is_a_call(self):
        for choice in [{"type": "function", "function": {"name": "weather"}}, "required"]:
            for answer in self.ask(tools=[WEATHER, CLOCK], tool_choice=choice, n=6, seed=4):
                self.assertEqual(answer["finish_reason"], "tool_calls")
                self.assertIsNone(answer["message"]["content"])
                call, = answer["message"]["tool_calls"]
                arguments = json.loads(call["function"]["arguments"])
                if choice == "required" and call["function"]["name"] == "clock":
                    self.assertEqual(arguments, {})
                    continue
                self.assertEqual(call["function"]["name"], "weather")
                self.assertTrue(1 <= arguments["days"] <= 9 and len(arguments["place"]) <= 12)

    def test_calls_are_streamed(self):
        body = {"messages": HELLO, "max_tokens": 300, **HOT, "seed": 3, "tools": [WEATHER], "tool_choice": "required"}
        events, done = SERVER.stream(CHAT, body)
        self.assertTrue(done)
        calls = [c for e in events for choice in e["choices"] for c in choice["delta"].get("tool_calls", [])]
        self.assertEqual([c["index"] for c in calls], [0])
        self.assertTrue(calls[0]["id"].startswith("call_"))
        json.loads(calls[0]["function"]["arguments"])
        self.assertEqual(events[-1]["choices"][0]["finish_reason"], "tool_calls")

    def test_tools_and_calls_reach_the_template(self):
        history = [{"role": "user", "content": "Is it warm?"},
                   {"role": "assistant", "content": None, "tool_calls": [{
                       "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"place": "Ulm"}'}}]},
                   {"role": "tool", "tool_call_id": "call_1", "content": "20 degrees"}]
        counts = []
        for extra in ({}, {"tools": [WEATHER]}, {"tools": [WEATHER], "tool_choice": "none"}):
            reply = SERVER.post(CHAT, {"messages": history, "max_tokens": 2, **extra})
            self.assertEqual(reply.status, 200, reply.body)
            counts.append(reply.json["usage"]["prompt_tokens"])
        self.assertGreater(counts[1], counts[0] + 50)
        self.assertEqual(counts[2], counts[0])
        short = SERVER.post(CHAT, {"messages": history[:1] + history[2:], "max_tokens": 2}).json["usage"]["prompt_tokens"]
        self.assertGreater(counts[0], short + 10)

    def test_routes_that_are_absent_say_so(self):
        for path in ("/v1/responses", "/v1/embeddings"):
            reply = SERVER.post(path, {"input": "x"})
            self.assertEqual(reply.status, 404)
            self.assertIn("not supported", reply.error["message"])


if __name__ == "__main__":
    BINARY = sys.argv.pop(1)
    unittest.main()
