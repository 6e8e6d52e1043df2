"""Keeps a process from writing outside its directory, from the network and from outliving its run.

Needs a kernel that offers namespaces. In its own process namespace the run is the first process: when it ends, so does
everything that it started, however well hidden.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dare_platform.settings import Settings

NONE = "No file isolation: the run could write wherever this user can, and reach the network."
NAMESPACES = "The run could write only into its own directory and had no network, but could read what this user can."

# Everything is remounted read-only except the directory, which is bound onto itself first. Then the right to undo it
# is given up.
_ENTER = """
set -e
ulimit -c 0
directory=$1; shift
mount --make-rprivate /
mount --bind "$directory" "$directory"
awk '{print $5}' /proc/self/mountinfo | while read -r point; do
  point=$(printf '%b' "$point")
  test "$point" = "$directory" || mount -o remount,bind,ro "$point" 2>/dev/null || true
done
cd "$directory"
exec setpriv --no-new-privs --inh-caps=-all --ambient-caps=-all --bounding-set=-all -- "$@"
"""


@dataclass(frozen=True)
class Isolation:
    """How commands are wrapped, and what that gives."""

    sentence: str
    prefix: tuple[str, ...] = ()

    def wrap(self, command: Sequence[str], directory: Path) -> tuple[str, ...]:
        """The command that runs `command` apart from the host."""
        return (*self.prefix, str(directory), *command) if self.prefix else tuple(command)


def isolate(settings: Settings, wanted: bool) -> Isolation:
    """The best that this machine offers; proven once, by trying to write outside."""
    unshare = shutil.which("unshare")
    if not wanted or unshare is None or not all(map(shutil.which, ("sh", "mount", "awk", "setpriv"))):
        return Isolation(NONE)
    spaces = ("--user", "--map-current-user", "--keep-caps", "--mount", "--net", "--pid", "--fork", "--kill-child")
    prefix = (unshare, *spaces, "sh", "-c", _ENTER, "sh")
    settings.home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".isolation-", dir=settings.home) as scratch:
        return Isolation(NAMESPACES, prefix) if _holds(prefix, Path(scratch)) else Isolation(NONE)


def _holds(prefix: Sequence[str], scratch: Path) -> bool:
    """A wrapped program could write into its directory, and not beside it."""
    directory, outside = scratch / "directory", scratch / "outside"
    directory.mkdir()
    writes = ("sh", "-c", 'echo > "$1/inside"; echo > "$2"', "sh", str(directory), str(outside))
    try:
        subprocess.run(
            (*prefix, str(directory), *writes), capture_output=True, timeout=10, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return (directory / "inside").exists() and not outside.exists()
