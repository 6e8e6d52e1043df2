"""Evaluations for tests, with real tasks, real answers and the runner's own scoring: only the decoding is left out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from played import given, worker
from sqlalchemy.orm import Session
from toy_runner import PROVENANCE, USAGE

import dare.tasks
from dare.job import artifact, write_result
from dare.rewards.sudoku import solutions
from dare.scoring import SCORER, prompt_of, prompt_sha256, summarise, task_items
from dare.scoring_run import scored
from dare.spec import ItemOutcome, JobSpec, Prediction, Result, TaskProtocol, Usage
from dare.tasks import Item
from dare_platform import entries
from dare_platform.database import Database
from dare_platform.job_directory import write_job_directory
from dare_platform.lease import Claim, claim
from dare_platform.outputs import Outputs, protocols_of, read_outputs, read_result
from dare_platform.registry import register_track
from dare_platform.results import ProcessReport, finish, items_of, store_artifacts
from dare_platform.settings import Settings
from dare_platform.states import move
from dare_platform.tracks import TaskRules, Track, load_track
from dare_platform.uploads import read_builtin
from dare_platform.viewer import LOCAL

PROGRAMS = '''"""Programs: print the number that is asked for. Judged by comparing texts, as this is a test."""

from dare.tasks import Item, NotScoredError, Task, Verdict

SANDBOX = True


def items(split, data):
    return [Item(f"p{n}", f"Print {n}.", {"program": f"print({n})"}) for n in range(4)]


def judge(item, text):
    solved = text.strip() == item.gold["program"]
    return Verdict(solved, float(solved), "ok", text)


def judge_all(answers, policies):
    if not SANDBOX:
        raise NotScoredError("this machine has no sandbox")
    return [judge(item, text) for item, text in answers]


TASK = Task(
    name="toy_programs",
    title="Toy programs",
    version="1",
    licence="none",
    source="made here",
    chance_floor=0.0,
    chance_procedure="a program is never right by chance",
    example=(Item("p0", "Print 0.", {"program": "print(0)"}), "print(0)"),
    items=items,
    judge=judge,
    judge_all=judge_all,
    kind="code",
)
'''
Answers = Callable[[Item, int], str]
REPORT = ProcessReport(exit_code=0, peak_memory_bytes=5, log="")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A task of programs in the folder of tasks, as long as the test lasts."""
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "toy_programs.py").write_text(PROGRAMS)
    monkeypatch.setattr(dare.tasks, "__path__", [*dare.tasks.__path__, str(folder)])
    monkeypatch.delitem(sys.modules, "dare.tasks.toy_programs", raising=False)
    return "toy_programs"


def track(*tasks: str, **changes: object) -> Track:
    """The tiny track with these tasks, four items each."""
    rules = tuple(TaskRules(task=task, role="ranked", limit=4) for task in tasks)
    return load_track("tiny").model_copy(
        update={"track": "few", "tasks": rules, "verdict_override": None, "seeds": (0,), "seeds_required": 1, **changes}
    )


def asked(session: Session, rules: Track, data: Path | None = None) -> str:
    """An entry of the untouched backbone on a track; its id."""
    register_track(session, rules, data)
    submission = given(read_builtin("untouched", None, rules, ["llada-tiny"]))
    return entries.submit(session, LOCAL, submission, "key").entry_id


def right(item: Item, sample: int) -> str:
    """A right answer to every other item, and nonsense to the rest; one of them a text that no database can hold."""
    solved = int(item.id[-1]) % 2 == 0
    if "program" in item.gold:
        return str(item.gold["program"]) if solved else "import os"
    return solutions(item.gold["puzzle"])[0] if solved else f"line one\u2028{sample}\x00"


def held(session: Session) -> Claim:
    """The next run, claimed and at its end."""
    claimed = claim(session, worker(session), 60.0)
    assert claimed is not None
    for state in ("preparing", "working", "finalizing"):
        assert move(session, claimed.run_id, state, actor="t", token=claimed.token)
    return claimed


def answer(directory: Path, job: JobSpec, answers: Answers, data: Path | None = None) -> None:
    """What a policy leaves in `predictions/`."""
    (directory / "predictions").mkdir(exist_ok=True)
    for protocol in protocols_of(job):
        task, items = task_items(protocol.model_copy(update={"scorer": SCORER}), data)
        lines = [
            Prediction(
                item=item.id,
                sample=sample,
                prompt_sha256=prompt_sha256(prompt_of(protocol, task, item, data)),
                output=answers(item, sample),
                tokens=4,
                nfe=4,
                truncated=False,
            ).model_dump_json()
            for item in items
            for sample in range(protocol.samples + 1)
        ]
        (directory / "predictions" / f"{protocol.task}.jsonl").write_text("".join(line + "\n" for line in lines))


Others = Callable[[TaskProtocol, Sequence[ItemOutcome]], Sequence[ItemOutcome]]


def judged(directory: Path, job: JobSpec, others: Others = lambda _, __: (), data: Path | None = None) -> None:
    """Our scorer's word on what lies there and that of others, and the result."""
    scores = []
    for protocol in protocols_of(job):
        task, items = task_items(protocol.model_copy(update={"scorer": SCORER}), data)
        lines = (directory / "predictions" / f"{protocol.task}.jsonl").read_text().split("\n")
        known = {(p.item, p.sample): p for p in map(Prediction.model_validate_json, filter(None, lines))}
        found = scored(protocol, task, items, known, directory)
        if others(protocol, found.outcomes):
            found = scored(protocol, task, items, known, directory, others(protocol, found.outcomes))
        scores += [
            s for name in protocol.scorers for s in summarise(protocol, [o for o in found.outcomes if o.scorer == name])
        ]
    left = [artifact(directory, path) for path in sorted((directory / "predictions").glob("*.jsonl"))]
    result = Result(
        job=job.digest(),
        kind=job.kind,
        outcome="succeeded",
        message="Scored.",
        scores=tuple(scores),
        artifacts=tuple(left) if job.kind == "evaluate" else (),
        usage=Usage.model_validate(USAGE),
        provenance=PROVENANCE,
    )
    write_result(directory, result)


def outputs_of(database: Database, directory: Path, job: JobSpec) -> Outputs:
    with database.read() as session:
        items = items_of(session, job)
    return read_outputs(directory, job, read_result(directory, job), items)


def evaluated(
    database: Database,
    settings: Settings,
    rules: Track,
    answers: Answers = right,
    others: Others = lambda _, __: (),
    data: Path | None = None,
) -> str:
    """The id of an evaluation that has succeeded on a track, judged as told."""
    with database.write() as session:
        asked(session, rules, data)
        claimed = held(session)
    directory = write_job_directory(settings, claimed, ())
    answer(directory, claimed.job, answers, data)
    judged(directory, claimed.job, others, data)
    outputs = outputs_of(database, directory, claimed.job)
    store_artifacts(settings, directory, outputs.artifacts)
    with database.write() as session:
        assert finish(session, claimed.run_id, claimed.token, outputs, REPORT, actor="t") == "succeeded"
    return claimed.run_id


def stricter(protocol: TaskProtocol, outcomes: Sequence[ItemOutcome]) -> list[ItemOutcome]:
    """Another scorer, which believes nothing about the first item and everything about the second."""
    if "strict-1" not in protocol.scorers:
        return []
    first, second = list(dict.fromkeys(outcome.item for outcome in outcomes))[:2]
    word = {first: 0.0, second: 1.0}
    return [
        outcome.model_copy(
            update={"scorer": "strict-1", "score": word.get(outcome.item, outcome.score), "answer": "read otherwise"}
        )
        for outcome in outcomes
    ]
