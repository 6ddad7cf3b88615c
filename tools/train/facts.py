"""Facts to plant in text and to ask for: a key, a value, and sentences that state, ask and answer.

A fact's `statement` is inserted into a long text, its `question` follows at the end. `answer` is an assistant's whole
sentence, `prefix` that sentence up to the value, and `value` what must be found. The canonical form, which the engine's
needle evaluation uses, is the first entry of each list in CODE_FORMS:

    The access code for the north gate is 483920.        What is the access code for the north gate?

The other wordings, kinds and names make the model learn to look up facts instead of memorising one sentence.
"""

from dataclasses import dataclass

from textgen import MEN, PLACES, TABLES, WOMEN, surname, town

CODE_NAMES = ["access code", "access code", "access code", "entry code", "door code", "security code", "pass code",
              "secret code", "code", "release code", "lock code", "safe code", "alarm code", "secret number", "key number",
              "magic number", "special number", "lucky number", "registration number", "reference number", "file number"]
SIDES = """north south east west upper lower old new inner outer left right main back front first second third small great
red blue green white black grey golden silver iron wooden stone copper northern southern eastern western central hidden
round long narrow royal quiet lonely ancient modern""".split()
SPOTS = """gate tower door bridge vault cellar garden harbour station library archive workshop warehouse office
laboratory hall chapel museum theatre stable barn mill mine tunnel lighthouse observatory greenhouse kitchen attic
basement courtyard depot hangar shed cabin locker safe box cabinet room wing staircase lift pier dock yard field
orchard storehouse armoury treasury bakery school hospital clinic boathouse pavilion""".split()
CODE_FORMS = {
    "statement": [
        "The {attr} for {subj} is {v}.", "The {attr} for {subj} is {v}.", "The {attr} for {subj} is {v}.",
        "The {attr} of {subj} is {v}.", "Remember that the {attr} for {subj} is {v}.",
        "Please note that the {attr} for {subj} is {v}.", "Note: the {attr} for {subj} is {v}.",
        "It was written there that the {attr} for {subj} was {v}.", "{v} is the {attr} for {subj}.",
        "It is important to know that the {attr} for {subj} is {v}.", "The {attr} for {subj} was changed to {v}.",
        "Whoever needs the {attr} for {subj} should use {v}.", "\"The {attr} for {subj} is {v},\" someone said.",
        "One should not forget that {subj} has the {attr} {v}.", "For {subj}, the {attr} is {v}.",
        "The {attr} for {subj} is: {v}.", "{Subj}: {attr} {v}.",
    ],
    "question": [
        "What is the {attr} for {subj}?", "What is the {attr} for {subj}?", "What is the {attr} for {subj}?",
        "What is the {attr} of {subj}?", "What was the {attr} for {subj}?", "Which {attr} belongs to {subj}?",
        "Can you tell me the {attr} for {subj}?", "Tell me the {attr} for {subj}.", "Do you remember the {attr} for {subj}?",
        "According to the text, what is the {attr} for {subj}?", "Please give me the {attr} for {subj}.",
        "What is the {attr} for {subj} that the text mentions?", "I need the {attr} for {subj}.",
    ],
    "prefix": "The {attr} for {subj} is",
}
# kind -> (statements, questions, prefix of the answer); {n} is the name, {v} the value, other slots the key
WORD_KINDS = {
    "pet": (["{n} has {a} {v} at home.", "{n}'s only pet is {a} {v}.", "At home {n} keeps {a} {v}."],
            ["Which animal does {n} have?", "What pet does {n} keep?"], "{n} has {a}", "animal"),
    "job": (["{n} works as a {v}.", "{n} is a {v} by trade.", "For many years {n} has been a {v}."],
            ["What does {n} work as?", "What is the job of {n}?"], "{n} works as a", "job"),
    "home": (["{n} lives in {v}.", "{n} has lived in {v} since last year.", "The home of {n} is in {v}."],
             ["Where does {n} live?", "In which town does {n} live?"], "{n} lives in", "town"),
    "colour": (["{n}'s favourite colour is {v}.", "The favourite colour of {n} is {v}.", "{n} likes the colour {v} best."],
               ["What is the favourite colour of {n}?", "What is {n}'s favourite colour?"], "The favourite colour of {n} is",
               "colour"),
    "food": (["{n} likes {v} more than any other food.", "The favourite food of {n} is {v}.", "What {n} likes best to eat is {v}."],
             ["What is the favourite food of {n}?", "What does {n} like best to eat?"], "The favourite food of {n} is", "food"),
    "place": (["{n} keeps the {k} in {v}.", "The {k} of {n} is in {v}.", "{n} has left the {k} in {v}."],
              ["Where is the {k} of {n}?", "Where does {n} keep the {k}?"], "The {k} of {n} is in", "place"),
    "owner": (["The {c} {k} belongs to {v}.", "The owner of the {c} {k} is {v}.", "{v} owns the {c} {k}."],
              ["Who owns the {c} {k}?", "To whom does the {c} {k} belong?"], "The {c} {k} belongs to", "person"),
    "password": (["The password for {s} is {v}.", "To enter {s} one has to say the password {v}.", "Remember the password for {s}: {v}."],
                 ["What is the password for {s}?", "Which password opens {s}?"], "The password for {s} is", "password"),
    "date": (["The {k} of {n} was bought on {v}.", "{n} bought the {k} on {v}."],
             ["When was the {k} of {n} bought?", "When did {n} buy the {k}?"], "The {k} of {n} was bought on", "date"),
    "price": (["The {c} {k} costs {v}.", "The price of the {c} {k} is {v}.", "One has to pay {v} for the {c} {k}."],
              ["How much does the {c} {k} cost?", "What is the price of the {c} {k}?"], "The {c} {k} costs", "price"),
    "year": (["{n} was born in the year {v}.", "The year {v} saw the birth of {n}.", "{n} came into the world in {v}."],
             ["In which year was {n} born?", "When was {n} born?"], "{n} was born in the year", "year"),
    "phone": (["The telephone number of {n} is {v}.", "{n} can be reached under the number {v}.", "To call {n}, dial {v}."],
              ["What is the telephone number of {n}?", "Under which number can {n} be reached?"],
              "The telephone number of {n} is", "phone"),
    "serial": (["The serial number of the {c} {k} is {v}.", "On the {c} {k} stands the serial number {v}."],
               ["What is the serial number of the {c} {k}?", "Which serial number has the {c} {k}?"],
               "The serial number of the {c} {k} is", "serial"),
}
MONTHS = "January February March April May June July August September October November December".split()
SYLLABLES = "ba be bo da de di do fa fe ga go ka ke ko la le li lo ma me mi mo na ne no pa pe ra re ri ro sa se si so ta te ti to va ve vo za zo".split()
CODAS = ["", "", "n", "r", "l", "s", "m", "x", "th", "nd", "k"]


