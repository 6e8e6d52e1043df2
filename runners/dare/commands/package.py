"""`python -m dare package`: a trained policy as a folder to give away, with a model card that knows its scores."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from dare.commands.terminal import refuse, say
from dare.spec import JobSpec, Result, Score


def package(
    directory: Annotated[Path, typer.Argument(help="A directory that `dare train` finished.")],
    to: Annotated[Path, typer.Option(help="Where the policy goes; must not exist.")],
    adapter: Annotated[bool, typer.Option("--adapter", help="The adapters alone instead of all weights.")] = False,
) -> None:
    """Copy the policy of DIRECTORY to a folder of its own, with a model card that knows its scores.

    Example: `dare package runs/bgpo --to bgpo-sudoku`
    """
    from dare.job import JobError, read_job
    from dare.weights.model_card import NAME, Trained, weight_hashes, write_card

    try:
        job = read_job(directory)
    except (JobError, OSError) as error:
        refuse(error)
    result = _result(directory)
    if result is None or job.train is None or result.job != job.digest() or result.outcome != "succeeded":
        refuse(f"{directory} holds no training run that succeeded: let `dare train --out {directory} ...` finish first")
    name = "adapter" if adapter else "model"
    if not (directory / name).is_dir():
        refuse(f"{directory} has no folder {name}: " + ("it was trained without adapters" if adapter else "it is gone"))
    if to.exists():
        refuse(f"{to} exists already; name a folder that does not")
    scratch = to.with_name(f".{to.name}.new")
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(directory / name, scratch)
    hashes = weight_hashes(scratch)
    left = {one.path: one.sha256 for one in result.artifacts}
    for file, digest in hashes.items():
        if left.get(f"{name}/{file}") != digest:
            shutil.rmtree(scratch)
            refuse(f"{directory / name / file} is not what the run left there: its hash differs from the result's")
    entry = directory / "entry" / "algorithm.py"
    scores, limited = _scores(directory, left)
    trained = Trained(
        job=job,
        usage=result.usage,
        provenance=result.provenance,
        form="adapter" if adapter else ("merged" if job.train.settings.lora is not None else "full"),
        entry=entry.read_bytes() if job.train.algorithm.source == "entry" else None,
        scores=scores,
        limited=limited,
    )
    write_card(scratch, trained, hashes)
    scratch.rename(to)
    say(f"{to} holds the {name} of {directory}; {NAME} says what it is.")


def _scores(directory: Path, left: dict[str, str]) -> tuple[tuple[Score, ...], bool]:
    """Scores of the evaluation of these very weights, and whether it was of the first items only."""
    from dare.weights.model_card import weight_hashes

    evaluation = directory / "evaluation"
    result = _result(evaluation)
    if result is None or result.outcome != "succeeded":
        return (), False
    if any(left.get(f"model/{file}") != digest for file, digest in weight_hashes(evaluation / "weights").items()):
        return (), False
    job = JobSpec.model_validate_json((evaluation / "job.json").read_text(encoding="utf-8"))
    limited = job.evaluate is not None and any(protocol.limit is not None for protocol in job.evaluate.protocols)
    return result.scores, limited


def _result(directory: Path) -> Result | None:
    """How the run of a directory ended; None when it did not."""
    try:
        return Result.model_validate_json((directory / "result.json").read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        return None
