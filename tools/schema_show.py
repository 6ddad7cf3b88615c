#!/usr/bin/env python3
"""Asks a running server for answers to random bounded JSON schemas at a high temperature, and validates them.

usage: schema_show.py URL|--print [--schemas 200] [--temperature 1.5] [--seed 1] [--max-tokens 512]

Needs the packages jsonschema and rfc3339-validator. Prints what ended by `stop` and by `length`, what does not validate, and the speed of
constrained and free answers. Exit code 1 if an answer that ended by `stop` does not validate or more than 5 % were cut.
"""

import argparse
import json
import random
import sys
import time
import urllib.request

import jsonschema

PROMPTS = ["Tell me about a town.", "Describe a person.", "List what is in the box.", "What happened yesterday?",
           "Write the order of a customer."]
WORDS = ["name", "age", "town", "list", "kind", "note", "Größe", "id", "is_open", "next step", "a/b", "x\"y"]


class Maker:
    """Draws schemas whose answers are bounded: lengths, counts, no recursion."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def schema(self, depth=0):
        pick = self.random
        kinds = ["string", "integer", "number", "boolean", "null", "enum", "const", "pattern", "format"]
        if depth < 3:
            kinds += ["object", "object", "array", "anyOf", "tuple", "types"]
        kind = "object" if depth == 0 and pick.random() < 0.7 else pick.choice(kinds)
        return getattr(self, "_" + kind.lower())(depth)

    def _string(self, _):
        least = self.random.choice([0, 0, 1, 3])
        return {"type": "string", "minLength": least, "maxLength": least + self.random.randint(0, 12)}

    def _integer(self, _):
        low = self.random.randint(-1000, 1000)
        return {"type": "integer", "minimum": low, "maximum": low + self.random.choice([0, 3, 77, 5000])}

    def _number(self, _):
        return {"type": "number", "minimum": -2, "maximum": self.random.choice([3, 250])}

    def _boolean(self, _):
        return {"type": "boolean"}

    def _null(self, _):
        return {"type": "null"}

    def _enum(self, _):
        return {"enum": self.random.sample(["a", "b c", "é\n", 7, -1.5, None, True, [1, "x"], {"k": "v"}], 3)}

    def _const(self, _):
        return {"const": self.random.choice(["yes", 12, None, {"a": [1, 2]}, "quote \" and \\"])}

    def _pattern(self, _):
        return {"type": "string", "pattern": self.random.choice(
            ["^[a-z]{2,8}$", "^(north|south)-[0-9]{1,3}$", "^[A-Z][a-z]{0,5} [A-Z]{2}$", "^#[0-9a-f]{6}$",
             "^v[0-9]{1,2}(\\.[0-9]{1,3})?$"])}

    def _format(self, _):
        return {"type": "string", "format": self.random.choice(["date", "time", "date-time", "uuid", "ipv4"])}

    def _types(self, _):
        return {"type": ["null", "boolean"]}

    def _object(self, depth):
        names = self.random.sample(WORDS, self.random.randint(1, 4))
        required = [name for name in names if self.random.random() < 0.7]
        return {"type": "object", "properties": {name: self.schema(depth + 1) for name in names}, "required": required,
                "additionalProperties": False}

    def _array(self, depth):
        least = self.random.randint(0, 2)
        return {"type": "array", "items": self.schema(depth + 1), "minItems": least, "maxItems": least + self.random.randint(0, 3)}

    def _tuple(self, depth):
        parts = [self.schema(depth + 1) for _ in range(self.random.randint(1, 3))]
        return {"type": "array", "prefixItems": parts, "minItems": len(parts), "maxItems": len(parts)}

    def _anyof(self, depth):
        return {"anyOf": [self.schema(depth + 1), self.schema(depth + 1)]}


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("url", nargs="?")
    arguments.add_argument("--print", action="store_true", help="print the schemas, one a line, and ask nothing")
    arguments.add_argument("--schemas", type=int, default=200)
    arguments.add_argument("--temperature", type=float, default=1.5)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--max-tokens", type=int, default=512)
    given = arguments.parse_args()
    maker = Maker(given.seed)
    if given.print:
        print("\n".join(json.dumps(maker.schema()) for _ in range(given.schemas)))
        return 0
    ended, cut, wrong, tokens, seconds = 0, 0, [], 0, 0.0
    for i in range(given.schemas):
        schema = maker.schema()
        jsonschema.Draft202012Validator.check_schema(schema)
        body = {"messages": [{"role": "user", "content": PROMPTS[i % len(PROMPTS)]}], "temperature": given.temperature,
                "top_k": 0, "top_p": 1, "min_p": 0, "seed": i, "max_tokens": given.max_tokens,
                "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}}
        start = time.monotonic()
        try:
            answer = post(given.url.rstrip("/") + "/v1/chat/completions", body)
        except urllib.error.HTTPError as error:
            wrong.append((schema, error.read().decode(), "refused"))
            continue
        seconds += time.monotonic() - start
        tokens += answer["usage"]["completion_tokens"]
        choice = answer["choices"][0]
        if choice["finish_reason"] != "stop":
            cut += 1
            continue
        ended += 1
        text = choice["message"]["content"]
        try:
            jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator,
                                format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
        except (ValueError, jsonschema.ValidationError) as error:
            wrong.append((schema, text, str(error).splitlines()[0]))
    for schema, text, reason in wrong[:20]:
        print(json.dumps(schema), repr(text), reason, sep="\n  ")
    print(f"{given.schemas} schemas: {ended} ended, {cut} cut ({100 * cut / given.schemas:.1f} %), {len(wrong)} wrong; "
          f"{tokens} tokens in {seconds:.1f} s")
    return 1 if wrong or cut > 0.05 * given.schemas else 0


if __name__ == "__main__":
    sys.exit(main())
