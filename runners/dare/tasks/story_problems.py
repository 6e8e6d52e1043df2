"""Story problems: generated word problems of two or three steps of arithmetic, asked and judged as GSM8K is.

Eight stories of our own, with names, things and numbers drawn. Training and test questions share the stories, but no
story with the same numbers, whatever the names and things.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from dare.tasks import Demonstration, Item, Task, UnknownSplitError
from dare.tasks.gsm8k import judge, prompt

VERSION = "1"
COUNTS = {"train": 4096, "test": 256}
HELD_OUT = 8
"""Of the numbers of a story, one draw in so many is for the test split."""
ITEMS_SHA256 = {
    "train": "a58d097a4de9940493fe86cd30ed227abb24c5a1c2f78f87458b900a33060c9e",
    "test": "578f9f2274e29a78dce5c575081d164a4058fa6ec4a42b1197048a730bdc307d",
}
"""Of the lists that the seed `dare/story_problems/1/...` gives."""
NAMES = ("Ada", "Ben", "Chloe", "Deniz", "Emeka", "Farah", "Goran", "Hana", "Ivo", "Jun", "Kofi", "Lena")
THINGS = ("apples", "buttons", "candles", "eggs", "marbles", "pencils", "shells", "stamps", "tickets", "tiles")


class Story(NamedTuple):
    """`numbers` turns three draws into the numbers of the text, the last of which, z, is the answer."""

    question: str
    steps: str
    numbers: Callable[[int, int, int], dict[str, int]]


STORIES = (
    Story(
        "{name} fills {a} boxes with {b} {things} each and has {c} {things} left over. How many {things} are there?",
        "The boxes hold {a} * {b} = {x} {things}.\nWith those left over it is {x} + {c} = {z}.",
        lambda a, b, c: {"a": a, "b": b, "c": c, "x": a * b, "z": a * b + c},
    ),
    Story(
        "{name} has {x} {things}, gives {c} away and shares the others equally among {a} friends. How many {things} "
        "does each friend get?",
        "After giving {c} away there are {x} - {c} = {y} {things}.\nEach friend gets {y} / {a} = {z}.",
        lambda a, b, c: {"a": a, "c": c, "x": a * b + c, "y": a * b, "z": b},
    ),
    Story(
        "{name} buys {a} packs of {things} at {b} dollars each and pays with {x} dollars. How many dollars of change "
        "does {name} get?",
        "The packs cost {a} * {b} = {y} dollars.\nThe change is {x} - {y} = {z} dollars.",
        lambda a, b, c: {"a": a, "b": b, "x": a * b + c, "y": a * b, "z": c},
    ),
    Story(
        "{name} collects {b} {things} a day for {a} days and then loses {c} of them. How many {things} are left?",
        "In {a} days it is {b} * {a} = {x} {things}.\nThen {x} - {c} = {z} are left.",
        lambda a, b, c: {"a": a, "b": b, "c": min(c, a * b - 1), "x": a * b, "z": a * b - min(c, a * b - 1)},
    ),
    Story(
        "{name} has {a} {things} and finds {b} more. A neighbour has twice as many as {name} has then, and gets "
        "another {c}. How many {things} does the neighbour have in the end?",
        "{name} has {a} + {b} = {x} {things}.\nTwice as many is 2 * {x} = {y}.\nIn the end it is {y} + {c} = {z}.",
        lambda a, b, c: {"a": a, "b": b, "c": c, "x": a + b, "y": 2 * (a + b), "z": 2 * (a + b) + c},
    ),
    Story(
        "{name} drives for {a} hours at {b} km per hour, and then {c} km more. How many km is that in all?",
        "In {a} hours it is {a} * {b} = {x} km.\nIn all it is {x} + {c} = {z} km.",
        lambda a, b, c: {"a": a, "b": 10 * b, "c": c, "x": 10 * a * b, "z": 10 * a * b + c},
    ),
    Story(
        "{name} has {x} {things}, sells {c} of them and packs the others into bags of {a}. How many bags are full?",
        "After {c} are sold there are {x} - {c} = {y}.\nThat fills {y} / {a} = {z} bags.",
        lambda a, b, c: {"a": a, "c": c, "x": a * b + c, "y": a * b, "z": b},
    ),
    Story(
        "{name} is {x} years old, and a sister is {a} years younger. How old will the sister be in {c} years?",
        "The sister is {x} - {a} = {b} years old.\nIn {c} years it will be {b} + {c} = {z}.",
        lambda a, b, c: {"a": a, "b": b, "c": c, "x": a + b, "z": b + c},
    ),
)


class Drawn(NamedTuple):
    """A question with its worked solution, and a key that tells story and numbers and nothing else."""

    question: str
    steps: str
    answer: str
    key: str

    def item(self, id: str) -> Item:
        """The question as an item of the task."""
        return Item(id, prompt(self.question), {"answer": self.answer}, self.key)


def _generator(purpose: str) -> random.Random:
    return random.Random(f"dare/story_problems/{VERSION}/{purpose}")


def _questions(split: str, generator: random.Random) -> Iterator[Drawn]:
    """Questions of a split without end, stories equally often."""
    while True:
        for number, story in enumerate(STORIES):
            while True:
                draws = generator.randint(2, 12), generator.randint(2, 20), generator.randint(1, 30)
                numbers = story.numbers(*draws)
                key = f"story-{number} {' '.join(map(str, numbers.values()))}"
                if (sha256(key.encode()).digest()[0] % HELD_OUT == 0) == (split == "test"):
                    break
            words = {"name": generator.choice(NAMES), "things": generator.choice(THINGS)}
            yield Drawn(
                story.question.format(**words, **numbers),
                story.steps.format(**words, **numbers),
                str(numbers["z"]),
                key,
            )


@cache
def _items(split: str) -> tuple[Item, ...]:
    if split not in COUNTS:
        raise UnknownSplitError(f"task 'story_problems' has no split {split!r}; it has: {', '.join(COUNTS)}")
    drawn: dict[str, Drawn] = {}
    for question in _questions(split, _generator(split)):
        if len(drawn) == COUNTS[split]:
            break
        drawn.setdefault(question.key, question)
    return tuple(question.item(f"{split}-{number:04}") for number, question in enumerate(drawn.values()))


def items(split: str, _data: Path | None = None) -> Sequence[Item]:
    """Generated from a recorded seed: the same items everywhere, without a data folder."""
    return _items(split)


def demonstrations(corpus: str, count: int) -> Sequence[Demonstration]:
    """The first `count` worked solutions of training questions, in the form that the prompt asks for."""
    if corpus not in TASK.corpora:
        raise ValueError(f"task 'story_problems' has no corpus {corpus!r}; it has: {', '.join(TASK.corpora)}")
    return [
        Demonstration(prompt(q.question), f"<reasoning>\n{q.steps}\n</reasoning>\n<answer>\n{q.answer}\n</answer>")
        for q, _ in zip(_questions("train", _generator(f"corpus/{corpus}")), range(count), strict=False)
    ]


TASK = Task(
    name="story_problems",
    title="Story problems",
    version=VERSION,
    licence="Apache-2.0",
    source=f"generated by this package from a recorded seed; the list of test items has SHA-256 {ITEMS_SHA256['test']}",
    chance_floor=11_336 / (4_096 * 256),
    chance_procedure="the answer of a training question, drawn uniformly; exact: mean share of the 4096 training "
    "answers that equal the item's",
    example=(
        Drawn(
            "Ada fills 3 boxes with 4 eggs each and has 2 eggs left over. How many eggs are there?", "", "14", "e"
        ).item("example"),
        "14",
    ),
    items=items,
    judge=judge,
    demonstrations=demonstrations,
    corpora=("clean",),
    count=COUNTS["test"],
    contamination="Generated, so on no list of published items; stories of this kind are in any text about arithmetic.",
    notes=(
        "Eight stories: a backbone that was trained on them knows how each is solved, and what is left is arithmetic. "
        "It shows that a pipeline learns, not that a backbone reasons.",
        "The tiny backbones, which read single characters, do not have the letters for it.",
        "Held out by story and numbers; names and things are drawn apart and do not count.",
    ),
)
