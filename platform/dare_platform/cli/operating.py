"""`dare backup`, `restore`, `purge`, `metrics`: what an operator does by hand, or lets a timer do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dare_platform.cli.output import AsJson, opened, say, settings, show, table, write, write_json


def add_to(app: typer.Typer, panel: str) -> None:
    """Register the commands."""
    for command in (backup, restore, purge, metrics):
        app.command(rich_help_panel=panel)(command)


def backup(
    folder: Annotated[Path, typer.Argument(help="A folder of its own; a second backup copies what is new.")],
) -> None:
    """Copy database and artifacts into a folder, while the platform works."""
    from dare_platform.backup import back_up

    made = back_up(settings(), folder)
    size = sum(made.artifacts.values()) / 1024**2
    say(f"Backed up {made.database} and {len(made.artifacts)} files ({size:.1f} MiB) in {folder}.")


def restore(folder: Annotated[Path, typer.Argument(help="What `dare backup` wrote.")]) -> None:
    """Bring a backup into an empty installation. Every file is verified first."""
    from dare_platform.backup import restore as bring_back

    made = bring_back(settings(), folder)
    say(f"Restored the backup of {made.made_at} with {len(made.artifacts)} files. Next: dare migrate")


def purge(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would go.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove models, job directories and printed output that are older than DARE_KEEP_*_DAYS. Records stay."""
    from dare_platform import retention

    current = settings()
    with opened() as database:
        found = retention.purge(current, database, dry_run=dry_run)
    if as_json:
        write_json(list(found))
        return
    rows = [(one.kind, one.count, f"{one.bytes / 1024**2:.1f}") for one in found]
    show(table("kind", "would go:" if dry_run else "gone:", "MiB:", rows=rows))


def metrics() -> None:
    """Write what Prometheus would read, once."""
    from dare_platform.metrics import Metrics

    with opened() as database:
        write(Metrics(settings(), database).text().decode())
