"""Rows of exercises: facts planted in long text and asked for, dialogues, key-value lists, copying, variables, words.

A row is T + 1 token ids and as many weights; weight i is the loss weight of predicting token i. Several samples are
packed into a row, each starting with <|endoftext|>. Answers have a larger weight than text; random digits, which cannot
be predicted, have weight 0. docs/model.md, "Prompt forms", shows samples as text.
"""

import numpy as np

from dialogue import dialogue
from facts import CODE_NAMES, code_fact, code_subject, digits, draw_facts, pseudo_word
from make_tokenizer import ASSISTANT, END, END_OF_TEXT, SYSTEM, USER
from textgen import PLACES, TABLES, text, town

ROLE = {"system": SYSTEM, "user": USER, "assistant": ASSISTANT}
ANSWER = 4  # weight of answer tokens, because a row of 8,192 has only tens of them
INSTRUCTIONS = ["Read the text and answer the question at the end.\n\n", "Here is a long text. Remember the facts in it.\n\n",
                "Text:\n\n", "Please read this.\n\n"]
LEAD_INS = ["", "", "", "", "As was said before, ", "Let us repeat: ", "In short, ", "Remember: ", "To say it again: "]
READ = ["I have read the text. What would you like to know?", "All right. What is your question?", "I have read it."]
ONLY = [" Answer with the value only.", " Give only the value.", " Only the value, please."]


class Sample:
    """Ids and weights of a sample, built by appending."""

    def __init__(self):
        self.ids, self.weights = [], []

    def add(self, ids, weight=1):
        self.ids.extend(ids)
        self.weights.extend([weight] * len(ids))

    def __len__(self):
        return len(self.ids)


