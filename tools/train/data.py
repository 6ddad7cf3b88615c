"""The training text as token ids, and the processes that make exercise rows while the GPU trains.

All processes together decompress and encode the shards once, in parts. The ids are stored in the state directory as .npy
files, which every process maps. Exercise rows are made in chunks. Chunk k is a pure function of (seed, phase, k) and is
made by process k mod processes. The trainer takes the chunks in order, so a run does not depend on timing.
"""

import lzma
import multiprocessing as mp
import os
import queue

import numpy as np

from make_tokenizer import END_OF_TEXT, shard_paths
from textgen import Rng

PARTS = 3  # parts of a shard, encoded by different processes
CHUNK_ROWS = 4


def documents_of(path):
    with lzma.open(path, "rt", encoding="utf-8") as file:
        return [document for document in file.read().split("<|endoftext|>\n") if document.strip()]


def part_path(state, shard, part):
    return os.path.join(state, f"{os.path.basename(shard).split('.')[0]}-{part}.npy")


def encode_part(tokenizer, shard, part, state):
    """Every document as <|endoftext|> and its ids; documents are assigned to parts by their position in bytes."""
    documents = documents_of(shard)
    total = sum(map(len, documents))
    ids, seen = [], 0
    for document in documents:
        mine = min(PARTS - 1, seen * PARTS // total) == part
        seen += len(document)
        if mine:
            ids.append(np.array([END_OF_TEXT] + tokenizer.encode(document.rstrip("\n"), add_special_tokens=False).ids, np.uint16))
    target = part_path(state, shard, part)
    np.save(target + ".new.npy", np.concatenate(ids))
    os.replace(target + ".new.npy", target)


class Corpus:
    """The mapped ids of all parts, with slices, sentence boundaries and text passages for the exercises."""

    def __init__(self, tokenizer, paths):
        self.tokenizer = tokenizer
        self.parts = [np.load(path, mmap_mode="r") for path in paths]
        self.ends = np.cumsum([len(part) for part in self.parts])
        size = tokenizer.get_vocab_size()
        pieces = [tokenizer.decode([i], skip_special_tokens=False) for i in range(size)]
        self.ends_sentence = np.array([p.rstrip("\"')”’").endswith((".", "!", "?")) and not p.endswith("\n") for p in pieces])
        self.opens_sentence = np.array([len(p) > 1 and p[0] == " " and (p[1].isupper() or p[1] in "\"“‘") for p in pieces])
        self.ends_line = np.array([p.endswith("\n") for p in pieces])

    def window(self, rng, count):
        part = self.parts[int(np.searchsorted(self.ends, rng.next() % int(self.ends[-1]), side="right"))]
        at = rng.next() % max(1, len(part) - count)
        return np.asarray(part[at:at + count], np.int64)

    def plain(self, rng, count):
        """`count` ids of running text without document marks."""
        ids = self.window(rng, count + 16)
        ids = ids[ids != END_OF_TEXT][:count]
        while len(ids) < count:
            more = self.window(rng, count)
            ids = np.concatenate([ids, more[more != END_OF_TEXT]])[:count]
        return ids

    def sentence_starts(self, ids):
        """Positions i at which a sentence starts: one ends before i, and a space and a capital letter follow."""
        if len(ids) < 2:
            return np.zeros(0, np.int64)
        return np.flatnonzero(self.ends_sentence[ids[:-1]] & self.opens_sentence[ids[1:]]) + 1

    def line_starts(self, ids):
        if len(ids) < 2:
            return np.zeros(0, np.int64)
        return np.flatnonzero(self.ends_line[ids[:-1]]) + 1

    # ---- passages for dialogues: text, or None when nothing fits

    def prose(self, rng, count):
        ids = self.plain(rng, count)
        starts = self.sentence_starts(ids)
        if len(starts) < 4:
            return None
        string = self.tokenizer.decode(ids.tolist())
        letters = sum(c.isalpha() or c == " " for c in string)
        if letters < 0.93 * len(string) or any(c in string for c in "|#`_{}[]<>*=\ufffd"):
            return None
        return ids, starts

    def story(self, rng):
        found = self.prose(rng, 300)
        if found is None:
            return None
        ids, starts = found
        middle = int(starts[np.searchsorted(starts, rng.between(int(starts[0]) + 1, max(int(starts[0]) + 1, 120))) % len(starts)])
        end = int(starts[-1])
        if middle <= starts[0] or middle >= end:
            return None
        decode = self.tokenizer.decode
        opening, rest = decode(ids[starts[0]:middle].tolist()).strip(), decode(ids[middle:end].tolist()).strip()
        return opening, rest

    def sentences(self, rng, count):
        found = self.prose(rng, 200)
        if found is None:
            return None
        ids, starts = found
        first = rng.below(max(1, len(starts) - count))
        last = min(first + count, len(starts) - 1)
        return self.tokenizer.decode(ids[starts[first]:starts[last]].tolist()).strip() or None

    def article(self, rng):
        """Title and first lines of a short article, that is, of a document with a blank line after its first line."""
        ids = self.window(rng, 2000)
        marks = np.flatnonzero(ids == END_OF_TEXT)
        if len(marks) == 0 or marks[0] > 1700:
            return None
        head = self.tokenizer.decode(ids[marks[0] + 1:marks[0] + 220].tolist())
        title, _, rest = head.partition("\n\n")
        rest = rest.split("\n")[0]
        if not 3 < len(title) < 50 or title.startswith("#") or len(rest) < 80 or "." not in rest or title.split(" (")[0] not in rest:
            return None
        return title.split(" (")[0], rest[:rest.rindex(".") + 1]


def chunk(tasks, seed, size, kinds, index):
    """CHUNK_ROWS rows of `size` + 1 ids; `kinds` names the kind of each row in turn."""
    ids = np.empty((CHUNK_ROWS, size + 1), np.uint16)
    weights = np.empty((CHUNK_ROWS, size + 1), np.uint8)
    for i in range(CHUNK_ROWS):
        number = index * CHUNK_ROWS + i
        rng = Rng(seed * 1_000_003 + size * 7_919 + number * 2_654_435_761)
        ids[i], weights[i] = tasks.row(rng, kinds[number % len(kinds)], size + 1)
    return ids, weights


def work(number, count, tokenizer_path, shards, state, encoded, jobs, phases, current, seed, out, stop):
    from tokenizers import Tokenizer

    from tasks import Tasks

    tokenizer, parent = Tokenizer.from_file(tokenizer_path), os.getppid()
    for job in range(number, len(jobs), count):
        encode_part(tokenizer, *jobs[job], state)
    with encoded.get_lock():
        encoded.value += 1
    while encoded.value < count and not stop.is_set():
        stop.wait(0.05)
    tasks = Tasks(tokenizer, Corpus(tokenizer, [part_path(state, s, p) for s in shards for p in range(PARTS)]))
    while not stop.is_set():
        phase = current.value
        size, kinds, first = phases[phase]
        index = first + (number - first) % count
        while current.value == phase and not stop.is_set():
            made = chunk(tasks, seed, size, kinds, index)
            while current.value == phase and not stop.is_set():
                try:
                    out.put((size, index, *made), timeout=0.2)
                    break
                except queue.Full:  # the trainer is slow or was killed
                    if os.getppid() != parent:
                        stop.set()
            index += count
    out.cancel_join_thread()


class Makers:
    """The data processes. They are forked, so start them before CUDA is used.

    `phases` are (row size, kinds of rows in turn, first chunk); `current` is the index of the phase being made.
    """

    def __init__(self, tokenizer_path, shard_dir, state, phases, phase, seed, count):
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        os.makedirs(state, exist_ok=True)
        present = {os.path.basename(p) for p in (shard_paths(shard_dir) if os.path.isdir(shard_dir) else [])}
        known = {name.rsplit("-", 1)[0] + ".txt.xz" for name in os.listdir(state) if name.startswith("train-") and name.endswith(".npy")}
        self.shards = sorted(present | known)
        jobs = [(os.path.join(shard_dir, s), p) for s in self.shards for p in range(PARTS) if not os.path.exists(part_path(state, s, p))]
        context = mp.get_context("fork")
        self.state, self.count = state, count
        self.encoded, self.current, self.stop = context.Value("i", 0), context.Value("i", phase), context.Event()
        self.queues = [context.Queue(6) for _ in range(count)]
        self.processes = [context.Process(target=work, daemon=True, args=(
            i, count, tokenizer_path, self.shards, state, self.encoded, jobs, phases, self.current, seed, self.queues[i],
            self.stop))
            for i in range(count)]
        for process in self.processes:
            process.start()

    def wait_encoded(self):
        while self.encoded.value < self.count:
            if any(not process.is_alive() for process in self.processes):
                raise RuntimeError("a data process ended unexpectedly")
            self.stop.wait(0.05)
        return [part_path(self.state, s, p) for s in self.shards for p in range(PARTS)]

    def take(self, size, index):
        """Chunk `index` of the phase with rows of `size`. Chunks left over from an earlier phase are dropped."""
        while True:
            got_size, got, ids, weights = self.queues[index % self.count].get(timeout=120)
            if (got_size, got) == (size, index):
                return ids, weights

    def close(self):
        self.stop.set()
        for process in self.processes:
            process.join(timeout=2)
            if process.is_alive():
                process.terminate()
