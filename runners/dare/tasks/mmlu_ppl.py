"""MMLU by likelihood: which of the four letters does the policy find most probable behind `Answer:`?

The published measure of base models. The items are those of task `mmlu`, where a letter is asked for and read from a
text: another task, whose numbers are not comparable. What the record of an answer is says `dare.rewards.likeliest`;
the judge here is that of the other likelihood tasks too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import cast

from dare.rewards import likeliest
from dare.rewards.choice import LETTERS
from dare.tasks import Item, Judge, Task, Verdict, mmlu

POLICIES = {"normalise": likeliest.UNITS}
ABOUT_NORMALISING = (
    "Policy `normalise`: `none` compares the log-likelihoods of whole continuations, `tokens` and `bytes` divide each "
    "by its length. The three are three numbers."
)


def judge(item: Item, text: str, unit: likeliest.Unit = "none") -> Verdict:
    """`solved` when the right continuation is the likeliest; a tie, or no record, is no answer."""
    choices = item.gold["choices"]
    record = likeliest.read(text, len(choices))
    winner = likeliest.pick(record, choices, unit).winner if record is not None else None
    if winner is None:
        return Verdict(solved=False, reward=0.0, status="no_answer", answer=None)
    solved = winner == item.gold["choice"]
    return Verdict(solved=solved, reward=float(solved), status="ok", answer=LETTERS[winner])


def judge_under(policies: Mapping[str, str]) -> Judge:
    """The judge that compares by the chosen unit."""
    return partial(judge, unit=cast(likeliest.Unit, policies.get("normalise", "none")))


def likelihood_item(item: Item, context: str, choices: Sequence[str]) -> Item:
    """An item of a multiple-choice task as one of likelihoods. Its gold has the choices, so that its hash does too."""
    gold = {"choice": LETTERS.index(item.gold["letter"]), "choices": list(choices)}
    return Item(item.id, context, gold, item.cluster, item.row, tuple(choices))


def example_record(right: int, choices: int) -> str:
    """A record of which the right choice wins, to be shown."""
    logp = [-0.4 if place == right else -2.1 - 0.1 * place for place in range(choices)]
    return likeliest.Record(tuple(logp), (0.05,) * choices, (1,) * choices).text()


def items(split: str, data: Path | None = None) -> Sequence[Item]:
    """Those of `mmlu` in its order. A letter follows the colon behind a space, as in the worked examples."""
    return [_item(item) for item in mmlu.items(split, data)]


def _item(item: Item) -> Item:
    question = f"{item.row['question']}\n{mmlu.listed(item.row['options'])}\nAnswer:"
    about = f"The following are multiple choice questions (with answers) about {item.row['subject'].replace('_', ' ')}."
    return likelihood_item(item, f"{about}\n\n{question}", [f" {letter}" for letter in "ABCD"])


_SHOWN = Item(
    "example",
    "",
    {"letter": "C"},
    "How many sides has a hexagon?",
    {
        "subject": "elementary_mathematics",
        "question": "How many sides has a hexagon?",
        "options": ["Four", "Five", "Six", "Eight"],
        "answer": "C",
    },
)

TASK = Task(
    name="mmlu_ppl",
    title="MMLU, likelihood",
    version="1",
    licence=mmlu.TASK.licence,
    source=mmlu.TASK.source,
    chance_floor=0.25,
    chance_procedure="one of the four letters drawn uniformly; exact: every item has four options and one right letter",
    example=(_item(_SHOWN), example_record(2, 4)),
    items=items,
    judge=judge,
    needs_data=True,
    kind="likelihood",
    count=mmlu.TASK.count,
    files=mmlu.TASK.files,
    contamination=mmlu.TASK.contamination,
    asked={"hendrycks_5shot": mmlu.hendrycks_5shot},
    policies=POLICIES,
    judge_under=judge_under,
    notes=(
        "Zero-shot by default; `hendrycks_5shot` is the prompt of published tables. A letter is one token in the usual "
        "vocabularies, and its likelihood then exact, at one forward.",
        ABOUT_NORMALISING,
    ),
)
