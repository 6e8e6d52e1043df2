"""`python -m leaderboard --port 8501 --address 127.0.0.1`: the site."""

from __future__ import annotations

import argparse
import sys

from dare_platform.errors import SettingsError
from dare_platform.structured_logs import set_up
from leaderboard.serving import serve


def main() -> None:
    """Read the options and serve."""
    parser = argparse.ArgumentParser(prog="leaderboard", description="Serve the DARE leaderboard.")
    parser.add_argument("--port", type=int, default=8501)
    parser.add_argument("--address", default="127.0.0.1", help="127.0.0.1 keeps the site on this machine")
    parser.add_argument("--published", help="address of the host under which a container's port is published")
    given = parser.parse_args()
    try:
        set_up("site")
        sys.stderr.write(f"The site: http://{given.address}:{given.port}\n")
        serve(given.port, given.address, given.published)
    except SettingsError as error:
        parser.exit(2, f"leaderboard: {error}\n")


if __name__ == "__main__":
    main()
