"""Text as it is generated, and what the cache did. usage: stream.py [MODEL [PROMPT]]"""

import sys

from infinigen import LLM

model = sys.argv[1] if len(sys.argv) > 1 else ""
prompt = sys.argv[2] if len(sys.argv) > 2 else "Once upon a time"
with LLM(model, ctx=2048, kv="infinigen") as llm:
    print(f"{llm.info.name}: {llm.info.parameters / 1e6:.1f} M parameters")
    stream = llm.generate(prompt, max_tokens=48, temperature=0, stream=True)
    for piece in stream:
        print(piece, end="", flush=True)
    out = stream.output
    usage, kv = out.usage, out.kv_stats
    print(
        f"\n[{out.finish_reason}: {usage.prompt_tokens} prompt tokens, {usage.completion_tokens} generated,"
    )
    print(f" attended to {100 * kv.attended_ratio:.1f} % of the cache in {kv.steps} steps]")
