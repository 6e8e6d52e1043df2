"""`dare submit`, `sweep`, `check`, `cancel`, `retry`, `withdraw`: everything that changes an entry."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from dare_platform.cli.output import (
    NOT_FOUND,
    REFUSED,
    USAGE,
    AsJson,
    plain,
    refuse,
    say,
    service,
    show_for_people,
    table,
    write,
    write_json,
)

if TYPE_CHECKING:
    from dare.source.problems import Problem
    from dare_platform.asking import SubmitRequest
    from dare_platform.models import Visibility
    from dare_platform.service import Checked

Backbones = Annotated[
    list[str] | None, typer.Option("--backbone", "-b", help="Repeatable; all of the track by default.")
]
Assignments = Annotated[list[str] | None, typer.Option("--set", help="hyperparameter=value, repeatable.")]


def add_to(app: typer.Typer, panel: str) -> None:
    """Register the commands."""
    for command in (submit, sweep, check, cancel, retry, withdraw):
        app.command(rich_help_panel=panel)(command)


def submit(
    what: Annotated[str, typer.Argument(help="A built-in algorithm, `untouched`, a .py file or an archive.")],
    settings_file: Annotated[
        Path | None, typer.Option("--settings", help="YAML of `hyperparameter: value` lines.")
    ] = None,
    assignments: Assignments = None,
    backbone: Backbones = None,
    track: Annotated[str, typer.Option(help="`tiny`, or `tiny@1.0` for a version.")] = "tiny",
    name: Annotated[str | None, typer.Option(help="Name on the board; the algorithm's by default.")] = None,
    control: Annotated[bool, typer.Option("--control", help="A control: shown, never ranked.")] = False,
    visibility: Annotated[
        Literal["public", "anonymous", "private"],
        typer.Option(help="Who sees it. It can be opened later, not closed; a private one is not ranked."),
    ] = "public",
    as_json: AsJson = False,
) -> None:
    """Put an entry into the queue: training and evaluation for every backbone and seed of the track.

    `dare submit bgpo` · `dare submit bgpo --set mc_samples=4 --name bgpo-4` · `dare submit my_rule.py -b llada-tiny`

    The same content again leads to the entry that is there. A file is read, never imported, and checked on a tiny
    backbone before it trains.
    """
    from dare_platform.service import ProblemsError

    request = _request(what, settings_file, assignments, track, backbone, name, control, visibility)
    try:
        with service() as asked:
            done = asked.submit(request, secrets.token_hex(16))
    except ProblemsError as error:
        _refuse_all(error.problems)
    if as_json:
        write_json(done)
    else:
        say(plain(done.sentence))
        write(done.entry_id)


def sweep(
    file: Annotated[Path, typer.Argument(help="YAML with `algorithm` and `grid` or `entries`: see docs/submit.md.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the entries and their runs; queue nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, however many runs it is.")] = False,
    as_json: AsJson = False,
) -> None:
    """Put several entries of one method into the queue, or none if one of them cannot be submitted.

    `dare sweep blame.yaml --dry-run` · `dare sweep blame.yaml --yes`

    Each entry is a try of the method, as if it had been submitted by itself; an entry that is there already is not
    submitted again.
    """
    from dare_platform import sweeps

    if not file.is_file():
        refuse(f"there is no file {file}", NOT_FOUND)
    request = sweeps.request_of(file, sweeps.read_file(file))
    with service() as asked:
        found = asked.check_sweep(request)
        if found.problems:
            _refuse_all(found.problems)
        if not as_json or not dry_run:
            _show_sweep(found)
        if dry_run:
            if as_json:
                write_json(
                    {"entries": [{"name": one.name, "runs": one.runs} for one in found.entries], "runs": found.runs}
                )
            return
        if found.runs > ASK_ABOVE and not yes and not _agreed(found.runs):
            refuse(f"nothing was queued: {found.runs} runs are more than {ASK_ABOVE}, say --yes to queue them", REFUSED)
        done = asked.submit_sweep(request, secrets.token_hex(16))
    if as_json:
        write_json([{"name": cost.name, **asdict(one)} for cost, one in zip(found.entries, done, strict=True)])
        return
    made = sum(one.created for one in done)
    say(
        f"{sum(one.runs for one in done)} runs of {made} new entries queued, each a try; {len(done) - made} were there."
    )
    for one in done:
        write(one.entry_id)


ASK_ABOVE = 24
"""Runs of a sweep that nobody is asked about."""


def _show_sweep(found: Checked) -> None:
    rows = [(one.name, one.checks, one.trainings, one.evaluations) for one in found.entries]
    show_for_people(table("name", "checks:", "trainings:", "evaluations:", rows=rows))
    say(f"{len(rows)} entries, {found.runs} runs at most.")


def _agreed(runs: int) -> bool:
    """Ask on a terminal; nobody answers elsewhere."""
    return sys.stdin.isatty() and typer.confirm(f"Queue {runs} runs?", err=True)


def _request(
    what: str,
    settings_file: Path | None,
    assignments: Sequence[str] | None,
    track: str,
    backbones: Sequence[str] | None,
    name: str | None,
    control: bool,
    visibility: Visibility,
) -> SubmitRequest:
    from dare_platform import archives
    from dare_platform.asking import SubmitRequest, SubmittedFile

    text = _read(settings_file).decode(errors="replace") if settings_file else None
    given = _assigned(assignments or [])
    is_file = what.endswith(".py") or archives.is_archive(what)
    if control and not is_file:
        refuse("--control goes with a file: what a built-in algorithm is, is known", USAGE)
    return SubmitRequest(
        algorithm=None if is_file else what,
        file=SubmittedFile.of(Path(what).name, _read(Path(what))) if is_file else None,
        settings=text,
        assignments=given,
        track=track,
        backbones=tuple(backbones or ()),
        name=name,
        control=control,
        visibility=visibility,
    )


def _read(path: Path) -> bytes:
    if not path.is_file():
        refuse(f"there is no file {path}", NOT_FOUND)
    with path.open("rb") as file:
        return file.read(16_000_000)  # enough to say how much too large it is, never all of a disk image


def _assigned(texts: Sequence[str]) -> dict[str, Any]:
    from dare.source.hyperparameters import from_assignment

    given: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            refuse(f"--set {text!r} is not of the form name=value", USAGE)
        if name in given:
            refuse(f"--set {name} is given twice", USAGE)
        given[name] = from_assignment(value)
    return given


def _refuse_all(problems: Sequence[Problem]) -> NoReturn:
    """All problems, at most ten, and exit code 4; 3 when it is only the name that nobody knows."""
    from dare.source.problems import shown

    for sentence in shown(problems):
        write_error(sentence)
    unknown = {problem.code for problem in problems} == {"unknown_algorithm"}
    raise typer.Exit(NOT_FOUND if unknown else REFUSED)


def write_error(sentence: str) -> None:
    """One problem on standard error."""
    typer.echo(f"dare: {sentence}", err=True)


def check(
    file: Annotated[Path, typer.Argument(help="A Python file with one Algorithm subclass.")],
    settings_file: Annotated[
        Path | None, typer.Option("--settings", help="YAML of `hyperparameter: value` lines.")
    ] = None,
    assignments: Assignments = None,
    backbone: Annotated[list[str] | None, typer.Option("--backbone", "-b", help="Tiny backbones to check on.")] = None,
    only_read: Annotated[bool, typer.Option("--only-read", help="Read it, do not run it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check an algorithm before you submit it: read the file at once, then run the contract on tiny backbones.

    `dare check my_rule.py` · `dare check my_rule.py --set clip_low=0.1 -b llada-tiny`

    The second part executes the file: use it on your own code.
    """
    from dare.source import check_hyperparameters, read_source
    from dare.source.hyperparameters import parse_settings

    given = parse_settings(_read(settings_file).decode(errors="replace")) if settings_file else None
    values = {**(given.values if given else {}), **_assigned(assignments or [])}
    reading = read_source(_read(file), file.stem, file.name)
    problems = [*reading.problems, *(given.problems if given else ())]
    if reading.algorithm is not None:
        problems += check_hyperparameters(reading.algorithm, values, given.lines if given else {})
    if problems:
        _refuse_all(problems)
    assert reading.algorithm is not None
    count = len(reading.algorithm.hyperparameters)
    say(f"[green]✓[/] read: class `{reading.algorithm.class_name}`, {count} hyperparameters")
    if only_read:
        return
    child = [sys.executable, "-m", "dare", "check", str(file)]
    child += [part for name in backbone or [] for part in ("--backbone", name)]
    child += [part for name, value in values.items() for part in ("--set", f"{name}={_as_yaml(value)}")]
    code = subprocess.run([*child, *(["--json"] if as_json else [])], check=False).returncode
    raise typer.Exit({0: 0, 1: REFUSED}.get(code, code))


