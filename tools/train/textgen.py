#!/usr/bin/env python3
"""Generates readable text from a seed: filler for planted facts, and short stories.

    python tools/train/textgen.py --seed 7 --paragraphs 3
    python tools/train/textgen.py --seed 7 --story

Used for the training data and the needle evaluation; the engine has a port of it. Needs only the standard library. The
random generator is SplitMix64, and a choice among n things is (next() >> 33) % n, so a port that draws in the same order
gives the same text.

A paragraph has one topic (market, harbour, garden ...), one person, one place, and four to eight different sentences from
the topic's list. In a sentence `{word}` is replaced: `name`, `He`, `he`, `his`, `him` by the paragraph's person, `place`
by its place, any other word by a random one from its table. The text contains no digits except planted numbers.
"""

import argparse
import re

MASK = (1 << 64) - 1


class Rng:
    """SplitMix64. The state is one 64-bit word; every draw advances it by a constant."""

    def __init__(self, seed):
        self.state = seed & MASK

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def below(self, n):
        return (self.next() >> 33) % n

    def between(self, low, high):
        """Whole number in low..high, both included."""
        return low + self.below(high - low + 1)

    def chance(self, percent):
        return self.below(100) < percent

    def pick(self, items):
        return items[self.below(len(items))]

    def shuffle(self, items):
        for i in range(len(items) - 1, 0, -1):
            j = self.below(i + 1)
            items[i], items[j] = items[j], items[i]
        return items

    def sample(self, items, count):
        return self.shuffle(list(items))[:count]


# Names: pronoun class 0 = she, 1 = he.
WOMEN = """Ada Agnes Alma Anna Astrid Beatrice Bertha Carla Cecilia Clara Cora Daria Edith Elena Elsa Emma Erna Esther
Flora Frida Greta Hanna Helen Hilda Ida Ilse Ines Irma Jana Johanna Julia Karin Lena Lina Lotte Louise Lucia Magda
Maria Marta Mathilda Mina Nadia Nora Olga Petra Renata Rosa Ruth Sofia Stella Tilda Ursula Vera Wilma Yara Zora""".split()
MEN = """Albert Alfred Anton Arthur Axel Benno Bruno Carl Casper Conrad David Edgar Emil Erik Ernst Felix Ferdinand
Frank Gustav Hans Harald Henry Hugo Ivan Jakob Jan Jonas Josef Julius Kurt Lars Leo Linus Ludwig Magnus Martin Max
Milan Nils Oskar Otto Paul Peter Philip Ralf Robert Rolf Rudolf Samuel Simon Stefan Sven Theo Thomas Victor Walter
Werner Willem Yann""".split()
SURNAME_HEADS = "Hal Brook Lind Marl Thorn Ash Berg Dal Fen Green Holm Kings Lang Nor Oak Rav Sand Stone Vel Wend Wint Bar Cold Ell Gar".split()
SURNAME_TAILS = "worth qvist strom well field ley man berg ton ridge mark wick sen by hurst ander ing more stead aker".split()
TOWN_HEADS = "Al Brin Cal Dor El Far Grim Hal Is Kel Lor Mar Nor Ost Pel Ron Sel Tor Ul Vin Wal Yar Zel Bel Cor Dun Esk Fen Gal Hol".split()
TOWN_TAILS = "ford haven mouth stad vik dale burg minster port bridge wold grave mere holm ton by field gate moor strand".split()

