"""`dare gpus`: the devices of the workers, and the operator's word that one may work again."""

from __future__ import annotations

from typing import Annotated

import typer

from dare_platform.cli.output import AsJson, Sentences, reading, say, show, table, write_json, writing

gpus = typer.Typer(cls=Sentences, invoke_without_command=True, help="List the GPUs of the workers, or clear one.")


def add_to(app: typer.Typer, panel: str) -> None:
    """Register the commands."""
    app.add_typer(gpus, name="gpus", rich_help_panel=panel)


@gpus.callback()
def list_gpus(context: typer.Context, as_json: AsJson = False) -> None:
    """List the GPUs that workers have seen, their health, and which run has them."""
    if context.invoked_subcommand is not None:
        return
    from dare_platform import gpu
    from dare_platform.views.words import duration

    with reading() as session:
        found = gpu.gpus(session)
    if as_json:
        write_json(found)
        return
    if not found:
        say("No worker has seen a GPU: start one with `dare worker --device gpu`.")
        return
    rows = [
        (g.uuid, g.host, g.model, g.memory_mib, g.health, g.run_id, duration(g.seen_seconds), g.note) for g in found
    ]
    show(table("id", "host", "model", "MiB:", "health", "run", "seen:", "note", rows=rows))
    if any(one.health != "ok" for one in found):
        say("One that is suspect or bad gets no work. Look at it, then: dare gpus clear UUID")


@gpus.command()
def clear(uuid: Annotated[str, typer.Argument(help="As `dare gpus` lists it.")]) -> None:
    """Give a GPU work again that was set aside. Its worker looks at it before it does."""
    from dare_platform import gpu

    with writing() as session:
        gpu.clear(session, uuid)
    say(f"{uuid} gets work again. If it is not free or does not answer, it is set aside again.")
