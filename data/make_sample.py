"""Writes data/sample/: a few hundred rows a task of our own, in the course's file format.

Follows the CS 224N default project's files to the byte (tabs, the extra column of the sentiment test files, 0.0 and 1.0
for paraphrases); words and templates are sample_words.py's. The same seed gives the same files.

    python data/make_sample.py [FOLDER]
"""

import argparse
import csv
import hashlib
import random
import sys
from pathlib import Path

import sample_words as words

# Rows of train, dev and test: enough to learn from and to tell scores apart, few enough for a minute's training.
SIZES = {
    "ids-sst": (220, 100, 80),
    "ids-cfimdb": (120, 60, 40),
    "quora": (160, 100, 80),
    "sts": (160, 100, 80),
}
SEED = 11711  # the course's

# Difficulty. Dev scores of the default run should end between 60 and 95 %, best between 70 and 88.
SENTIMENT_SHARES = (0.15, 0.24, 0.20, 0.25, 0.16)  # of the classes 0 to 4, near SST's
SENTIMENT_NOISE = 0.24  # standard deviation of a reader's opinion: about one label in ten moves to its neighbor
PARAPHRASE_SHARE = 0.42  # near Quora's .37
NEGATIVES = {"other": 0.40, "slot": 0.42, "else": 0.12, "swap": 0.06}  # what keeps two questions from being the same
DISTRACTION = 0.8  # share of pairs in which who asks points to the wrong answer
SIMILARITY_NOISE = 0.3  # standard deviation in points of the 0 to 5 scale
COSTS = {  # points that a difference takes from 5
    "form": 0.1, "look": 0.3, "place": 0.5, "count": 0.5, "figure": 1.4, "object": 2.2, "verb": 2.8,
    "when": 0.2, "amount": 0.5, "town": 0.8, "cause": 1.4, "victim": 2.2, "effect": 2.8,
}  # fmt: skip
REVIEW_AGREEMENT = 0.7  # share of a film review's opinions that agree with its verdict
# How many small and large differences an STS pair has; None is an unrelated pair. Pairs that share most words and mean
# something else, and pairs that share few and mean nearly the same, keep word overlap from answering.
CHANGES = ((0, 0), (1, 0), (2, 0), (2, 0), (3, 0), (0, 1), (0, 1), (1, 1), (2, 1), (0, 2), (1, 2), (1, 3), None)

# What a negation leaves of an adjective's strength: "not brilliant" is worse than average, "not awful" a little better.
NEGATED = {2: -1.0, 1: -1.0, -1: 1.0, -2: 0.2}


def options(text: str) -> list[str]:
    """The choices in a string of sample_words: separated by | or by a line end."""
    return [word.strip() for line in text.split("\n") for word in line.split("|")]


def groups(text: str) -> list[list[str]]:
    """The choices with their synonyms: `bicycle=bike|van` -> [["bicycle", "bike"], ["van"]]."""
    return [choice.split("=") for choice in options(text)]


def capital(text: str) -> str:
    return text[0].upper() + text[1:]


