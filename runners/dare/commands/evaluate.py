"""`dare evaluate`: scores of the policy that `dare train` left in a directory."""

from __future__ import annotations

import filecmp
import shutil
from pathlib import Path
from typing import Annotated

import typer

from dare.commands.running import Data, conclude, write_job
from dare.commands.terminal import at_least, refuse
from dare.spec import EvaluateSpec, JobSpec, TaskProtocol


def evaluate(
    directory: Annotated[Path, typer.Argument(help="A directory that `dare train` finished.")],
    task: Annotated[list[str] | None, typer.Option(help="Task, repeatable; sudoku and countdown by default.")] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first n items: a quick look, never a score.")] = None,
    samples: Annotated[int, typer.Option(help="Sampled completions per item besides the greedy one.")] = 4,
    data: Data = None,
) -> None:
    """Score the policy of DIRECTORY on tasks; results go to DIRECTORY/evaluation."""
    from dare.run import JobError, read_job
    from dare.tasks import UnknownTaskError, load_task

    at_least(1, limit=limit)
    at_least(0, samples=samples)
    if not directory.is_dir():
        refuse(f"there is no directory {directory}")
    if data is not None and not data.is_dir():
        refuse(f"there is no folder of data {data}")
    try:
        trained = read_job(directory)
        tasks = [load_task(name) for name in dict.fromkeys(task or ["sudoku", "countdown"])]
    except (JobError, UnknownTaskError) as error:
        refuse(error)
    except OSError as error:
        refuse(f"{directory / 'job.json'} cannot be read: {error.strerror}")
    if trained.train is None:
        refuse(f"{directory} holds a job of kind {trained.kind!r}; give the directory of a `dare train`")
    if not (directory / "model" / "model.safetensors").is_file():
        refuse(f"{directory} holds no trained policy yet: let `dare train --out {directory} ...` finish first")
    block = trained.train.sampling.block_length
    sampling = trained.train.sampling.model_copy(update={"temperature": 0.0, "steps_per_block": block})
    protocols = tuple(
        TaskProtocol(
            task=t.name,
            task_version=t.version,
            limit=limit,
            sampling=sampling,
            samples=samples,
            sample_steps_per_block=trained.train.sampling.steps_per_block,
        )
        for t in tasks
    )
    job = JobSpec(
        kind="evaluate",
        seed=trained.seed,
        backbone=trained.backbone,
        evaluate=EvaluateSpec(protocols=protocols, trained=True),
    )
    out = directory / "evaluation"
    stored = out / "weights" / "model.safetensors"
    if stored.is_file() and not filecmp.cmp(stored, directory / "model" / "model.safetensors", shallow=False):
        refuse(f"{out} evaluates another policy than {directory / 'model'} holds now; remove it to evaluate this one")
    out.mkdir(exist_ok=True)
    write_job(out, job, f"{out} holds an evaluation with other tasks, limit or samples; remove it to evaluate anew")
    shutil.copytree(directory / "model", out / "weights", dirs_exist_ok=True)
    conclude(out, data)
