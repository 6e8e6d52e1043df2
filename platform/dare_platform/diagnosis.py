"""What a run needs and whether it is here: one finding each, with the way to mend it. Changes nothing."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import httpx
from alembic.script import ScriptDirectory
from sqlalchemy import func, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from dare import recipe
from dare.catalog import backbone_directory, backbones, is_shipped
from dare.versions import mismatches
from dare_platform.artifact_store import ArtifactStoreError, round_trip
from dare_platform.database import Database, alembic_config, now, schema_revision
from dare_platform.errors import PlatformError
from dare_platform.isolation import NONE, isolate
from dare_platform.metrics import UNSERVED_SECONDS, waiting_runs
from dare_platform.models import Outbox
from dare_platform.settings import GIB, Settings, with_files
from dare_platform.tracks import tracks
from dare_platform.views.rows import workers
from dare_platform.views.shapes import WorkerView
from dare_platform.views.words import duration

CLOCK_SECONDS = 5.0
"""Host and database may differ by so much before somebody should know."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `note`: not needed for everything. `bad`: something will not work."""

    subject: str
    state: Literal["ok", "note", "bad"]
    finding: str
    remedy: str = ""


def diagnose(settings: Settings) -> list[Finding]:
    """Everything, in the order in which one would mend it."""
    python = Finding("Python", "ok", ".".join(map(str, sys.version_info[:3])))
    machine = [python, *_libraries(), *_disk(settings), *_isolation(settings)]
    stack = [*_broker(settings), *_launcher(settings), *_store(settings), *_messages(settings), *_sign_in(settings)]
    return [*machine, *_database(settings), *stack, *_backbones(), *_data(settings)]


def _libraries() -> list[Finding]:
    """Installed or not, and in the declared range or not, without importing: torch takes seconds."""
    declared = [one for extra in ("runner", "platform", "leaderboard") for one in mismatches(extra)]
    outside = {one.name: Finding(one.name, "bad", one.finding, one.remedy) for one in declared if one.installed}
    found = list(outside.values())
    extras = (("torch", "runner"), ("transformers", "runner"), ("celery", "platform"), ("streamlit", "leaderboard"))
    for name, extra in extras:
        if name in outside:
            continue
        if importlib.util.find_spec(name) is None:
            state: Literal["note", "bad"] = "bad" if extra == "runner" else "note"
            found.append(Finding(name, state, "not installed", f"pip install 'dare[{extra}]'"))
        else:
            found.append(Finding(name, "ok", metadata.version(name)))
    return found


def _disk(settings: Settings) -> list[Finding]:
    existing = next(folder for folder in (settings.home, *settings.home.parents) if folder.is_dir())
    free = shutil.disk_usage(existing).free
    text = f"{settings.home}, {free / GIB:.1f} GiB free"
    if free < settings.limits.free_disk_bytes:
        return [Finding("DARE_HOME", "bad", text, "free some space, or run `dare clean`")]
    return [Finding("DARE_HOME", "ok", text)]


def _database(settings: Settings) -> list[Finding]:
    kind = "SQLite" if settings.database_url.startswith("sqlite") else "PostgreSQL"
    if kind == "SQLite" and not Path(settings.database_url.removeprefix("sqlite:///")).is_file():
        return [Finding("database", "bad", f"{kind}, not made yet", "run `dare migrate`")]
    expected = ScriptDirectory.from_config(alembic_config()).get_current_head()
    try:
        with Database(settings.database_url, lock_wait_seconds=5) as database:
            found = schema_revision(database)
            if found != expected:
                text = f"{kind}, revision {found or 'none'}; this version needs {expected}"
                return [Finding("database", "bad", text, "run `dare migrate`")]
            with database.read() as session:
                at = now(session)
                seen, stack = workers(session, at), [*_clock(at), *_queues(session, at)]
    except (OperationalError, PlatformError) as error:
        reason = str(getattr(error, "orig", error)).splitlines()[0]
        return [
            Finding("database", "bad", f"{kind} does not answer: {reason}", "start it, or look at DARE_DATABASE_URL")
        ]
    alive = sum(worker.alive for worker in seen)
    rest = "" if alive else "start one: `dare worker`"
    state: Literal["ok", "note"] = "ok" if alive else "note"
    revision = Finding("database", "ok", f"{kind}, revision {found}")
    return [revision, Finding("workers", state, f"{alive} alive", rest), *_families(seen), *stack]


