"""A worker to be killed among others: `python chaos_worker.py MODE`, settings from the environment.

With a launcher service its runs are containers, otherwise processes of the toy runner in this mode.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from detached import TOY

from dare_platform import endings
from dare_platform.broker import serve
from dare_platform.launchers import launcher_of
from dare_platform.process_launcher import ProcessLauncher
from dare_platform.settings import Settings

if __name__ == "__main__":
    endings.FIRST_BACK_OFF_SECONDS = 0.2
    settings = Settings.from_environment()
    settings = replace(settings, limits=replace(settings.limits, free_disk_bytes=1, grace_seconds=1))
    toy = ProcessLauncher(settings, (sys.executable, str(TOY), sys.argv[1]))
    serve(settings, ["llada"], launcher=toy if settings.launcher == "process" else launcher_of(settings))
