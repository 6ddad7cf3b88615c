#!/usr/bin/env python3
"""The official `openai` package as client: every field, streaming and not, async, errors, cancellation.

usage: openai_test.py INFINIGEN [unittest arguments]. Exit status 77 where the package is not installed.
"""

import asyncio
import sys
import time
import unittest

from served import Server

try:
    import openai
except ImportError as error:
    print(f"the Python package openai is not installed: {error}")
    sys.exit(77)

BINARY = ""
SERVER = CLIENT = None
MODEL = "infinigen-mini"
HELLO = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who are you?"}]


def client(kind=openai.OpenAI, key="secret"):
    return kind(base_url=f"http://127.0.0.1:{SERVER.port}/v1", api_key=key, max_retries=0, timeout=60)


def setUpModule():
    global SERVER, CLIENT
    SERVER = Server(BINARY, "--api-key", "secret", "--batch", 4, "--queue", 4)
    CLIENT = client()


def tearDownModule():
    CLIENT.close()
    assert SERVER.stop() == 0


class Package(unittest.TestCase):
    def test_models(self):
        self.assertEqual([model.id for model in CLIENT.models.list()], [MODEL])
        self.assertEqual(CLIENT.models.retrieve(MODEL).owned_by, "infinigen")
        with self.assertRaises(openai.NotFoundError):
            CLIENT.models.retrieve("other")

    def test_chat_with_every_field(self):
        answer = CLIENT.chat.completions.create(
            model=MODEL, messages=HELLO, max_completion_tokens=16, temperature=0.7, top_p=0.9, seed=5, stop=["\n\n"], n=2,
            logprobs=True, top_logprobs=2, logit_bias={"5": -1}, presence_penalty=0.1, frequency_penalty=0.1, user="me",
            extra_body={"kv": {"preset": "infinigen"}, "top_k": 20, "min_p": 0.01})
        self.assertEqual([choice.index for choice in answer.choices], [0, 1])
        for choice in answer.choices:
            self.assertIn(choice.finish_reason, ("stop", "length"))
            self.assertEqual(choice.message.role, "assistant")
            self.assertEqual(len(choice.logprobs.content[0].top_logprobs), 2)
        usage = answer.usage
        self.assertEqual(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)
        self.assertGreaterEqual(usage.prompt_tokens_details.cached_tokens, 0)
        self.assertIn("selected_ratio", answer.kv_stats)

    def test_chat_as_a_stream(self):
        fields = {"model": MODEL, "messages": HELLO, "max_tokens": 20, "temperature": 0}
        whole = CLIENT.chat.completions.create(**fields)
        chunks = list(CLIENT.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True}))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(chunks[-1].usage.completion_tokens, whole.usage.completion_tokens)
        self.assertEqual(chunks[-2].choices[0].finish_reason, whole.choices[0].finish_reason)

    def test_completions(self):
        answer = CLIENT.completions.create(model=MODEL, prompt=["One", "Two"], max_tokens=4, temperature=0, logprobs=1,
                                           n=2, echo=False)
        self.assertEqual([choice.index for choice in answer.choices], [0, 1, 2, 3])
        self.assertEqual(len(answer.choices[0].logprobs.tokens), 4)
        chunks = list(CLIENT.completions.create(model=MODEL, prompt="One", max_tokens=4, temperature=0, stream=True))
        self.assertEqual("".join(chunk.choices[0].text for chunk in chunks), answer.choices[0].text)

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as raised:
            CLIENT.completions.create(model=MODEL, prompt=[5] * 9000)
        self.assertEqual(raised.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.BadRequestError) as raised:
            CLIENT.chat.completions.create(model=MODEL, messages=HELLO, temperature=9)
        self.assertEqual(raised.exception.param, "temperature")
        with client(key="wrong") as stranger, self.assertRaises(openai.AuthenticationError):
            stranger.models.list()
        with self.assertRaises(openai.NotFoundError):
            CLIENT.embeddings.create(model=MODEL, input="x")

    def test_a_full_queue(self):
        bearer = {"Authorization": "Bearer secret"}
        streams = [CLIENT.completions.create(model=MODEL, prompt="a", max_tokens=5000, stream=True,
                                             extra_body={"ignore_eos": True}) for _ in range(4)]
        waiting = [SERVER.socket() for _ in range(4)]
        body = b'{"prompt": "a", "max_tokens": 5000}'
        for connection in waiting:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secret\r\n"
                               b"Content-Length: %d\r\n\r\n" % len(body) + body)
        deadline = time.monotonic() + 10
        while SERVER.metric("num_requests_waiting", bearer) < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        with self.assertRaises(openai.RateLimitError):
            CLIENT.completions.create(model=MODEL, prompt="a")
        for connection in waiting:
            connection.close()
        for stream in streams:
            stream.close()
        deadline = time.monotonic() + 10
        while SERVER.metric("num_requests_running", bearer) > 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertEqual(SERVER.metric("num_requests_running", bearer), 0)

    def test_async_and_cancelled(self):
        async def run():
            async with client(openai.AsyncOpenAI) as asynchronous:
                fields = {"model": MODEL, "max_tokens": 12, "temperature": 0}
                answers = await asyncio.gather(*(asynchronous.chat.completions.create(messages=HELLO, **fields)
                                                 for _ in range(4)))
                self.assertEqual(len({answer.choices[0].message.content for answer in answers}), 1)
                task = asyncio.create_task(asynchronous.completions.create(
                    model=MODEL, prompt="a", max_tokens=8000, extra_body={"ignore_eos": True}))
                await asyncio.sleep(0.3)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                text = ""
                async for chunk in await asynchronous.chat.completions.create(messages=HELLO, stream=True, **fields):
                    text += chunk.choices[0].delta.content or ""
                self.assertEqual(text, answers[0].choices[0].message.content)

        asyncio.run(run())
        bearer = {"Authorization": "Bearer secret"}
        deadline = time.monotonic() + 10
        while SERVER.metric("num_requests_running", bearer) > 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertEqual(SERVER.metric("num_requests_running", bearer), 0)


if __name__ == "__main__":
    BINARY = sys.argv.pop(1)
    unittest.main()