def a(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


class Opinions:
    """Sentences about films, each with how much its writer liked the film, from -2 to 2."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.title = None  # of the film under review

    def pick(self, text: str) -> str:
        return self.rng.choice(options(text))

    def adjective(self, strength: int) -> tuple[str, float]:
        """An adjective of that strength, alone, strengthened, weakened or negated, and what is left of it."""
        word = self.pick(words.ADJECTIVES[strength])
        draw = self.rng.random()
        if strength and draw < 0.15:
            return f"{self.pick(words.NOT)} {word}", NEGATED[strength]
        if abs(strength) == 2 and draw < 0.6:
            return f"{self.pick(words.MOST)} {word}", strength
        if abs(strength) == 1 and draw < 0.45:
            return f"{self.pick(words.MORE)} {word}", 1.15 * strength
        if strength == -1 and draw < 0.7:
            return f"{self.pick(words.LESS)} {word}", -0.85
        return word, strength

    def aspect(self) -> tuple[str, str]:
        """Something a film has, and the verb that goes with it."""
        if self.rng.random() < 0.35:
            return f"the {self.pick(words.PLURAL)}", "are"
        return f"the {self.pick(words.SINGULAR)}", "is"

    def clause(self, strength: int) -> tuple[str, float]:
        (thing, verb), (word, value) = self.aspect(), self.adjective(strength)
        return f"{thing} {verb} {word}", value

    def sentence(self) -> tuple[str, float]:
        """A sentence of any kind, the frequent kinds named twice."""
        kinds = (self.plain, self.plain, self.titled, self.titled, self.twice, self.but, self.but, self.despite)
        kinds += (self.reaction, self.reaction, self.clause_and_reaction, self.verdict, self.verdict, self.verdict)
        kinds += (self.plot, self.plot_and_clause, self.if_only, self.what_a, self.neither, self.quoted)
        return self.rng.choice(kinds)(self.rng.choice((-2, -2, -1, -1, 0, 1, 1, 2, 2)))

    def opposite(self, strength: int) -> int:
        return -strength or self.rng.choice((-1, 1))

    def plain(self, strength):
        text, value = self.clause(strength)
        return f"{self.pick(words.OPENERS)} , {text}", value

    def titled(self, strength):
        (thing, verb), (word, value) = self.aspect(), self.adjective(strength)
        return f"{thing} of {self.pick(words.TITLES)} {verb} {word}", value

    def twice(self, strength):
        (one, first), (two, second) = self.clause(strength), self.clause(strength)
        return f"{one} , and {two}", (first + second) / 2

    def but(self, strength):
        (one, first), (two, second) = self.clause(self.opposite(strength)), self.clause(strength)
        return f"{one} , but {two}", 0.1 * first + 0.9 * second

    def despite(self, strength):
        (thing, _), (text, value) = self.aspect(), self.clause(strength)
        word = self.pick(words.ADJECTIVES[self.opposite(strength)])
        return f"despite the {word} {thing.removeprefix('the ')} , {text}", 0.95 * value

    def reaction(self, strength):
        return f"{self.pick(words.WATCHERS)} {self.pick(words.REACTIONS[strength])}", strength

    def clause_and_reaction(self, strength):
        (one, first), (two, second) = self.clause(strength), self.reaction(strength)
        return f"{one} , and {two}", (first + second) / 2

    def verdict(self, strength):
        return self.pick(words.VERDICTS[strength]).format(title=self.title or self.pick(words.TITLES)), strength

    def plot(self, _=0):
        hero, deed, where = self.pick(words.HEROES), self.pick(words.DEEDS), self.pick(words.SETTINGS)
        return f"{self.title or self.pick(words.TITLES)} follows a {hero} who {deed} {where}", 0

    def plot_and_clause(self, strength):
        text, value = self.clause(strength)
        return f"a {self.pick(words.HEROES)} {self.pick(words.DEEDS)} , and {text}", value

    def if_only(self, _):
        (thing, _), (rival, _) = self.aspect(), self.aspect()
        return f"if only {thing} were as {self.pick(words.ADJECTIVES[1])} as {rival}", -1

    def what_a(self, strength):
        word = self.pick(words.ADJECTIVES[strength])
        return f"what {a(word)} {self.pick(words.GENRES)} {self.pick(words.TITLES)} is", strength

    def neither(self, strength):
        (thing, verb), sign = self.aspect(), 1 if strength > 0 else -1
        one, two = self.rng.sample(options(words.ADJECTIVES[sign]), 2)
        return f"{thing} {verb} neither {one} nor {two}", -0.9 * sign

    def quoted(self, strength):
        word, (text, value) = self.pick(words.ADJECTIVES[self.opposite(strength)]), self.clause(strength)
        return f'they call it " {word} " , yet {text}', 0.95 * value

    def review(self, positive: bool) -> str:
        """Three to six sentences about one film that add up to `positive` or not."""
        sign = 1 if positive else -1
        self.title = self.pick(words.TITLES)
        parts = [self.plot()] if self.rng.random() < 0.6 else []
        for _ in range(self.rng.randint(2, 4)):
            strength = self.rng.choice((1, 2)) * (sign if self.rng.random() < REVIEW_AGREEMENT else -sign)
            parts.append(self.rng.choice((self.clause, self.clause, self.reaction, self.neither))(strength))
        if self.rng.random() < 0.5 or len(parts) < 3:
            parts.append(self.verdict(sign * self.rng.choice((1, 1, 2))))
        self.title = None
        texts = [text for text, _ in parts]
        if sum(value for _, value in parts) * sign < 1 or len(set(texts)) < len(texts):
            return self.review(positive)
        gap = " .<br /><br />" if self.rng.random() < 0.2 else " . "
        return gap.join(capital(text) for text in texts) + " ."


def sentiment_rows(rng, sizes, name):
    """Per split a list of [sentence, label]."""
    opinions, seen, splits = Opinions(rng), set(), []
    for size in sizes:
        if name == "ids-cfimdb":
            wanted = [i % 2 for i in range(size)]
        else:
            wanted = quota(size, SENTIMENT_SHARES)
        rng.shuffle(wanted)
        rows = []
        for label in wanted:
            while True:
                if name == "ids-cfimdb":
                    text, found = opinions.review(bool(label)), label
                else:
                    text, value = opinions.sentence()
                    text = f"{capital(text)} ."
                    found = round(min(2, max(-2, rng.gauss(value, SENTIMENT_NOISE)))) + 2
                if found == label and text not in seen and (name == "ids-cfimdb" or 6 <= len(text.split()) <= 16):
                    break
            seen.add(text)
            rows.append([text, label])
        splits.append(rows)
    return splits


def quota(size: int, shares) -> list[int]:
    """`size` labels in these shares, as exactly as whole numbers allow."""
    bounds = [round(size * sum(shares[:i])) for i in range(len(shares) + 1)]
    return [label for label in range(len(shares)) for _ in range(bounds[label + 1] - bounds[label])]


def fill(rng, intent) -> dict[str, str]:
    """A choice for each slot; two slots with the same words get different ones."""
    if intent.get("neighbors"):
        rivals = options(intent["slots"]["a"])
        i = 2 * rng.randrange(len(rivals) // 2)
        return dict(zip("ab", rng.sample(rivals[i : i + 2], 2), strict=True))
    while True:
        chosen = {slot: rng.choice(options(text)) for slot, text in intent["slots"].items()}
        if len(set(chosen.values())) == len(chosen):
            return chosen


def questions(rng, duplicate: bool) -> list[str]:
    """Two questions that ask the same, or that only look like it."""
    intent = rng.choice(words.INTENTS)
    first, second = rng.sample(options(intent["say"]), 2)
    slots = fill(rng, intent)
    changed = dict(slots)
    swapped = dict(slots)
    if "swap" in intent:
        one, two = intent["swap"]
        swapped[one], swapped[two] = slots[two], slots[one]
    if duplicate:
        if intent.get("same") and rng.random() < 0.5:
            changed = swapped
    else:
        kind = rng.choices(list(NEGATIVES), weights=list(NEGATIVES.values()))[0]
        if kind == "other":
            other = rng.choice([i for i in words.INTENTS if i is not intent])
            second, changed = rng.choice(options(other["say"])), fill(rng, other)
        elif kind == "swap" and intent.get("same") is False:
            changed = swapped
        elif kind == "else":
            second = rng.choice(options(intent["else"]))
        else:
            while changed in (slots, swapped):
                other = fill(rng, intent)
                slot = rng.choice(list(slots))
                changed = other if intent.get("neighbors") else {**slots, slot: other[slot]}
                if len(set(changed.values())) < len(changed):
                    changed = slots
            if rng.random() < 0.3:
                second = first
    pair = [capital(first.format(**slots)), capital(second.format(**changed))]
    who, other = rng.sample(options(words.ASKERS), 2)
    if rng.random() < (1 - DISTRACTION if duplicate else DISTRACTION):
        other = who
    pair = [f"{who} {pair[0]}", f"{other} {pair[1]}"]
    rng.shuffle(pair)
    return pair


def paraphrase_rows(rng, sizes):
    """Per split a list of [question, question, label]; no question stands in two rows."""
    seen, splits = set(), []
    for size in sizes:
        wanted = quota(size, (1 - PARAPHRASE_SHARE, PARAPHRASE_SHARE))
        rng.shuffle(wanted)
        rows = []
        for label in wanted:
            pair = questions(rng, duplicate=label == 1)
            while not is_new(pair, seen):
                pair = questions(rng, duplicate=label == 1)
            rows.append([*pair, f"{label}.0"])
        splits.append(rows)
    return splits


def is_new(pair: list[str], seen: set[str]) -> bool:
    """Whether the two differ and were never used; then they are from now on."""
    if pair[0] == pair[1] or not seen.isdisjoint(pair):
        return False
    seen.update(pair)
    return True


class Scene:
    """Who does what to which thing where, as a sentence like a picture's caption."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        kind = rng.choice(words.SCENES)
        self.choices = {
            "count": groups(words.COUNTS),
            "figure": groups(words.FIGURES),
            "verb": groups(kind["verbs"]),
            "look": [[""], [""], *groups(words.LOOKS)],
            "object": groups(kind["objects"]),
            "place": groups(kind["places"]),
        }

    def slots(self) -> tuple[list[str], list[str]]:
        """The slots in which a difference is small, and those in which it is large."""
        return [s for s in self.choices if COSTS[s] < 1], [s for s in self.choices if COSTS[s] >= 1]

    def say(self, said: dict[str, list[str]]) -> tuple[str, str]:
        """The sentence for a choice of each slot, with any of its synonyms, and the form it has."""
        word = {slot: self.rng.choice(group) for slot, group in said.items()}
        one = word["count"] == "a"
        figure = (
            a(word["figure"]) if one else f"{word['count']} {words.PLURALS.get(word['figure'], word['figure'] + 's')}"
        )
        active, passive = word["verb"].split("/")
        thing = a(f"{word['look']} {word['object']}".strip())
        doing = f"{figure} {'is' if one else 'are'} {active} {thing}"
        form = self.rng.choice(("plain", "plain", "place first", "passive"))
        if form == "plain":
            return f"{capital(doing)} {word['place']}.", form
        if form == "place first":
            return f"{capital(word['place'])}, {doing}.", form
        return f"{capital(thing)} is being {passive} by {figure} {word['place']}.", form


class Headline(Scene):
    """What does what to how many things in which town."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.choices = {
            "cause": groups(words.CAUSES),
            "effect": groups(words.EFFECTS),
            "amount": groups(words.AMOUNTS),
            "victim": groups(words.VICTIMS),
            "town": groups(words.TOWNS),
            "when": groups(words.WHEN),
        }

    def say(self, said):
        word = {slot: self.rng.choice(group) for slot, group in said.items()}
        active, passive = word["effect"].split("/")
        victims = f"{word['amount']} {word['victim']} in {word['town']}"
        if self.rng.random() < 0.65:
            return f"{word['cause']} {active} {victims} {word['when']}", "plain"
        return f"{capital(victims)} {passive} by {word['cause'].lower()} {word['when']}", "passive"


def similar(rng) -> tuple[list[str], float]:
    """Two sentences and their similarity, 5 less what their differences cost, at least 0."""
    scene = rng.choice((Scene, Scene, Headline))(rng)
    said = {slot: rng.choice(choice) for slot, choice in scene.choices.items()}
    first, form = scene.say(said)
    changes = rng.choice(CHANGES)
    if changes is None:
        other = rng.choice((Scene, Headline))(rng)
        second, _ = other.say({slot: rng.choice(choice) for slot, choice in other.choices.items()})
        return [first, second], 0.0
    cost, changed = 0.0, dict(said)
    small, large = (rng.sample(slots, n) for slots, n in zip(scene.slots(), changes, strict=True))
    for slot in small + large:
        changed[slot] = rng.choice([group for group in scene.choices[slot] if group != said[slot]])
        # A detail that only one of the two gives matters less than one they disagree on.
        cost += COSTS[slot] * (0.5 if [""] in (said[slot], changed[slot]) else 1)
    second, other_form = scene.say(changed)
    cost += COSTS["form"] * (form != other_form)
    return [first, second], max(0.0, 5 - cost)


def similarity_rows(rng, sizes):
    """Per split a list of [sentence, sentence, score]; no sentence stands in two rows."""
    seen, splits = set(), []
    for size in sizes:
        rows = []
        while len(rows) < size:
            pair, score = similar(rng)
            if is_new(pair, seen):
                rng.shuffle(pair)
                score = min(5.0, max(0.0, rng.gauss(score, SIMILARITY_NOISE)))
                rows.append([*pair, f"{round(score * 5) / 5:.1f}"])
        splits.append(rows)
    return splits


def write(folder: Path, name: str, split: str, rows: list[list], numbers: list[int]) -> None:
    """One file; the test split is written without the label, as the course hands it out."""
    single = name.startswith("ids")
    label = {"quora": "is_duplicate", "sts": "similarity"}.get(name, "sentiment")
    header = ["", "id", *(["sentence"] if single else ["sentence1", "sentence2"]), label]
    if split == "test-student":
        header = ["0", *header] if single else header
        header.pop()
    with open(folder / f"{name}-{split}.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(header)
        for number, (*texts, value) in zip(numbers, rows, strict=True):
            key = hashlib.sha256("\t".join([name, *texts]).encode()).hexdigest()[:25]
            if single:
                texts = [f" {texts[0]}"]  # so do the course's
            if split != "test-student":
                writer.writerow([number, key, *texts, value])
            elif single:
                writer.writerow([number + 1, f"{number}.0", key, *texts])
            else:
                writer.writerow([number, key, *texts])


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description="Write the bundled sample; the same seed gives the same files.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).with_name("sample"))
    folder = parser.parse_args(arguments).folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, sizes in SIZES.items():
        rng = random.Random(f"{SEED} {name}")  # so that a change to one task leaves the others' files alone
        if name.startswith("ids"):
            splits = sentiment_rows(rng, sizes, name)
        else:
            splits = paraphrase_rows(rng, sizes) if name == "quora" else similarity_rows(rng, sizes)
        # Pairs carry the row number of one large table, single sentences are numbered in each file.
        drawn = iter(rng.sample(range(sum(sizes)), sum(sizes)))
        for split, rows in zip(("train", "dev", "test-student"), splits, strict=True):
            numbers = list(range(len(rows))) if name.startswith("ids") else [next(drawn) for _ in rows]
            write(folder, name, split, rows, numbers)


if __name__ == "__main__":
    main(sys.argv[1:])