TABLES = {
    "adj": """quiet old narrow bright heavy gentle clever curious patient small tall grey golden rusty wooden warm cold soft
        careful cheerful distant simple plain honest lonely steady sturdy faded polished crooked smooth dusty silver
        friendly tired proud modest sleepy busy empty little round strange familiar""".split(),
    "object": """lantern kettle ladder basket clock compass letter mirror hammer needle candle blanket barrel bottle
        rope key coin map violin drum book chair table window cup plate bell wheel saddle anchor brush pencil button
        ribbon scarf hat coat glove whistle knife spoon bucket wagon lamp trunk feather box""".split(),
    "food": """bread soup cheese honey apples pears plums cherries nuts fish porridge cabbage beans onions butter milk
        tea cake salt pepper barley mushrooms carrots turnips berries jam""".split(),
    "animal": """dog cat horse goat goose hen fox owl sparrow donkey sheep cow hedgehog rabbit heron raven otter badger
        squirrel pony mouse swallow""".split(),
    "tree": "oak birch pine willow elm beech maple lime ash alder chestnut rowan poplar".split(),
    "job": """baker miller smith carpenter teacher fisherman weaver gardener shepherd doctor clerk printer sailor mason
        tailor potter musician clockmaker ferryman postman painter cook librarian beekeeper""".split(),
    "colour": "red blue green yellow white black brown grey orange purple pink".split(),
    "weather": ["rain", "snow", "fog", "sunshine", "wind", "frost", "drizzle", "thunder", "hail", "mist"],
    "when": ["in the morning", "at noon", "in the evening", "before sunrise", "after supper", "late at night",
             "early the next day", "on market day", "at the end of the week", "toward evening", "that afternoon",
             "in the first days of spring", "at harvest time", "when the bells rang", "on the longest day of the year"],
    "season": "spring summer autumn winter".split(),
    "number": "two three four five six seven eight nine ten eleven twelve twenty".split(),
    "feeling": "content worried hopeful tired glad curious proud calm uneasy surprised grateful thoughtful".split(),
    "mood": "small clever curious patient gentle old young brave shy lonely cheerful tired proud friendly sleepy".split(),
    "manner": "slowly carefully quietly quickly gladly patiently gently calmly firmly politely".split(),
    "kin": "brother sister mother father uncle aunt cousin grandmother grandfather neighbour friend".split(),
    "material": "wood iron stone copper glass wool linen leather clay silver paper tin".split(),
    "direction": "north south east west".split(),
    "water": "river lake sea pond stream canal harbour bay".split(),
}
PLACES = """the market square|the old mill|the harbour|the stone bridge|the schoolhouse|the village inn|the lighthouse|
the orchard|the workshop|the town hall|the railway station|the library|the chapel|the bakery|the ferry landing|
the upper meadow|the boat shed|the clock tower|the walled garden|the post office|the glasshouse|the quarry|
the sawmill|the north field|the fish market|the museum""".replace("\n", "").split("|")

