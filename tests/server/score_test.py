#!/usr/bin/env python3
"""Echoed logprobs against `eval choice`: the same questions have the same scores, by prefill and by steps, under methods
that leave entries out. Standard library only.

usage: score_test.py INFINIGEN [unittest arguments]
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

from served import Server

BINARY = ""
# Contexts of about a hundred tokens: small enough that something is left out.
SMALL = ["--kv-window", "8", "--kv-min", "8", "--kv-sinks", "2", "--kv-cap", "10%"]
STORY = ("The old house stood by the river, and nobody had lived there for years. One evening a lamp was lit in the hall, "
         "and the people of the village asked each other who had come. The miller said that it was his cousin. The baker, "
         "who knew everybody, said that it was")
QUESTIONS = [{"context": STORY, "choices": ["nobody at all.", "the owner of the house.", "a lamp."], "answer": 1},
             {"context": STORY + " the old captain. In the morning the captain went to the", "choices": ["river.", "moon.", "hall of the house."],
              "answer": 0}]


class Scores(unittest.TestCase):
    def compare(self, flags, score):
        with tempfile.TemporaryDirectory() as folder:
            task = os.path.join(folder, "task.jsonl")
            with open(task, "w") as file:
                file.write("".join(json.dumps(question) + "\n" for question in QUESTIONS))
            run = subprocess.run([BINARY, "eval", "choice", "--task", task, "--json", *flags], capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stderr)
        answers = json.loads(run.stdout)["questions"]
        server = Server(BINARY, "--batch", 4, "--quiet", *flags)
        try:
            for question, answer in zip(QUESTIONS, answers):
                encode = lambda text: server.post("/tokenize", {"content": text, "add_special": True}).json["tokens"]
                context = encode(question["context"])
                prompts = [encode(question["context"] + " " + choice) for choice in question["choices"]]
                kv = {"kv": {"score": "steps", "score_from": len(context) - 1}} if score == "steps" else {}
                reply = server.post("/v1/completions", {"prompt": prompts, "max_tokens": 1, "echo": True, "logprobs": 1,
                                                        "temperature": 0, **kv})
                self.assertEqual(reply.status, 200, reply.body)
                scores = [sum(choice["logprobs"]["token_logprobs"][len(context):-1]) for choice in reply.json["choices"]]
                for ours, theirs in zip(scores, answer["scores"]):
                    self.assertAlmostEqual(ours, theirs, delta=1e-4)
            return [answer["scores"] for answer in answers]
        finally:
            self.assertEqual(server.stop(), 0)

    def test_scores_are_those_of_eval_choice(self):
        full = self.compare(["--kv", "full"], "prefill")
        self.assertEqual(self.compare(["--kv", "full"], "steps"), full)
        for flags in (["--kv", "infinigen", *SMALL], ["--kv", "quest", *SMALL[:6], "--kv-cap", "20%"]):
            self.assertNotEqual(self.compare(flags, "steps"), full, "the method must matter, or this shows nothing")


if __name__ == "__main__":
    BINARY = sys.argv.pop(1)
    unittest.main()
