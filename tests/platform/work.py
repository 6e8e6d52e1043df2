"""A worker process of its own, to be killed: `python work.py HOME MODE LEASE_SECONDS [DATABASE_URL]`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from dare_platform import endings
from dare_platform.process_launcher import ProcessLauncher
from dare_platform.settings import Limits, Settings
from dare_platform.worker import Worker

if __name__ == "__main__":
    home, mode, lease, *url = sys.argv[1:]
    endings.FIRST_BACK_OFF_SECONDS = 0.1
    settings = Settings.from_environment({"DARE_HOME": home, "DARE_DATABASE_URL": url[0] if url else ""})
    limits = Limits(free_disk_bytes=1, grace_seconds=1)
    settings = replace(settings, lease_seconds=float(lease), poll_seconds=0.1, limits=limits)
    toy = Path(__file__).with_name("toy_runner.py")
    launcher = ProcessLauncher(settings, (sys.executable, str(toy), mode))
    worker = Worker(settings, ["llada"], launcher=launcher)
    worker.stop_on_signals()
    worker.run(until_idle=True)