TOPICS = {
    "market": [
        "{name} came to {place} {when} with a basket of {food}.",
        "The stalls were full of {food}, {food} and {food}.",
        "A {job} from {town} was selling a {adj} {object} made of {material}.",
        "{He} asked the price twice and paid with {number} small coins.",
        "The {job} said that the {food} had been better in {season}.",
        "Two children counted the {adj} hens and never came to the same number.",
        "{name} bought some {food} for {his} {kin} and a {colour} ribbon for {him_self}.",
        "By the fountain an old {job} told the same story to everyone who would listen.",
        "When the {weather} came, the traders covered their {food} with {colour} cloth.",
        "{He} carried everything home {manner} and put it on the kitchen table.",
        "Nobody wanted the {adj} {object}, so {he} took it for almost nothing.",
    ],
    "harbour": [
        "The boats came back {when}, heavy with {food} and {adj} nets.",
        "{name} stood on the quay and watched the {weather} move in from the {direction}.",
        "A {adj} {job} was mending a rope beside a barrel of {food}.",
        "{He} had promised {his} {kin} to bring news from {town}.",
        "The ferry was late again, and nobody was surprised.",
        "Someone had painted the small boat {colour} and given it a new name.",
        "{He} listened to the water under the planks and felt {feeling}.",
        "A {animal} slept on a coil of rope and would not be moved.",
        "The captain pointed to the {direction} and spoke {manner} about the tide.",
        "In {season} the whole bay smells of tar and {food}.",
        "At the end of the pier hung a {adj} {object} that no one had claimed.",
    ],
    "garden": [
        "In {season} {name} spent whole days behind {place}, digging and planting.",
        "{He} set out the beans in {number} straight rows.",
        "A {adj} {tree} gave shade to the bench and to the sleeping {animal}.",
        "The {animal} came through the hedge {when} and ate the best leaves.",
        "{His} {kin} said that the soil was too heavy, but {he} did not give up.",
        "After the {weather} everything smelled of earth and {food}.",
        "{He} tied the young {tree} to a stake with a strip of {colour} cloth.",
        "The first {food} were small, but {he} was {feeling} all the same.",
        "A {adj} {object} lay forgotten under the leaves.",
        "{name} watered the pots {manner}, one after the other, until it grew dark.",
        "The wall kept the cold wind from the {direction} away.",
    ],
    "journey": [
        "{name} left {place} {when} and took the road to the {direction}.",
        "The way to {town} led past a {adj} mill and along the {water}.",
        "{He} carried a {object}, some {food} and a letter from {his} {kin}.",
        "After {number} hours the {weather} began, and the road turned soft.",
        "A {job} with a {adj} cart offered {him} a seat.",
        "They spoke about {town}, about the price of {food} and about the {season}.",
        "Near the bridge a {animal} stood in the road and looked at them.",
        "{He} slept in a barn and woke up {feeling}.",
        "From the hill {he} could see the roofs of {town} and the {adj} tower.",
        "The inn was full, so {he} shared a table with a {job} and a {job}.",
        "In the morning the {water} was covered with mist.",
    ],
    "workshop": [
        "{name} had learned the trade from {his} {kin}, who was a {job} in {town}.",
        "The workshop near {place} smelled of {material} and oil.",
        "{He} was making a {object} for a {job} who lived by the {water}.",
        "The first one had been too {adj}, and the second one broke.",
        "{He} measured everything twice and cut it once.",
        "A {animal} watched from the windowsill and wanted nothing.",
        "The tools hung on the wall in the order in which {he} used them.",
        "\"Good work takes time,\" {he} said, \"and bad work takes longer.\"",
        "Toward evening {he} polished the {material} {manner} until it shone.",
        "The {job} came {when}, turned the {object} in his hands and nodded.",
        "{He} was paid in {food}, which was not unusual in {season}.",
    ],
    "school": [
        "The children came to {place} {when}, and {name} counted them at the door.",
        "On the wall hung a map on which {town} was spelled wrong.",
        "{He} read aloud a story about a {animal} and a {adj} {object}.",
        "A boy in a {colour} coat asked why the {water} never gets full.",
        "{name} answered {manner} and drew a picture on the board.",
        "They learned the names of {number} birds and forgot half of them again.",
        "Outside, the {weather} tapped against the windows.",
        "{He} was {feeling} when even the smallest child could read the sentence.",
        "One girl had brought {food} and shared it with everyone.",
        "At the end of the lesson somebody found a {object} under the bench.",
        "\"Tomorrow we shall talk about {season},\" {he} said.",
    ],
    "house": [
        "The house stood between {place} and a row of {tree} trees.",
        "{name} had lived there for {number} years with {his} {kin}.",
        "In the kitchen a kettle was singing, and the table was set with {food}.",
        "{His} {kin} kept a {adj} {object} on the shelf above the stove.",
        "Every stair creaked, and {he} knew each of them by its voice.",
        "The {animal} had its own chair, and guests were warned about it.",
        "When the {weather} came from the {direction}, the windows shook a little.",
        "{He} lit the lamp {when} and wrote a letter to {town}.",
        "Under the roof there were boxes of {material} that nobody had opened since {season}.",
        "{name} felt {feeling} when the rooms were quiet at last.",
        "The door had been painted {colour} so often that it no longer closed.",
    ],
    "letters": [
        "A letter from {town} arrived at {place} {when}.",
        "It was written in {colour} ink on very thin paper.",
        "{name} read it {manner}, and then {he} read it again aloud.",
        "{His} {kin} wrote that the {food} had been good and the {weather} terrible.",
        "There was also some news about the {job} and his {adj} {animal}.",
        "{He} put the letter into a {object} where {he} kept all the others.",
        "The answer took {him} {number} evenings.",
        "{He} described the {season}, the new {object} and the noise of the {water}.",
        "At the bottom of the page {he} drew a small {animal}.",
        "The postman was a {adj} man who never asked a question.",
        "For a while nothing more was heard from {town}.",
    ],
    "festival": [
        "Once a year, {when}, the whole town met at {place}.",
        "There were long tables with {food} and {food}, and lamps in the {tree} trees.",
        "{name} played the violin, and {his} {kin} beat the drum.",
        "The {job} danced with the {job}, although neither of them could dance.",
        "A {adj} {animal} stole the {food} and was forgiven.",
        "The mayor gave a speech about {material} and forgot the end of it.",
        "{He} won a {object} in the race around the pond.",
        "Not even the {weather} could drive the people away.",
        "Children carried {colour} lanterns down to the {water}.",
        "{name} walked home {manner}, {feeling} and a little hungry.",
        "People from {town} came too, and for once there was no quarrel.",
    ],
    "weather": [
        "That {season} the {weather} lasted for {number} weeks.",
        "{name} noted it every day in a {adj} book at {place}.",
        "The {water} rose to the second step and then went down again.",
        "The {job} said that such a {season} had not been seen since his childhood.",
        "Every {animal} in the valley looked for a dry place.",
        "{He} hung the wet coats beside the stove and made tea.",
        "In {town} it was even worse, according to the travellers.",
        "{When_cap} the clouds opened, and the hills turned {colour} in the light.",
        "People talked about nothing else over their {food}.",
        "{He} was {feeling}, for the roof had held.",
        "The wind from the {direction} brought the smell of {tree} and of wet leaves.",
    ],
}
TOPIC_NAMES = sorted(TOPICS)
SLOT = re.compile(r"\{([A-Za-z_]+)\}")


