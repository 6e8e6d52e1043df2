"""`dare launcher`: the one service that has the container engine's socket."""

from __future__ import annotations

from typing import Annotated

import typer

from dare_platform.cli.output import say, settings

PORT = 8520


def add_to(app: typer.Typer, panel: str) -> None:
    """Register the command."""
    app.command(rich_help_panel=panel)(launcher)


def launcher(
    host: Annotated[str, typer.Option(help="Address to listen on. Never one that others can reach.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = PORT,
) -> None:
    """Start, watch and end runs in containers, for workers that set DARE_LAUNCHER to this address.

    Needs DARE_IMAGES, the engine's socket, and DARE_LAUNCHER_SECRET unless it listens on this machine only.
    """
    import uvicorn

    from dare_platform.database import open_database
    from dare_platform.docker_launcher import DockerLauncher
    from dare_platform.launcher_service import LauncherService, launcher_app, require_private
    from dare_platform.structured_logs import set_up

    set_up("launcher")
    current = settings()
    require_private(current.launcher_secret, host)
    with open_database(current) as database:
        one = DockerLauncher(current)
        one.prove()
        missing = sorted(name for name, image_id in one.images.items() if image_id is None)
        if missing:
            say(f"Not on this host: {', '.join(missing)}. Runs that need one fail until it is there.")
        found = one.adopt_all()
        say(f"Launching for {current.containers.installation} on {host}:{port}, with engine {one.engine_version}.")
        if found:
            say(f"Watching {found} {'container' if found == 1 else 'containers'} of an earlier launcher.")
        app = launcher_app(LauncherService(current, database, one), current.launcher_secret)
        uvicorn.run(app, host=host, port=port, log_level="warning", log_config=None, access_log=False)
        one.close()
