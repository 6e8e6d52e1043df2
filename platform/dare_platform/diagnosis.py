"""What a run needs and whether it is here: one finding each, with the way to mend it. Changes nothing."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import socket
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from alembic.script import ScriptDirectory
from sqlalchemy.exc import OperationalError

from dare.catalog import backbone_directory, backbones, is_shipped
from dare.versions import mismatches
from dare_platform.database import Database, alembic_config, now, schema_revision
from dare_platform.errors import PlatformError
from dare_platform.isolation import NONE, isolate
from dare_platform.settings import GIB, Settings
from dare_platform.tracks import tracks
from dare_platform.views.rows import workers


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
    return [*machine, *_database(settings), *_broker(settings), *_backbones(), *_data(settings)]


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
                seen = workers(session, now(session))
    except (OperationalError, PlatformError) as error:
        reason = str(getattr(error, "orig", error)).splitlines()[0]
        return [
            Finding("database", "bad", f"{kind} does not answer: {reason}", "start it, or look at DARE_DATABASE_URL")
        ]
    alive = sum(worker.alive for worker in seen)
    rest = "" if alive else "start one: `dare worker`"
    state: Literal["ok", "note"] = "ok" if alive else "note"
    return [Finding("database", "ok", f"{kind}, revision {found}"), Finding("workers", state, f"{alive} alive", rest)]


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