@dataclass
class Fact:
    key: str
    statement: str
    question: str
    prefix: str
    value: str

    @property
    def answer(self):
        return f"{self.prefix} {self.value}."


def digits(rng, count):
    return str(1 + rng.below(9)) + "".join(str(rng.below(10)) for _ in range(count - 1))


def pseudo_word(rng):
    return "".join(rng.pick(SYLLABLES) for _ in range(rng.between(2, 3))) + rng.pick(CODAS)


def full_name(rng):
    return rng.pick(WOMEN if rng.below(2) else MEN) + " " + surname(rng)


def code_subject(rng):
    kind = rng.below(20)
    if kind < 11:
        return f"the {rng.pick(SIDES)} {rng.pick(SPOTS)}"
    if kind < 13:
        return rng.pick(PLACES)
    if kind < 14:
        return f"the {rng.pick(TABLES['adj'])} {rng.pick(TABLES['object'])}"
    if kind < 15:
        return f"room {rng.between(1, 99)}"
    if kind < 16:
        return f"the {rng.pick(SPOTS)} in {town(rng)}"
    if kind < 17:
        return full_name(rng)
    if kind < 18:
        return town(rng)
    if kind < 19:
        return f"project {pseudo_word(rng).capitalize()}"
    return f"the {rng.pick(TABLES['job'])} of {town(rng)}"


