"""`dare evaluate` and `dare rescore`: scores of an untouched backbone, of a trained policy, or of stored answers."""

from __future__ import annotations

import filecmp
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from dare import protocols
from dare.catalog import UnknownBackboneError, backbone_directory, backbones
from dare.commands.protocol import reading_of
from dare.commands.running import Data, conclude, read_outcomes, write_job
from dare.commands.terminal import at_least, refuse, say
from dare.job import RESULT, JobError, read_job
from dare.opencompass.job import UnknownConfigError, config_of
from dare.protocols import Asked, ProtocolError
from dare.protocols.lint import IMPOSSIBLE, lint
from dare.sampling_config import SamplingConfig
from dare.scoring import SCORER, EvaluationError
from dare.spec import (
    BackboneRef,
    EvaluateSpec,
    ItemOutcome,
    JobSpec,
    Result,
    ScoreSpec,
    TaskProtocol,
)
from dare.tasks import MissingDataError, Task, UnknownTaskError, load_task

TINY, DEFAULT = "tiny", ("sudoku", "countdown")
AsJson = Annotated[bool, typer.Option("--json", help="The result as JSON instead of the table.")]


@dataclass(frozen=True)
class Chosen:
    """Who is evaluated."""

    backbone: BackboneRef
    sampling: SamplingConfig
    """How it decodes when nobody says otherwise."""
    seed: int
    checkpoint: Path
    """The folder of its weights and its tokenizer."""
    directory: Path | None
    """Of its training; None for an untouched backbone."""