def _families(seen: Sequence[WorkerView]) -> list[Finding]:
    """By family, who serves it, and since when nobody does."""
    found = []
    for queue in sorted({queue for worker in seen for queue in worker.queues}):
        of = [worker for worker in seen if queue in worker.queues]
        alive = sum(worker.alive for worker in of)
        last = min(worker.last_seen_seconds for worker in of)
        state: Literal["ok", "note"] = "ok" if alive else "note"
        text = f"{alive} alive, last sign {duration(last)} ago"
        found.append(Finding(f"workers of {queue.removeprefix('family_')}", state, text))
    return found


def _clock(at: float) -> list[Finding]:
    """Leases know the database's clock only; what people read comes from this one."""
    apart = abs(time.time() - at)
    if apart <= CLOCK_SECONDS:
        return [Finding("clock", "ok", f"{apart:.1f} s from the database's")]
    return [Finding("clock", "note", f"{apart:.0f} s from the database's", "synchronise both hosts (chrony, NTP)")]


def _queues(session: Session, at: float) -> list[Finding]:
    """Runs that could start and wait, and messages that the broker was not told of."""
    found = []
    for waiting in waiting_runs(session, at):
        text = f"{waiting.runs} waiting, the first for {duration(waiting.seconds)}"
        remedy = f"start a worker of {waiting.queue.removeprefix('family_')}" if waiting.unserved else ""
        found.append(Finding(f"queue {waiting.queue}", "bad" if waiting.unserved else "ok", text, remedy))
    pending, oldest = session.execute(
        select(func.count(), func.min(Outbox.created_at)).where(Outbox.published_at.is_(None))
    ).one()
    late = pending and at - oldest > UNSERVED_SECONDS
    text = f"{pending} messages pending" + (f", the oldest for {duration(at - oldest)}" if pending else "")
    remedy = "look at the broker; runs are found by polling" if late else ""
    found.append(Finding("outbox", "note" if late else "ok", text, remedy))
    return found


def _launcher(settings: Settings) -> list[Finding]:
    """The service's own word, where there is one; images are its business."""
    if settings.launcher == "process":
        return [Finding("launcher", "ok", "child processes of the worker")]
    if settings.launcher == "docker":
        return _images(settings)
    try:
        answer = httpx.get(f"{settings.launcher}/health", timeout=5)
    except httpx.HTTPError as error:
        text = f"{settings.launcher} does not answer ({error})"
        return [Finding("launcher", "bad", text, "start it: `dare launcher`, or `docker compose up -d launcher`")]
    if answer.status_code != 200:
        return [Finding("launcher", "bad", f"{settings.launcher} is not well ({answer.status_code})", "read its log")]
    return [Finding("launcher", "ok", f"{settings.launcher} answers")]


def _images(settings: Settings) -> list[Finding]:
    """The allow-list beside what the engine has."""
    from dare_platform.docker_launcher import DockerLauncher

    try:
        launcher = DockerLauncher(settings)
    except (PlatformError, OSError) as error:
        return [Finding("engine", "bad", str(error), "start the engine, or look at DARE_DOCKER_SOCKET")]
    try:
        found = [Finding("engine", "ok", f"version {launcher.engine_version}")]
        for family, image_id in sorted(launcher.images.items()):
            if image_id is None:
                remedy = "build it, or correct DARE_IMAGES"
                found.append(Finding(f"image of {family}", "bad", "not on this host", remedy))
            else:
                found.append(Finding(f"image of {family}", "ok", image_id.removeprefix("sha256:")[:12]))
        return found
    finally:
        launcher.close()


def _store(settings: Settings) -> list[Finding]:
    """A small file there and back."""
    if settings.artifact_store is None:
        return []  # a folder below DARE_HOME, which has been looked at
    try:
        return [Finding("artifact store", "ok", f"{round_trip(settings)}: written, read and removed")]
    except ArtifactStoreError as error:
        return [Finding("artifact store", "bad", str(error), "look at DARE_ARTIFACT_STORE and its credentials")]


