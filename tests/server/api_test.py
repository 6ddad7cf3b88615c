#!/usr/bin/env python3
"""`infinigen serve` as clients meet it: every route and field, with the shipped model. Standard library only.

usage: api_test.py INFINIGEN [unittest arguments]
"""

import concurrent.futures
import json
import math
import re
import sys
import unittest

import served
from served import Server, text_of
from wire import request

BINARY = ""
SERVER = None
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Who are you?"}]


def setUpModule():
    global SERVER
    SERVER = Server(BINARY, "--batch", 16)


def tearDownModule():
    code = SERVER.stop()
    assert code == 0, (code, SERVER.log[-3:])


class Case(unittest.TestCase):
    def chat(self, **fields):
        reply = SERVER.post(CHAT, {"messages": HELLO, "max_tokens": 12, "temperature": 0, **fields})
        self.assertEqual(reply.status, 200, reply.body)
        return reply.json

    def text(self, **fields):
        reply = SERVER.post(TEXT, {"prompt": "The old house", "max_tokens": 12, "temperature": 0, **fields})
        self.assertEqual(reply.status, 200, reply.body)
        return reply.json

    def refused(self, path, body, status=400, parameter=None, says=None):
        reply = SERVER.post(path, body)
        self.assertEqual(reply.status, status, reply.body)
        error = reply.error
        self.assertLessEqual({"message", "type", "code"}, set(error))
        if parameter:
            self.assertEqual(error["param"], parameter, error)
        if says:
            self.assertIn(says, error["message"])
        return error


