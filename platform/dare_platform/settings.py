"""Where things lie and how patient the platform is: read from the environment once, then frozen."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dare_platform.errors import SettingsError

MIB = 1024**2
GIB = 1024**3


@dataclass(frozen=True)
class Limits:
    """What one run may use on the host. Exceeding one ends the run, with its cause."""

    wall_seconds: float = 3600.0
    """For runs whose job sets no limit of its own."""
    memory_bytes: int = 8 * GIB
    """Resident memory of all processes of the run together."""
    processes: int = 64
    directory_bytes: int = 4 * GIB
    log_bytes: int = 4 * MIB
    """Standard output and error; the first and the last half are kept."""
    free_disk_bytes: int = 256 * MIB
    """Below this the host counts as full, which is nobody's fault."""
    grace_seconds: float = 5.0
    """Between asking a run to end and killing it."""


@dataclass(frozen=True)
class Settings:
    """Effective settings of this process."""

    home: Path
    """Database, job directories and artifacts."""
    database_url: str
    broker_url: str | None = None
    """Celery broker; None polls the database only."""
    data: Path | None = None
    """Folder of published data files, for tasks that need one."""
    lease_seconds: float = 60.0
    """A worker silent for this long has lost its run."""
    poll_seconds: float = 2.0
    limits: Limits = field(default_factory=Limits)

    @property
    def heartbeat_seconds(self) -> float:
        """A quarter of the lease: three beats may fail before the run is lost."""
        return self.lease_seconds / 4

    @property
    def jobs(self) -> Path:
        """Job directories, `jobs/<run>/<token>`."""
        return self.home / "jobs"

    @property
    def artifacts(self) -> Path:
        """Files that runs left behind, by SHA-256."""
        return self.home / "artifacts"

    @staticmethod
    def from_environment(environment: Mapping[str, str] | None = None) -> Settings:
        """Settings from `DARE_*` variables; SettingsError names the variable and the value that cannot be."""
        env = os.environ if environment is None else environment
        home = Path(env.get("DARE_HOME") or ".dare").absolute()
        defaults = Limits()
        return Settings(
            home=home,
            database_url=_database_url(env.get("DARE_DATABASE_URL"), home),
            broker_url=_broker_url(env.get("DARE_BROKER_URL")),
            data=_folder(env.get("DARE_DATA")),
            lease_seconds=_positive(env, "DARE_LEASE_SECONDS", 60.0),
            poll_seconds=_positive(env, "DARE_POLL_SECONDS", 2.0),
            limits=Limits(
                wall_seconds=_positive(env, "DARE_LIMIT_WALL_SECONDS", defaults.wall_seconds),
                memory_bytes=int(_positive(env, "DARE_LIMIT_MEMORY_MIB", defaults.memory_bytes / MIB) * MIB),
                processes=int(_positive(env, "DARE_LIMIT_PROCESSES", defaults.processes)),
                directory_bytes=int(_positive(env, "DARE_LIMIT_DIRECTORY_MIB", defaults.directory_bytes / MIB) * MIB),
                log_bytes=int(_positive(env, "DARE_LIMIT_LOG_MIB", defaults.log_bytes / MIB) * MIB),
                free_disk_bytes=int(_positive(env, "DARE_LIMIT_FREE_DISK_MIB", defaults.free_disk_bytes / MIB) * MIB),
                grace_seconds=_positive(env, "DARE_LIMIT_GRACE_SECONDS", defaults.grace_seconds),
            ),
        )


def _database_url(text: str | None, home: Path) -> str:
    if not text:
        return f"sqlite:///{home / 'dare.sqlite'}"
    if text.startswith("postgresql://"):
        return "postgresql+psycopg://" + text.removeprefix("postgresql://")
    if not text.startswith(("sqlite:///", "postgresql+psycopg://")):
        scheme = text.split(":", 1)[0]  # never the whole value: it may hold a password
        raise SettingsError(
            f"DARE_DATABASE_URL begins with {scheme!r}; it must begin with sqlite:/// or postgresql+psycopg://"
        )
    if text == "sqlite:///" or text.startswith("sqlite:///:memory:"):
        raise SettingsError("DARE_DATABASE_URL must name a file: a database in memory is not shared with workers")
    return text


def _broker_url(text: str | None) -> str | None:
    if text and not text.startswith(("redis://", "rediss://", "redis+socket://", "amqp://", "amqps://", "memory://")):
        scheme = text.split(":", 1)[0]
        raise SettingsError(f"DARE_BROKER_URL begins with {scheme!r}; it must be a redis or amqp URL, or unset")
    return text or None


def _folder(text: str | None) -> Path | None:
    if not text:
        return None
    folder = Path(text).absolute()
    if not folder.is_dir():
        raise SettingsError(f"DARE_DATA is {text!r}, which is no folder; create it or unset the variable")
    return folder


def _positive(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 < value < float("inf"):
        raise SettingsError(f"{name} is {text!r}; it must be a positive number")
    return value
