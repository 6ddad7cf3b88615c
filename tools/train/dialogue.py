"""Generated dialogues: lists of (role, text), drawn from intents with many wordings.

All sentences were written for this project. Two intents use passages of the training text through `passages`, an object
with `story(rng) -> (opening, continuation)`, `article(rng) -> (title, first lines)` and `sentences(rng, count) -> str`
(see data.py); each may return None when nothing fits.
"""

from facts import code_fact, draw_facts, full_name, word_fact
from textgen import MEN, PLACES, TABLES, WOMEN, paragraph, story, town

GREETINGS = ["Hello", "Hello!", "Hi", "Hi!", "Hi there", "Hi there!", "Good morning", "Good morning!", "Good evening.",
             "Good day!", "Hey", "Hey!", "Hello there.", "Greetings!", "Good afternoon!", "hello", "hi", "hey there"]
WELCOMES = ["Hello! How can I help you?", "Hello! What can I do for you?", "Hi! How can I help you today?",
            "Good day! What would you like to do?", "Hello! You can ask me something, or give me a text to read.",
            "Hi! Shall I tell you a story, or do you have a question?"]
HOW = ["How are you?", "How are you today?", "How do you do?", "Are you well?", "How is it going?", "how are you"]
FINE = ["I am well, thank you. How can I help you?", "Thank you, I am fine. What can I do for you?",
        "I am fine, thank you for asking. What would you like to know?"]
WHO = ["Who are you?", "What are you?", "What is your name?", "Tell me who you are.", "Are you a person?", "Are you human?",
       "Who am I talking to?", "Can you introduce yourself?", "Are you a robot?", "who are you", "what is your name?",
       "Do you have a name?"]
SELF = ["I am the built-in demonstration model of InfiniGen.", "I am a small language model that comes with InfiniGen.",
        "I am InfiniGen's built-in demonstration model, a small language model."]
SELF_MORE = ["", " I can answer questions about a text, remember what you tell me and continue stories.",
             " I am not a person.", " I am small, so please do not expect too much.",
             " You can give me a long text and ask for something in it."]
CAN = ["What can you do?", "How can you help me?", "What are you good at?", "What should I ask you?", "Help", "help",
       "What are your skills?", "Can you help me?"]
SKILLS = ["I can find facts in a long text, repeat and reverse lists, tell short stories and continue a text.",
          "Give me a text and a question, and I will look for the answer. I can also tell a story.",
          "I can read a text and answer simple questions about it. I can also continue a story that you begin."]
MAKER = ["Who made you?", "Who trained you?", "Where do you come from?", "How were you made?", "How big are you?",
         "How many parameters do you have?"]
MADE = ["I was trained for the InfiniGen project on books, articles and generated exercises.",
        "I come with InfiniGen. I have about eighteen million parameters, which is very small.",
        "I am a small model with about eighteen million parameters, trained for InfiniGen."]
WHAT_IS = ["What is InfiniGen?", "Tell me about InfiniGen.", "What does InfiniGen do?", "Explain InfiniGen."]
IS = ["InfiniGen is a program that runs language models on long texts. It fetches only the part of the memory that matters.",
      "InfiniGen runs language models. It keeps the memory of a long text in a cheap place and fetches what is important.",
      "InfiniGen is an engine for language models with long contexts, and I am its small demonstration model."]
THANKS = ["Thank you.", "Thank you!", "Thanks!", "Thanks a lot.", "thanks", "That was helpful.", "Great, thank you.", "Well done!"]
PLEASE = ["You are welcome.", "You are welcome!", "With pleasure.", "I am glad that I could help."]
BYES = ["Goodbye.", "Goodbye!", "Bye!", "See you later.", "Good night.", "bye", "I have to go now."]
PARTING = ["Goodbye!", "Goodbye! It was nice to talk to you.", "See you soon!", "Goodbye, and have a good day!"]
UNKNOWN = ["What will the weather be like tomorrow?", "What time is it?", "Who will win the next election?",
           "What am I thinking?", "What did I eat yesterday?", "Where are my keys?", "What is the price of gold today?",
           "How old am I?", "What is the meaning of life?", "Which number will win the lottery?", "What is today's date?",
           "Who called me last night?", "What is the name of my cat?", "Can you see me?", "What is the news today?",
           "When will the train arrive?", "How many people live in this street?", "What does my sister want for her birthday?",
           "Is it raining?", "What is in my pocket?", "Can you open the door?", "Will I be rich?"]
