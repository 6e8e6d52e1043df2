"""`dare control`: the housekeeper of a stack."""

from __future__ import annotations

import typer

from dare_platform.cli.output import say, settings


def add_to(app: typer.Typer, panel: str) -> None:
    """Register the command."""
    app.command(rich_help_panel=panel)(control)


def control() -> None:
    """Keep house until Ctrl-C: take back lost runs, ring workers, send messages, remove what is old.

    Workers do what runs depend on themselves; on a laptop this is not needed.
    """
    from dare_platform.control import Control, chores
    from dare_platform.database import open_database
    from dare_platform.structured_logs import set_up

    set_up("control")
    current = settings()
    publish = None
    if current.broker_url:
        from dare_platform.broker import CeleryPublisher, make_app

        publish = CeleryPublisher(make_app(current.broker_url))
    with open_database(current) as database:
        found = chores(current, database, publish)
        say(f"Keeping house: {', '.join(chore.name for chore in found)}.")
        one = Control(found)
        one.stop_on_signals()
        one.run()
