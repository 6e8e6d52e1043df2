"""Where things lie and how patient the platform is: read from the environment once, then frozen."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

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
    directory_files: int = 100_000
    """Names in a run's directory, folders too: an empty file takes no space, but one of the disk's inodes."""
    log_bytes: int = 4 * MIB
    """Standard output and error; the first and the last half are kept."""
    free_disk_bytes: int = 256 * MIB
    """Below this the host counts as full, which is nobody's fault."""
    grace_seconds: float = 5.0
    """Between asking a run to end and killing it."""
    cpus: float = 2.0
    """Cores of one run in a container."""
    shared_memory_bytes: int = GIB
    """/dev/shm of a container; part of `memory_bytes`."""


@dataclass(frozen=True)
class Containers:
    """How runs become containers: what the launcher may start, and where it lies. See docs/operate.md."""

    installation: str = "local"
    """Label of everything this installation starts; nothing else is ever touched."""
    images: Mapping[str, str] = field(default_factory=dict)
    """Family -> image, the allow-list; `evaluator` is the image of score runs."""
    volume: str | None = None
    """Named volume that DARE_HOME lies on, seen from the engine. None: DARE_HOME is a folder of the engine's host."""
    data_volume: str | None = None
    """The same of DARE_DATA."""
    socket: str = "unix:///var/run/docker.sock"


@dataclass(frozen=True)
class Retention:
    """Days after a run's end for which what is large is kept. None keeps it for ever; records are never removed."""

    models_days: float | None = None
    job_directories_days: float | None = None
    """Checkpoints and everything else in a run's directory."""
    logs_days: float | None = None
    """Printed output; the end of each attempt's stays."""


@dataclass(frozen=True)
class Quota:
    """What one account may ask for. None is no limit; an account's own columns go before these."""

    entries_per_day: int | None = None
    device_hours_per_week: float | None = None
    """Above it nothing new is submitted; what runs goes on."""


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
    launcher: str = "process"
    """`process`: child processes. `docker`: containers, by this process, which needs the engine's socket. An http(s)
    address: the launcher service, which alone has the socket."""
    launcher_secret: str | None = field(default=None, repr=False)
    """What the launcher service wants to hear."""
    containers: Containers = field(default_factory=Containers)
    gpu_uuid: str | None = None
    """The one device of a gpu worker."""
    artifact_store: str | None = None
    """Address that fsspec understands, such as s3://bucket/folder; None keeps artifacts below DARE_HOME."""
    public_url: str | None = None
    """Where people reach the site, for links in messages."""
    smtp_url: str | None = field(default=None, repr=False)
    """smtp://[user:password@]host[:port], or smtps://; None sends no mail."""
    mail_from: str = "dare@localhost"
    webhook_hosts: tuple[str, ...] = ()
    """Hosts that messages may be posted to although they are private or without TLS; others must be public https."""
    sign_in: Literal["local", "oidc"] = "local"
    """`local`: whoever reaches this machine's loopback is the local account. `oidc`: people sign in."""
    retention: Retention = field(default_factory=Retention)
    quota: Quota = field(default_factory=Quota)
    admins: tuple[tuple[str, str], ...] = ()
    """Issuer and subject of those who become admins when they sign in."""
    metrics_port: int | None = None
    """Where the housekeeper answers a Prometheus server; None: nowhere."""
    metrics_host: str = "127.0.0.1"
    """On which of its addresses; whoever reaches it may read."""

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
        """Settings from `DARE_*` variables; SettingsError names the variable and the value that cannot be.

        Every variable can be given as a file: `DARE_LAUNCHER_SECRET_FILE` names one that holds the secret.
        """
        env = with_files(os.environ if environment is None else environment)
        home = Path(env.get("DARE_HOME") or ".dare").absolute()
        return Settings(
            home=home,
            database_url=_database_url(env.get("DARE_DATABASE_URL"), home),
            broker_url=_broker_url(env.get("DARE_BROKER_URL")),
            data=_folder(env.get("DARE_DATA")),
            lease_seconds=_positive(env, "DARE_LEASE_SECONDS", 60.0),
            poll_seconds=_positive(env, "DARE_POLL_SECONDS", 2.0),
            limits=_limits(env),
            launcher=_launcher(env.get("DARE_LAUNCHER")),
            launcher_secret=env.get("DARE_LAUNCHER_SECRET") or None,
            containers=_containers(env),
            gpu_uuid=env.get("DARE_GPU_UUID") or None,
            artifact_store=env.get("DARE_ARTIFACT_STORE") or None,
            public_url=(env.get("DARE_PUBLIC_URL") or "").rstrip("/") or None,
            smtp_url=env.get("DARE_SMTP_URL") or None,
            mail_from=env.get("DARE_MAIL_FROM") or "dare@localhost",
            webhook_hosts=tuple(filter(None, (host.strip() for host in env.get("DARE_WEBHOOK_HOSTS", "").split(",")))),
            sign_in=_sign_in(env.get("DARE_SIGN_IN")),
            retention=Retention(
                models_days=_positive_or_none(env, "DARE_KEEP_MODELS_DAYS"),
                job_directories_days=_positive_or_none(env, "DARE_KEEP_JOB_DIRECTORIES_DAYS"),
                logs_days=_positive_or_none(env, "DARE_KEEP_LOGS_DAYS"),
            ),
            metrics_port=_port(env, "DARE_METRICS_PORT"),
            metrics_host=env.get("DARE_METRICS_HOST") or "127.0.0.1",
            quota=Quota(
                entries_per_day=_count_or_none(env, "DARE_QUOTA_ENTRIES_PER_DAY"),
                device_hours_per_week=_positive_or_none(env, "DARE_QUOTA_DEVICE_HOURS_PER_WEEK"),
            ),
            admins=_admins(env.get("DARE_ADMINS") or ""),
        )


