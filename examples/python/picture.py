"""A picture of what each layer attended to. usage: picture.py [MODEL [FILE.png]]"""

import sys

from infinigen import LLM

SENTENCES = "The key is under the mat. " + "Nothing happens in this sentence. " * 120
with LLM(*sys.argv[1:2], ctx=4096, kv="infinigen", kv_min=0, kv_window=64) as llm:
    out = llm.generate(SENTENCES + "The key is", max_tokens=16, temperature=0, kv_map=True)
kv_map = out.kv_map
assert kv_map is not None
for layer in range(kv_map.layers):
    row = kv_map.columns(64)[layer]
    print(f"{layer:3} " + "".join(" .:-=+*#%@"[min(9, int(10 * share))] for share in row))
if len(sys.argv) > 2:
    kv_map.plot().figure.savefig(sys.argv[2])
