"""Countdown with three small numbers: reach a target with + - * / and brackets, every number used once.

A completion is an expression such as `3*5+7`, in `<answer>` tags or bare. There is no credit for the format.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations_with_replacement, cycle
from pathlib import Path
from typing import Literal, NamedTuple

from dare.rewards import countdown as arithmetic
from dare.rewards import math_answer
from dare.rewards.answer import extract
from dare.tasks import Demonstration, Item, Judge, Task, UnknownSplitError, Verdict

VERSION = "1"
COUNTS = {"train": 4096, "test": 256}
LARGEST_NUMBER = 10
TARGETS = range(1, 61)
ITEMS_SHA256 = {
    "train": "110f6b0d6f72b51a08277f660c903a30b7b8a4f1461d815c7a3a65ba86647888",
    "test": "43abd915ed9ca0ce9c30b1336716cb6abd6a1dad928ef45c63d58106c208c0a6",
}
"""Of the lists that the seed `dare/countdown/1/...` gives."""
POLICIES = {
    "equation": ("expression_only", "left_side_of_equation", "one_side_of_equation"),
    "tags": ("optional", "required"),
    "which": ("last_tag", "first_tag"),
    "boxed": ("in_answer", "anywhere"),
}
"""What published scorers disagree about; the first value is the default."""
_EQUATION: dict[str, Literal["refused", "left_side", "one_side"]] = {
    "expression_only": "refused",
    "left_side_of_equation": "left_side",
    "one_side_of_equation": "one_side",
}


class Question(NamedTuple):
    """Numbers in the order shown, and the target."""

    numbers: tuple[int, int, int]
    target: int

    @property
    def prompt(self) -> str:
        """The question, as short as a character-level backbone can learn to read it."""
        return f"C{' '.join(map(str, self.numbers))}={self.target}"

    @property
    def cluster(self) -> str:
        """The same for every order of the numbers; training and test questions share none."""
        return f"{'-'.join(map(str, sorted(self.numbers)))}={self.target}"

    def item(self, id: str) -> Item:
        """The question as an item of a task."""
        return Item(id, self.prompt, {"numbers": list(self.numbers), "target": self.target}, self.cluster)


def judge_under(policies: Mapping[str, str]) -> Judge:
    """`solved` by exact arithmetic; the reward is the same."""
    expression = arithmetic.ExpressionPolicy(equation=_EQUATION[policies.get("equation", "expression_only")])
    tags: Literal["optional", "required"] = "required" if policies.get("tags") == "required" else "optional"
    which: Literal["first", "last"] = "first" if policies.get("which") == "first_tag" else "last"
    anywhere = policies.get("boxed") == "anywhere"

    def judge(item: Item, text: str) -> Verdict:
        answer = extract(text, tags=tags, which=which)
        if anywhere and (boxed := math_answer.read(text, which=which, without_box="none")):
            answer = boxed.text
        if answer is None:
            return Verdict(solved=False, reward=0.0, status="no_answer", answer=None)
        solved = arithmetic.solves(answer, tuple(item.gold["numbers"]), item.gold["target"], expression)
        return Verdict(solved=solved, reward=float(solved), status="ok", answer=answer)

    return judge


judge = judge_under({})


def _generator(purpose: str) -> random.Random:
    return random.Random(f"dare/countdown/{VERSION}/{purpose}")


@cache
def questions(split: str) -> tuple[Question, ...]:
    """The solvable questions of a split with their numbers sorted, in a random order: 256 for "test", or the rest."""
    if split not in COUNTS:
        raise UnknownSplitError(f"task 'countdown' has no split {split!r}; it has: {', '.join(COUNTS)}")
    every = [
        Question((a, b, c), target)
        for a, b, c in combinations_with_replacement(range(1, LARGEST_NUMBER + 1), 3)
        for target in sorted(arithmetic.shortest((a, b, c)))
        if target in TARGETS
    ]
    _generator("split").shuffle(every)
    return tuple(every[: COUNTS["test"]] if split == "test" else every[COUNTS["test"] :])


def _shuffled(question: Question, generator: random.Random) -> Question:
    a, b, c = generator.sample(question.numbers, 3)
    return Question((a, b, c), question.target)


@cache
def _items(split: str) -> tuple[Item, ...]:
    generator = _generator(split)
    shown: dict[Question, None] = {}
    for question in cycle(questions(split)):
        if len(shown) == COUNTS[split]:
            break
        shown.setdefault(_shuffled(question, generator))
    return tuple(question.item(f"{split}-{number:04}") for number, question in enumerate(shown))


def items(split: str, _data: Path | None = None) -> Sequence[Item]:
    """Generated from a recorded seed: the same items everywhere, without a data folder."""
    return _items(split)


def _demonstrations(corpus: str) -> Iterator[Demonstration]:
    generator = _generator(f"corpus/{corpus}")
    while True:
        question = _shuffled(generator.choice(questions("train")), generator)
        yield Demonstration(question.prompt, arithmetic.shortest(question.numbers)[question.target])


def demonstrations(corpus: str, count: int) -> Sequence[Demonstration]:
    """The first `count` demonstrations of a corpus. The answer is the shortest expression, one for each prompt."""
    if corpus not in TASK.corpora:
        raise ValueError(f"task 'countdown' has no corpus {corpus!r}; it has: {', '.join(TASK.corpora)}")
    return [demonstration for demonstration, _ in zip(_demonstrations(corpus), range(count), strict=False)]


def item_of(prompt: str) -> Item:
    """The question that a prompt of this task asks."""
    numbers, target = prompt.removeprefix("C").split("=")
    a, b, c = map(int, numbers.split())
    return Question((a, b, c), int(target)).item(prompt)


TASK = Task(
    name="countdown",
    title="Countdown, 3 small numbers",
    version=VERSION,
    licence="Apache-2.0",
    source=f"generated by this package from a recorded seed; the list of test items has SHA-256 {ITEMS_SHA256['test']}",
    chance_floor=1982 / (256 * 192),
    chance_procedure="the item's numbers in a uniform order, two uniform operators and a uniform grouping; exact: "
    "mean share of the 192 forms that reach the target",
    example=(Question((3, 5, 7), 22).item("example"), "3*5+7"),
    items=items,
    judge=judge,
    demonstrations=demonstrations,
    corpora=("clean",),
    item_of=item_of,
    count=COUNTS["test"],
    contamination="Generated, so on no list of published items; the same expressions do occur in any text with sums.",
    policies=POLICIES,
    judge_under=judge_under,
    notes=(
        "Held out by sorted numbers and target, so no test question is a training question with its numbers moved; "
        "the same numbers do occur in training with other targets.",
    ),
)
