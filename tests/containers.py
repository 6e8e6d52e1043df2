"""The container engine, the images of this repository, and one in which the runner is a toy."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import docker
from needed import missing

REPOSITORY = Path(__file__).resolve().parents[1]
SOCKET = "unix:///var/run/docker.sock"
PYTHON_IMAGE = "python:3.11-slim-bookworm"


@cache
def engine() -> docker.DockerClient:
    """The machine's engine with the public Python image; without them the test is skipped on a laptop, fails in CI."""
    try:
        client = docker.DockerClient(base_url=SOCKET, version="auto")
        client.images.get(PYTHON_IMAGE)
    except docker.errors.DockerException:
        missing(f"a Docker engine with {PYTHON_IMAGE}")
    return client


@cache
def built(target: str) -> str:
    """Id of the image that docker-bake.hcl calls so, built from this tree with whatever is cached."""
    return bake(target)[target]


def bake(*targets: str) -> dict[str, str]:
    """The same of several images at once."""
    engine()
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "said.json"
        command = [
            "docker",
            "buildx",
            "bake",
            "--file",
            "docker-bake.hcl",
            "--load",
            "--progress",
            "plain",
            "--metadata-file",
            str(said),
        ]
        made_from = {**os.environ, "SOURCE_REVISION": revision()}
        done = subprocess.run(
            [*command, *targets], cwd=REPOSITORY, env=made_from, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-4000:]
        made: dict[str, Any] = json.loads(said.read_text())
    return {target: str(made[target]["containerimage.digest"]) for target in targets}


@cache
def revision() -> str:
    """Commit of this checkout."""
    said = subprocess.run(["git", "rev-parse", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return said.stdout.strip()


def environment(**more: str) -> dict[str, str]:
    """For `docker compose` in a test: nothing of this installation's own."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("DARE_", "COMPOSE_", "WEB_"))}
    return {**kept, **more}


class Stack:
    """The stack of compose.yaml under a project name of its own: nothing of another one is touched."""

    def __init__(self, folder: Path, services: Sequence[str]) -> None:
        """`folder`: where its .env is written, by the script that `make up` calls."""
        self.name = f"dare-test-{secrets.token_hex(4)}"
        self.services = tuple(services)
        (folder / "images").mkdir()
        shutil.copy(REPOSITORY / "images" / "environment.sh", folder / "images")
        shutil.copy(REPOSITORY / ".env.example", folder)
        subprocess.run(["bash", folder / "images" / "environment.sh"], check=True, env=environment())
        self.env = folder / ".env"

    def compose(self, *arguments: str, seconds: float = 180, given: str | None = None) -> str:
        """Standard output of `docker compose ...`; what it said when it fails."""
        done = subprocess.run(
            ["docker", "compose", "--env-file", self.env, *arguments],
            cwd=REPOSITORY,
            env=environment(COMPOSE_PROJECT_NAME=self.name, WEB_PORT="0"),
            input=given,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(arguments)}: {done.stderr[-4000:]}"
        return done.stdout

    def make(self, *arguments: str) -> str:
        """Standard output of `make ...` for this stack."""
        given = environment(COMPOSE_PROJECT_NAME=self.name, COMPOSE_ENV_FILES=str(self.env), WEB_PORT="0")
        done = subprocess.run(
            ["make", *arguments], cwd=REPOSITORY, env=given, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, f"make {' '.join(arguments)}: {done.stderr[-4000:]}"
        return done.stdout

    def up(self) -> float:
        """Start and wait until everything is well; how many seconds that took."""
        began = time.monotonic()
        try:
            self.compose("up", "--detach", "--wait", *self.services)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.compose('logs', '--tail', '50')}") from error
        return time.monotonic() - began

    def down(self, *arguments: str) -> float:
        """Stop; how many seconds that took."""
        began = time.monotonic()
        self.compose("down", "--timeout", "30", *arguments)
        return time.monotonic() - began

    @property
    def url(self) -> str:
        """Of the site."""
        return f"http://{self.compose('port', 'web', '8501').strip()}"

    def dare(self, *arguments: str) -> str:
        """What the command `dare` says inside the stack."""
        return self.compose("exec", "-T", "web", "dare", *arguments)

    def jobs(self) -> list[Any]:
        """Containers that its launcher started, in whatever state."""
        return list(engine().containers.list(all=True, filters={"label": f"dare.installation={self.name}"}))

    def remove(self) -> None:
        """Everything of it, volumes too."""
        self.down("--volumes")
        for left in self.jobs():
            left.remove(force=True, v=True)
