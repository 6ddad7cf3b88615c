#!/usr/bin/env python3
"""Requests made from the server's own description: what it allows is answered as it says, what it forbids is a 400, and
nothing is ever a 5xx. Standard library only.

usage: openapi_test.py INFINIGEN [unittest arguments]
"""

import json
import os
import random
import re
import sys
import unittest

from served import Server

BINARY = ""
SERVER = SPEC = None
ROUNDS = 150
NOISE_ROUNDS = int(os.environ.get("INFINIGEN_NOISE_ROUNDS", ROUNDS))  # scripts/test.sh --long: 10,000 requests in all


def setUpModule():
    global SERVER, SPEC
    SERVER = Server(BINARY, "--quiet", "--batch", 4, "--kv-tail", "on")
    SPEC = SERVER.get("/openapi.json").json


def tearDownModule():
    assert SERVER.stop() == 0


def resolve(schema):
    while "$ref" in schema:
        node = SPEC
        for name in schema["$ref"][2:].split("/"):
            node = node[name]
        schema = node
    return schema


KINDS = {"string": str, "boolean": bool, "object": dict, "array": list, "null": type(None)}


def fits(value, schema, where=""):
    """The first place where a value breaks the schema, or nothing."""
    schema = resolve(schema)
    if "anyOf" in schema:
        return "" if any(not fits(value, option) for option in schema["anyOf"]) else f"{where}: fits nothing"
    if "const" in schema and value != schema["const"]:
        return f"{where}: {value!r} is not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{where}: {value!r}"
    kinds = schema.get("type", [])
    for kind in [kinds] if isinstance(kinds, str) else kinds:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if isinstance(value, KINDS.get(kind, ())) or (kind == "number" and number) or (
                kind == "integer" and number and value == int(value)):
            break
    else:
        if kinds:
            return f"{where}: {value!r} is no {kinds}"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        return f"{where}: {value!r}"
    if isinstance(value, dict):
        missing = set(schema.get("required", [])) - set(value)
        if missing:
            return f"{where}: {missing} missing"
        for name, inner in schema.get("properties", {}).items():
            if name in value and (wrong := fits(value[name], inner, f"{where}.{name}")):
                return wrong
    if isinstance(value, list) and "items" in schema:
        for i, item in enumerate(value):
            if wrong := fits(item, schema["items"], f"{where}[{i}]"):
                return wrong
    return ""