DONT_KNOW = ["I do not know.", "I am sorry, I do not know that.", "I do not know. You have not told me.",
             "I cannot know that.", "I am sorry, but I do not know.", "I do not know. I can only read what you write to me."]
CAPITALS = """France Paris|Italy Rome|Spain Madrid|Germany Berlin|Austria Vienna|Poland Warsaw|Greece Athens|Norway Oslo|
Sweden Stockholm|Denmark Copenhagen|Finland Helsinki|Portugal Lisbon|Ireland Dublin|England London|Scotland Edinburgh|
Hungary Budapest|Russia Moscow|Japan Tokyo|China Beijing|India Delhi|Egypt Cairo|Turkey Ankara|Canada Ottawa|Cuba Havana|
Peru Lima|Chile Santiago|Belgium Brussels|Switzerland Bern|Iceland Reykjavik|Kenya Nairobi""".replace("\n", "").split("|")
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
OPPOSITES = """hot cold|big small|high low|old new|fast slow|light dark|hard soft|early late|full empty|happy sad|
rich poor|wet dry|long short|open closed|strong weak|good bad|thick thin|near far|young old|clean dirty|loud quiet|
deep shallow|wide narrow|true false|first last|up down|left right|day night|summer winter|begin end""".replace("\n", "").split("|")
PLURALS = """dog dogs|cat cats|box boxes|child children|mouse mice|foot feet|tooth teeth|man men|woman women|city cities|
leaf leaves|knife knives|house houses|book books|bus buses|sheep sheep|story stories|apple apples|goose geese|key keys""".replace("\n", "").split("|")
SOUNDS = """dog barks|cat meows|cow moos|horse neighs|sheep bleats|duck quacks|hen clucks|owl hoots|frog croaks|bee buzzes|
lion roars|wolf howls|pig grunts|mouse squeaks""".replace("\n", "").split("|")
COLOURS_OF = """grass green|snow white|the sky blue|blood red|a lemon yellow|coal black|milk white|a ripe tomato red|
a carrot orange|chocolate brown|the sun yellow|an elephant grey""".replace("\n", "").split("|")
FACTS = """How many days are in a week?|There are seven days in a week.
How many months are in a year?|There are twelve months in a year.
How many legs does a spider have?|A spider has eight legs.
How many legs does a dog have?|A dog has four legs.
How many hours are in a day?|There are twenty-four hours in a day.
How many minutes are in an hour?|There are sixty minutes in an hour.
What do bees make?|Bees make honey.
What do cows give us?|Cows give us milk.
What is ice made of?|Ice is made of frozen water.
Where do fish live?|Fish live in water.
Where do birds build their nests?|Many birds build their nests in trees.
What does a baker make?|A baker makes bread.
What does a shoemaker make?|A shoemaker makes shoes.
Which star gives us light during the day?|The sun gives us light during the day.
What do we call a baby dog?|A baby dog is called a puppy.
What do we call a baby cat?|A baby cat is called a kitten.
Which animal has a trunk?|An elephant has a trunk.
What is the largest ocean?|The Pacific is the largest ocean.
Who wrote Hamlet?|Hamlet was written by William Shakespeare.
What is the season after winter?|Spring comes after winter.
What is the opposite of north?|The opposite of north is south.
How many sides has a triangle?|A triangle has three sides.
What do you use to write on paper?|You can use a pen or a pencil.
Where do you buy bread?|You can buy bread at a bakery.
What do you need when it rains?|You need an umbrella or a good coat.""".split("\n")
NUMBERS = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
seventeen eighteen nineteen twenty""".split()
ORDINALS = ["first", "second", "third", "fourth", "fifth", "sixth"]
SYSTEMS = ["You are a helpful assistant.", "You are InfiniGen's built-in demonstration model.", "Answer briefly.",
           "You are a friendly assistant. Answer in whole sentences.", "Be polite and brief."]
LIKES = ["I like reading about such things.", "That sounds nice.", "That is good to hear.", "Thank you for telling me."]


def a(noun):
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def turn(question, answer):
    return [("user", question), ("assistant", answer)]


def greet(rng, passages):
    kind = rng.below(3)
    if kind == 0:
        return turn(rng.pick(GREETINGS), rng.pick(WELCOMES))
    if kind == 1:
        return turn(rng.pick(HOW), rng.pick(FINE))
    return turn(rng.pick(["Hello", "Hi", "Good morning", "Hey"]) + rng.pick([", ", "! "]) + rng.pick(HOW), rng.pick(FINE))


def identity(rng, passages):
    kind = rng.below(8)
    if kind < 4:
        return turn(rng.pick(WHO), rng.pick(SELF) + rng.pick(SELF_MORE))
    if kind < 5:
        return turn(rng.pick(CAN), rng.pick(SKILLS))
    if kind < 6:
        return turn(rng.pick(MAKER), rng.pick(MADE))
    return turn(rng.pick(WHAT_IS), rng.pick(IS))


def manners(rng, passages):
    if rng.below(2):
        return turn(rng.pick(THANKS), rng.pick(PLEASE))
    return turn(rng.pick(BYES), rng.pick(PARTING))


def unknown(rng, passages):
    return turn(rng.pick(UNKNOWN), rng.pick(DONT_KNOW))


def world(rng, passages):
    kind = rng.below(10)
    if kind == 0:
        land, city = rng.pick(CAPITALS).split()
        return turn(rng.pick([f"What is the capital of {land}?", f"Which city is the capital of {land}?"]),
                    f"The capital of {land} is {city}.")
    if kind == 1:
        i, names = rng.below(7), DAYS
        if rng.below(2):
            i, names = rng.below(12), MONTHS
        if rng.below(2):
            return turn(f"What comes after {names[i]}?", f"{names[(i + 1) % len(names)]} comes after {names[i]}.")
        return turn(f"What comes before {names[i]}?", f"{names[(i - 1) % len(names)]} comes before {names[i]}.")
    if kind == 2:
        one, other = rng.sample(rng.pick(OPPOSITES).split(), 2)
        return turn(rng.pick([f"What is the opposite of {one}?", f"Tell me the opposite of {one}."]),
                    f"The opposite of {one} is {other}.")
    if kind == 3:
        one, many = rng.pick(PLURALS).split()
        return turn(f"What is the plural of {one}?", f"The plural of {one} is {many}.")
    if kind == 4:
        animal, sound = rng.pick(SOUNDS).split()
        return turn(rng.pick([f"What does {a(animal)} do?", f"Which sound does {a(animal)} make?"]),
                    f"{'An' if animal[0] in 'aeiou' else 'A'} {animal} {sound}.")
    if kind == 5:
        thing, colour = rng.pick(COLOURS_OF).rsplit(" ", 1)
        return turn(rng.pick([f"What colour is {thing}?", f"Which colour has {thing}?"]),
                    f"{thing[0].upper() + thing[1:]} is {colour}.")
    if kind < 8:
        x, y = rng.below(11), rng.below(10)
        style = rng.below(3)
        if style == 0:
            return turn(rng.pick([f"What is {x} plus {y}?", f"What is {x} + {y}?", f"{x} + {y} = ?"]), f"{x} plus {y} is {x + y}.")
        if style == 1:
            x, y = max(x, y), min(x, y)
            return turn(rng.pick([f"What is {x} minus {y}?", f"What is {x} - {y}?"]), f"{x} minus {y} is {x - y}.")
        return turn(f"Which number comes after {NUMBERS[x]}?", f"After {NUMBERS[x]} comes {NUMBERS[x + 1]}.")
    question, answer = rng.pick(FACTS).split("|")
    return turn(question, answer)


def memory(rng, passages):
    """The user tells something about himself and asks for it later, after other turns."""
    name = rng.pick(WOMEN if rng.below(2) else MEN)
    if rng.chance(50):
        name = full_name(rng)
    colour, home, animal = rng.pick(TABLES["colour"]), town(rng), rng.pick(TABLES["animal"])
    told = [
        (f"My name is {name}.", f"Nice to meet you, {name}.", "What is my name?", f"Your name is {name}."),
        (f"I am {name}.", f"Hello, {name}!", "Who am I?", f"You are {name}."),
        (f"I live in {home}.", rng.pick(LIKES), "Where do I live?", f"You live in {home}."),
        (f"My favourite colour is {colour}.", rng.pick(LIKES), "What is my favourite colour?", f"Your favourite colour is {colour}."),
        (f"I have {a(animal)}.", rng.pick(LIKES), "Which animal do I have?", f"You have {a(animal)}."),
        (f"I work as a {(job := rng.pick(TABLES['job']))}.", rng.pick(LIKES), "What is my job?", f"You work as a {job}."),
    ]
    chosen = rng.sample(told, rng.between(1, 3))
    turns = []
    for say, reply, _, _ in chosen:
        turns += turn(say, reply)
    for _ in range(rng.below(3)):
        turns += rng.pick([world, greet, unknown, lists])(rng, passages)
    for _, _, ask, answer in rng.shuffle(chosen):
        turns += turn(ask, answer)
    return turns


def lists(rng, passages):
    table = rng.pick(["object", "food", "animal", "tree", "job", "colour", "number", "feeling"])
    count = rng.between(2, 6)
    items = rng.sample(TABLES[table], count)
    if rng.chance(25):
        items = [str(rng.between(1, 999)) for _ in range(count)]
    listed = ", ".join(items)
    kind = rng.below(8)
    if kind < 2:
        return turn(rng.pick([f"Repeat: {listed}", f"Repeat this list: {listed}", f"Please repeat the words {listed}.",
                              f"Say this again: {listed}"]), listed)
    if kind < 4:
        return turn(rng.pick([f"Reverse this list: {listed}", f"Say this list backwards: {listed}",
                              f"Reverse the order: {listed}"]), ", ".join(reversed(items)))
    if kind == 4:
        return turn(f"What is the last word of this list? {listed}", f"The last word is {items[-1]}.")
    if kind == 5:
        i = rng.below(count)
        return turn(f"What is the {ORDINALS[i]} word of this list? {listed}", f"The {ORDINALS[i]} word is {items[i]}.")
    if kind == 6:
        return turn(f"How many words are in this list? {listed}", f"There are {NUMBERS[count]} words in the list.")
    inside = rng.pick(items) if rng.below(2) else rng.pick(TABLES[table])
    answer = "Yes, it is in the list." if inside in items else "No, it is not in the list."
    return turn(f"Is the word {inside} in this list? {listed}", answer)


def spelling(rng, passages):
    word = rng.pick(TABLES[rng.pick(["object", "food", "animal", "colour", "job"])])
    if rng.below(2):
        return turn(f"Spell the word {word}.", "-".join(word))
    return turn(f"What is the first letter of {word}?", f"The first letter of {word} is {word[0]}.")


def repeat(rng, passages):
    sentence = passages.sentences(rng, rng.between(1, 2)) if passages and rng.chance(70) else paragraph(rng, rng.between(1, 2))
    if not sentence:
        return manners(rng, passages)
    return turn(rng.pick([f"Repeat this: {sentence}", f"Repeat the following text.\n\n{sentence}", f"Please say this again: {sentence}",
                          f"Copy this text: {sentence}"]), sentence)


def passage(rng, passages):
    """A short text about two people, built from facts, and questions about it in several turns."""
    facts = [word_fact(rng) if rng.chance(75) else code_fact(rng) for _ in range(rng.between(2, 5))]
    sentences = [fact.statement for fact in facts]
    for _ in range(rng.between(0, 3)):
        sentences.insert(rng.below(len(sentences) + 1), paragraph(rng, 1))
    text = " ".join(sentences)
    asked = rng.sample(facts, rng.between(1, len(facts)))
    lead = rng.pick(["{t}\n\n{q}", "{t}\n\n{q}", "Read this text: {t}\n\n{q}", "Here is a text.\n\n{t}\n\n{q}", "{t} {q}",
                     "Text: {t}\nQuestion: {q}"])
    turns = turn(lead.format(t=text, q=asked[0].question), asked[0].answer)
    for fact in asked[1:]:
        turns += turn(fact.question, fact.answer)
    if rng.chance(12):
        other = word_fact(rng)
        if all(fact.key != other.key for fact in facts):
            turns += turn(other.question, rng.pick(["The text does not say that.", "I do not know. The text does not say."]))
    return turns


def told_fact(rng, passages):
    """Facts that are told in several turns and asked for later."""
    facts = draw_facts(rng, rng.between(1, 4))
    turns = []
    for fact in facts:
        turns += turn(rng.pick(["", "", "Remember this: ", "Please remember: "]) + fact.statement,
                      rng.pick(["I will remember that.", "All right.", "I have noted that.", "Understood."]))
    for _ in range(rng.below(2)):
        turns += rng.pick([world, greet, lists])(rng, passages)
    for fact in rng.shuffle(facts):
        turns += turn(fact.question, fact.answer)
    return turns


def tell_story(rng, passages):
    hero, thing = rng.pick(TABLES["animal"]), rng.pick(TABLES["object"])
    kind = rng.below(4)
    ask = [f"Tell me a story about {a(hero)}.", f"Tell me a story about {a(hero)} and {a(thing)}.", "Tell me a story.",
           f"Please tell me a short story about {a(thing)}."][kind]
    told = story(rng, hero if kind in (0, 1) else None, thing if kind in (1, 3) else None)
    drop = rng.below(3)
    if drop:
        told = [line for i, line in enumerate(told) if i not in (3 + drop, 5)]
    return turn(ask, " ".join(told))


def continue_story(rng, passages):
    found = passages.story(rng) if passages and rng.chance(70) else None
    if found is None:
        lines = story(rng)
        cut = rng.between(1, 4)
        found = " ".join(lines[:cut]), " ".join(lines[cut:])
    opening, rest = found
    return turn(rng.pick([f"Continue this story: {opening}", f"Continue the story.\n\n{opening}", f"How does this go on? {opening}",
                          f"Please continue: {opening}", f"Go on with this text.\n\n{opening}"]), rest)


def article(rng, passages):
    found = passages.article(rng) if passages else None
    if found is None:
        return world(rng, passages)
    title, text = found
    return turn(rng.pick([f"{text}\n\nWhat is this text about?", f"What is the following text about?\n\n{text}",
                          f"Find a title for this text.\n\n{text}"]), f"This text is about {title}.")


def describe(rng, passages):
    place = rng.pick(PLACES)
    return turn(rng.pick([f"Write a few sentences about {place}.", f"Describe a day at {place}.", f"Tell me something about {place}."]),
                described(rng, place))


def described(rng, place):
    lines = [f"It is a quiet day at {place}.", f"Many people come to {place} in {rng.pick(TABLES['season'])}.",
             f"{a(rng.pick(TABLES['animal'])).capitalize()} is sleeping in the shade.", f"An old {rng.pick(TABLES['job'])} is talking about the {rng.pick(['weather', 'price of bread', 'harvest', 'river'])}.",
             f"Somebody has left {a(rng.pick(TABLES['object']))} on the bench.", f"The air smells of {rng.pick(TABLES['food'])}.",
             f"Toward evening the light turns {rng.pick(TABLES['colour'])}, and everyone goes home."]
    keep = sorted(rng.sample(range(1, len(lines)), rng.between(2, 4)))
    return " ".join([lines[0]] + [lines[i] for i in keep])


INTENTS = [(greet, 8), (identity, 10), (manners, 5), (unknown, 8), (world, 14), (memory, 10), (lists, 12), (spelling, 3),
           (repeat, 6), (passage, 16), (told_fact, 8), (tell_story, 8), (continue_story, 14), (article, 5), (describe, 4)]
BAG = [intent for intent, weight in INTENTS for _ in range(weight)]


def dialogue(rng, passages=None):
    """One conversation: [("system"|"user"|"assistant", text), ...], which ends with a turn of the assistant."""
    turns = [("system", rng.pick(SYSTEMS))] if rng.chance(12) else []
    if rng.chance(20):
        turns += greet(rng, passages)
    for _ in range(rng.pick([1, 1, 1, 2, 2, 3, 4])):
        turns += rng.pick(BAG)(rng, passages)
    if rng.chance(12):
        turns += manners(rng, passages)
    return [(role, careless(said) if role == "user" and len(said) < 60 and rng.chance(10) else said) for role, said in turns]


def careless(said):
    """Casual typing: no capital at the start, no punctuation at the end."""
    return (said[0].lower() + said[1:]).rstrip(".?!")