def surname(rng):
    return rng.pick(SURNAME_HEADS) + rng.pick(SURNAME_TAILS)


def town(rng):
    return rng.pick(TOWN_HEADS) + rng.pick(TOWN_TAILS)


def person(rng):
    """(name, pronoun class)"""
    kind = rng.below(2)
    return rng.pick(MEN if kind else WOMEN), kind


PRONOUNS = ({"He": "She", "he": "she", "His": "Her", "his": "her", "him": "her", "him_self": "herself"},
            {"He": "He", "he": "he", "His": "His", "his": "his", "him": "him", "him_self": "himself"})


def fill(template, rng, fixed):
    """Replaces every slot, by its value in `fixed` or else by a random word from its table."""

    def replace(match):
        slot = match.group(1)
        if slot in fixed:
            return fixed[slot]
        if slot == "town":
            return town(rng)
        if slot == "When_cap":
            text = rng.pick(TABLES["when"])
            return text[0].upper() + text[1:]
        return rng.pick(TABLES[slot])

    text = SLOT.sub(replace, template)
    return re.sub(r"\b([Aa]) (?=[aeiouAEIOU])", r"\1n ", text)


def paragraph(rng, sentences=None):
    topic = TOPICS[rng.pick(TOPIC_NAMES)]
    name, kind = person(rng)
    fixed = {"name": name, "place": rng.pick(PLACES), **PRONOUNS[kind]}
    count = sentences or rng.between(4, 8)
    order = sorted(rng.sample(range(len(topic)), min(count, len(topic))))
    first = {**fixed, "He": name, "His": name + "'s"}  # so that the paragraph does not open with a pronoun
    return " ".join(fill(topic[i], rng, first if i == order[0] else fixed) for i in order)


def text(rng, characters):
    """Paragraphs separated by a blank line, at least `characters` long."""
    parts, size = [], 0
    while size < characters:
        parts.append(paragraph(rng))
        size += len(parts[-1]) + 2
    return "\n\n".join(parts)