class Routes(Case):
    def test_small_routes(self):
        self.assertEqual(SERVER.get("/health").json, {"status": "ok"})
        models = SERVER.get("/v1/models").json
        self.assertEqual([model["id"] for model in models["data"]], ["infinigen-mini"])
        self.assertEqual(SERVER.get("/v1/models/infinigen-mini").json["object"], "model")
        self.assertEqual(SERVER.get("/v1/models/other").error["code"], "model_not_found")
        props = SERVER.get("/props").json
        self.assertEqual((props["n_ctx"], props["total_slots"], props["kv"]["preset"]), (8192, 16, "infinigen"))
        page = SERVER.get("/")
        self.assertTrue(page.headers["Content-Type"].startswith("text/html"))
        self.assertIn("default-src 'none'", page.headers["Content-Security-Policy"])
        self.assertIn("paths", SERVER.get("/openapi.json").json)

    def test_head_gives_the_head_alone(self):
        for path in ("/health", "/v1/models", "/v1/models/infinigen-mini", "/props", "/", "/openapi.json"):
            reply = SERVER.ask("HEAD", path)
            length = len(SERVER.get(path).body)
            self.assertEqual((reply.status, reply.body, int(reply.headers["Content-Length"])), (200, b"", length), path)
        self.assertEqual(SERVER.ask("HEAD", "/metrics").status, 200)
        # /kv has no end, but a head: the next request of the connection is answered.
        both = SERVER.raw(b"HEAD /kv HTTP/1.1\r\nHost: localhost\r\n\r\n"
                          b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 2)
        self.assertEqual(both.count(b"HTTP/1.1 200 OK"), 2, both)
        self.assertIn(b"text/event-stream", both)

    def test_targets_may_name_the_server(self):
        answer = SERVER.raw(f"GET http://127.0.0.1:{SERVER.port}/health HTTP/1.1\r\nHost: localhost\r\n"
                            "Connection: close\r\n\r\n".encode())
        self.assertTrue(answer.startswith(b"HTTP/1.1 200"), answer)
        foreign = SERVER.raw(b"GET http://evil.example/props HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        self.assertTrue(foreign.startswith(b"HTTP/1.1 403"), foreign)

    def test_every_reply_is_logged_and_counted_once(self):
        asked = [("GET", "/health", None, 200), ("GET", "/metrics", None, 200), ("GET", "/v1/models", None, 200),
                 ("GET", "/v1/models/other", None, 404), ("GET", "/props", None, 200), ("GET", "/", None, 200),
                 ("GET", "/openapi.json", None, 200), ("HEAD", "/kv", None, 200), ("GET", "/nothing", None, 404),
                 ("PUT", TEXT, "{}", 405), ("POST", "/tokenize", {"content": "a"}, 200), ("POST", "/tokenize", {}, 400),
                 ("POST", "/detokenize", {"tokens": [500]}, 200), ("POST", "/tokenize", {"content": "a " * 20000}, 200),
                 ("POST", TEXT, {"prompt": "a", "max_tokens": 1}, 200), ("POST", TEXT, {"prompt": "a " * 20000}, 400),
                 ("POST", CHAT, {"messages": HELLO, "max_tokens": 1, "stream": True}, 200), ("POST", CHAT, {}, 400),
                 ("OPTIONS", TEXT, None, 204)]
        before = SERVER.replies()
        for i, (method, path, body, status) in enumerate(asked):
            headers = {"X-Request-Id": f"once-{i}"}
            if method == "OPTIONS":
                headers["Origin"] = "https://elsewhere.example"
            self.assertEqual(SERVER.ask(method, path, body, headers).status, status, path)
        broken = SERVER.raw(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: once-broken\r\n"
                            b"Content-Length: 90000000\r\n\r\n", 2)
        self.assertIn(b"413", broken[:20])
        self.assertIn(b"X-Request-Id: once-broken", broken)
        SERVER.await_log(" once-broken ")
        asked.append(("POST", "/tokenize", None, 413))
        # The metrics that were read before count too.
        self.assertEqual(SERVER.replies(), before + 1 + len(asked))
        for i, (method, path, _, status) in enumerate(asked):
            name = f" once-{i} " if i < len(asked) - 1 else " once-broken "
            lines = [line for line in SERVER.log if name in line]
            self.assertEqual(len(lines), 1, (method, path, lines))
            self.assertIn(f" 127.0.0.1 {method} {path} {status} ", lines[0])

    def test_tokens_and_back(self):
        text = "Zwölf Boxkämpfer, 日本 🙂\n"
        tokens = SERVER.post("/tokenize", {"content": text}).json["tokens"]
        self.assertEqual(SERVER.post("/detokenize", {"tokens": tokens}).json["content"], text)
        self.refused("/tokenize", {"content": 5}, parameter="content")
        self.refused("/detokenize", {"tokens": [1, "x"]}, parameter="tokens")
        self.refused("/detokenize", {"tokens": [10**9]}, parameter="tokens")

    def test_unknown_routes_and_methods(self):
        for path in ("/nothing", "/v1", "/v1/chat/completions/x", "/..%2f", "/index.htm"):
            reply = SERVER.get(path)
            self.assertEqual((reply.status, reply.error["code"]), (404, "not_found"), path)
        for method, path in (("GET", CHAT), ("PUT", TEXT), ("POST", "/health"), ("DELETE", "/v1/models")):
            reply = SERVER.ask(method, path)
            self.assertEqual((reply.status, reply.error["code"]), (405, "method_not_allowed"), path)
            self.assertIn("Allow", reply.headers)

    def test_request_ids(self):
        self.assertRegex(SERVER.get("/health").headers["X-Request-Id"], r"^req-[0-9a-f]{16}$")
        reply = SERVER.post(TEXT, {"prompt": "a", "max_tokens": 1}, {"X-Request-Id": "mine-7"})
        self.assertEqual(reply.headers["X-Request-Id"], "mine-7")
        SERVER.await_log(" mine-7 ")
        evil = SERVER.post(TEXT, {"prompt": "a", "max_tokens": 1}, {"X-Request-Id": "a b\tc"})
        self.assertRegex(evil.headers["X-Request-Id"], r"^req-")

    def test_metrics(self):
        self.text(prompt="The sea was calm. " * 400, max_tokens=3)  # longer than what is attended to whole, so it has a tail
        before = SERVER.metric("generation_tokens_total")
        self.text(max_tokens=5)
        SERVER.await_metric("generation_tokens_total", before + 5)
        text = SERVER.get("/metrics").body.decode()
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prompt_tokens_total",
                     "time_to_first_token_seconds_bucket", "inter_token_latency_seconds_count",
                     "e2e_request_latency_seconds_sum", "kv_fetched_bytes_total", "kv_selected_ratio", "kv_tail_mass",
                     "kv_fetch_stall_seconds_total", 'request_success_total{finished_reason="length"}'):
            self.assertIn(f"\ninfinigen_{name}", text)
        self.assertIn("\ninfinigen_kv_hit_ratio NaN\n", text)  # on a CPU nothing is fetched
        share = float(re.search(r"\ninfinigen_kv_tail_mass (\S+)\n", text)[1])
        self.assertTrue(0 < share < 1, share)
        self.assertNotIn('request_success_total{finished_reason="cancelled"}', text)
        counts = [int(line.split()[-1]) for line in text.splitlines()
                  if line.startswith("infinigen_inter_token_latency_seconds_bucket")]
        self.assertEqual(counts, sorted(counts))