class Maker:
    """Values for a schema, small enough to be answered quickly."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def good(self, schema, name=""):
        schema, pick = resolve(schema), self.random
        if "anyOf" in schema:
            return self.good(pick.choice(schema["anyOf"]), name)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return pick.choice(schema["enum"])
        kind = schema["type"]
        if kind == "string":
            texts = ["", "a", "The lamp", "日本 🙂", "\n\t\"\\", "<|end|>", "x" * 300]
            return pick.choice([text for text in texts if len(text.encode()) <= schema.get("maxLength", 300)])
        if kind == "boolean":
            return pick.random() < 0.5
        if kind == "integer":
            return pick.randint(schema.get("minimum", -9), min(schema.get("maximum", 20), 20))
        if kind == "number":
            least, most = schema.get("minimum", 0), schema.get("maximum", 1)
            if "exclusiveMinimum" in schema:
                least = schema["exclusiveMinimum"] + (most - schema["exclusiveMinimum"]) / 1000
            return pick.choice([least, most, pick.uniform(least, most)])
        if kind == "array":
            count = pick.randint(schema.get("minItems", 0), min(schema.get("maxItems", 3), 3))
            return [self.good(schema["items"], name) for _ in range(count)]
        if name == "logit_bias":
            return {str(pick.randint(0, 900)): pick.uniform(-100, 100) for _ in range(3)}
        value = {key: self.good(inner, key) for key, inner in schema.get("properties", {}).items()
                 if key in schema.get("required", []) or pick.random() < 0.3}
        return value

    def bad(self, schema):
        """A value that no part of the schema allows."""
        for _ in range(50):
            value = self.random.choice([5, -7, 1.5, "x", True, [], [[]], {}, {"x": 1}, 10**12, -1e300, [None], [1, "x"]])
            if fits(value, schema):
                return value
        return None


class Described(unittest.TestCase):
    def settle(self, body, path):
        """Rules between fields, which the description has in words."""
        for name in ("response_format", "grammar", "tools", "tool_choice"):  # structured_test.py has these
            body.pop(name, None)
        for message in body.get("messages", []):
            if isinstance(message, dict) and message.get("role") == "tool":
                message["role"] = "user"
        if "max_tokens" not in body or body["max_tokens"] > 4:
            body["max_tokens"] = 4
        if "max_completion_tokens" in body:
            body["max_completion_tokens"] = 3
        if "n" in body:
            body["n"] = min(body["n"], 2)
        if not body.get("stream"):
            body.pop("stream_options", None)
        if path.endswith("chat/completions") and not body.get("logprobs"):
            body.pop("top_logprobs", None)
        if body.get("echo") and "logprobs" in body:
            body.pop("stream", None)
            body.pop("stream_options", None)
        if body.get("kv", {}).get("preset") == "full":
            body["kv"] = {"preset": "full"}
        if "alpha" in body.get("kv", {}):
            body["kv"].pop("mass", None)
        if not (body.get("echo") and "logprobs" in body):
            body.get("kv", {}).pop("score", None)
        if body.get("kv", {}).get("score") != "steps":
            body.get("kv", {}).pop("score_from", None)
        return body

    def test_every_route_is_described(self):
        for path, methods in SPEC["paths"].items():
            for method, route in methods.items():
                self.assertIn("200", route["responses"], path)
                if method == "get" and path != "/kv":
                    model = SERVER.get("/v1/models").json["data"][0]["id"]
                    reply = SERVER.get(path.replace("{model}", model).replace("{file}", "style.css"))
                    self.assertEqual(reply.status, 200, path)
                    content = route["responses"]["200"]["content"]
                    if "application/json" in content:
                        self.assertEqual(fits(reply.json, content["application/json"]["schema"], path), "")

    def test_what_is_allowed_is_answered(self):
        for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"):
            route = SPEC["paths"][path]["post"]
            schema = route["requestBody"]["content"]["application/json"]["schema"]
            for seed in range(ROUNDS // 5):
                body = Maker(seed).good(schema)
                if path.startswith("/v1"):
                    body = self.settle(body, path)
                reply = SERVER.post(path, body)
                self.assertEqual(reply.status, 200, (path, seed, body, reply.body[:300]))
                if body.get("stream"):
                    self.assertTrue(reply.body.endswith(b"data: [DONE]\n\n"))
                    continue
                answer = route["responses"]["200"]["content"]["application/json"]["schema"]
                self.assertEqual(fits(reply.json, answer, path), "", (seed, body))

    def test_what_is_forbidden_is_refused_by_name(self):
        error = SPEC["components"]["schemas"]["Error"]
        for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"):
            schema = resolve(SPEC["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"])
            for seed in range(ROUNDS // 5):
                maker = Maker(seed)
                body = self.settle(maker.good(schema), path) if path.startswith("/v1") else maker.good(schema)
                name = maker.random.choice([n for n in schema["properties"] if n != "stream_options"])
                value = maker.bad(schema["properties"][name])
                body[name] = value
                reply = SERVER.post(path, body)
                self.assertEqual(reply.status, 400, (path, body, reply.body[:200]))
                self.assertEqual(fits(reply.json, error, path), "")
                self.assertTrue(str(reply.error["param"]).startswith(name), (name, value, reply.error))

    def generates_long(self, data):
        """Whether noise has made a good body of which the answer would take long."""
        try:
            body = json.loads(data)
        except ValueError:
            return False
        if not isinstance(body, dict):
            return False
        limits = [body[key] for key in ("max_tokens", "max_completion_tokens") if isinstance(body.get(key), int)]
        return not limits or max(limits) > 64 or body.get("n", 1) not in (None, 1, 2)

    def test_noise_is_never_our_fault(self):
        for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"):
            schema = SPEC["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
            for seed in range(NOISE_ROUNDS):
                maker = Maker(seed)
                body = maker.good(schema)
                if path.startswith("/v1"):
                    body = self.settle(body, path)
                data = bytearray(json.dumps(body).encode())
                for _ in range(maker.random.randint(1, 4)):
                    at = maker.random.randrange(len(data))
                    maker.random.choice([lambda a: data.__setitem__(a, maker.random.randrange(256)),
                                         lambda a: data.insert(a, maker.random.choice(b'{}[],:"0')),
                                         lambda a: data.__delitem__(slice(a, a + 3))])(at)
                    if not data:
                        data = bytearray(b"{")
                if path.startswith("/v1") and self.generates_long(data):
                    continue
                reply = SERVER.post(path, bytes(data))
                self.assertLess(reply.status, 500, (path, bytes(data), reply.body))
                self.assertIn(str(reply.status), SPEC["paths"][path]["post"]["responses"])


if __name__ == "__main__":
    BINARY = sys.argv.pop(1)
    unittest.main()
