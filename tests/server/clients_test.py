#!/usr/bin/env python3
"""Programs that agents are written with, as clients: helpers of the openai package, LangChain, LiteLLM, LlamaIndex. Each
is skipped where its package is not installed (docs/tools.md lists the versions that were tried).

usage: clients_test.py INFINIGEN [unittest arguments]. Exit status 77 where the openai package is not installed or the
build has no grammars.
"""

import os
import sys
import unittest

import structured_test

try:
    import openai
    import pydantic
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

MODEL = "infinigen-mini"
HELLO = [{"role": "user", "content": "Who are you?"}]
HOT = {"temperature": 1.5, "seed": 7}


def setUpModule():
    structured_test.BINARY = BINARY
    structured_test.setUpModule()


def tearDownModule():
    structured_test.tearDownModule()


def url():
    return f"http://127.0.0.1:{structured_test.SERVER.port}/v1"


class Place(pydantic.BaseModel):
    """A place and its size."""

    kind: str = pydantic.Field(max_length=8)
    houses: int = pydantic.Field(ge=0, le=999)
    open: bool


class OpenAI(unittest.TestCase):
    def setUp(self):
        self.client = openai.OpenAI(base_url=url(), api_key="none", max_retries=0, timeout=120)
        self.addCleanup(self.client.close)

    def test_parse(self):
        answer = self.client.chat.completions.parse(model=MODEL, messages=HELLO, response_format=Place, max_tokens=200, **HOT)
        self.assertIsInstance(answer.choices[0].message.parsed, Place)

    def test_parse_of_tools(self):
        answer = self.client.chat.completions.parse(
            model=MODEL, messages=HELLO, tools=[openai.pydantic_function_tool(Place)], tool_choice="required", max_tokens=200, **HOT)
        self.assertIsInstance(answer.choices[0].message.tool_calls[0].function.parsed_arguments, Place)

    def test_streamed_calls(self):
        with self.client.chat.completions.stream(
                model=MODEL, messages=HELLO, tools=[openai.pydantic_function_tool(Place)], tool_choice="required", max_tokens=200,
                **HOT) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_completion()
        self.assertIn("tool_calls.function.arguments.done", kinds)
        self.assertEqual(final.choices[0].finish_reason, "tool_calls")
        self.assertIsInstance(final.choices[0].message.tool_calls[0].function.parsed_arguments, Place)

    def test_streamed_schema(self):
        with self.client.chat.completions.stream(model=MODEL, messages=HELLO, response_format=Place, max_tokens=200, **HOT) as stream:
            for _ in stream:
                pass
            self.assertIsInstance(stream.get_final_completion().choices[0].message.parsed, Place)

    def test_a_turn_with_a_tool(self):
        tools = [openai.pydantic_function_tool(Place)]
        first = self.client.chat.completions.create(model=MODEL, messages=HELLO, tools=tools, tool_choice="required",
                                                    max_tokens=200, **HOT).choices[0].message
        history = [*HELLO, first, {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "It is small."}]
        second = self.client.chat.completions.create(model=MODEL, messages=history, tools=tools, max_tokens=8, **HOT)
        self.assertEqual(second.choices[0].message.role, "assistant")

    def test_echo(self):
        answer = self.client.completions.create(model=MODEL, prompt="The old house", echo=True, logprobs=1, max_tokens=0)
        self.assertIsNone(answer.choices[0].logprobs.token_logprobs[0])

    def test_absent_routes(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.embeddings.create(model=MODEL, input="x")
        self.assertIn("embeddings", str(caught.exception))
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.create(model=MODEL, input="x")


class LangChain(unittest.TestCase):
    def setUp(self):
        try:
            from langchain_openai import ChatOpenAI
        except ImportError as error:
            self.skipTest(str(error))
        self.chat = ChatOpenAI(base_url=url(), api_key="none", model=MODEL, temperature=1.5, seed=7, max_tokens=200, max_retries=0)

    def test_invoke_stream_and_schema(self):
        self.assertTrue(self.chat.invoke("Who are you?").content)
        self.assertTrue("".join(chunk.content for chunk in self.chat.stream("Who are you?")))
        for method in ("json_schema", "function_calling"):
            self.assertIsInstance(self.chat.with_structured_output(Place, method=method).invoke("A place."), Place)

    def test_tools(self):
        from langchain_core.messages import HumanMessage, ToolMessage
        from langchain_core.tools import tool

        @tool
        def weather(place: str, days: int) -> str:
            """The weather of a place."""
            return f"{place}: rain for {days} days"

        bound = self.chat.bind_tools([weather], tool_choice="any")
        question = HumanMessage("Will it rain?")
        answer = bound.invoke([question])
        if answer.response_metadata["finish_reason"] == "length":
            self.skipTest("the random name did not end")
        call = answer.tool_calls[0]
        self.assertEqual(call["name"], "weather")
        chunks = list(bound.stream([question]))
        self.assertTrue(any(chunk.tool_call_chunks for chunk in chunks))
        again = self.chat.bind_tools([weather]).invoke([question, answer, ToolMessage("rain", tool_call_id=call["id"])])
        self.assertEqual(again.type, "ai")


class LiteLLM(unittest.TestCase):
    def test_completion(self):
        try:
            os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would ask the network
            import litellm
        except ImportError as error:
            self.skipTest(str(error))
        common = {"model": "openai/" + MODEL, "messages": HELLO, "api_base": url(), "api_key": "none", "max_tokens": 200, **HOT}
        self.assertTrue(litellm.completion(**common).choices[0].message.content)
        self.assertTrue("".join(chunk.choices[0].delta.content or "" for chunk in litellm.completion(**common, stream=True)))
        Place.model_validate_json(litellm.completion(**common, response_format=Place).choices[0].message.content)
        tools = [openai.pydantic_function_tool(Place)]
        call = litellm.completion(**common, tools=tools, tool_choice="required").choices[0].message.tool_calls[0]
        Place.model_validate_json(call.function.arguments)


class LlamaIndex(unittest.TestCase):
    def test_chat_and_structure(self):
        try:
            from llama_index.core.llms import ChatMessage
            from llama_index.llms.openai_like import OpenAILike
        except ImportError as error:
            self.skipTest(str(error))
        model = OpenAILike(model=MODEL, api_base=url(), api_key="none", is_chat_model=True, is_function_calling_model=True,
                           temperature=1.5, max_tokens=200, additional_kwargs={"seed": 7}, should_use_structured_outputs=True)
        question = [ChatMessage(role="user", content="Who are you?")]
        self.assertTrue(model.chat(question).message.content)
        self.assertTrue(list(model.stream_chat(question)))
        self.assertIsInstance(model.as_structured_llm(Place).chat(question).raw, Place)


if __name__ == "__main__":
    BINARY = sys.argv.pop(1)
    unittest.main()
