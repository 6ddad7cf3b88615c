#!/usr/bin/env python3
"""Compares greedy answers to chat prompts with those of llama.cpp, for one GGUF file.

    tools/gguf_greedy_diff.py -m FILE.gguf --llama-completion PATH [--binary build/release/infinigen]
                              [--render build/release/render_chat] [--prompts tools/chat_prompts.txt] [-n 64] [-t 2]

Each line of the prompts is the first message of a conversation. The model's own template makes the prompt (test helper
render_chat); both programs get the same text. `infinigen serve` answers it twice, as a conversation and as that text,
which must give the same. Prints for each prompt how many tokens agree and, where the answers part, the two tokens and
their margin: the difference of their logits in our model. Exit code 1 if a margin is above --margin, or the two answers
of `serve` differ; 77 without llama-completion. Standard library only, but for --reference, which needs torch, transformers 5,
accelerate and gguf: where the answers part, transformers in float32 on dequantised weights says which token it prefers.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request

END = " [end of text]"


class Server:
    def __init__(self, binary, model, threads):
        self.process = subprocess.Popen([binary, "serve", "-m", model, "--port", "0", "-t", str(threads), "--kv", "full"],
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in self.process.stdout:
            if "http://" in line:
                self.base = line[line.index("http://"):].split()[0].rstrip("/.,")
                break
        else:
            sys.exit("serve did not start")
        while self.process.poll() is None:  # it listens while the model is loaded
            try:
                self.ask("/health")
                return
            except urllib.error.HTTPError:
                time.sleep(0.1)
        sys.exit("serve ended while it loaded the model")

    def ask(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"content-type": "application/json"})
        with urllib.request.urlopen(request) as reply:
            return json.load(reply)

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        self.process.communicate()


def render(helper, template, message):
    given = {"messages": [{"role": "user", "content": message}], "tools": None, "documents": None, "add_generation_prompt": True,
             "bos_token": "", "eos_token": ""}
    line = json.dumps({"template": template, "inputs": [given]}) + "\n"
    return json.loads(subprocess.run([helper], input=line, capture_output=True, text=True, check=True).stdout)[0]["text"]


def theirs(arguments, prompt):
    """Text of llama.cpp's answer, and whether the model ended it."""
    command = [arguments.llama_completion, "-m", arguments.model, "-p", prompt, "--no-escape", "-no-cnv", "--no-display-prompt",
               "-n", str(arguments.tokens), "--temp", "0", "-t", str(arguments.threads), "--no-warmup"]
    text = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout
    text = text.decode("utf-8", "replace")
    at = text.find(END)
    return (text[:at], True) if at >= 0 else (text.removesuffix("\n\n"), False)


class Reference:
    def __init__(self, path):
        import torch
        import transformers
        self.torch = torch
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        folder, name = os.path.split(os.path.abspath(path))
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).eval()

    def prefers(self, server, text, tokens):
        """The margin of tokens[0] over tokens[1] after `text`; None where a token's id is not certain."""
        ids = [server.ask("/tokenize", {"content": text + token, "add_special": False})["tokens"] for token in ("", *tokens)]
        if any(longer[:-1] != ids[0] for longer in ids[1:]):
            return None
        with self.torch.inference_mode():
            logits = self.model(self.torch.tensor([ids[0]])).logits[0, -1]
        return float(logits[ids[1][-1]] - logits[ids[2][-1]])


def parting(choice, text, ended):
    """(tokens that agree, None or (our token, their token, margin)). Their token is the likeliest that continues their text."""
    tokens, tops = choice["logprobs"]["tokens"], choice["logprobs"]["top_logprobs"]
    done = ""
    for count, (token, top) in enumerate(zip(tokens, tops)):
        if text.startswith(done + token):
            done += token
            continue
        rest = text[len(done):]
        if not rest and not ended:
            return count, None  # their last token is the end of a longer one in text; nothing is known beyond it
        fits = {name: value for name, value in top.items() if (rest and rest.startswith(name)) or (not rest and name.startswith("<|"))}
        if not fits:
            return count, (token, rest[:12], float("inf"))
        other = max(fits, key=fits.get)
        return count, (token, other, top[token] - fits[other])
    return len(tokens), None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--llama-completion", default="llama-completion")
    parser.add_argument("--binary", default="build/release/infinigen")
    parser.add_argument("--render", default="build/release/render_chat")
    parser.add_argument("--prompts", default=os.path.join(os.path.dirname(__file__), "chat_prompts.txt"))
    parser.add_argument("-n", "--tokens", type=int, default=64)
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--margin", type=float, default=0.5, help="largest margin where answers part")
    parser.add_argument("--reference", action="store_true", help="ask transformers where answers part")
    arguments = parser.parse_args()
    if not shutil.which(arguments.llama_completion):
        print("skipped: llama-completion was not found")
        return 77
    with open(arguments.prompts) as file:
        messages = [line.rstrip("\n") for line in file if line.strip()]
    reference = Reference(arguments.model) if arguments.reference else None
    asked, ours = 0, 0
    server = Server(arguments.binary, arguments.model, arguments.threads)
    same, agreed, total, margins, wrong = 0, 0, 0, [], 0
    try:
        template = server.ask("/props")["chat_template"]
        for message in messages:
            prompt = render(arguments.render, template, message)
            body = {"prompt": prompt, "max_tokens": arguments.tokens, "temperature": 0, "logprobs": 20}
            answer = server.ask("/v1/completions", body)
            choice = answer["choices"][0]
            chat = server.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": message}], "temperature": 0,
                                                       "max_tokens": arguments.tokens})
            if (chat["choices"][0]["message"]["content"], chat["usage"]) != (choice["text"], answer["usage"]):
                wrong += 1
                print(f"  as a conversation the answer is another: {chat['choices'][0]['message']['content']!r}")
            text, ended = theirs(arguments, prompt)
            count, where = parting(choice, text, ended)
            length = len(choice["logprobs"]["tokens"])
            same += where is None
            agreed += count
            total += length
            note = "same" if where is None else f"{where[0]!r} here, {where[1]!r} there, margin {where[2]:.4f}"
            margins += [] if where is None else [where[2]]
            if where is not None and reference:
                done = prompt + "".join(choice["logprobs"]["tokens"][:count])
                margin = reference.prefers(server, done, where[:2])
                asked += margin is not None
                ours += margin is not None and margin > 0
                note += ", not asked" if margin is None else f", in float32 {margin:+.4f}"
            print(f"{count:3} of {length:3} tokens: {note}  | {message}", flush=True)
    finally:
        server.stop()
    parted = f"; margins where they part: median {statistics.median(margins):.4f}, most {max(margins):.4f}" if margins else ""
    print(f"{same} of {len(messages)} answers are the same, {agreed} of {total} tokens before the answers part{parted}")
    if asked:
        print(f"float32 prefers our token in {ours} of {asked} places")
    return 1 if wrong or any(margin > arguments.margin for margin in margins) else 0


if __name__ == "__main__":
    sys.exit(main())
