#!/usr/bin/env python3
"""Writes GGUF files for tests, independently of the program's own writer. Standard library only.

    tools/make_gguf.py convert DIR -o FILE.gguf [--type f32|f16|bf16|q8_0|stored] [--parts N] [--tokenizer]
    tools/make_gguf.py seeds DIR          # small whole files: seeds of the fuzz targets gguf and gguf_model

`convert` takes a directory with safetensors, as those of tests/golden/models without OPT, and applies the rules of
the format: names, innermost dimension first, rows of llama's and smollm3's q and k reordered for adjacent pairs, llama3
scaling as the tensor rope_freqs, longrope as two tensors, 1 added to Gemma's norms. Mistral is llama there. `--tokenizer` adds a byte-level vocabulary, so that the model can be prompted with text.
"""

import argparse
import json
import math
import os
import struct
import sys

ALIGNMENT = 32
TYPES = {"F32": 0, "F16": 1, "Q8_0": 8, "BF16": 30, "Q4_0": 2, "IQ2_XS": 17}
U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
PACK = {U8: "<B", I8: "<b", U16: "<H", I16: "<h", U32: "<I", I32: "<i", F32: "<f", BOOL: "<B", U64: "<Q", I64: "<q",
        F64: "<d"}


# ---- the format ----

def text(value):
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def value_bytes(kind, value):
    if kind == STRING:
        return text(value)
    if kind == ARRAY:
        element, items = value
        return struct.pack("<IQ", element, len(items)) + b"".join(value_bytes(element, item) for item in items)
    return struct.pack(PACK[kind], value)


def file_bytes(metadata, tensors, version=3, alignment=ALIGNMENT):
    """metadata: [(key, kind, value)]; tensors: [(name, type id, dimensions innermost first, data)]."""
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for key, kind, value in metadata:
        out += text(key) + struct.pack("<I", kind) + value_bytes(kind, value)
    data, table = b"", b""
    for name, kind, dims, content in tensors:
        data += b"\0" * (-len(data) % alignment)
        table += text(name) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", d) for d in dims)
        table += struct.pack("<IQ", kind, len(data))
        data += content
    out += table
    return out + b"\0" * (-len(out) % alignment) + data


# ---- safetensors ----

def read_safetensors(directory):
    """name -> (dtype, shape, bytes), of all files."""
    tensors = {}
    for name in sorted(os.listdir(directory)):
        if not name.endswith(".safetensors") or name.startswith("golden"):
            continue
        with open(os.path.join(directory, name), "rb") as file:
            data = file.read()
        length = struct.unpack("<Q", data[:8])[0]
        for key, entry in json.loads(data[8:8 + length]).items():
            if key != "__metadata__":
                begin, end = entry["data_offsets"]
                tensors[key] = (entry["dtype"], entry["shape"], data[8 + length + begin:8 + length + end])
    return tensors


def floats(dtype, data):
    if dtype == "F32":
        return list(struct.unpack(f"<{len(data) // 4}f", data))
    if dtype == "F16":
        return list(struct.unpack(f"<{len(data) // 2}e", data))
    bits = struct.unpack(f"<{len(data) // 2}H", data)
    return list(struct.unpack(f"<{len(bits)}f", b"".join(struct.pack("<I", b << 16) for b in bits)))


def bf16(value):
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


def encode(kind, numbers):
    if kind == "F32":
        return struct.pack(f"<{len(numbers)}f", *numbers)
    if kind == "F16":
        return struct.pack(f"<{len(numbers)}e", *numbers)
    if kind == "BF16":
        return struct.pack(f"<{len(numbers)}H", *map(bf16, numbers))
    out = b""
    for at in range(0, len(numbers), 32):
        block = numbers[at:at + 32]
        scale = max(map(abs, block)) / 127
        codes = [round(x / scale) if scale else 0 for x in block]
        out += struct.pack("<e32b", scale, *codes)
    return out


# ---- conversion ----

NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
LAYER = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
         "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
         "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "self_attn.qkv_proj": "attn_qkv",
         "mlp.gate_up_proj": "ffn_up"}
GEMMA_LAYER = {**LAYER, "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
               "post_feedforward_layernorm": "post_ffw_norm"}
ARCHITECTURES = {"gemma3_text": "gemma3", "mistral": "llama"}