class Answers(Case):
    def test_chat(self):
        answer = self.chat()
        choice = answer["choices"][0]
        self.assertEqual(answer["object"], "chat.completion")
        self.assertEqual((choice["message"]["role"], choice["finish_reason"]), ("assistant", "length"))
        self.assertTrue(choice["message"]["content"])
        usage = answer["usage"]
        self.assertEqual(usage["completion_tokens"], 12)
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + 12)
        self.assertIn("cached_tokens", usage["prompt_tokens_details"])
        self.assertIn("selected_ratio", answer["kv_stats"])

    def test_the_model_may_end(self):
        choice = self.chat(max_tokens=200)["choices"][0]
        self.assertEqual(choice["finish_reason"], "stop")
        self.assertEqual(self.chat(max_tokens=0)["usage"]["completion_tokens"], 0)

    def test_stats_are_of_the_requests_own_steps(self):
        self.text(max_tokens=6)  # statistics of earlier requests are not part of later ones
        end, = SERVER.post("/tokenize", {"content": "<|endoftext|>"}).json["tokens"]
        for fields in ({"max_tokens": 0}, {"max_tokens": 1}, {"logit_bias": {str(end): 100}}, {"max_tokens": 0, "stream": True},
                       {"max_tokens": 1, "n": 2}):
            if fields.pop("stream", False):
                stats = SERVER.stream(TEXT, {"prompt": "The old house", **fields})[0][-1]["kv_stats"]
            else:
                stats = self.text(**fields)["kv_stats"]
            for name in ("selected_ratio", "extra_ratio", "attended_ratio", "hit_ratio"):
                self.assertIsNone(stats[name], (fields, stats))
            for name in ("fetched_bytes", "fetched_bytes_per_step", "steps", "evicted"):
                self.assertEqual(stats[name], 0, (fields, stats))
        stats = self.text(max_tokens=2)["kv_stats"]
        self.assertEqual((stats["steps"], stats["attended_ratio"]), (1, 1))
        self.assertEqual(self.text(max_tokens=6, n=3)["kv_stats"]["steps"], 3 * 5)

    def test_the_memory_of_logprobs_is_bounded(self):
        many = {"messages": HELLO, "temperature": 0, "logprobs": True, "top_logprobs": 20, "n": 8}
        entries = 8 * 2000 * 21
        reply = self.refused(CHAT, {**many, "max_tokens": 2000}, parameter="logprobs", says=str(entries))
        self.assertIn("262144", reply["message"])
        self.refused(CHAT, many, parameter="logprobs")  # up to the context
        self.assertEqual(len(self.chat(**{**many, "max_tokens": 2})["choices"]), 8)
        events, done = SERVER.stream(CHAT, many)  # of which nothing is kept
        self.assertTrue(done)

    def test_streamed_equals_whole(self):
        for path, body in ((CHAT, {"messages": HELLO}), (TEXT, {"prompt": "The old house"}),
                           (TEXT, {"prompt": ["One", "Two"], "n": 2}), (CHAT, {"messages": HELLO, "stop": ["mo"]}),
                           (TEXT, {"prompt": "日本 🙂", "temperature": 2.0}), (TEXT, {"prompt": "x", "echo": True}),
                           (CHAT, {"messages": HELLO, "logprobs": True, "top_logprobs": 3, "stop": "mode"})):
            body = {"max_tokens": 24, "temperature": 0.9, "seed": 7, **body}
            whole = SERVER.post(path, body).json
            events, done = SERVER.stream(path, body)
            self.assertTrue(done)
            for choice in whole["choices"]:
                text = choice["text"] if path == TEXT else choice["message"]["content"]
                self.assertEqual(text_of(events, choice["index"]), text)
                ends = [c["finish_reason"] for e in events for c in e["choices"] if c["index"] == choice["index"]]
                self.assertEqual(ends, [None] * (len(ends) - 1) + [choice["finish_reason"]])
                if choice["logprobs"]:
                    pieces = [c["logprobs"]["content"] for e in events for c in e["choices"] if c["logprobs"]]
                    self.assertEqual(sum(pieces, []), choice["logprobs"]["content"])

    def test_chunks_have_openais_form(self):
        events, done = SERVER.stream(CHAT, {"messages": HELLO, "max_tokens": 4, "temperature": 0,
                                            "stream_options": {"include_usage": True}})
        self.assertTrue(done)
        first, last = events[0], events[-1]
        self.assertEqual(first["choices"][0]["delta"], {"role": "assistant", "content": ""})
        self.assertEqual({event["object"] for event in events}, {"chat.completion.chunk"})
        self.assertEqual(len({(event["id"], event["created"], event["model"]) for event in events}), 1)
        self.assertEqual([event["usage"] for event in events[:-1]], [None] * (len(events) - 1))
        self.assertEqual((last["choices"], last["usage"]["completion_tokens"]), ([], 4))
        self.assertIn("kv_stats", last)
        self.assertEqual(events[-2]["choices"][0]["delta"], {})
        events, _ = SERVER.stream(TEXT, {"prompt": "a", "max_tokens": 2})
        self.assertNotIn("usage", events[0])
        self.assertEqual(events[0]["object"], "text_completion")
        self.assertIn("kv_stats", events[-1])

    def test_stop_strings_cut_exactly(self):
        whole = self.chat(max_tokens=20)["choices"][0]["message"]["content"]
        for stop in (whole[5:8], whole[10:11], [whole[12:15], "never"], whole[:3]):
            choice = self.chat(max_tokens=20, stop=stop)["choices"][0]
            at = whole.find(stop if isinstance(stop, str) else stop[0])
            self.assertEqual((choice["message"]["content"], choice["finish_reason"]), (whole[:at], "stop"))

    def test_prompts_of_every_kind(self):
        ids = SERVER.post("/tokenize", {"content": "The old house", "add_special": True}).json["tokens"]
        by_text, by_ids = self.text(), self.text(prompt=ids)
        self.assertEqual(by_text["choices"][0]["text"], by_ids["choices"][0]["text"])
        both = self.text(prompt=["The old house", "Once"])
        self.assertEqual([choice["index"] for choice in both["choices"]], [0, 1])
        self.assertEqual(both["choices"][0]["text"], by_text["choices"][0]["text"])
        lists = self.text(prompt=[ids, ids])
        self.assertEqual(lists["choices"][1]["text"], by_text["choices"][0]["text"])
        self.assertEqual(lists["usage"]["prompt_tokens"], 2 * len(ids))
        echoed = self.text(echo=True)["choices"][0]["text"]
        self.assertEqual(echoed, "The old house" + by_text["choices"][0]["text"])
        self.assertEqual(SERVER.post(TEXT, {"prompt": "a", "ignore_eos": True}).json["usage"]["completion_tokens"], 16)

    def test_content_parts_and_roles(self):
        parts = [{"role": "user", "content": [{"type": "text", "text": "Who are"}, {"type": "text", "text": " you?"}]}]
        self.assertEqual(self.chat(messages=parts)["choices"], self.chat()["choices"])

    def test_seeds(self):
        hot = {"temperature": 1.5, "max_tokens": 20}
        one, two = self.text(seed=1, **hot), self.text(seed=1, **hot)
        self.assertEqual(one["choices"], two["choices"])
        self.assertNotEqual(one["choices"], self.text(seed=2, **hot)["choices"])
        many = self.text(seed=1, n=3, **hot)
        texts = [choice["text"] for choice in many["choices"]]
        self.assertEqual(len(set(texts)), 3)
        self.assertEqual(texts[0], one["choices"][0]["text"])
        self.assertEqual(many["usage"]["completion_tokens"], 60)
        self.assertEqual(many["usage"]["prompt_tokens"], one["usage"]["prompt_tokens"])
        self.assertNotEqual(self.text(**hot)["choices"], self.text(**hot)["choices"])

    def test_logprobs_are_probabilities(self):
        content = self.chat(logprobs=True, top_logprobs=5)["choices"][0]["logprobs"]["content"]
        self.assertEqual(len(content), 12)
        for entry in content:
            self.assertEqual(len(entry["top_logprobs"]), 5)
            self.assertEqual(entry["token"], entry["top_logprobs"][0]["token"])  # greedy
            self.assertLessEqual(sum(math.exp(top["logprob"]) for top in entry["top_logprobs"]), 1.0001)
            self.assertEqual(bytes(entry["bytes"]).decode(errors="replace"), entry["token"])
        text = self.text(logprobs=2)["choices"][0]
        logs = text["logprobs"]
        self.assertEqual("".join(logs["tokens"]), text["text"])
        self.assertEqual([text["text"][a:a + len(t)] for a, t in zip(logs["text_offset"], logs["tokens"])], logs["tokens"])
        self.assertIsNone(self.text()["choices"][0]["logprobs"])

    def test_echoed_tokens_have_logprobs(self):
        ids = SERVER.post("/tokenize", {"content": "The old house stood by the river.", "add_special": True}).json["tokens"]
        for score in ({}, {"kv": {"score": "prefill"}}, {"kv": {"score": "steps"}}, {"kv": {"score": "steps", "score_from": 3}}):
            reply = self.text(prompt=[ids, ids[:1], "The old house stood by the river."], echo=True, logprobs=2, max_tokens=1,
                              **score)
            whole, single, text = reply["choices"]
            logs = whole["logprobs"]
            self.assertEqual(len(logs["tokens"]), len(ids) + 1)
            self.assertIsNone(logs["token_logprobs"][0])
            self.assertIsNone(logs["top_logprobs"][0])
            self.assertTrue(all(value < 0 for value in logs["token_logprobs"][1:]))
            self.assertTrue(all(max(top.values()) >= value - 1e-6
                                for top, value in zip(logs["top_logprobs"][1:], logs["token_logprobs"][1:])))
            for at, token in list(zip(logs["text_offset"], logs["tokens"]))[1:]:
                self.assertEqual(whole["text"][at:at + len(token)], token)
            self.assertEqual(text["logprobs"], logs)
            self.assertTrue(whole["text"].startswith("The old house stood by the river."))
            self.assertEqual(len(single["logprobs"]["tokens"]), 2)
            # What follows a text has the same probability whether it is echoed or generated.
            again = self.text(prompt=ids, logprobs=2, max_tokens=1)["choices"][0]["logprobs"]
            if not score or score["kv"]["score"] == "prefill":
                self.assertEqual(logs["token_logprobs"][-1:], again["token_logprobs"])
            longer = self.text(prompt=whole["text"], echo=True, logprobs=2, max_tokens=0, **score)["choices"][0]["logprobs"]
            self.assertEqual(longer["token_logprobs"][:len(ids)], logs["token_logprobs"][:-1])
        self.refused(TEXT, {"prompt": "x", "echo": True, "logprobs": 1, "stream": True}, parameter="stream")
        self.refused(TEXT, {"prompt": "x", "kv": {"score": "steps"}}, parameter="kv.score")
        self.refused(TEXT, {"prompt": "x", "echo": True, "logprobs": 1, "kv": {"score_from": 2}}, parameter="kv.score_from")

    def test_the_method_is_measured_by_steps(self):
        body = {"prompt": "The lamp in the hall was lit. " * 300, "echo": True, "logprobs": 0, "max_tokens": 0}
        asked = [{"preset": "full", "score": "prefill"}, {"preset": "full", "score": "steps"}, {"score": "prefill"},
                 {"score": "steps", "alpha": 0.1, "cap": 0.05}]
        answers = [SERVER.post(TEXT, {**body, "kv": kv}).json for kv in asked]
        scores = [answer["choices"][0]["logprobs"]["token_logprobs"][1:] for answer in answers]
        # Steps that attend to everything are a prefill, and a prefill is no step.
        self.assertEqual([scores[0] == other for other in scores], [True, True, True, False])
        self.assertEqual([answer["kv_stats"]["steps"] > 0 for answer in answers], [False, True, False, True])
        self.assertLess(answers[3]["kv_stats"]["attended_ratio"], 1)

    def test_a_program_can_let_the_server_tokenize(self):
        info = SERVER.get("/tokenizer_info").json
        self.assertLessEqual({"bos_token", "eos_token", "chat_template"}, set(info))
        ids = SERVER.post("/tokenize", {"prompt": "The old house", "add_special_tokens": False}).json["tokens"]
        self.assertEqual(ids, SERVER.post("/tokenize", {"content": "The old house"}).json["tokens"])
        self.assertEqual(SERVER.post("/detokenize", {"tokens": ids}).json["prompt"], "The old house")
        eos = SERVER.post("/tokenize", {"prompt": info["eos_token"], "add_special_tokens": False}).json["tokens"]
        self.assertEqual(len(eos), 1)

    def test_bias_and_penalties(self):
        plain = self.text(logprobs=0)["choices"][0]
        banned = SERVER.post("/tokenize", {"content": plain["logprobs"]["tokens"][0]}).json["tokens"][0]
        other = self.text(logit_bias={str(banned): -100})["choices"][0]["text"]
        self.assertFalse(other.startswith(plain["logprobs"]["tokens"][0]))
        forced = self.text(logit_bias={str(banned): 100}, max_tokens=4, logprobs=0)["choices"][0]["logprobs"]
        self.assertEqual(forced["tokens"], [plain["logprobs"]["tokens"][0]] * 4)
        self.assertLess(forced["token_logprobs"][1], -0.5)  # as the model saw it, not as the bias made it
        calm = self.text(max_tokens=60, ignore_eos=True, frequency_penalty=2, presence_penalty=2, logprobs=0)
        wild = self.text(max_tokens=60, ignore_eos=True, logprobs=0)
        kinds = [len(set(answer["choices"][0]["logprobs"]["tokens"])) for answer in (calm, wild)]
        self.assertGreater(kinds[0], kinds[1])

    def test_kv_per_request(self):
        prompt = "The lamp in the hall was lit. " * 300
        ratios = {}
        for name, kv in {"own": {"preset": "infinigen"}, "full": {"preset": "full"}, "less": {"alpha": 1, "cap": 0.02},
                         "more": {"cap": 1, "alpha": 1000}}.items():
            ratios[name] = self.text(prompt=prompt, max_tokens=6, kv=kv)["kv_stats"]["attended_ratio"]
        self.assertEqual(ratios["full"], 1)
        self.assertEqual(ratios["more"], 1)
        self.assertLess(ratios["own"], 1)
        self.assertLess(ratios["less"], ratios["own"])
        self.refused(CHAT, {"messages": HELLO, "kv": {"preset": "h2o"}}, parameter="kv.preset")
        self.refused(CHAT, {"messages": HELLO, "kv": {"alpha": "x"}}, parameter="kv.alpha")
        self.refused(CHAT, {"messages": HELLO, "kv": {"preset": "full", "cap": 0.1}}, parameter="kv.preset")
        self.refused(CHAT, {"messages": HELLO, "kv": "full"}, parameter="kv")

    def test_a_long_prefix_is_read_once(self):
        prefix = "".join(f"Chapter {i}: the lamp in the hall was lit. " for i in range(350))
        SERVER.await_metric("kv_cache_usage_perc", 0)  # the numbers are those of after the last answer
        computed, answers = [SERVER.metric("prefilled_tokens_total")], []
        for question in ("Who lit it?", "Who lit it?", "And why?"):
            answers.append(self.text(prompt=prefix + question, max_tokens=1))
            tokens = answers[-1]["usage"]
            computed.append(computed[-1] + tokens["prompt_tokens"] - tokens["prompt_tokens_details"]["cached_tokens"])
            SERVER.await_metric("prefilled_tokens_total", computed[-1])  # what went through the model, and no more
        cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
        total = answers[0]["usage"]["prompt_tokens"]
        self.assertEqual(cached[0], 0)
        self.assertGreater(cached[1], total - 600)
        self.assertGreater(cached[2], total - 600)
        self.assertEqual(answers[0]["choices"], answers[1]["choices"])
        self.assertGreater(SERVER.metric("prefix_cache_bytes"), 0)
        self.assertLessEqual(SERVER.metric("prefix_cache_bytes"), SERVER.metric("prefix_cache_limit_bytes"))

    def test_a_long_context_is_selected_from(self):
        prompt = "The lamp in the hall was lit. " * 400
        answer = self.text(prompt=prompt, max_tokens=8)
        self.assertGreater(answer["usage"]["prompt_tokens"], 2500)
        self.assertLess(answer["kv_stats"]["attended_ratio"], 0.9)


