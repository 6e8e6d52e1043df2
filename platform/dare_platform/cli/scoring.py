"""`dare rescore` and `dare scores`: other scorers over the answers that are stored, and where they disagree."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dare_platform.cli.output import (
    FAILED,
    NOT_FOUND,
    USAGE,
    AsJson,
    reading,
    refuse,
    say,
    settings,
    show,
    table,
    write,
    write_json,
    writing,
)
from dare_platform.cli.running import child

if TYPE_CHECKING:
    from dare_platform.scores import Taken
    from dare_platform.views import MovedAnswer, ScorerDifference, Word

SHOWN = 20
Run = Annotated[str, typer.Argument(metavar="RUN", help="A succeeded run of kind evaluate.")]
Tasks = Annotated[list[str] | None, typer.Option("--task", help="Only this task, repeatable; all by default.")]


def add_to(app: typer.Typer, runs_panel: str) -> None:
    """Register the commands."""
    app.command(rich_help_panel=runs_panel)(rescore)
    scores = typer.Typer(no_args_is_help=True, help="What scorers say of stored answers.", rich_markup_mode="markdown")
    scores.command("diff")(diff)
    scores.command("scorers")(scorers)
    app.add_typer(scores, name="scores", rich_help_panel=runs_panel)


def rescore(
    run_id: Annotated[
        str, typer.Argument(metavar="RUN|DIRECTORY", help="A succeeded run of kind evaluate, or a directory of one.")
    ],
    scorer: Annotated[
        str | None, typer.Option(help="Who shall judge; our own scorer of this version by default.")
    ] = None,
    task: Tasks = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Of a directory: a scorer's policy to choose otherwise; repeatable."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Judge the stored answers of a run again: new rows beside the old ones, never an overwrite.

    `dare rescore RUN` · `dare rescore RUN --task gsm8k` · A scorer that has spoken before must say the same again: 0
    and "equal" if it does, 1 if it does not. Programs are run in a sandbox or not at all.

    `dare rescore DIRECTORY --policy marker=first` does the same for what `dare evaluate` left in a directory.
    """
    if Path(run_id).is_dir():
        if scorer or task:
            refuse("--scorer and --task are for runs; a directory is judged by our own scorer, all of it", USAGE)
        chosen = [word for one in policy or () for word in ("--policy", one)]
        raise typer.Exit(child("rescore", run_id, *chosen, *(["--json"] if as_json else [])))
    if policy:
        refuse("--policy is for directories: the policies of a run are fields of its protocol", USAGE)
    from dare_platform import rescoring, stock_scoring
    from dare_platform.models import LOCAL_ACCOUNT
    from dare_platform.results import items_of

    current = settings()
    with reading() as session:
        job = rescoring.order(session, run_id, scorer or next(iter(rescoring.scorers_here())), task or ())
    with tempfile.TemporaryDirectory(prefix=".rescore-", dir=current.home, ignore_cleanup_errors=True) as scratch:
        directory = Path(scratch) / "job"
        directory.mkdir()
        with reading() as session:
            rescoring.prepare(session, current, run_id, job, directory)
            items = items_of(session, job)
        if rescoring.is_stock(job):
            say("OpenCompass is started and judges; this takes it some seconds.")
            stock_scoring.score(directory, job, items, current.data)
            code = 0
        else:
            code = child("run", str(directory))
        (directory / "predictions").chmod(0o755)  # or it could not be removed
        if not (directory / "result.json").is_file():
            refuse(f"the scorer ended with exit code {code} and without a result: nothing was written", FAILED)
        with writing() as session:
            taken = rescoring.take(session, LOCAL_ACCOUNT, run_id, job, directory)
    assert job.score is not None
    silent = [p.task for p in job.score.protocols if p.task not in {one.task for one in taken}]
    if as_json:
        write_json({"run": run_id, "taken": taken, "not_scored": silent})
    else:
        _tell(taken, silent)
    raise typer.Exit(FAILED if silent else 0)


def _tell(taken: Sequence[Taken], silent: Sequence[str]) -> None:
    for one in taken:
        if one.outcome == "added":
            write(f"{one.task}: {one.answers} answers judged by {one.scorer}, added.")
        else:
            write(f"{one.task}: equal. {one.scorer} says the same of all {one.answers} answers; nothing to add.")
    for name in silent:
        write(f"{name}: not scored here, nothing was written.")


def scorers(as_json: AsJson = False) -> None:
    """List the scorers that this installation has for stored answers."""
    from dare_platform.rescoring import scorers_here

    here = scorers_here()
    if as_json:
        write_json(dict(here))
    else:
        show(table("name", "what it is", rows=list(here.items())))


def diff(
    run_id: Run,
    pair: Annotated[
        tuple[str, str], typer.Option("--scorers", metavar="A B", help="Two names, as in the board's line.")
    ],
    task: Tasks = None,
    most: Annotated[int, typer.Option("--most", help="Answers that are listed; --json lists all.")] = SHOWN,
    as_json: AsJson = False,
) -> None:
    """Compare two scorers on one run, item by item: how many are equal, which moved, and what each has read.

    `dare scores diff RUN --scorers dare-1 opencompass-0.5.4`
    """
    from dare_platform import views
    from dare_platform.viewer import LOCAL

    a, b = pair
    if a == b:
        refuse(f"both scorers are {a}: there is nothing to compare", USAGE)
    with reading() as session:
        if views.run_view(session, run_id, 1, LOCAL) is None:
            refuse(f"there is no run {run_id!r}", NOT_FOUND)
        known = views.scorers_of(session, run_id, LOCAL)
        chosen = [name for name, spoke in known.items() if {a, b} <= set(spoke) and (not task or name in task)]
        found = [views.difference(session, run_id, name, a, b, viewer=LOCAL) for name in chosen]
    if not found:
        heard = "; ".join(f"{name}: {', '.join(spoke)}" for name, spoke in known.items()) or "nobody"
        refuse(f"no task of run {run_id} was judged by both {a} and {b}; who was heard: {heard}", NOT_FOUND)
    if as_json:
        write_json(found)
        return
    for one in found:
        _show(one, most)


def _show(one: ScorerDifference, most: int) -> None:
    write(
        f"{one.task}: {one.equal} of {one.answers} answers judged alike; solved by {one.a} only: {one.only_a}, "
        f"by {one.b} only: {one.only_b}" + (f"; one of them failed on {one.failed}" if one.failed else "") + "."
    )
    if one.moved:
        show(table("item", "sample:", one.a, one.b, rows=[_row(moved) for moved in one.moved[:most]]))
    if len(one.moved) > most:
        say(f"[dim]{len(one.moved) - most} more: --most {len(one.moved)}, or --json[/]")


def _row(moved: MovedAnswer) -> tuple[object, ...]:
    return moved.item, moved.sample, _said(moved.a), _said(moved.b)


def _said(word: Word) -> str:
    """`solved: 18`, `not solved: 81`, `not solved, no answer`."""
    verdict = "solved" if word.solved else "not solved"
    status = "" if word.status == "ok" else f", {word.status.replace('_', ' ')}"
    return f"{verdict}{status}" + (f": {word.answer}" if word.answer is not None else "")
