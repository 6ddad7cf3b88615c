#!/usr/bin/env python3
"""Makes the files of tests/tensor/golden: blocks.json, random blocks of every quantised weight type and the numbers they
stand for; encode.json, numbers and what the quantisers of the package `gguf` make of them.

    python tools/make_block_golden.py --out tests/tensor/golden

Needs numpy and the package `gguf`, whose dequantize gives the numbers. blocks.json maps a type's name to two hexadecimal
strings: `blocks`, the stored bytes, and `numbers`, little-endian f32. Blocks are random bytes except for the f16 fields,
which are finite: small normal numbers, and once each zero, a subnormal and a negative number. encode.json holds `numbers`, `q8_0` (their blocks) and `errors`, by
type: the root of the mean square error over the root of the mean square of the numbers.
"""

import argparse
import json
import os

import gguf
import numpy as np

# Type -> offsets of the f16 fields in a block.
F16_FIELDS = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [],
}
SPECIAL = [0.0, 2.0**-24 * 5, -0.0123]


def encode_golden(random):
    numbers = np.concatenate([
        random.normal(0, 0.02, 1024), random.standard_t(4, 512) * 0.02 + 0.005,
        random.normal(0, 0.02, 512) * np.repeat(random.uniform(0.2, 3, 16), 32)]).astype("<f4")
    golden = {"numbers": numbers.tobytes().hex(), "errors": {}}
    for name in ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]:
        qtype = gguf.GGMLQuantizationType[name]
        blocks = gguf.quants.quantize(numbers.reshape(1, -1), qtype)
        if name == "Q8_0":
            golden["q8_0"] = blocks.tobytes().hex()
        difference = gguf.quants.dequantize(blocks, qtype).reshape(-1) - numbers
        golden["errors"][name.lower()] = float(np.sqrt((difference**2).mean() / (numbers**2).mean()))
    return golden


def write(path, golden):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(golden, file, indent=0)
        file.write("\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    random = np.random.default_rng(19)
    golden = {}
    for name, fields in F16_FIELDS.items():
        qtype = gguf.GGMLQuantizationType[name]
        numbers, size = gguf.GGML_QUANT_SIZES[qtype]
        count = 8 if numbers == 32 else 4
        blocks = random.integers(0, 256, (count, size), dtype=np.uint8)
        for i in range(count):
            for field in fields:
                value = SPECIAL[i] if i < len(SPECIAL) else random.normal(0, 0.01)
                blocks[i, field:field + 2] = np.array([value], dtype="<f2").view(np.uint8)
        if name == "MXFP4":
            blocks[:, 0] = [0, 1, 2, 250, 120, 127, 128, 130]  # exponents; from 252 on, numbers may be infinite
        decoded = gguf.quants.dequantize(blocks.reshape(1, -1), qtype).astype("<f4").reshape(-1)
        assert decoded.size == count * numbers and np.isfinite(decoded).all(), name
        golden[name.lower()] = {"blocks": blocks.tobytes().hex(), "numbers": decoded.tobytes().hex()}
    write(os.path.join(args.out, "blocks.json"), golden)
    write(os.path.join(args.out, "encode.json"), encode_golden(random))


main()