class Errors(Case):
    def test_json(self):
        for body in (b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"messages":', b"[" * 100000,
                     b'{"a":' * 100000, b'{"prompt": "\xff"}'):
            self.refused(TEXT, body, says="body")

    def test_wrong_fields_are_named(self):
        for field, values in {
                "messages": [5, "x", [], [5], None], "max_tokens": ["5", 1.5, -1, [], 2**40, 10**30, 1e300],
                "temperature": ["hot", -1, 3, True], "top_p": [-0.1, 1.1, "x"], "seed": ["x", 1.5, 2**64, 2**64 - 1],
                "stop": [5, [5], ["x"] * 17, {}, "x" * 1025], "n": [0, -1, 1000, "2", 1.5], "logprobs": ["yes", 3],
                "top_logprobs": [3], "logit_bias": [5, [1], {"x": 1}, {"5": "x"}, {"-1": 0}, {"99999999": 1}, {"5": 101}],
                "presence_penalty": [3, "x"], "frequency_penalty": [-3], "stream": ["true", 1],
                "stream_options": [{"include_usage": True}], "kv": [[], 5, {"cap": 0}], "model": [5], "tools": [[{}]],
                "tool_choice": ["required", {"type": "function", "function": {"name": "f"}}],
                "response_format": [{"type": "xml"}, {"type": "json_schema"}, 5], "grammar": [5, "root ::= [a]{1,99999}"], "min_p": [2], "top_k": [-1, "x"]}.items():
            for value in values:
                error = self.refused(CHAT, {"messages": HELLO, "max_tokens": 1, field: value})
                self.assertTrue(str(error["param"]).startswith(field), (field, value, error))
                self.assertIn(field, error["message"])
        for prompt in (None, 5, [], [[]], [["x"]], [1, "x"], [-1], [10**9], {"a": 1}, [1.5]):
            self.assertTrue(str(self.refused(TEXT, {"prompt": prompt})["param"]).startswith("prompt"))
        self.assertEqual(self.refused(CHAT, {"messages": [{"role": "user"}]})["param"], "messages[0].content")
        self.assertEqual(self.refused(CHAT, {"messages": HELLO + [{"content": "x"}]})["param"], "messages[1].role")
        error = self.refused(CHAT, {"messages": [{"role": "wizard", "content": "x"}]}, says="wizard")
        self.assertEqual(error["param"], "messages[0].role")

    def test_unknown_fields_are_ignored(self):
        self.chat(frobnicate=5, user="me", metadata={"a": "b"}, store=False, logit_bias=None, stop=None, tools=[])

    def test_a_prompt_beyond_the_context(self):
        error = self.refused(TEXT, {"prompt": [5] * 9000})
        self.assertEqual(error["code"], "context_length_exceeded")
        self.assertIn("9000", error["message"])
        self.assertIn("8192", error["message"])


