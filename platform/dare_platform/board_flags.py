"""What a reader of a board must be told beside its numbers: computed from what is stored or absent, never typed.

A flag changes no number and no rank. `exactly_0` and `at_or_below_chance` are states of a cell already and are only
repeated here, so that files and the list of flags have all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from dare_platform.board import Board, Cell, Column, Estimate, Row
from dare_platform.statistics import written

FlagCode = Literal[
    "exactly_0", "at_or_below_chance", "format_credit", "larger_sibling", "other_hardware", "other_scorer",
    "contaminated", "zero_advantage", "collapse",
]  # fmt: skip
EXPLANATIONS: Mapping[FlagCode, str] = {
    "exactly_0": "Nothing is solved in any seed: often a fault of form or extraction; look at the answers.",
    "at_or_below_chance": "Not significantly above the score of an answer that does not read the question.",
    "format_credit": "Training raised the sampled reward far above the share solved: credit for form or for parts.",
    "larger_sibling": "The untouched backbone scores far below a smaller one of its family: look at its decoding.",
    "other_hardware": "Trained on another device than most entries here: its cost does not compare with theirs.",
    "other_scorer": "Judged by another scorer than the board's only: its numbers are not shown.",
    "contaminated": "Training prompts give test items away, as the run's own overlap report says.",
    "zero_advantage": "Most groups of rollouts had no signal: all rewards of a group were equal.",
    "collapse": "The run raised an alarm of collapse while it trained.",
}
FORMAT_CREDIT = 0.1
"""By how much more the sampled reward rose than the share solved did, greedily or sampled, whichever rose more.
Half-right answers earn some reward by design, so that only what training added is a sign, and only where it did not
come with solved items; a tenth of the scale is more than seeds differ by on any task."""
SIBLING_GAP = 0.05
"""Beyond the intervals of both on every shipped task of 256 items or more, at any score."""
SIBLING_SIZE = 1.5
"""A backbone with less than half as many parameters again is a sister, not a larger one."""
ZERO_ADVANTAGE = 0.5
"""From here on less than half of the rollouts that were paid for moved anything."""


class Where(NamedTuple):
    """An entry, and one task of it unless the flag is about all of it."""

    entry_id: str
    task: str | None = None


class Flag(NamedTuple):
    """`code` is stable; `sentence` is for a reader, plain text."""

    code: FlagCode
    where: Where
    sentence: str


@dataclass(frozen=True)
class Told:
    """An alarm that a training run raised about itself."""

    seed: int
    name: str
    sentence: str


@dataclass(frozen=True)
class EntryRecord:
    """What the database knows of one entry on one backbone beside its numbers."""

    hardware: frozenset[str] = frozenset()
    scorers: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By task, who has given a number."""
    alarms: tuple[Told, ...] = ()
    zero_advantage: float | None = None
    """Share of groups without signal, mean over steps and seeds; None where it was not logged."""


@dataclass(frozen=True)
class Sibling:
    """A smaller untouched backbone of the same family under the same track."""

    backbone: str
    parameters: int
    solved: Mapping[str, float]


@dataclass(frozen=True)
class FlagFacts:
    """What flags are made of, beside the board itself."""

    entries: Mapping[str, EntryRecord] = field(default_factory=dict)
    parameters: int | None = None
    siblings: tuple[Sibling, ...] = ()


def flags(board: Board, facts: FlagFacts) -> tuple[Flag, ...]:
    """All flags of a board, row by row."""
    usual = _usual_hardware(facts)
    untouched = next((row.cells for row in board.rows if row.kind == "reference"), {})
    return tuple(flag for row in board.rows for flag in _of_row(board, row, facts, usual, untouched))


def _usual_hardware(facts: FlagFacts) -> str | None:
    """What most entries trained on; of equally many, the first by name."""
    counts = Counter(device for record in facts.entries.values() for device in sorted(record.hardware))
    return min(counts, key=lambda device: (-counts[device], device)) if counts else None


