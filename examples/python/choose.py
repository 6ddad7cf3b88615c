"""Which continuation is most likely, by prefill and by decode steps. usage: choose.py [MODEL]"""

import sys

from infinigen import LLM

CONTEXT = "Once upon a time, there was a little"
CHOICES = [" girl", " theorem", " boy"]

with LLM(*sys.argv[1:2], ctx=1024) as llm:
    for score in ("prefill", "steps"):
        scored = llm.loglikelihood([CONTEXT] * len(CHOICES), CHOICES, score=score)
        best = max(range(len(CHOICES)), key=lambda index: scored[index].logprob)
        listed = ", ".join(f"{c!r} {s.logprob:.2f}" for c, s in zip(CHOICES, scored, strict=True))
        print(f"{score}: {CHOICES[best]!r} of {listed}")
