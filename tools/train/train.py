#!/usr/bin/env python3
"""Trains the model that the project ships.

    python tools/train/train.py --shards DIR --eval DIR --model models/infinigen-mini --state DIR --out DIR

Training uses a budget of GPU seconds (--budget), which may be spread over several calls. The learning rate and the phase
depend on the share of the budget used so far: rows of 2,048 tokens first, rows of 8,192 after --long-from. A call trains
for --seconds, or for the rest of the budget. It saves the whole state in --state every --save-every seconds and at its
end; the next call continues from there. If the state is lost, --init starts from bf16 weights and the progress stored
with them (train_state.json): the schedule continues, the momentum is lost. When the budget is used up, the weights are
evaluated. Each call writes weights, log and results to --out and continues an existing log.

The budget counts only training. Start, compilation and evaluations took 140 to 180 s on one H200 in three calls, so with
the default of 880 s the whole run takes less than 18 minutes.
"""

import argparse
import json
import math
import os
import shutil
import time

import numpy as np
import torch
from tokenizers import Tokenizer

import evaluate as e
import model as network
from data import CHUNK_ROWS, Makers
from make_tokenizer import END_OF_TEXT
from model import Model, Muon, Shape, load_model, load_weights, save_model
from textgen import Rng

# Rows of one step and their kinds. Both phases have the same number of tokens per step.
PHASES = ({"time": 2048, "rows": 128, "kinds": ["planted"] * 14 + ["chat"] * 10 + ["other"] * 8},
          {"time": 8192, "rows": 32, "kinds": ["planted"] * 8 + ["chat"] * 2 + ["other"] * 2})
MUON_RATE = 0.02
ADAM_RATE = 3e-3
WARM_UP_STEPS = 100
FLAT_UNTIL = 0.35  # share of the budget after which the rate falls linearly
LAST_RATE = 0.01
QUICK_EVERY = 400  # steps between short evaluations


def spread(kinds):
    """The same kinds in an order that mixes them evenly."""
    return [kinds[i * 5 % len(kinds)] for i in range(len(kinds))] if math.gcd(5, len(kinds)) == 1 else kinds


def rate_at(progress, step):
    warm = min(1.0, (step + 1) / WARM_UP_STEPS)
    fall = max(0.0, progress - FLAT_UNTIL) / (1 - FLAT_UNTIL)
    return warm * (1 - (1 - LAST_RATE) * min(1.0, fall))