class Presets(Case):
    def test_a_prompt_that_fills_the_context_gets_one_token(self):
        server = Server(BINARY, "--ctx", 256, "--quiet")
        try:
            full = server.post(TEXT, {"prompt": [5] * 256, "max_tokens": 50, "ignore_eos": True}).json
            self.assertEqual((full["usage"]["completion_tokens"], full["choices"][0]["finish_reason"]), (1, "length"))
            self.assertEqual(server.post(TEXT, {"prompt": [5] * 257}).json["error"]["code"], "context_length_exceeded")
        finally:
            self.assertEqual(server.stop(), 0)

    def test_whoever_selects_can_select_everything(self):
        server = Server(BINARY, "--kv", "quest", "--quiet")
        try:
            def ask(kv):
                return server.post(TEXT, {"prompt": "The lamp in the hall was lit. " * 300, "max_tokens": 4, "kv": kv})

            self.assertLess(ask(None).json["kv_stats"]["attended_ratio"], 1)
            self.assertEqual(ask({"preset": "full"}).json["kv_stats"]["attended_ratio"], 1)
            for kv in ({"preset": "infinigen"}, {"cap": 0.1}):
                self.assertEqual((ask(kv).status, ask(kv).error["param"]), (400, "kv"))
        finally:
            self.assertEqual(server.stop(), 0)


