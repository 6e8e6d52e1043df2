"""`dare api`: the HTTP API by itself. The site's server has it too."""

from __future__ import annotations

from typing import Annotated

import typer

from dare_platform.cli.output import say, settings

PORT = 8510


def add_to(app: typer.Typer, panel: str) -> None:
    """Register the command."""
    app.command(rich_help_panel=panel)(api)


def api(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = PORT,
    address: Annotated[str, typer.Option(help="127.0.0.1 keeps it on this machine.")] = "127.0.0.1",
) -> None:
    """Serve the HTTP API without the site, until Ctrl-C: `dare --server http://127.0.0.1:8510 entries` asks it.

    Others see what is public; who sends a token is its owner. On this machine's own address nobody needs one.
    """
    import uvicorn

    from dare_platform.api import Door, alone
    from dare_platform.host import is_loopback
    from dare_platform.structured_logs import set_up

    set_up("api")
    with Door(settings(), is_loopback(address)) as door:
        say(f"The API: http://{f'[{address}]' if ':' in address else address}:{port}/api/v1/openapi.json")
        uvicorn.run(alone(door), host=address, port=port, log_level="warning", log_config=None, access_log=False)
