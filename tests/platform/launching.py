"""`dare launcher` as a process of its own, and an image in which the runner is the toy."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import docker
import httpx
from containers import PYTHON_IMAGE, SOCKET, engine

from dare_platform.settings import Settings

TOY = Path(__file__).with_name("toy_runner.py")
MAIN = "import pathlib\nimport toy_runner\ntoy_runner.work(pathlib.Path('/job'), {steps}, {pause})\n"
DOCKERFILE = f"FROM {PYTHON_IMAGE}\nCOPY toy /opt/toy\nENV PYTHONPATH=/opt/toy\n"


@contextmanager
def toy_image(steps: int, pause: float) -> Iterator[str]:
    """An image in which `python -m dare run` is the toy, with so many steps of so many seconds."""
    client = engine()
    tag = f"dare-test-toy:{secrets.token_hex(4)}"
    with TemporaryDirectory() as folder:
        package = Path(folder) / "toy" / "dare"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "__main__.py").write_text(MAIN.format(steps=steps, pause=pause))
        shutil.copy(TOY, Path(folder) / "toy")
        (Path(folder) / "Dockerfile").write_text(DOCKERFILE)
        client.images.build(path=folder, tag=tag, rm=True)
    try:
        yield tag
    finally:
        client.images.remove(tag, force=True)


def free_address() -> str:
    """Of a port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def launcher_command(settings: Settings) -> tuple[list[str], dict[str, str]]:
    """What starts it, and in which environment."""
    secret = settings.home / "launcher-secret"
    secret.write_text(f"{settings.launcher_secret}\n")
    images = ",".join(f"{family}={image}" for family, image in settings.containers.images.items())
    environment = {
        "PATH": os.environ["PATH"],
        "DARE_HOME": str(settings.home),
        "DARE_DATABASE_URL": settings.database_url,
        "DARE_INSTALLATION": settings.containers.installation,
        "DARE_IMAGES": images,
        "DARE_LAUNCHER_SECRET_FILE": str(secret),
        "DARE_LIMIT_FREE_DISK_MIB": "1",
        "DARE_LIMIT_MEMORY_MIB": "512",
        "DARE_LIMIT_GRACE_SECONDS": "1",
        "DARE_DOCKER_SOCKET": SOCKET,
    }
    port = settings.launcher.rpartition(":")[2]
    return [sys.executable, "-m", "dare_platform", "launcher", "--port", port], environment


def start_launcher(settings: Settings) -> subprocess.Popen[bytes]:
    """`dare launcher`, listening."""
    command, environment = launcher_command(settings)
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while True:
        try:
            if httpx.get(f"{settings.launcher}/health", trust_env=False, timeout=5).status_code == 200:
                return process
        except httpx.TransportError:
            assert process.poll() is None, "the launcher has ended"
        assert time.monotonic() < deadline
        time.sleep(0.1)


def left_of(installation: str) -> list[docker.models.containers.Container]:
    """Its containers, in whatever state."""
    ours = {"label": f"dare.installation={installation}"}
    return list(engine().containers.list(all=True, filters=ours, ignore_removed=True))