class Text:
    """Windows of the training text on the device, in a new random order and offset each epoch."""

    def __init__(self, paths, device, seed):
        self.ids = torch.cat([torch.from_numpy(np.load(path).astype(np.int32)) for path in paths]).to(device)
        self.device, self.seed, self.epoch, self.at, self.order = device, seed, 0, 0, None
        self.time = None

    def rows(self, count, time):
        """[count][time + 1]; the first id of each row is <|endoftext|>."""
        if self.order is None or self.time != time or self.at + count > len(self.order):
            self.epoch += self.order is not None
            generator = torch.Generator().manual_seed(self.seed * 1000 + self.epoch)
            offset = int(torch.randint(0, time, (1,), generator=generator))
            self.order = torch.randperm((len(self.ids) - offset - 1) // time, generator=generator) * time + offset
            self.at, self.time = 0, time
        starts = self.order[self.at:self.at + count].to(self.device)
        self.at += count
        rows = self.ids[starts[:, None] + torch.arange(time + 1, device=self.device)[None]].long()
        rows[:, 0] = END_OF_TEXT
        return rows


class Trainer:
    def __init__(self, args):
        self.args = args
        self.progress = {"step": 0, "tokens": 0, "seconds": 0.0, "chunks": [0, 0], "epoch": 0, "calls": 0}
        self.saved = os.path.join(args.state, "full.pt")
        self.state = torch.load(self.saved, map_location="cpu") if os.path.exists(self.saved) else None
        if self.state is not None:
            self.progress.update(self.state["progress"])
        elif args.init and os.path.exists(os.path.join(args.init, "train_state.json")):
            with open(os.path.join(args.init, "train_state.json")) as file:
                self.progress.update(json.load(file))
        self.progress["calls"] += 1
        self.end = min(args.budget, self.progress["seconds"] + (args.budget if args.seconds is None else args.seconds))
        self.open_log()

    def open_log(self):
        """One log per run: a later call continues the log in --out, or else the one stored with the weights of --init."""
        goes_on, path = self.progress["calls"] > 1, os.path.join(self.args.out, "train_log.jsonl")
        if goes_on and not os.path.exists(path) and self.args.init:
            before = os.path.join(self.args.init, "train_log.jsonl")
            if os.path.exists(before):
                shutil.copy(before, path)
        self.log_file = open(path, "a" if goes_on else "w")
        if goes_on:
            # Steps after the last save are repeated and logged again, so their old lines are dropped.
            self.log(event="resumed", call=self.progress["calls"], step=self.progress["step"], seconds=round(self.progress["seconds"], 1))

    def share(self):
        return self.progress["seconds"] / self.args.budget

    def phase(self):
        return 1 if self.share() >= self.args.long_from else 0

    def log(self, **row):
        line = json.dumps(row)
        self.log_file.write(line + "\n")
        self.log_file.flush()
        print(line, flush=True)

    def start(self):
        """Starts the data processes first, because they are forked, then CUDA; compiles while the shards are encoded."""
        args, began = self.args, time.time()
        phases = [(p["time"], spread(p["kinds"]), self.progress["chunks"][i]) for i, p in enumerate(args.phases)]
        self.makers = Makers(os.path.join(args.model, "tokenizer.json"), args.shards, args.state, phases, self.phase(), args.seed, args.makers)
        self.cases = []
        if args.evaluate or self.end >= args.budget:
            self.cases = e.start_cases(os.path.join(args.model, "tokenizer.json"), args.paths, args.lengths, args.cases, args.state, 4)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.backends.cuda.matmul.allow_tf32 = True
        self.model = Model(args.shape, args.seed, self.device)
        if self.device == "cpu":
            self.model.dtype = torch.float32
        else:
            choose_attention(self.log)
            self.model.compile()
        self.muon = Muon(self.model.matrices())
        self.adam = torch.optim.AdamW(self.model.others(), lr=ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=self.device == "cuda")
        if self.state is not None:
            self.model.load_state_dict(self.state["model"])
            self.adam.load_state_dict(self.state["adam"])
            for shape, buffer in self.state["muon"].items():
                self.muon.buffers[shape].copy_(buffer)
            self.state = None
        elif args.init:
            load_weights(self.model, args.init)
        self.log(event="model", parameters=sum(p.numel() for p in self.model.parameters()), seconds=round(time.time() - began, 1))
        last = self.end / args.budget
        for i, phase in enumerate(args.phases):
            if i >= self.phase() and (i == 0 or last >= args.long_from):
                ids = torch.randint(8, 8192, (phase["rows"], phase["time"] + 1), device=self.device)
                self.model.losses(ids[:, :-1], ids[:, 1:].contiguous()).mean().backward()
                self.log(event="compiled", time=phase["time"], seconds=round(time.time() - began, 1))
        self.zero()
        self.tokenizer = Tokenizer.from_file(os.path.join(args.model, "tokenizer.json"))
        self.texts, self.books = e.heldout(args.paths, self.tokenizer)
        paths = self.makers.wait_encoded()
        self.text = Text(paths, self.device, args.seed)
        self.text.epoch = self.progress["epoch"]
        self.log(event="text", parts=len(paths), tokens=len(self.text.ids), seconds=round(time.time() - began, 1))

    def zero(self):
        for p in self.model.parameters():
            p.grad = None

    def batch(self, phase):
        """(ids [rows][time + 1], weights of the same shape, number of text rows). The text rows come first."""
        size, made = self.args.phases[phase]["time"], len(self.args.phases[phase]["kinds"])
        ids, weights = [], []
        for _ in range(made // CHUNK_ROWS):
            more = self.makers.take(size, self.progress["chunks"][phase])
            self.progress["chunks"][phase] += 1
            ids.append(more[0])
            weights.append(more[1])
        real = self.args.phases[phase]["rows"] - made
        ids = torch.from_numpy(np.concatenate(ids).astype(np.int64)).to(self.device, non_blocking=True)
        weights = torch.from_numpy(np.concatenate(weights).astype(np.float32)).to(self.device, non_blocking=True)
        text = self.text.rows(real, size)
        return torch.cat([text, ids]), torch.cat([torch.ones_like(text, dtype=torch.float32), weights]), real

    def step(self, phase):
        ids, weights, real = self.batch(phase)
        losses = self.model.losses(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
        weights = weights[:, 1:].flatten()
        loss = (losses * weights).sum() / weights.sum()
        loss.backward()
        rate = rate_at(self.share(), self.progress["step"])
        for group in self.adam.param_groups:
            group["lr"] = ADAM_RATE * rate
        torch.nn.utils.clip_grad_norm_(self.model.others(), 1.0)
        self.adam.step()
        self.muon.step(MUON_RATE * rate)
        self.zero()
        losses, split = losses.detach(), real * (ids.shape[1] - 1)
        answers = weights[split:] > 2
        self.progress["step"] += 1
        self.progress["tokens"] += losses.numel()
        return torch.stack([loss.detach(), losses[:split].mean(), (losses[split:] * answers).sum() / answers.sum().clamp(min=1)]), rate

    def run(self):
        args = self.args
        before, mark, before_tokens = None, time.time(), self.progress["tokens"]
        shown = saved = time.time()
        while self.progress["seconds"] < self.end:
            phase = self.phase()
            self.makers.current.value = phase
            values, rate = self.step(phase)
            if self.device == "cuda":
                event = torch.cuda.Event()
                event.record()
                if before is not None:
                    before.synchronize()  # the host stays at most one step ahead, so that the measured time is meaningful
                before = event
            now = time.time()
            self.progress["seconds"] += now - mark
            mark = now
            if self.progress["step"] % args.log_every == 0:
                loss, text_loss, answer_loss = values.tolist()
                speed = (self.progress["tokens"] - before_tokens) / (time.time() - shown)
                before_tokens, shown = self.progress["tokens"], time.time()
                self.log(step=self.progress["step"], time=args.phases[phase]["time"], loss=round(loss, 4), text=round(text_loss, 4),
                         answers=round(answer_loss, 4), rate=round(rate, 4), tokens=self.progress["tokens"],
                         seconds=round(self.progress["seconds"], 1), tokens_per_second=round(speed))
                if not math.isfinite(loss):
                    raise SystemExit("training stopped: the loss is not finite")
                if time.time() - saved >= args.save_every:
                    self.save()
                    saved = mark = shown = time.time()
                    self.log(event="saved", step=self.progress["step"], seconds=round(self.progress["seconds"], 1))
            if self.progress["step"] % args.quick_every == 0:
                self.quick(phase)
                mark = time.time()
                before_tokens, shown = self.progress["tokens"], time.time()

    @torch.no_grad()
    def quick(self, phase):
        """A short evaluation during training: a few windows of held-out text and a few planted codes."""
        size = self.args.phases[phase]["time"]
        plain, self.model.block, self.model.token_losses = (self.model.block, self.model.token_losses), network.block, network.token_losses
        name = "valid_mix" if "valid_mix" in self.texts else sorted(self.texts)[0]
        row = e.perplexity(self.model, self.tokenizer, self.texts[name], size, self.device, 65536)
        rng, number = Rng(self.progress["step"]), 24 if size < 4096 else 10
        good = {form: sum(e.found(self.model, [e.case(rng, self.tokenizer, self.books, "real", size, 4, form, True, (i + 0.5) / number)
                                               for i in range(number)], self.device)) / number for form in e.FORMS}
        self.model.block, self.model.token_losses = plain
        self.log(event="quick", step=self.progress["step"], window=size, nll=row["nll"], found=good)

    def save(self):
        """Writes the state for a later call to one file, replaced atomically; then bf16 weights and progress to --out."""
        args = self.args
        progress = {**self.progress, "epoch": self.text.epoch + 1}  # the next call starts a new random order of the text
        torch.save({"progress": progress, "model": self.model.state_dict(), "adam": self.adam.state_dict(), "muon": self.muon.buffers},
                   self.saved + ".new")
        os.replace(self.saved + ".new", self.saved)
        folder = os.path.join(args.state, "model")
        save_model(self.model, folder)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(os.path.join(args.model, file), folder)
        with open(os.path.join(args.out, "train_state.json.new"), "w") as file:
            json.dump(progress, file)
        names = ["train_state.json"] + [file for file in os.listdir(folder) if file.startswith("model")]
        for name in names[1:]:
            shutil.copy(os.path.join(folder, name), os.path.join(args.out, name + ".new"))
        for name in names:  # all files are written; from here on they are only renamed
            os.replace(os.path.join(args.out, name + ".new"), os.path.join(args.out, name))
        return folder


def choose_attention(report):
    """Times the fused attention kernels on the long shape, forward and backward, and selects the fastest correct one."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q = torch.randn(8, 8192, 6, 64, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(8, 8192, 2, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    grad = torch.randn_like(q).transpose(1, 2)

    def once(repeat):
        a, b, c = (y.detach().requires_grad_() for y in (q, k, v))
        kk, vv = (y.repeat_interleave(3, 2) if repeat else y for y in (b, c))
        out = torch.nn.functional.scaled_dot_product_attention(a.transpose(1, 2), kk.transpose(1, 2), vv.transpose(1, 2), is_causal=True,
                                                               enable_gqa=not repeat)
        out.backward(grad)
        return out.detach().float(), b.grad.float()

    results, reference = [], None
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        for repeat in (False, True):
            try:
                with sdpa_kernel(backend):
                    out = once(repeat)
                    reference = reference or out
                    error = max(((x - y).norm() / y.norm()).item() for x, y in zip(out, reference))
                    for _ in range(2):
                        once(repeat)
                    torch.cuda.synchronize()
                    began = time.time()
                    for _ in range(5):
                        once(repeat)
                    torch.cuda.synchronize()
                    results.append(((time.time() - began) / 5, backend, repeat, error))
                    report(event="attention", backend=str(backend), repeat=repeat, ms=round(results[-1][0] * 1e3, 2), error=round(error, 5))
            except RuntimeError as problem:
                report(event="attention", backend=str(backend), repeat=repeat, failed=str(problem)[:120])
    _, backend, network.REPEAT_KV, _ = min((r for r in results if r[3] < 0.02), key=lambda r: r[0])
    torch.backends.cuda.enable_flash_sdp(backend == SDPBackend.FLASH_ATTENTION)
    torch.backends.cuda.enable_cudnn_sdp(backend == SDPBackend.CUDNN_ATTENTION)
    torch.backends.cuda.enable_mem_efficient_sdp(False)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shards", required=True, help="folder of .txt.xz shards; shards that are already encoded in --state may be missing")
    e.add_text_flags(parser)
    parser.add_argument("--model", required=True, help="folder with tokenizer.json and tokenizer_config.json")
    parser.add_argument("--state", required=True, help="folder for the encoded text and the training state, kept between calls")
    parser.add_argument("--out", required=True, help="folder for weights, log and results")
    parser.add_argument("--init", help="folder with bf16 weights to start from when --state is empty; without train_state.json the schedule restarts")
    parser.add_argument("--budget", type=float, default=880, help="seconds of training in all calls together; rate and phase follow the "
                                                                  "used share of it, so pass the same in every call (default 880)")
    parser.add_argument("--seconds", type=float, help="seconds of the budget to use in this call (default: the rest)")
    parser.add_argument("--save-every", type=float, default=120, help="seconds between saves, which is also the most that a killed call loses (default 120)")
    parser.add_argument("--long-from", type=float, default=0.45, help="share of the budget after which rows have 8,192 tokens")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--makers", type=int, default=12, help="number of data processes")
    parser.add_argument("--log-every", type=int, default=20)
    parser.add_argument("--quick-every", type=int, default=QUICK_EVERY)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--evaluate", action="store_true", help="run the full evaluation even if the budget is not used up")
    parser.add_argument("--heads", type=int, default=Shape.heads)
    parser.add_argument("--kv-heads", type=int, default=Shape.kv_heads)
    parser.add_argument("--head-dim", type=int, default=Shape.head_dim)
    parser.add_argument("--tiny", action="store_true", help="a very small model and short rows, to try the script on a CPU")
    args = parser.parse_args()
    args.paths = e.text_paths(e.eval_folder(args.eval), args.texts)
    args.shape = Shape(heads=args.heads, kv_heads=args.kv_heads, head_dim=args.head_dim)
    args.phases, args.lengths = PHASES, (1024, 2048, 4096, 8192)
    if args.tiny:
        args.lengths = (1024,)
        args.shape = Shape(hidden=64, layers=2, heads=2, kv_heads=1, head_dim=32, ffn=96)
        args.phases = ({"time": 1024, "rows": 12, "kinds": ["planted"] * 4 + ["chat"] * 2 + ["other"] * 2},
                       {"time": 2048, "rows": 6, "kinds": ["planted"] * 2 + ["chat"] + ["other"]})
    return args


def main():
    args = arguments()
    os.makedirs(args.out, exist_ok=True)
    os.makedirs(args.state, exist_ok=True)
    trainer = Trainer(args)
    trainer.start()
    trainer.run()
    folder = trainer.save()
    trainer.makers.close()
    if args.evaluate or trainer.progress["seconds"] >= args.budget:
        for process in trainer.cases:
            process.join()
        model = load_model(folder, trainer.device)
        model.dtype = trainer.model.dtype
        result = e.evaluate(model, trainer.tokenizer, args.paths, trainer.device, args.lengths, 400_000 if not args.tiny else 20_000, args.state,
                            report=lambda line: print(line, flush=True))
        result["training"] = {k: trainer.progress[k] for k in ("step", "tokens", "seconds", "calls")}
        with open(os.path.join(args.out, "eval.json"), "w") as file:
            json.dump(result, file, indent=1)
    trainer.log(event="done", **{k: trainer.progress[k] for k in ("step", "tokens", "seconds")})


if __name__ == "__main__":
    main()