def _messages(settings: Settings) -> list[Finding]:
    if settings.smtp_url is None:
        return [Finding("mail", "ok", "none is sent")]
    if settings.public_url is None:
        return [Finding("mail", "note", "messages have no links", "set DARE_PUBLIC_URL")]
    return [Finding("mail", "ok", f"from {settings.mail_from}")]


def _sign_in(settings: Settings) -> list[Finding]:
    """Whether every setting is there; the provider itself is asked by the site."""
    if settings.sign_in == "local":
        return [Finding("sign-in", "ok", "the local account, on loopback")]
    env = with_files(os.environ)
    wanted = ("DARE_OIDC_CLIENT_ID", "DARE_OIDC_CLIENT_SECRET", "DARE_OIDC_COOKIE_SECRET", "DARE_PUBLIC_URL")
    missing = [name for name in wanted if not env.get(name)]
    if not env.get("DARE_OIDC_ISSUER") and not env.get("DARE_OIDC_METADATA_URL"):
        missing.insert(0, "DARE_OIDC_ISSUER")
    if missing:
        return [Finding("sign-in", "bad", f"oidc, without {', '.join(missing)}", "set them; see docs/operate.md")]
    return [Finding("sign-in", "ok", "oidc")]


def _broker(settings: Settings) -> list[Finding]:
    if settings.broker_url is None:
        return [Finding("broker", "ok", "none: workers poll the database")]
    parts = urlsplit(settings.broker_url)
    if not parts.hostname:
        return [Finding("broker", "note", f"{parts.scheme}: not looked at")]
    where = f"{parts.hostname}:{parts.port or (5672 if parts.scheme.startswith('amqp') else 6379)}"
    try:
        with socket.create_connection((parts.hostname, int(where.rpartition(":")[2])), timeout=3):
            return [Finding("broker", "ok", f"{parts.scheme} at {where} answers")]
    except OSError as error:
        text = f"{parts.scheme} at {where} does not answer ({error.strerror or error})"
        return [Finding("broker", "note", text, "start it; until then workers poll, and nothing is lost")]


def _backbones() -> list[Finding]:
    """Every backbone that a track names: there, and byte for byte the one that it claims to be."""
    wanted = sorted({name for track in tracks().values() for name in track.backbones} | set(backbones()))
    found = []
    for name in wanted:
        if name not in backbones() and name in recipe.backbone_names():
            how = f"get {recipe.checkpoint_of(name)}, then `dare backbone add FOLDER --name {name}` and `dare migrate`"
            found.append(Finding(f"backbone {name}", "note", "not on this machine", how))
            continue
        if name not in backbones():
            found.append(Finding(f"backbone {name}", "bad", "not here", f"dare backbone pretrain {name}"))
            continue
        if not is_shipped(name):
            where = backbones()[name].directory
            found.append(
                Finding(f"backbone {name}", "note", f"added, in {where}; `dare backbone verify {name}` hashes it")
            )
            continue
        weights = backbone_directory(name) / "model.safetensors"
        hashed = hashlib.sha256(weights.read_bytes()).hexdigest() if weights.is_file() else "none"
        if hashed == backbones()[name].weights_sha256:
            found.append(Finding(f"backbone {name}", "ok", f"weights {hashed[:12]}, verified"))
        else:
            claimed = backbones()[name].weights_sha256[:12]
            text = f"its weights hash to {hashed[:12]}, its record says {claimed}"
            found.append(
                Finding(f"backbone {name}", "bad", text, "install again, or make it anew with `dare backbone pretrain`")
            )
    return found


def _data(settings: Settings) -> list[Finding]:
    if settings.data is None:
        return [Finding("data", "note", "DARE_DATA is not set: transfer tasks are left out", "set it to their folder")]
    return [Finding("data", "ok", f"{settings.data}")]


def _isolation(settings: Settings) -> list[Finding]:
    if not settings.home.is_dir():
        return []
    sentence = isolate(settings, True).sentence
    if sentence == NONE:
        return [Finding("isolation", "note", sentence, "allow user namespaces, or run your own code only")]
    return [Finding("isolation", "ok", sentence)]