def _as_yaml(value: Any) -> str:
    """A value as the child reads it: `1e-05` would be text to YAML."""
    import yaml

    return str(yaml.safe_dump(value, default_flow_style=True)).removesuffix("...\n").strip()


def cancel(id: Annotated[str, typer.Argument(help="An entry or a run.")], as_json: AsJson = False) -> None:
    """Cancel a run, or all runs of an entry. Waiting ones end at once, those at work within seconds."""
    with service() as asked:
        outcome = asked.cancel(id)
    if as_json:
        write_json(outcome)
    else:
        say(outcome.sentence)


def retry(
    id: Annotated[str, typer.Argument(help="A failed or cancelled entry, or one of its runs.")], as_json: AsJson = False
) -> None:
    """Ask for an ended entry again: a new try of the same content, with every run anew."""
    with service() as asked:
        done = asked.retry(id, secrets.token_hex(16))
    if as_json:
        write_json(done)
    else:
        say(plain(done.sentence))
        write(done.entry_id)


def withdraw(
    entry: Annotated[str, typer.Argument(help="The entry's id.")],
    reason: Annotated[str | None, typer.Option(help="Shown on its page.")] = None,
) -> None:
    """Take an entry off the board. Its results stay readable and its try stays counted."""
    with service() as asked:
        asked.withdraw(entry, reason)
    say(f"Entry {entry} is withdrawn.")
