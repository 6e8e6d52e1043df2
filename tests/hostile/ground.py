"""A real engine, an image that runs whatever an entry says, and canaries where no run may ever look."""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import docker
from containers import built
from docker.errors import DockerException

from dare.catalog import backbones
from dare.sampling_config import SamplingConfig
from dare.spec import AlgorithmSpec, Budget, JobSpec, TrainSettings, TrainSpec
from dare_platform.container_profile import own_labels
from dare_platform.docker_launcher import DockerLauncher
from dare_platform.job_directory import write_job_directory
from dare_platform.launcher import Observed, Order
from dare_platform.lease import Claim
from dare_platform.settings import MIB, Containers, Limits, Settings

Record = Callable[[str, str, str], None]
"""Takes what kind of case it is, the case, and what was observed."""
IMAGE = "dare-test-hostile:latest"
HERE = Path(__file__).resolve().parent
PREFIX = "canary-of-this-test"
CANARIES = ("jobs/other/1/notes.txt", "artifacts/ab/abcdef", "data/gsm8k/test.jsonl", "dare.sqlite", "secret.txt")
"""Files of an installation, relative to its home, that no run may see."""
SHARED_MEMORY_MIB, TMP_MIB = 16, 16
LIMITS = Limits(
    wall_seconds=60,
    memory_bytes=192 * MIB,
    processes=8,
    directory_bytes=64 * MIB,
    directory_files=2000,
    log_bytes=65536,
    free_disk_bytes=1,
    grace_seconds=1,
    cpus=1,
    shared_memory_bytes=SHARED_MEMORY_MIB * MIB,
)
PATIENCE = 90.0


def engine_address() -> str | None:
    """Where an engine answers; None where none does."""
    address = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    try:
        client = docker.DockerClient(base_url=address, timeout=10)
        client.ping()
        client.close()
    except DockerException:
        return None
    return address


def build_image(address: str) -> None:
    """The image of this folder. Takes a second: its one layer is two small files."""
    client = docker.DockerClient(base_url=address, timeout=120)
    client.images.build(path=str(HERE / "image"), tag=IMAGE, rm=True)
    client.close()


def runner_image() -> str:
    """Image of SDAR's runner, built from this tree, or the one that DARE_TEST_RUNNER_IMAGE names."""
    return os.environ.get("DARE_TEST_RUNNER_IMAGE") or built("sdar")


def train_job(wall_seconds: float = 60.0) -> JobSpec:
    """An order to train an entry, which no program of this folder reads."""
    record = backbones()["llada-tiny"]
    return JobSpec(
        kind="train",
        seed=0,
        backbone=record.ref,
        train=TrainSpec(
            algorithm=AlgorithmSpec(name="mine", source="entry"),
            data="prompts:sudoku",
            settings=TrainSettings(learning_rate=1e-3),
            sampling=SamplingConfig(gen_length=4, block_length=4, steps_per_block=4),
            budget=Budget(optimiser_steps=1, wall_seconds=wall_seconds),
        ),
    )