def with_files(env: Mapping[str, str]) -> dict[str, str]:
    """`DARE_X_FILE` is where the value of `DARE_X` stands."""
    found = dict(env)
    for name, file in env.items():
        if not (name.startswith("DARE_") and name.endswith("_FILE") and file):
            continue
        plain = name.removesuffix("_FILE")
        if env.get(plain):
            raise SettingsError(f"{plain} and {name} are both set; keep one")
        try:
            found[plain] = Path(file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{name} is {file!r}, which cannot be read: {error}") from error
    return found


def _limits(env: Mapping[str, str]) -> Limits:
    defaults = Limits()

    def mebibytes(name: str, default: int) -> int:
        return int(_positive(env, name, default / MIB) * MIB)

    return Limits(
        wall_seconds=_positive(env, "DARE_LIMIT_WALL_SECONDS", defaults.wall_seconds),
        memory_bytes=mebibytes("DARE_LIMIT_MEMORY_MIB", defaults.memory_bytes),
        processes=int(_positive(env, "DARE_LIMIT_PROCESSES", defaults.processes)),
        directory_bytes=mebibytes("DARE_LIMIT_DIRECTORY_MIB", defaults.directory_bytes),
        directory_files=int(_positive(env, "DARE_LIMIT_FILES", defaults.directory_files)),
        log_bytes=mebibytes("DARE_LIMIT_LOG_MIB", defaults.log_bytes),
        free_disk_bytes=mebibytes("DARE_LIMIT_FREE_DISK_MIB", defaults.free_disk_bytes),
        grace_seconds=_positive(env, "DARE_LIMIT_GRACE_SECONDS", defaults.grace_seconds),
        cpus=_positive(env, "DARE_LIMIT_CPUS", defaults.cpus),
        shared_memory_bytes=mebibytes("DARE_LIMIT_SHARED_MEMORY_MIB", defaults.shared_memory_bytes),
    )


def _containers(env: Mapping[str, str]) -> Containers:
    defaults = Containers()
    return Containers(
        installation=env.get("DARE_INSTALLATION") or defaults.installation,
        images=_images(env.get("DARE_IMAGES") or ""),
        volume=env.get("DARE_VOLUME") or None,
        data_volume=env.get("DARE_DATA_VOLUME") or None,
        socket=env.get("DARE_DOCKER_SOCKET") or defaults.socket,
    )


def _images(text: str) -> dict[str, str]:
    """`llada=dare-llada:0.1.0,dream=dare-dream:0.1.0`."""
    found = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        family, equals, image = part.partition("=")
        if not equals or not family.strip() or not image.strip():
            raise SettingsError(f"DARE_IMAGES has {part!r}; write FAMILY=IMAGE, separated by commas")
        found[family.strip()] = image.strip()
    return found


def _launcher(text: str | None) -> str:
    if not text:
        return "process"
    if text in ("process", "docker") or text.startswith(("http://", "https://")):
        return text.rstrip("/")
    raise SettingsError(f"DARE_LAUNCHER is {text!r}; it must be process, docker, or the launcher service's address")


def _sign_in(text: str | None) -> Literal["local", "oidc"]:
    if not text or text == "local":
        return "local"
    if text == "oidc":
        return "oidc"
    raise SettingsError(f"DARE_SIGN_IN is {text!r}; it must be local or oidc")


def _admins(text: str) -> tuple[tuple[str, str], ...]:
    """`https://issuer.example 1234,https://issuer.example 5678`."""
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        issuer, _, subject = part.partition(" ")
        if not subject.strip():
            raise SettingsError(f"DARE_ADMINS has {part!r}; write ISSUER SUBJECT, as the account page shows them")
        found.append((issuer, subject.strip()))
    return tuple(found)


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


def _positive_or_none(env: Mapping[str, str], name: str) -> float | None:
    return _positive(env, name, 1.0) if env.get(name) else None


def _count_or_none(env: Mapping[str, str], name: str) -> int | None:
    value = _positive_or_none(env, name)
    if value is not None and value != int(value):
        raise SettingsError(f"{name} is {env[name]!r}; it must be a whole number")
    return None if value is None else int(value)


def _port(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name)
    if not text:
        return None
    if not (text.isdecimal() and 0 < int(text) < 65536):
        raise SettingsError(f"{name} is {text!r}; it must be a port, 1 to 65535, or unset")
    return int(text)