def evaluate(
    policy: Annotated[
        str, typer.Argument(metavar="BACKBONE|DIRECTORY", help="An untouched backbone, or what `dare train` finished.")
    ],
    task: Annotated[
        list[str] | None,
        typer.Option(
            "--task", "--tasks", help="Task, or several with commas; repeatable. Sudoku and countdown by default."
        ),
    ] = None,
    protocol: Annotated[str, typer.Option(help="By whose rules; `dare protocol list` has them.")] = TINY,
    limit: Annotated[int | None, typer.Option(help="Only the first n items: a quick look, never a score.")] = None,
    samples: Annotated[
        int | None, typer.Option(help="Sampled completions per item besides the greedy one; the protocol's by default.")
    ] = None,
    through: Annotated[
        Literal["decoder", "opencompass"] | None,
        typer.Option(
            help="Who asks: our decoder in this process, or OpenCompass over a server; the protocol's default."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Directory to make, or to continue; DIRECTORY/evaluation or evaluations/BACKBONE/PROTOCOL."),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Rows decoded together: speed and memory, never the answers.")] = 128,
    dtype: Annotated[
        Literal["float32", "bfloat16"], typer.Option(help="Of the weights and every forward.")
    ] = "float32",
    data: Data = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse where anything about a protocol is doubtful.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Score a policy on tasks under a protocol. Interrupted, it continues where it was: run it again.

    `dare evaluate llada-tiny` · `dare evaluate runs/bgpo --tasks sudoku,countdown` ·
    `dare evaluate llada-8b-instruct --tasks gsm8k --protocol llada --dtype bfloat16`
    """
    at_least(1, limit=limit, batch_size=batch_size)
    at_least(0, samples=samples)
    if data is not None and not data.is_dir():
        refuse(f"there is no folder of data {data}")
    names = [name for listed in task or [",".join(DEFAULT)] for name in listed.split(",") if name]
    if not names:
        refuse(f"--tasks {','.join(task or [])!r} names no task; for example --tasks sudoku,countdown")
    who, tasks = _chosen(policy, names)
    try:
        asked = [
            protocols.compose(
                protocol, t.name, who.backbone.family, who.sampling, through=through, limit=limit, samples=samples
            )
            for t in tasks
        ]
        for one in asked:
            config_of(one.protocol)
        complete = [protocols.with_items(one, data) for one in asked]
    except (ProtocolError, UnknownConfigError, MissingDataError, EvaluationError) as error:
        refuse(error)
    asked = [one for one, _ in complete]
    if asked[0].through == "opencompass":
        _require_opencompass()
    _tell_doubts(complete, data, who.checkpoint, strict)
    job = JobSpec(
        kind="evaluate",
        seed=who.seed,
        backbone=who.backbone,
        evaluate=EvaluateSpec(
            protocols=tuple(one.protocol for one in asked),
            trained=who.directory is not None,
            batch_size=batch_size,
            dtype=dtype,
            through=asked[0].through,
        ),
    )
    folder = "evaluation" if protocol == TINY else f"evaluation-{protocol}"
    if out is None:
        out = (
            who.directory / folder if who.directory is not None else Path("evaluations") / who.backbone.name / protocol
        )
    _prepare(out, job, who)
    conclude(out, data, as_json=as_json)


def _chosen(policy: str, names: Sequence[str]) -> tuple[Chosen, list[Task]]:
    """The policy and the tasks, or a sentence about what is wrong with them."""
    directory = Path(policy)
    is_backbone = policy in backbones() and not (directory / "job.json").is_file()
    if not is_backbone and not directory.is_dir():
        known = "" if directory.name != policy else f", and no backbone of that name; known: {', '.join(backbones())}"
        refuse(f"there is no directory {directory}{known}")
    try:
        trained = None if is_backbone else read_job(directory)
        tasks = [load_task(name) for name in dict.fromkeys(names)]
        if is_backbone:
            record = backbones()[policy]
            return Chosen(record.ref, record.sampling, 0, backbone_directory(policy), None), tasks
    except (JobError, UnknownTaskError, UnknownBackboneError) as error:
        refuse(error)
    except OSError as error:
        refuse(f"{directory / 'job.json'} cannot be read: {error.strerror}")
    assert trained is not None
    if trained.train is None:
        refuse(f"{directory} holds a job of kind {trained.kind!r}; give the directory of a `dare train`")
    model = directory / "model"
    if not any(model.glob("*.safetensors")):
        refuse(f"{directory} holds no trained policy yet: let `dare train --out {directory} ...` finish first")
    return Chosen(trained.backbone, trained.train.sampling, trained.seed, model, directory), tasks


def _require_opencompass() -> None:
    from dare.evaluation.served import require_opencompass

    try:
        require_opencompass()
    except EvaluationError as error:
        refuse(error)


def _tell_doubts(
    asked: Sequence[tuple[Asked, Sequence[object]]], data: Path | None, checkpoint: Path, strict: bool
) -> None:
    """Say before the run what is doubtful about it; refuse where that was asked for."""
    reading = reading_of(checkpoint)
    doubts = [(one, finding) for one, items in asked for finding in lint(one, items, data, reading)]  # type: ignore[arg-type]
    for one, finding in doubts:
        say(f"doubtful {one.task.name} ({finding.name}): {finding.sentence}")
    if any(finding.name in IMPOSSIBLE for _, finding in doubts):
        refuse(next(f"{one.task.name}: {finding.sentence}" for one, finding in doubts if finding.name in IMPOSSIBLE))
    if strict and doubts:
        refuse(f"{len(doubts)} things are doubtful about protocol {doubts[0][0].name}, and --strict refuses them")


def _prepare(out: Path, job: JobSpec, who: Chosen) -> None:
    """The job directory; what an earlier start of the same job has stored stays."""
    weights = out / "weights"
    if who.directory is not None and weights.is_dir():
        stored = sorted(file.name for file in weights.glob("*.safetensors"))
        now = sorted(file.name for file in who.checkpoint.glob("*.safetensors"))
        same, _, _ = filecmp.cmpfiles(weights, who.checkpoint, now, shallow=False)
        if stored and (stored != now or len(same) != len(now)):
            refuse(f"{out} evaluates another policy than {who.checkpoint} holds now; remove it to evaluate this one")
    out.mkdir(parents=True, exist_ok=True)
    write_job(out, job, f"{out} holds an evaluation with other tasks, limit or samples; remove it to evaluate anew")
    if who.directory is not None:
        shutil.copytree(who.checkpoint, weights, dirs_exist_ok=True)
    _forget_failure(out)


def _forget_failure(out: Path) -> None:
    """A run that failed is tried again from what it stored; one that succeeded stays as it is."""
    finished = out / RESULT
    if finished.is_file() and Result.model_validate_json(finished.read_text(encoding="utf-8")).outcome == "failed":
        finished.unlink()


def rescore(
    directory: Annotated[Path, typer.Argument(help="A finished evaluation, or an earlier rescoring of one.")],
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", metavar="NAME=VALUE", help="A scorer's policy to choose otherwise; repeatable."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Directory to make; DIRECTORY/rescored-1, -2, ... by default.")
    ] = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Score stored answers again, without a model, and say which verdicts changed. Nothing is overwritten."""
    try:
        before = read_job(directory)
    except JobError as error:
        refuse(error)
    part = before.evaluate or before.score
    if part is None:
        refuse(f"{directory} holds a job of kind {before.kind!r}, which has no stored answers")
    chosen = {name: value for name, _, value in (text.partition("=") for text in policy or [])}
    asked = []
    for protocol in part.protocols:
        task = load_task(protocol.task)
        mine = {name: value for name, value in chosen.items() if name in task.policies}
        changed = protocol.model_dump() | {
            "scorer": SCORER,
            "further_scorers": (),
            "task_version": task.version,
            "policies": protocol.policies | mine,
        }
        asked.append(TaskProtocol.model_validate(changed))
    unknown = next((name for name in chosen if not any(name in one.policies for one in asked)), None)
    if unknown is not None:
        refuse(f"--policy {unknown}: no task of {directory} has such a policy")
    job = JobSpec(kind="score", seed=before.seed, backbone=before.backbone, score=ScoreSpec(protocols=tuple(asked)))
    if out is None:
        number = next(n for n in range(1, 10**6) if not (directory / f"rescored-{n}").exists())
        out = directory / f"rescored-{number}"
    if not (directory / "predictions").is_dir():
        refuse(f"{directory} has no stored answers")
    out.mkdir(parents=True, exist_ok=True)
    write_job(out, job, f"{out} holds another job; choose another --out")
    shutil.copytree(directory / "predictions", out / "predictions", dirs_exist_ok=True)
    _forget_failure(out)
    try:
        conclude(out, data, as_json=as_json)
    finally:
        if not as_json:
            _compare(directory, out, asked)


def _compare(before: Path, after: Path, asked: Sequence[TaskProtocol]) -> None:
    """Which verdicts are not what they were, by item."""
    for protocol in asked:
        path = Path("items") / f"{protocol.task}.jsonl"
        old, new = read_outcomes(before / path), read_outcomes(after / path)
        for name in dict.fromkeys(outcome.scorer for outcome in old):
            moved = _moved([one for one in old if one.scorer == name], new)
            told = f": {', '.join(moved[:10])}{', ...' if len(moved) > 10 else ''}" if moved else ""
            say(f"{protocol.task}: {len(moved)} of {len(new)} verdicts differ from those of {name}{told}")


def _moved(old: Sequence[ItemOutcome], new: Sequence[ItemOutcome]) -> list[str]:
    said = {(one.item, one.sample): one.score for one in old}
    return [
        one.item if one.sample == 0 else f"{one.item} (sample {one.sample})"
        for one in new
        if said.get((one.item, one.sample), one.score) != one.score
    ]