@dataclass
class Ground:
    """One installation with one launcher, and what is planted around it."""

    settings: Settings
    launcher: DockerLauncher
    canary: str
    listener: socket.socket
    started: dict[str, Path] = field(default_factory=dict)

    @property
    def port(self) -> int:
        """Where this process listens on every address of the host."""
        return int(self.listener.getsockname()[1])

    def start(self, name: str, program: str, wall_seconds: float = 60.0) -> Order:
        """Run a program as a submitted entry's training."""
        job = train_job(wall_seconds)
        claim = Claim(name, 1, 1, 1, "w", job, job.model_dump_json(), job.digest(), None, program)
        directory = write_job_directory(self.settings, claim, ())
        (directory / "home" / "where.json").write_text(json.dumps(self.where()))
        order = Order(name, 1, directory, wall_seconds, "train", "llada", 1)
        self.launcher.start(order)
        self.started[order.name] = directory
        return order

    def wait(self, order: Order) -> Observed:
        """Until it has ended."""
        deadline = time.monotonic() + PATIENCE
        while (observed := self.launcher.state(order.name)).running:
            assert time.monotonic() < deadline, f"{order.name} does not end"
            time.sleep(0.1)
        return observed

    def where(self, host_address: str | None = None) -> dict[str, Any]:
        """All that an attacker would like to guess."""
        home = self.settings.home
        others = [str(path) for path in (home / "jobs" / "other" / "1").rglob("*") if path.is_file()]
        return {
            "canary_prefix": PREFIX,
            "other_jobs": [*others, "/job/../jobs/other/1/notes.txt", "/proc/1/root/job/../other/1/notes.txt"],
            "names_of_others": ["other", "jobs", "artifacts", "dare.sqlite"],
            "weights": [str(path) for path in (home / "artifacts").rglob("*") if path.is_file()],
            "databases": [str(home / "dare.sqlite"), "/home/dare/dare.sqlite", "/var/lib/postgresql/data/PG_VERSION"],
            "test_splits": [str(path) for path in (self.settings.data or home).rglob("*") if path.is_file()]
            + ["/data/gsm8k/test.jsonl", "/job/data/gsm8k/test.jsonl"],
            "port": self.port,
            "host_address": host_address or _address(),
            "abstract": self.canary,
            "host_pid": os.getpid(),
            "shm_mebibytes": SHARED_MEMORY_MIB,
            "tmp_mebibytes": TMP_MIB,
        }

    def in_an_ordinary_container(self, program: str) -> dict[str, Any]:
        """What the program says of its attempts where nobody confines it: root, a network, and the whole home.

        Still a container, so it harms nothing; its network leads to this host alone.
        """
        client = docker.DockerClient(base_url=self.settings.containers.socket, timeout=60)
        network = client.networks.create(self.settings.containers.installation, internal=True)
        job = self.settings.home / "ordinary"
        for folder in ("home", "tmp", "entry"):
            (job / folder).mkdir(parents=True)
        (job / "entry" / "algorithm.py").write_text(program)
        try:
            network.reload()
            gateway = str(network.attrs["IPAM"]["Config"][0]["Gateway"])
            (job / "home" / "where.json").write_text(json.dumps(self.where(gateway)))
            home = str(self.settings.home)
            client.containers.run(
                IMAGE,
                ["python3", "-P", "-m", "dare", "run", "/job"],
                working_dir="/job",
                network=network.name,
                environment={"DARE_LAUNCHER_SECRET": self.canary, "DARE_DATA": str(self.settings.data)},
                volumes={str(job): {"bind": "/job", "mode": "rw"}, home: {"bind": home, "mode": "ro"}},
                labels=own_labels(self.settings),
                mem_limit="256m",
                pids_limit=64,
                shm_size="64m",
                remove=True,
            )
        finally:
            network.remove()
            client.close()
        observed: dict[str, Any] = json.loads((job / "home" / "observed.json").read_text())
        return observed

    def leaks(self) -> list[str]:
        """Where a canary has come out: files of runs, their logs."""
        needle, found = self.canary.encode(), []
        for run in {directory.parent for directory in self.started.values()}:
            for folder, _, files in os.walk(run):
                for path in (Path(folder, name) for name in files if name != "where.json"):
                    if path.is_file() and not path.is_symlink() and needle in path.read_bytes():
                        found.append(str(path.relative_to(run.parent)))
        return found


@contextmanager
def ground(home: Path, address: str) -> Iterator[Ground]:
    """Plant the canaries, and take every container away afterwards."""
    canary = f"{PREFIX}-{secrets.token_hex(16)}"
    for path in CANARIES:
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(canary)
        (home / path).chmod(0o644)
    settings = replace(
        Settings(home=home, database_url=f"sqlite:///{home}/dare.sqlite"),
        data=home / "data",
        limits=LIMITS,
        launcher_secret=canary,
        containers=Containers(installation=f"hostile-{secrets.token_hex(4)}", images={"llada": IMAGE}, socket=address),
    )
    os.environ["DARE_LAUNCHER_SECRET"] = os.environ["POSTGRES_PASSWORD"] = canary
    with socket.create_server(("0.0.0.0", 0)) as listener, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind("\0" + canary)
        abstract.listen()
        launcher = DockerLauncher(settings)
        try:
            yield Ground(settings, launcher, canary, listener)
        finally:
            for owned in launcher.list_own():
                launcher.remove(owned.name)
            launcher.close()
            del os.environ["DARE_LAUNCHER_SECRET"], os.environ["POSTGRES_PASSWORD"]


def _address() -> str:
    """Of this host, as a container of the default bridge would know it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(one.getsockname()[0])
