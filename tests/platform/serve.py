"""A worker that listens to a broker: `python serve.py HOME BROKER_URL POLL_SECONDS`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from dare_platform.broker import serve
from dare_platform.process_launcher import ProcessLauncher
from dare_platform.settings import Limits, Settings

if __name__ == "__main__":
    home, broker, poll = sys.argv[1:]
    settings = Settings.from_environment({"DARE_HOME": home, "DARE_BROKER_URL": broker})
    settings = replace(settings, poll_seconds=float(poll), limits=Limits(free_disk_bytes=1, grace_seconds=1))
    toy = Path(__file__).with_name("toy_runner.py")
    serve(settings, ["llada"], launcher=ProcessLauncher(settings, (sys.executable, str(toy), "good")))
