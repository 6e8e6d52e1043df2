"""`python -m leaderboard --port 8501 --address 127.0.0.1`: the site."""

from __future__ import annotations

import argparse

from leaderboard.serving import serve


def main() -> None:
    """Read the two options and serve."""
    parser = argparse.ArgumentParser(prog="leaderboard", description="Serve the DARE leaderboard.")
    parser.add_argument("--port", type=int, default=8501)
    parser.add_argument("--address", default="127.0.0.1", help="127.0.0.1 keeps the site on this machine")
    given = parser.parse_args()
    serve(given.port, given.address)


if __name__ == "__main__":
    main()
