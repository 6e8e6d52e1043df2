"""Facts of boards for tests: a track of two ranked tasks, entries with given scores per seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dare_platform.board import Board
from dare_platform.board_facts import BoardFacts, EntryFacts, Number, RunFact, Spent, TaskFacts
from dare_platform.entry_status import status_of
from dare_platform.rankings import assemble
from dare_platform.tracks import TaskRules, Track, load_track

TASKS = ("sudoku", "countdown")
ITEMS = 200
Scores = Mapping[str, Sequence[float]]


def track(**changes: object) -> Track:
    """The tiny track with two ranked tasks and without the sentence that stands for its verdict."""
    tasks = tuple(TaskRules(task=task, role="ranked") for task in TASKS)
    return load_track("tiny").model_copy(update={"tasks": tasks, "verdict_override": None, **changes})


def entry(
    name: str, sudoku: Sequence[float], countdown: Sequence[float] | None = None, **changes: object
) -> EntryFacts:
    """A complete entry: one number per seed and task, sampled reward and cost along with it."""
    scores: Scores = {"sudoku": sudoku, "countdown": sudoku if countdown is None else countdown}
    numbers = [
        Number(task, seed, metric, decoding, value, ITEMS, "dare-1")
        for task, values in scores.items()
        for seed, value in enumerate(values)
        for metric, decoding in (("solved", "greedy"), ("reward", "sampled"), ("solved", "sampled"))
    ]
    kinds = ("evaluate",) if name == "untouched" else ("train", "evaluate")
    runs = tuple(RunFact(kind, seed, "succeeded") for seed in range(len(sudoku)) for kind in kinds)
    made = EntryFacts(
        id=f"id-{name}",
        name=name,
        algorithm=name,
        kind="reference" if name == "untouched" else "method",
        built_in=True,
        gate="accepted",
        status="complete",
        submitted_at=0.0,
        asked=frozenset(TASKS),
        runs=runs,
        numbers=tuple(numbers),
        spent=() if name == "untouched" else tuple(Spent(60.0 + seed, 64.0, 32, "cpu") for seed in range(len(sudoku))),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def unfinished(name: str, *runs: RunFact, done: Sequence[float] = (), gate: str = "accepted") -> EntryFacts:
    """An entry with these runs, and numbers for its first seeds only."""
    whole = entry(name, done)
    every = (*whole.runs, *runs)
    return replace(whole, runs=every, gate=gate, status=status_of(gate, [run.state for run in every]))


REFERENCE = entry("untouched", [0.20, 0.20, 0.20])


def board(*entries: EntryFacts, rules: Track | None = None, family: str = "llada", floor: float = 0.1) -> Board:
    """The board of some entries on llada-tiny."""
    tasks = {task: TaskFacts(ITEMS, floor) for task in TASKS}
    return assemble(rules or track(), "llada-tiny", BoardFacts(family, tasks, entries), made_at=1000.0)