class Tasks:
    def __init__(self, tokenizer, corpus):
        self.tokenizer, self.corpus = tokenizer, corpus

    def encode(self, string):
        return self.tokenizer.encode(string, add_special_tokens=False).ids

    # ---- text to plant in

    def filler(self, rng, count):
        """About `count` ids of training text (four in five) or generated text, cut after a sentence where possible."""
        if count <= 0:
            return np.zeros(0, np.int64)
        if rng.chance(80):
            ids = self.corpus.plain(rng, count)
        else:
            ids = np.array(self.encode(text(rng, count * 4 + 400))[:count], np.int64)
        ends = self.corpus.sentence_starts(ids)
        if len(ends) and ends[-1] > max(20, count - 160):
            ids = ids[:ends[-1]]
        return ids

    def plant(self, rng, ids, statements):
        """Inserts statements at uniform depths: each at the first sentence boundary after a uniform random position."""
        spaces, lines = self.corpus.sentence_starts(ids), self.corpus.line_starts(ids)
        places = np.union1d(spaces, lines)
        if len(places) < 1:
            places = np.array([len(ids)])
        by_line = set(lines.tolist())
        spots = []
        for statement in statements:
            at = int(places[min(np.searchsorted(places, rng.below(len(ids) + 1)), len(places) - 1)])
            spots.append((at, rng.next(), statement))
        out, last = [], 0
        for at, _, statement in sorted(spots):
            out.extend(ids[last:at])
            out.extend(self.encode(statement + "\n" if at in by_line else " " + statement))
            last = at
        out.extend(ids[last:])
        return out

    def join(self, ids, string):
        """Ids of the text of `ids` followed by `string`. The last token is encoded again, because it may merge with a line break."""
        if not ids:
            return self.encode(string)
        last = self.tokenizer.decode([ids[-1]])
        if "\ufffd" in last:
            return ids + self.encode(string)
        return ids[:-1] + self.encode(last + string)

    # ---- the kinds of exercises; each returns a Sample of at most `limit` ids

    def planted(self, rng, limit):
        length = limit if rng.chance(65) else rng.between(min(256, limit), limit)
        most = max(1, min(32, length // 48))
        style = rng.below(10)
        count = 1 if style < 3 else rng.between(1, min(8, most)) if style < 7 else rng.between(1, most)
        facts = draw_facts(rng, count)
        asked = rng.sample(facts, count if rng.chance(50) else rng.between(1, count))
        asked = asked[:max(1, length // 80)]
        reserve = 60 * len(asked) + 30 + 30 * count
        body = self.plant(rng, self.filler(rng, length - reserve), [fact.statement for fact in facts])
        form = rng.below(10)
        sample = Sample()
        if form < 4:
            self.ask_chat(rng, sample, body, asked)
        elif form < 7:
            self.ask_plain(sample, body, asked)
        else:
            self.ask_again(rng, sample, body, asked)
        return sample

    def ask_chat(self, rng, sample, body, asked):
        sample.add([END_OF_TEXT, USER])
        if rng.chance(30):
            sample.add(self.encode(rng.pick(INSTRUCTIONS)))
        if rng.chance(15):
            sample.add(body)
            sample.add([END, ASSISTANT])
            sample.add(self.encode(rng.pick(READ)) + [END])
            sample.add([USER])
            first = self.encode(asked[0].question)
        else:
            first = self.join(body, "\n\n" + asked[0].question)
        for i, fact in enumerate(asked):
            sample.add(first if i == 0 else [USER] + self.encode(fact.question))
            brief = rng.chance(15)
            if brief:
                sample.add(self.encode(rng.pick(ONLY)))
            sample.add([END, ASSISTANT])
            sample.add(self.encode(fact.value if brief else fact.answer), ANSWER)
            sample.add([END])

    def ask_plain(self, sample, body, asked):
        sample.add([END_OF_TEXT])
        for i, fact in enumerate(asked):
            question = f"\n\nQuestion: {fact.question}\nAnswer:"
            sample.add(self.join(body, question) if i == 0 else self.encode(question))
            sample.add(self.encode(" " + fact.value), ANSWER)

    def ask_again(self, rng, sample, body, asked):
        sample.add([END_OF_TEXT])
        sample.add(body)
        for fact in asked:
            lead = rng.pick(LEAD_INS)
            prefix = fact.prefix
            if lead and prefix.startswith("The "):
                prefix = "the " + prefix[4:]
            sample.add(self.encode(" " + lead + prefix))
            sample.add(self.encode(" " + fact.value), ANSWER)
            sample.add(self.encode("."))

    def several(self, rng, limit):
        """Several values of one key, or several keys in one question."""
        attr, count = rng.pick(CODE_NAMES), rng.between(2, 4)
        facts = [code_fact(rng, 6, attr, None, rng.chance(50)) for _ in range(count)]
        if len({fact.key for fact in facts}) < count:
            return self.planted(rng, limit)
        subject = code_subject(rng)
        if rng.chance(50):
            values = [digits(rng, 6) for _ in range(count)]
            statements = [f"{'One' if i == 0 else 'Another'} {attr} for {subject} is {v}." for i, v in enumerate(values)]
            question = rng.pick([f"What are all the {attr}s for {subject}?", f"Which {attr}s does the text give for {subject}?"])
        else:
            values = [fact.value for fact in facts]
            statements = [fact.statement for fact in facts]
            keys = [fact.key[len(attr) + 1:] for fact in facts]
            question = f"What are the {attr}s for {', '.join(keys[:-1])} and {keys[-1]}?"
        noise = [fact.statement for fact in draw_facts(rng, rng.below(6))] if rng.chance(60) else []
        ids = self.filler(rng, limit - 320 if limit > 640 else limit // 2)
        # the answer lists the values in the order of the text, so the statements are inserted in that order
        body = list(ids)
        cuts = sorted(rng.below(len(body) + 1) for _ in statements)
        places = self.corpus.sentence_starts(ids)
        shifted = 0
        for cut, statement in zip(cuts, statements):
            at = int(places[min(np.searchsorted(places, cut), len(places) - 1)]) if len(places) else len(ids)
            piece = self.encode(" " + statement)
            body[at + shifted:at + shifted] = piece
            shifted += len(piece)
        if noise:
            body = self.plant(rng, np.array(body, np.int64), noise)
        listed = ", ".join(values[:-1]) + " and " + values[-1]
        sample = Sample()
        if rng.chance(60):
            sample.add([END_OF_TEXT, USER])
            sample.add(self.join(body, "\n\n" + question) + [END, ASSISTANT])
            sample.add(self.encode(f"The {attr}s are {listed}."), ANSWER)
            sample.add([END])
        else:
            sample.add([END_OF_TEXT])
            sample.add(self.join(body, f"\n\nQuestion: {question}\nAnswer:"))
            sample.add(self.encode(" " + listed), ANSWER)
        return sample

    def chat(self, rng, limit):
        sample = Sample()
        sample.add([END_OF_TEXT])
        for role, said in dialogue(rng, self.corpus):
            sample.add([ROLE[role]])
            sample.add(self.encode(said) + [END], 2 if role == "assistant" else 1)
        return sample

    def pairs(self, rng, limit):
        """A list of keys and values; some of the keys are asked for at the end."""
        template, ask = rng.pick([("{k}: {v}\n", "{k}:"), ("{k} = {v}\n", "{k} ="), ("\"{k}\": \"{v}\",\n", "\"{k}\": \""),
                                  ("{k} -> {v}\n", "{k} ->"), ("{k}\t{v}\n", "{k}\t"), ("{k}: {v}\n", "What is the value of {k}?")])
        size = rng.between(3, 8)
        words = rng.below(3)
        count = rng.between(3, max(4, (min(limit, 4000) - 120) // (14 + size)))
        table = {}
        while len(table) < count:
            key = pseudo_word(rng) if words == 0 else town(rng) if words == 1 else f"{rng.pick(TABLES['adj'])} {rng.pick(TABLES['object'])}"
            table[key if key not in table else key + " " + pseudo_word(rng)] = digits(rng, size) if rng.chance(80) else pseudo_word(rng)
        sample = Sample()
        sample.add([END_OF_TEXT])
        for key, value in table.items():
            sample.add(self.encode(template.format(k=key, v=value)))
        if "What" in ask:
            sample.add(self.encode("\n"))
        for key in rng.sample(sorted(table), min(count, rng.between(2, 8))):
            line = template if "What" not in ask else ask + " The value of {k} is {v}.\n"
            whole = line.format(k=key, v=table[key])
            at = whole.rindex(table[key])
            if template.find("\t") < 0 and whole[at - 1] == " ":
                at -= 1
            sample.add(self.encode(whole[:at]))
            sample.add(self.encode(whole[at:]), ANSWER)
        return sample

    def copying(self, rng, limit):
        most = min(400, limit // 2 - 40)
        size = rng.between(12, max(13, most))
        sample = Sample()
        sample.add([END_OF_TEXT])
        if rng.chance(35):  # random ids, which can only be copied
            ids = [300 + rng.below(7892) for _ in range(min(size, 120))]
            for i in range(rng.between(2, 3)):
                sample.add(ids, 0 if i == 0 else 2)
            return sample
        ids = self.corpus.plain(rng, size)
        if rng.chance(50):
            sample.add(ids)
            sample.add(self.encode("\n\n"))
        else:  # repeated after other text
            sample.add(ids)
            sample.add(self.filler(rng, max(0, limit - 2 * size - 40)))
            sample.add(self.encode("\n\nAgain:\n\n"))
        sample.add(ids[:10])
        sample.add(ids[10:], 2)
        return sample

    def recall(self, rng, limit):
        """The start of a passage that occurred much earlier; its continuation is asked for."""
        size = rng.between(24, 72)
        ids = self.filler(rng, limit - 3 * size - 30)
        if len(ids) < 2 * size:
            return self.copying(rng, limit)
        sample = Sample()
        sample.add([END_OF_TEXT])
        sample.add(ids)
        for _ in range(rng.between(1, 3)):
            at = rng.below(len(ids) - size)
            sample.add(self.encode("\n\nQuote:"))
            sample.add(ids[at:at + 8])
            sample.add(ids[at + 8:at + size], 2)
        return sample

    def variables(self, rng, limit):
        """Chains of assignments: a value, names that copy it, and a question for one of them."""
        chains = []
        for _ in range(rng.between(1, 4)):
            names = [rng.pick("ABCDEFGHKLMNPRSTUVWXYZ") + str(rng.between(1, 99)) for _ in range(rng.between(1, 4))]
            chains.append((digits(rng, 5), names))
        if len({name for _, names in chains for name in names}) < sum(len(names) for _, names in chains):
            return self.pairs(rng, limit)
        style = rng.below(2)
        lines = []
        for value, names in chains:
            for i, name in enumerate(names):
                source = value if i == 0 else names[i - 1]
                lines.append((i, f"{name} = {source}." if style else f"Let {name} be {'equal to ' if i else ''}{source}."))
        order = sorted(lines, key=lambda line: (line[0], rng.next()))
        body = list(self.filler(rng, rng.between(0, max(0, limit - 260))))
        step = max(1, len(body) // len(order))
        places = self.corpus.sentence_starts(np.array(body, np.int64)) if body else np.zeros(0, np.int64)
        out, last = [], 0
        for i, (_, line) in enumerate(order):
            at = len(body)
            if len(places):
                at = max(last, int(places[min(np.searchsorted(places, i * step), len(places) - 1)]))
            out.extend(body[last:at])
            out.extend(self.encode(" " + line))
            last = at
        out.extend(body[last:])
        sample = Sample()
        sample.add([END_OF_TEXT])
        first = True
        for value, names in rng.sample(chains, min(2, len(chains))):
            name = rng.pick(names)
            question = f"\n\nQuestion: What is the value of {name}?\nAnswer:"
            sample.add(self.join(out, question) if first else self.encode(question))
            first = False
            sample.add(self.encode(" " + value), ANSWER)
        return sample

    def frequent(self, rng, limit):
        """A long list of words; the answer is the three most frequent ones."""
        pool = rng.sample(TABLES["object"] + TABLES["food"] + TABLES["animal"] + TABLES["job"], 40)
        often, rest = pool[:3], pool[3:]
        scale = max(1, min(limit, 1200) // 120)
        words = []
        for i, word in enumerate(often):
            words += [word] * (scale * (4 - i))
        for word in rest:
            words += [word] * rng.between(0, max(1, scale // 3))
        sample = Sample()
        sample.add([END_OF_TEXT])
        sample.add(self.encode("Words: " + " ".join(rng.shuffle(words)) + "\n\nThe three most frequent words are"))
        sample.add(self.encode(" " + ", ".join(often)), ANSWER)
        return sample

    # ---- rows

    FAMILIES = {"planted": ["planted"] * 17 + ["several"] * 2 + ["recall"],
                "chat": ["chat"],
                "other": ["pairs"] * 7 + ["copying"] * 4 + ["recall"] * 4 + ["variables"] * 3 + ["several"] * 2 + ["frequent"]}

    def row(self, rng, kind, size):
        """Ids and weights of one row of `size` tokens, filled with samples of one kind."""
        ids, weights = [], []
        while len(ids) < size:
            left = size - len(ids)
            if left < 160 and kind != "chat":
                sample = Sample()
                sample.add([END_OF_TEXT])
                sample.add(self.corpus.plain(rng, left))
            else:
                limit = left
                if left > 1024 and rng.chance(35):
                    limit = rng.between(400, left)
                sample = getattr(self, rng.pick(self.FAMILIES[kind]))(rng, limit)
            ids.extend(sample.ids)
            weights.extend(sample.weights)
        return np.array(ids[:size], np.uint16), np.array(weights[:size], np.uint8)