# Stories: one line from each stage, in order. {hero} is "a small fox", {Hero} "the fox".
STORY = {
    "open": [
        "Once upon a time there was {hero} who lived near {place}.",
        "Long ago, {hero} lived at the edge of a {adj} forest.",
        "There was once {hero} who had never left the valley.",
        "In a {adj} house by the {water} lived {hero}.",
        "Not far from {town} there lived {hero}, and everybody knew about it.",
    ],
    "want": [
        "More than anything, {Hero} wanted to find {thing}.",
        "One day {Hero} heard of {thing} that was hidden beyond the hills.",
        "Every evening {Hero} dreamed of {thing}.",
        "{Hero_cap} had lost {thing} and could not sleep until it was found.",
        "A {job} from {town} had promised {thing} to whoever would cross the {water}.",
    ],
    "leave": [
        "So {when} {Hero} packed some {food} and set out.",
        "{Hero_cap} said goodbye to everyone and walked to the {direction}.",
        "Without a word, {Hero} closed the door and went out into the {weather}.",
        "The next morning {Hero} took the road along the {water}.",
    ],
    "meet": [
        "On the way {he_she} met a {adj} {animal}, who asked where {he_she} was going.",
        "Under a {tree} sat an old {job} with a {object} in his lap.",
        "At the bridge a {animal} blocked the road and would not move.",
        "Before long a {animal} with a {colour} tail came out of the bushes.",
    ],
    "say": [
        "\"I am looking for {thing},\" said {Hero}. \"Can you help me?\"",
        "\"It is not far,\" said the stranger, \"but you must not be in a hurry.\"",
        "\"Give me some of your {food},\" said the stranger, \"and I shall show you the way.\"",
        "\"Nobody has ever come back from there,\" said the stranger {manner}.",
    ],
    "trouble": [
        "Then the {weather} began, and the path was hard to see.",
        "In the night the {water} rose, and the bridge was gone.",
        "The door was locked, and the key lay at the bottom of the {water}.",
        "But the cave was dark, and {Hero} was {feeling}.",
    ],
    "solve": [
        "{Hero_cap} thought for a while and then had a simple idea.",
        "Together they built a raft of {material} and {tree} branches.",
        "{Hero_cap} waited {manner} until the morning came.",
        "With a {adj} {object} {Hero} opened the way.",
    ],
    "find": [
        "And there, behind a {adj} stone, was {thing}.",
        "At last {Hero} held {thing} and could hardly believe it.",
        "In the end it turned out that {thing} had been at home all the time.",
        "When the sun rose, {thing} shone in the grass.",
    ],
    "end": [
        "{Hero_cap} shared everything with the new friend, and they were happy.",
        "From that day on, {Hero} was never lonely again.",
        "{Hero_cap} went home, told the story to everyone and slept for a whole day.",
        "And if you walk past {place} {when}, you may still hear them laugh.",
        "Since then nobody in the valley has been afraid of the dark.",
    ],
}
STORY_ORDER = ["open", "want", "leave", "meet", "say", "trouble", "solve", "find", "end"]


def story_slots(rng, hero=None, thing=None):
    mood = rng.pick(TABLES["mood"])
    hero = hero or rng.pick(TABLES["animal"])
    thing = thing or rng.pick(TABLES["object"])
    fixed = {"hero": f"a {mood} {hero}", "Hero": f"the {hero}", "Hero_cap": f"The {hero}",
             "thing": f"the {rng.pick(TABLES['adj'])} {thing}", "he_she": "it", "place": rng.pick(PLACES)}
    return fixed


def story(rng, hero=None, thing=None, stages=None):
    """A list of sentences, one per stage of STORY_ORDER (or of `stages`)."""
    fixed = story_slots(rng, hero, thing)
    return [fill(rng.pick(STORY[stage]), rng, fixed) for stage in (stages or STORY_ORDER)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--paragraphs", type=int, default=3)
    parser.add_argument("--story", action="store_true")
    args = parser.parse_args()
    rng = Rng(args.seed)
    if args.story:
        print(" ".join(story(rng)))
        return
    print("\n\n".join(paragraph(rng) for _ in range(args.paragraphs)))


if __name__ == "__main__":
    main()
