"""`dare control`: the housekeeper of a stack."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated

import typer

from dare_platform.cli.output import say, settings


def add_to(app: typer.Typer, panel: str) -> None:
    """Register the command."""
    app.command(rich_help_panel=panel)(control)


def control(
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            help="Answer a Prometheus server here, at /metrics. Default: DARE_METRICS_PORT, or nowhere.",
        ),
    ] = None,
    metrics_host: Annotated[
        str | None, typer.Option(help="Address for that. Default: DARE_METRICS_HOST, or this machine only.")
    ] = None,
) -> None:
    """Keep house until Ctrl-C: take back lost runs, ring workers, send messages, remove what is old.

    Workers do what runs depend on themselves; on a laptop this is not needed.
    """
    from dare_platform.control import Control, chores
    from dare_platform.database import open_database
    from dare_platform.metrics import Metrics
    from dare_platform.metrics_http import reading, serving
    from dare_platform.structured_logs import set_up

    set_up("control")
    current = settings()
    host, port = metrics_host or current.metrics_host, metrics_port or current.metrics_port
    publish = None
    if current.broker_url:
        from dare_platform.broker import CeleryPublisher, make_app

        publish = CeleryPublisher(make_app(current.broker_url))
    with ExitStack() as opened:
        database = opened.enter_context(open_database(current))
        found = chores(current, database, publish)
        if port is not None:
            metrics = Metrics(current, database)
            opened.enter_context(serving(metrics, host, port))
            found = (*found, reading(metrics))
            say(f"Metrics: http://{host}:{port}/metrics")
        say(f"Keeping house: {', '.join(chore.name for chore in found)}.")
        one = Control(found)
        one.stop_on_signals()
        one.run()
