"""`python -m leaderboard --port 8501 --address 127.0.0.1`: the site; `--export FOLDER`: its boards as files."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dare_platform.errors import PlatformError, SettingsError
from dare_platform.settings import Settings
from dare_platform.structured_logs import set_up
from dare_platform.tracks import UnknownTrackError, track_named
from leaderboard.serving import serve
from leaderboard.static_export import export


def main() -> None:
    """Read the options and serve."""
    parser = argparse.ArgumentParser(prog="leaderboard", description="Serve the DARE leaderboard.")
    parser.add_argument("--port", type=int, default=8501)
    parser.add_argument("--address", default="127.0.0.1", help="127.0.0.1 keeps the site on this machine")
    parser.add_argument("--published", help="address of the host under which a container's port is published")
    parser.add_argument("--export", type=Path, metavar="FOLDER", help="write boards as HTML files and end")
    parser.add_argument("--track", default="tiny", help="with --export: `tiny`, or `tiny@1.0` for a version")
    parser.add_argument("--backbone", action="append", help="with --export: repeatable; all of the track by default")
    given = parser.parse_args()
    if given.export is not None:
        _export(parser, given.export, given.track, given.backbone or [])
        return
    try:
        set_up("site")
        sys.stderr.write(f"The site: http://{given.address}:{given.port}\n")
        serve(given.port, given.address, given.published)
    except SettingsError as error:
        parser.exit(2, f"leaderboard: {error}\n")


def _export(parser: argparse.ArgumentParser, folder: Path, track: str, backbones: list[str]) -> None:
    """The boards as files; a mistake is one sentence."""
    try:
        written = export(Settings.from_environment(), folder, track_named(track), backbones)
    except (PlatformError, UnknownTrackError) as error:
        parser.exit(1, f"leaderboard: {error}\n")
    for path in written:
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
