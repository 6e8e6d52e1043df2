"""`dare worker`, and the commands that need torch: children `python -m dare ...` with the arguments as they are."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from dare_platform.cli.output import FAILED, USAGE, AsJson, reading, refuse, say, settings, show, table, write_json

PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def add_to(app: typer.Typer, runs_panel: str, machine_panel: str) -> None:
    """Register the commands."""
    app.command(rich_help_panel=machine_panel)(worker)
    app.command(rich_help_panel=runs_panel)(reproduce)
    passed_on = (train, data, recipe, protocol, evaluate, second_opinion, generate, serve, memory, diagnose, run)
    for command in (*passed_on, new, package):
        app.command(rich_help_panel=machine_panel, context_settings=PASSED_ON)(command)


def child(*arguments: str) -> int:
    """Run `python -m dare` in this terminal; its exit code.

    Ctrl-C reaches the child by itself and a SIGTERM is passed on: either way it ends in good order and is waited for.
    """
    process = subprocess.Popen([sys.executable, "-m", "dare", *arguments])
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None),
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: process.terminate()),
    }
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code  # as a shell says that a signal ended it


def worker(
    family: Annotated[
        list[str] | None, typer.Option(help="Families to work for; all that are built by default.")
    ] = None,
    device: Annotated[Literal["cpu", "gpu"], typer.Option(help="A cpu worker takes tiny backbones only.")] = "cpu",
    until_idle: Annotated[bool, typer.Option("--until-idle", help="End when nothing waits.")] = False,
) -> None:
    """Carry out runs until Ctrl-C: one at a time, back into the queue in good order when stopped.

    `dare worker` · `dare worker --family llada --until-idle`
    """
    from dare.catalog import families
    from dare_platform.structured_logs import set_up

    known = list(families())
    chosen = family or known
    unknown = sorted(set(chosen) - set(known))
    if unknown:
        refuse(f"unknown family {unknown[0]!r}; known: {', '.join(known)}", USAGE)
    set_up("worker")
    current = settings()
    if current.broker_url and not until_idle:
        from dare_platform.broker import serve

        say(f"Working for {', '.join(chosen)} on {device}, woken by the broker. Ctrl-C ends it in good order.")
        serve(current, chosen, device)
        return
    from dare_platform.worker import Worker

    say(f"Working for {', '.join(chosen)} on {device}. Ctrl-C ends it in good order.")
    one = Worker(current, chosen, device=device)
    one.stop_on_signals()
    made = one.run(until_idle)
    say(f"{made} {'attempt' if made == 1 else 'attempts'} made.")


def reproduce(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="A run that has succeeded.")],
    out: Annotated[Path | None, typer.Option(help="Job directory to make; RUN-again by default.")] = None,
    trained_in: Annotated[
        Path | None, typer.Option(help="Of an evaluation: where its training was done again; its policy is taken.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Do a finished run again here and compare item by item: equal, within noise, or different, and where.

    `dare reproduce TRAINING` · `dare reproduce EVALUATION --trained-in TRAINING-again`

    Executes the entry's code: use it on code that you trust. Equal bits are promised on the same processor, libraries
    and thread count; what is not the same is listed. Ends with 1 when something is different.
    """
    from dare_platform import reproduction

    directory = out or Path(f"{run_id}-again")
    with reading() as session:
        reproduction.prepare(session, settings(), run_id, directory, trained_in)
    code = child("run", str(directory))
    if code:
        raise typer.Exit(code)
    with reading() as session:
        outcome = reproduction.compare(session, run_id, directory)
    if as_json:
        write_json(outcome)
    else:
        show(table("", "what", "found", rows=[(part.verdict, part.what, part.sentence) for part in outcome.parts]))
        for name, recorded, now in outcome.machine:
            say(f"{name} was {recorded}, here it is {now}.")
        say(f"[bold]{outcome.verdict.capitalize()}.[/]{'' if outcome.parts else ' ' + outcome.sentence}")
    raise typer.Exit(FAILED if outcome.verdict == "different" else 0)


def train(context: typer.Context) -> None:
    """Train one policy here, without database and queue. All options: `dare train --help`."""
    raise typer.Exit(child("train", *context.args))


def evaluate(context: typer.Context) -> None:
    """Score a trained policy here. All options: `dare evaluate --help`."""
    raise typer.Exit(child("evaluate", *context.args))


def second_opinion(context: typer.Context) -> None:
    """Another harness's scorers on the same stored answers. All options: `dare second-opinion --help`."""
    raise typer.Exit(child("second-opinion", *context.args))


def generate(context: typer.Context) -> None:
    """Answer prompts, and watch the canvas being denoised. All options: `dare generate --help`."""
    raise typer.Exit(child("generate", *context.args))


def serve(context: typer.Context) -> None:
    """Serve a policy in the shapes of OpenAI's API. All options: `dare serve --help`."""
    raise typer.Exit(child("serve", *context.args))


def recipe(context: typer.Context) -> None:
    """What a run on a real backbone and task is set to. `dare recipe list`, then `dare recipe show --help`."""
    raise typer.Exit(child("recipe", *context.args))


def protocol(context: typer.Context) -> None:
    """By whose rules a task is asked and scored. `dare protocol list`, then `dare protocol show --help`."""
    raise typer.Exit(child("protocol", *context.args))


def data(context: typer.Context) -> None:
    """Look at training data, compare it with test items, verify its files. `dare data inspect --help`."""
    raise typer.Exit(child("data", *context.args))


def memory(context: typer.Context) -> None:
    """Estimate what a run needs in memory, before it is queued. All options: `dare memory --help`."""
    raise typer.Exit(child("memory", *context.args))


def diagnose(context: typer.Context) -> None:
    """Compare a method's direction with the true policy gradient, on toys. All options: `dare diagnose --help`."""
    raise typer.Exit(child("diagnose", *context.args))


def run(context: typer.Context) -> None:
    """Run a job directory to its result. `dare run DIRECTORY`."""
    raise typer.Exit(child("run", *context.args))


def new(context: typer.Context) -> None:
    """Start a method of your own: a file that passes `dare check` as it is. All options: `dare new --help`."""
    raise typer.Exit(child("new", *context.args))


def package(context: typer.Context) -> None:
    """A trained policy as a folder with a model card. All options: `dare package --help`."""
    raise typer.Exit(child("package", *context.args))
