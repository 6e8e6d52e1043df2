"""`dare second-opinion`: lm-evaluation-harness's scorers on stored answers, beside those that scored them already."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.table import Table

from dare.commands.running import Data
from dare.commands.terminal import console, refuse, say
from dare.commands.text import neutral
from dare.second_opinion import KINDS, METRICS, Agreement, Answer, SecondOpinionError, agreement, ask
from dare.spec import ItemOutcome, Prediction, TaskProtocol
from dare.tasks import Item, MissingDataError, Task, UnknownTaskError, load_task

SHOWN = 8
"""Items that are named in the table; all of them with --json."""


@dataclass(frozen=True)
class Stored:
    """The greedy answers of one task, cut as the protocol says, and who has solved what."""

    answers: Sequence[Answer]
    solved: Mapping[str, Mapping[str, bool]]
    """Scorer -> item -> solved."""


def second_opinion(
    source: Annotated[Path, typer.Argument(help="Directory of an evaluation, or one of its files of predictions.")],
    task: Annotated[str, typer.Option(help=f"One of {', '.join(KINDS)}.")],
    data: Data = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document, with every item by name.")] = False,
) -> None:
    """Where do another harness's scorers disagree on the same answers? Nothing is generated and nothing is stored."""
    if task not in KINDS:
        refuse(f"there is no second opinion on task {task!r}; known: {', '.join(KINDS)}")
    try:
        stored = read(source, load_task(task), data)
        opinion = ask(task, stored.answers)
    except (SecondOpinionError, MissingDataError, UnknownTaskError) as error:
        refuse(error)
    names = [answer.item for answer in stored.answers]
    found = [
        agreement(
            ours,
            solved,
            theirs,
            {item: said[theirs] for item, said in zip(names, opinion.verdicts, strict=True) if said is not None},
        )
        for ours, solved in stored.solved.items()
        for theirs in METRICS[KINDS[task]]
    ]
    silent = [item for item, said in zip(names, opinion.verdicts, strict=True) if said is None]
    if as_json:
        document = {
            "task": task,
            "versions": dict(opinion.versions),
            "without_verdict": silent,
            "agreement": [
                {
                    "ours": one.ours,
                    "theirs": one.theirs,
                    "n": one.n,
                    "equal": one.equal,
                    "both": one.both,
                    "neither": one.neither,
                    "only_ours": one.only_ours,
                    "only_theirs": one.only_theirs,
                }
                for one in found
            ],
        }
        typer.echo(json.dumps(document, indent=1))
        return
    console.print(table(found))
    say(", ".join(f"{name} {version}" for name, version in opinion.versions.items()))
    if silent:
        say(f"without a verdict of theirs: {len(silent)} answers, {', '.join(silent[:SHOWN])}")


def read(source: Path, task: Task, data: Path | None) -> Stored:
    """SecondOpinionError where there are no stored answers, or answers to other items."""
    directory = source if source.is_dir() else source.parent.parent
    path = source / "predictions" / f"{task.name}.jsonl" if source.is_dir() else source
    if not path.is_file():
        raise SecondOpinionError(f"{source} has no stored answers of {task.name}")
    protocol = _protocol(directory, task.name)
    items = {item.id: item for item in task.items("test" if protocol is None else protocol.split, data)}
    answers, greedy = [], []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n"), start=1):
        if not line:
            continue
        try:
            prediction = Prediction.model_validate_json(line)
        except ValidationError as error:
            raise SecondOpinionError(f"{path}, line {number} is no stored answer") from error
        if prediction.item not in items:
            raise SecondOpinionError(
                f"{path}, line {number} answers {prediction.item!r}, which is no item of {task.name}"
            )
        if prediction.sample == 0:
            text = _cut(prediction.output, () if protocol is None else protocol.stops)
            answers.append(answer_of(items[prediction.item], text))
            greedy.append((items[prediction.item], text))
    solved = _solved(directory / "items" / f"{task.name}.jsonl")
    if not solved:
        verdicts = task.verdicts(greedy, {} if protocol is None else protocol.policies)
        solved = {"dare-1": {item.id: one.solved for (item, _), one in zip(greedy, verdicts, strict=True)}}
    return Stored(answers, solved)


def answer_of(item: Item, output: str) -> Answer:
    """A stored answer to an item, as the harness is shown it."""
    return Answer(item.id, output, str(item.gold["answer"]), str(item.row.get("solution", "")))


def table(found: Sequence[Agreement]) -> Table:
    """One row for each pair of scorers."""
    drawn = Table("ours", "theirs", "answers", "equal", "only ours", "only theirs", "which", box=None)
    for one in found:
        named = [*(f"+{item}" for item in one.only_ours), *(f"-{item}" for item in one.only_theirs)]
        more = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
        drawn.add_row(
            one.ours,
            one.theirs,
            str(one.n),
            f"{one.equal} ({one.equal / max(1, one.n):.1%})",
            str(len(one.only_ours)),
            str(len(one.only_theirs)),
            neutral(" ".join(named[:SHOWN]) + more),
        )
    return drawn


def _cut(text: str, stops: Sequence[str]) -> str:
    from dare.scoring import cut

    return cut(text, stops)


def _protocol(directory: Path, task: str) -> TaskProtocol | None:
    """The protocol that the answers were asked under, where their directory says so."""
    from dare.job import JobError, read_job

    try:
        job = read_job(directory)
    except (JobError, OSError):
        return None
    asked = job.evaluate or job.score
    return next((one for one in asked.protocols if one.task == task), None) if asked is not None else None


def _solved(path: Path) -> dict[str, dict[str, bool]]:
    """What was said before of the greedy answers, scorer by scorer; errors are left out."""
    if not path.is_file():
        return {}
    found: dict[str, dict[str, bool]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        outcome = ItemOutcome.model_validate_json(line)
        if outcome.sample == 0 and outcome.status != "error":
            found.setdefault(outcome.scorer, {})[outcome.item] = outcome.score > 0.5
    return found