def _of_row(
    board: Board, row: Row, facts: FlagFacts, usual: str | None, untouched: Mapping[str, Cell]
) -> Iterator[Flag]:
    record = facts.entries.get(row.entry_id, EntryRecord())
    for column in board.columns:
        yield from _of_cell(row, column)
        yield from _format_credit(row, column.task, untouched.get(column.task))
        said = record.scorers.get(column.task, frozenset())
        if said and board.scorer not in said:
            others = ", ".join(sorted(said))
            yield Flag("other_scorer", Where(row.entry_id, column.task), f"Scored by {others}, not by {board.scorer}.")
    if row.kind == "reference":
        yield from _larger_siblings(row, board.columns, facts)
    if record.hardware - {usual}:
        named = " and ".join(sorted(record.hardware))
        yield Flag("other_hardware", Where(row.entry_id), f"Trained on {named}; most entries here on {usual}.")
    yield from _of_training(row, record)


def _of_cell(row: Row, column: Column) -> Iterator[Flag]:
    cell, where = row.cells.get(column.task), Where(row.entry_id, column.task)
    if cell is None or cell.greedy is None:
        return
    if cell.exactly_zero:
        yield Flag("exactly_0", where, f"None of {cell.items} items is solved in any seed.")
    elif cell.at_or_below_chance:
        floor, _ = written(column.chance_floor)
        yield Flag("at_or_below_chance", where, f"{_percent(cell.greedy.value)} is not above the floor of {floor}.")


def _format_credit(row: Row, task: str, untouched: Cell | None) -> Iterator[Flag]:
    cell = row.cells.get(task)
    if row.kind == "reference" or cell is None or untouched is None:
        return
    reward = _rise(cell.sampled, untouched.sampled)
    solved = [_rise(cell.greedy, untouched.greedy), _rise(cell.sampled_solved, untouched.sampled_solved)]
    known = [rise for rise in solved if rise is not None]
    if reward is None or not known or reward - max(known) <= FORMAT_CREDIT:
        return
    text = f"Training raised the sampled reward by {_percent(reward)} points"
    yield Flag("format_credit", Where(row.entry_id, task), f"{text} and the share solved by {_percent(max(known))}.")


def _rise(after: Estimate | None, before: Estimate | None) -> float | None:
    return None if after is None or before is None else after.value - before.value


def _larger_siblings(row: Row, columns: Iterable[Column], facts: FlagFacts) -> Iterator[Flag]:
    for column in columns:
        cell = row.cells.get(column.task)
        if cell is None or cell.greedy is None or facts.parameters is None:
            continue
        for sibling in facts.siblings:
            theirs = sibling.solved.get(column.task)
            is_larger = facts.parameters >= SIBLING_SIZE * sibling.parameters
            if theirs is not None and is_larger and theirs - cell.greedy.value > SIBLING_GAP:
                text = f"{_percent(cell.greedy.value)}; {sibling.backbone}, which is smaller, has {_percent(theirs)}."
                yield Flag("larger_sibling", Where(row.entry_id, column.task), text)


def _of_training(row: Row, record: EntryRecord) -> Iterator[Flag]:
    where = Where(row.entry_id)
    for code, name in (("contaminated", "overlap"), ("collapse", "collapse")):
        told = {alarm.sentence: alarm.seed for alarm in reversed(record.alarms) if alarm.name == name}
        for sentence, seed in reversed(told.items()):
            yield Flag(code, where, f"Seed {seed}: {sentence.rstrip('.')}.")  # type: ignore[arg-type]
    if record.zero_advantage is not None and record.zero_advantage > ZERO_ADVANTAGE:
        yield Flag("zero_advantage", where, f"{_percent(record.zero_advantage)} % of groups were without signal.")


def _percent(share: float) -> str:
    return written(share)[0]