def code_fact(rng, length=6, attr=None, subject=None, canonical=False):
    subject = subject or code_subject(rng)
    attr = attr or rng.pick(CODE_NAMES)
    slots = {"attr": attr, "subj": subject, "Subj": subject[0].upper() + subject[1:], "v": digits(rng, length)}
    statements, questions = CODE_FORMS["statement"], CODE_FORMS["question"]
    return Fact(f"{attr} {subject}", (statements[0] if canonical else rng.pick(statements)).format(**slots),
                (questions[0] if canonical else rng.pick(questions)).format(**slots),
                CODE_FORMS["prefix"].format(**slots), slots["v"])


def draw_value(rng, kind):
    if kind == "town":
        return town(rng)
    if kind == "person":
        return full_name(rng)
    if kind == "place":
        return f"the {rng.pick(TABLES['colour'])} {rng.pick(['box', 'bag', 'drawer', 'cupboard', 'trunk', 'basket'])}"
    if kind == "password":
        return rng.pick([pseudo_word(rng), rng.pick(TABLES["object"]), f"{rng.pick(TABLES['adj'])} {rng.pick(TABLES['animal'])}"])
    if kind == "date":
        return f"{rng.between(1, 28)} {rng.pick(MONTHS)}"
    if kind == "price":
        return f"{rng.between(2, 99)} crowns"
    if kind == "year":
        return str(rng.between(1700, 1999))
    if kind == "phone":
        return f"{digits(rng, 3)}-{digits(rng, 4)}"
    if kind == "serial":
        letters = "ABCDEFGHJKLMNPQRSTUVWXYZ"
        return rng.pick(letters) + rng.pick(letters) + "-" + digits(rng, rng.between(3, 6))
    return rng.pick(TABLES[kind])


def word_fact(rng, kind=None):
    kind = kind or rng.pick(sorted(WORD_KINDS))
    statements, questions, prefix, value_kind = WORD_KINDS[kind]
    value = draw_value(rng, value_kind)
    slots = {"n": full_name(rng) if rng.chance(60) else rng.pick(WOMEN if rng.below(2) else MEN),
             "k": rng.pick(TABLES["object"]), "c": rng.pick(TABLES["colour"]), "s": code_subject(rng), "v": value,
             "a": "an" if value[0] in "aeiou" else "a"}
    used = "".join(f"{{{x}}}" for x in "nkcs" if f"{{{x}}}" in prefix)
    return Fact(kind + " " + used.format(**slots), rng.pick(statements).format(**slots),
                rng.pick(questions).format(**slots), prefix.format(**slots), value)


def draw_facts(rng, count):
    """`count` facts with different keys: codes of one attribute, codes of any attribute, or a mixture."""
    style = rng.below(10)
    attr = rng.pick(CODE_NAMES) if style < 5 else None
    length = 6 if rng.chance(75) else rng.between(3, 9)
    kind = rng.pick(sorted(WORD_KINDS)) if style == 9 else None
    canonical = rng.chance(25)
    facts, keys = [], set()
    while len(facts) < count:
        if style < 8:
            fact = code_fact(rng, length, attr, None, canonical)
        elif kind:
            fact = word_fact(rng, kind)
        else:
            fact = word_fact(rng) if rng.chance(60) else code_fact(rng, length)
        if fact.key not in keys:
            keys.add(fact.key)
            facts.append(fact)
    return facts