class Load(Case):
    def test_greedy_under_load_equals_greedy_alone(self):
        prompts = [f"{word} and the {i} lamps. " * (1 + 5 * i) for i, word in enumerate(
            ("One Two Three Four Five Six Seven Eight Nine Ten Red Blue Green House Tree Sea").split())]

        def ask(prompt):
            return SERVER.post(TEXT, {"prompt": prompt, "max_tokens": 40, "temperature": 0, "ignore_eos": True,
                                      "logprobs": 0}).json["choices"][0]

        alone = [ask(prompt) for prompt in prompts]
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            together = list(pool.map(ask, prompts))
        self.assertEqual(together, alone)

    def test_64_streams_do_not_mix(self):
        def ask(i):
            events, done = SERVER.stream(TEXT, {"prompt": f"canary{i} " * 3, "echo": True, "max_tokens": 8})
            return i, text_of(events), done, {event["id"] for event in events}

        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            answers = list(pool.map(ask, range(64)))
        for i, text, done, ids in answers:
            self.assertTrue(done)
            self.assertEqual(text.split()[0], f"canary{i}")
            self.assertEqual(len(ids), 1)
        self.assertEqual(len(set.union(*(ids for *_, ids in answers))), 64)


class Picture(Case):
    def test_events_while_it_decodes(self):
        with SERVER.wire() as watcher:
            watcher.send(request("GET", "/kv"))
            status, headers = watcher.head()
            self.assertEqual((status, headers["Content-Type"]), (200, "text/event-stream"))
            answer = self.text(prompt="The lamp in the hall was lit. " * 300, max_tokens=100, ignore_eos=True)
            events = [json.loads(next(watcher.events()))]  # every answer has a last one
        event = events[-1]
        self.assertEqual(event["request"], answer["id"])
        self.assertEqual(event["columns"], 256)
        self.assertGreater(event["rows"], 2000)
        for layer in event["layers"]:
            self.assertEqual(len(layer), 256)
            self.assertTrue(all(0 <= share <= 255 for share in layer))
            self.assertEqual(layer[255], 255)  # the window is attended to whole
        self.assertTrue(any(share < 255 for layer in event["layers"] for share in layer), "nothing was left out")
        self.assertGreater(event["bytes_per_s"], 0)
        self.assertLess(event["selected_ratio"], 1)
        self.assertEqual((event["kv"], event["hit_ratio"]), ("infinigen", None))
        self.assertGreater(event["pool_bytes"], 0)
        self.assertGreaterEqual(event["prefix_bytes"], 0)
        self.assertLess(event["attended_ratio"], 1)
        self.assertEqual(event["prefix_limit_bytes"], SERVER.metric("prefix_cache_limit_bytes"))


if __name__ == "__main__":
    BINARY = sys.argv.pop(1)
    unittest.main()