def gguf_name(name, layers=LAYER):
    module, part = name.rsplit(".", 1)
    if module in NAMES:
        return f"{NAMES[module]}.{part}"
    _, _, layer, rest = module.split(".", 3)
    return f"blk.{layer}.{layers[rest]}.{part}"


def to_pairs(rows, heads):
    """Rows i and i + half of a head become rows 2i and 2i + 1."""
    dim = len(rows) // heads
    out = []
    for head in range(heads):
        for i in range(dim // 2):
            out += [rows[head * dim + i], rows[head * dim + dim // 2 + i]]
    return out


def llama3_divisors(config, rope, dim):
    theta = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    context = rope.get("original_max_position_embeddings", config["max_position_embeddings"])
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    divisors = []
    for i in range(0, dim, 2):
        wavelength = 2 * math.pi * theta ** (i / dim)
        if wavelength < context / high:
            divisors.append(1.0)
        elif wavelength > context / low:
            divisors.append(factor)
        else:
            smooth = (context / wavelength - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return divisors


def byte_level_characters():
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table, extra = {}, 0
    for byte in range(256):
        table[byte] = chr(byte if byte in kept else 256 + extra)
        extra += byte not in kept
    return table


def tokenizer_metadata(vocab):
    characters = byte_level_characters()
    # The printable ASCII characters, the space and the line end; then one merge; then the special tokens at the end.
    tokens = [characters[b] for b in [10, *range(32, 127)]]
    merges = ["t h", "th e", "Ġ the"]
    tokens += [m.replace(" ", "") for m in merges]
    tokens += [f"<unused{i}>" for i in range(vocab - len(tokens) - 2)] + ["<|begin|>", "<|end|>"]
    types = [1] * len(tokens)
    types[-2:] = [3, 3]
    return [("tokenizer.ggml.model", STRING, "gpt2"), ("tokenizer.ggml.pre", STRING, "qwen2"),
            ("tokenizer.ggml.tokens", ARRAY, (STRING, tokens)), ("tokenizer.ggml.token_type", ARRAY, (I32, types)),
            ("tokenizer.ggml.merges", ARRAY, (STRING, merges)),
            ("tokenizer.ggml.bos_token_id", U32, vocab - 2), ("tokenizer.ggml.eos_token_id", U32, vocab - 1),
            ("tokenizer.ggml.add_bos_token", BOOL, 1),
            ("tokenizer.chat_template", STRING, "{% for m in messages %}<|begin|>{{ m['content'] }}<|end|>{% endfor %}")]


def convert(directory, kind, tokenizer):
    with open(os.path.join(directory, "config.json")) as file:
        config = json.load(file)
    arch = ARCHITECTURES.get(config["model_type"], config["model_type"])
    gemma = arch.startswith("gemma")
    heads, kv_heads = config["num_attention_heads"], config.get("num_key_value_heads", config["num_attention_heads"])
    dim = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    metadata = [("general.architecture", STRING, arch), ("general.name", STRING, os.path.basename(directory)),
                (f"{arch}.block_count", U32, config["num_hidden_layers"]),
                (f"{arch}.context_length", U32, config["max_position_embeddings"]),
                (f"{arch}.embedding_length", U32, config["hidden_size"]),
                (f"{arch}.feed_forward_length", U32, config["intermediate_size"]),
                (f"{arch}.attention.head_count", U32, heads), (f"{arch}.attention.head_count_kv", U32, kv_heads),
                (f"{arch}.attention.key_length", U32, dim), (f"{arch}.attention.value_length", U32, dim),
                (f"{arch}.rope.dimension_count", U32, int(dim * config.get("partial_rotary_factor", 1.0))),
                (f"{arch}.attention.layer_norm_rms_epsilon", F32, config["rms_norm_eps"]),
                (f"{arch}.rope.freq_base", F32, rope.get("rope_theta", config.get("rope_theta", 10000.0)))]
    if rope_type == "linear":
        metadata += [(f"{arch}.rope.scaling.type", STRING, "linear"), (f"{arch}.rope.scaling.factor", F32, rope["factor"])]
    for field in ("attn_logit_softcapping", "final_logit_softcapping"):
        metadata += [(f"{arch}.{field}", F32, config[field])] if config.get(field) else []
    if config.get("sliding_window") and (gemma or arch == "phi3"):
        metadata.append((f"{arch}.attention.sliding_window", U32, config["sliding_window"]))
    metadata += tokenizer_metadata(config["vocab_size"]) if tokenizer else []
    tensors = []
    if rope_type == "yarn":
        metadata += [(f"{arch}.rope.scaling.type", STRING, "yarn"), (f"{arch}.rope.scaling.factor", F32, rope["factor"]),
                     (f"{arch}.rope.scaling.original_context_length", U32, rope["original_max_position_embeddings"])]
    if rope_type == "longrope":
        original = config["original_max_position_embeddings"]
        usual = math.sqrt(1 + math.log(config["max_position_embeddings"] / original) / math.log(original))
        metadata += [(f"{arch}.rope.scaling.attn_factor", F32, rope.get("attention_factor", usual)),
                     (f"{arch}.rope.scaling.original_context_length", U32, original)]
        for length in ("long", "short"):
            factors = rope[f"{length}_factor"]
            tensors.append((f"rope_factors_{length}.weight", 0, [len(factors)], encode("F32", factors)))
    if rope_type == "llama3":
        tensors.append(("rope_freqs.weight", 0, [dim // 2], encode("F32", llama3_divisors(config, rope, dim))))
    stored = read_safetensors(directory)
    tied = config.get("tie_word_embeddings", False)
    for name, (dtype, shape, data) in stored.items():
        if tied and name == "lm_head.weight":
            continue
        numbers = floats(dtype, data)
        width = shape[-1] if len(shape) == 2 else 1
        rows = [numbers[i:i + width] for i in range(0, len(numbers), width)]
        if gemma and "norm" in name:
            rows = [[row[0] + 1] for row in rows]
        if arch in ("llama", "smollm3") and ".q_proj." in name:
            rows = to_pairs(rows, heads)
        if arch in ("llama", "smollm3") and ".k_proj." in name:
            rows = to_pairs(rows, kv_heads)
        wanted = "F32" if len(shape) == 1 else dtype if kind == "stored" else kind.upper()
        if wanted == "Q8_0" and width % 32:
            wanted = "F16"
        tensors.append((gguf_name(name, GEMMA_LAYER if gemma else LAYER), TYPES[wanted], list(reversed(shape)),
                        encode(wanted, [x for row in rows for x in row])))
    return metadata, tensors


def write(path, data):
    with open(path, "wb") as file:
        file.write(data)


def write_model(path, metadata, tensors, parts):
    if parts == 1:
        return write(path, file_bytes(metadata, tensors))
    stem = path[:-len(".gguf")]
    size = (len(tensors) + parts - 1) // parts
    for part in range(parts):
        split = [("split.no", U16, part), ("split.count", U16, parts), ("split.tensors.count", I32, len(tensors))]
        write(f"{stem}-{part + 1:05}-of-{parts:05}.gguf",
              file_bytes((metadata if part == 0 else []) + split, tensors[part * size:(part + 1) * size]))


# ---- seeds ----

def tiny_model(arch, spm):
    """A whole model of a few kilobytes: one layer, hidden 32, 300 tokens."""
    vocab, hidden, dim, ffn = 300, 32, 16, 32
    characters = byte_level_characters()
    metadata = [("general.architecture", STRING, arch), (f"{arch}.block_count", U32, 1),
                (f"{arch}.context_length", U32, 64), (f"{arch}.embedding_length", U32, hidden),
                (f"{arch}.feed_forward_length", U32, ffn), (f"{arch}.attention.head_count", U32, 2),
                (f"{arch}.attention.head_count_kv", U32, 1), (f"{arch}.attention.layer_norm_rms_epsilon", F32, 1e-5),
                (f"{arch}.rope.freq_base", F32, 10000.0), ("general.nested", ARRAY, (ARRAY, [(U8, [1, 2]), (F64, [0.5])]))]
    if spm:
        tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
        tokens += list("▁abcdehilorst") + ["▁t", "he", "▁the", "ll"]
        types = [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259)
        scores = [0.0] * 259 + [-1000.0] * 13 + [-1.0, -2.0, -3.0, -4.0]
        padding = vocab - len(tokens)
        tokens += [f"[PAD{i}]" for i in range(padding)]
        metadata += [("tokenizer.ggml.model", STRING, "llama"), ("tokenizer.ggml.tokens", ARRAY, (STRING, tokens)),
                     ("tokenizer.ggml.scores", ARRAY, (F32, scores + [0.0] * padding)),
                     ("tokenizer.ggml.token_type", ARRAY, (I32, types + [5] * padding))]
    else:
        tokens = [characters[b] for b in range(256)] + ["Ġt", "he", "Ġthe"]
        types = [1] * len(tokens) + [5] * (vocab - len(tokens) - 1) + [3]
        tokens += [f"[PAD{i}]" for i in range(vocab - len(tokens) - 1)] + ["<|end|>"]
        metadata += [("tokenizer.ggml.model", STRING, "gpt2"), ("tokenizer.ggml.pre", STRING, "llama-bpe"),
                     ("tokenizer.ggml.tokens", ARRAY, (STRING, tokens)),
                     ("tokenizer.ggml.token_type", ARRAY, (I32, types)),
                     ("tokenizer.ggml.merges", ARRAY, (STRING, ["Ġ t", "h e", "Ġt he"])),
                     ("tokenizer.ggml.bos_token_id", U32, vocab - 1), ("tokenizer.ggml.eos_token_id", U32, vocab - 1),
                     ("tokenizer.ggml.add_bos_token", BOOL, 0)]

    def numbers(count):
        return [((i * 37) % 17 - 8) / 16 for i in range(count)]

    def matrix(name, rows, cols, kind):
        return (name, TYPES[kind], [cols, rows], encode(kind, numbers(rows * cols)))

    def vector(name, length):
        return (name, 0, [length], encode("F32", [1.0] * length))

    tensors = [matrix("token_embd.weight", vocab, hidden, "Q8_0"), vector("output_norm.weight", hidden),
               vector("blk.0.attn_norm.weight", hidden), vector("blk.0.ffn_norm.weight", hidden),
               matrix("blk.0.attn_q.weight", 2 * dim, hidden, "F16"), matrix("blk.0.attn_k.weight", dim, hidden, "BF16"),
               matrix("blk.0.attn_v.weight", dim, hidden, "Q8_0"), matrix("blk.0.attn_output.weight", hidden, 2 * dim, "Q8_0"),
               matrix("blk.0.ffn_gate.weight", ffn, hidden, "Q8_0"), matrix("blk.0.ffn_up.weight", ffn, hidden, "Q8_0"),
               matrix("blk.0.ffn_down.weight", hidden, ffn, "Q8_0")]
    if arch == "qwen2":
        tensors += [vector(f"blk.0.attn_{x}.bias", n) for x, n in (("q", 2 * dim), ("k", dim), ("v", dim))]
    if arch == "llama" and not spm:
        tensors.append(("rope_freqs.weight", 0, [dim // 2], encode("F32", [1.0, 1.0, 1.5, 2.0, 4.0, 8.0, 8.0, 8.0])))
    return metadata, tensors


def seeds(directory):
    os.makedirs(directory, exist_ok=True)
    for name, arch, spm, version in (("llama_bpe", "llama", False, 3), ("llama_spm", "llama", True, 2),
                                     ("qwen2_bpe", "qwen2", False, 3)):
        write(os.path.join(directory, name), file_bytes(*tiny_model(arch, spm), version=version))
    write(os.path.join(directory, "empty"), file_bytes([], []))
    write(os.path.join(directory, "all_values"), file_bytes(
        [(f"k{kind}", kind, "text" if kind == STRING else (STRING, ["a", ""]) if kind == ARRAY else 1)
         for kind in range(13)] + [("general.alignment", U32, 64)],
        [("t", TYPES["IQ2_XS"], [256, 2], bytes(148))], alignment=64))


def main():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("convert")
    command.add_argument("directory")
    command.add_argument("-o", "--output", required=True)
    command.add_argument("--type", default="stored", choices=["stored", "f32", "f16", "bf16", "q8_0"])
    command.add_argument("--parts", type=int, default=1)
    command.add_argument("--tokenizer", action="store_true")
    command = commands.add_parser("seeds")
    command.add_argument("directory")
    arguments = parser.parse_args()
    if arguments.command == "seeds":
        return seeds(arguments.directory)
    metadata, tensors = convert(arguments.directory.rstrip("/"), arguments.type, arguments.tokenizer)
    write_model(arguments.output, metadata, tensors, arguments.parts)


if __name__ == "__main__":
    sys.exit(main())
