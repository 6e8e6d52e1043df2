"""Which launcher an installation's settings ask for."""

from __future__ import annotations

from dare_platform.launcher import Launcher
from dare_platform.process_launcher import ProcessLauncher
from dare_platform.settings import Settings


def launcher_of(settings: Settings) -> Launcher:
    """The one that DARE_LAUNCHER names. What it needs is imported only where it is asked for."""
    if settings.launcher == "process":
        return ProcessLauncher(settings)
    if settings.launcher == "docker":
        from dare_platform.docker_launcher import DockerLauncher

        return DockerLauncher(settings)
    from dare_platform.remote_launcher import RemoteLauncher

    return RemoteLauncher(settings)
