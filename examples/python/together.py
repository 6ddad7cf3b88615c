"""Several answers at once, with asyncio. usage: together.py [MODEL]"""

import asyncio
import sys

from infinigen import LLM

PROMPTS = ["The sea was", "A small house", "In the morning"]


async def answer(llm: LLM, prompt: str) -> str:
    text = ""
    async for piece in llm.generate_async(prompt, max_tokens=24, temperature=0):
        text += piece
    return text


async def main() -> None:
    with LLM(*sys.argv[1:2], ctx=1024, batch=len(PROMPTS)) as llm:
        answers = await asyncio.gather(*(answer(llm, prompt) for prompt in PROMPTS))
        for prompt, text in zip(PROMPTS, answers, strict=True):
            print(f"{prompt!r} -> {text!r}")


asyncio.run(main())
