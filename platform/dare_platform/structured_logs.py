"""How our processes write their log: a line for people, or with `DARE_LOG=json` an object for programs.

What looks like a secret never gets into either: values of settings that are secrets, and passwords within addresses.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

from dare_platform.errors import SettingsError
from dare_platform.settings import with_files

FIELDS = ("run_id", "token", "worker")
"""Given as `extra={...}`, these are fields of their own."""
TAKEN_OVER = ("uvicorn", "celery", "kombu", "streamlit")
"""Loggers whose libraries give them handlers of their own."""
HIDDEN = "***"
_PASSWORD = re.compile(r"(?<=://)([^\s/@:]*):([^\s/@]+)(?=@)")
_BEARER = re.compile(r"(?i)\b(bearer\s+)[^\s\"']+")
_SECRET = re.compile(r"(SECRET|PASSWORD|TOKEN|KEY)(_ID)?$")


def set_up(service: str, environment: Mapping[str, str] | None = None) -> None:
    """Once, at the start of a process. Repeating it changes nothing more."""
    env = with_files(os.environ if environment is None else environment)
    how = env.get("DARE_LOG") or "plain"
    if how not in ("plain", "json"):
        raise SettingsError(f"DARE_LOG is {how!r}; it must be plain or json")
    secrets = secrets_of(env)
    handler = _ToStandardError()
    handler.setFormatter(JsonLines(service, secrets) if how == "json" else PlainLines(secrets))
    root = logging.getLogger()
    root.handlers[:] = [handler, *(one for one in root.handlers if type(one) not in OURS)]
    if how == "json":
        for name in ("dare_platform", "leaderboard"):
            logging.getLogger(name).setLevel(logging.INFO)
    known = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] in TAKEN_OVER]
    for name in {*TAKEN_OVER, *known}:
        taken = logging.getLogger(name)
        taken.handlers.clear()
        taken.propagate = True


class _ToStandardError(logging.StreamHandler[TextIO]):
    """Wherever that is by now."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:
        """Asked for every line."""
        return sys.stderr

    @stream.setter
    def stream(self, value: TextIO) -> None:
        """There is no other."""


OURS = (logging.StreamHandler, _ToStandardError)
"""Handlers that are replaced; one of another kind was put there on purpose."""


def secrets_of(env: Mapping[str, str]) -> tuple[str, ...]:
    """Values that must not be written, longest first: a secret may be part of another."""
    found = {value for name, value in env.items() if _SECRET.search(name) and len(value) >= 6}
    for name, value in env.items():
        if name.startswith("DARE_") and name.endswith("_URL"):
            found.update(match.group(2) for match in _PASSWORD.finditer(value))
    return tuple(sorted(found, key=len, reverse=True))


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """The same text, fit to be kept."""
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return _BEARER.sub(rf"\1{HIDDEN}", _PASSWORD.sub(rf"\1:{HIDDEN}", text))


class PlainLines(logging.Formatter):
    """Time, level, logger, message."""

    def __init__(self, secrets: Iterable[str]) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._secrets = tuple(secrets)

    def format(self, record: logging.LogRecord) -> str:
        """Traces included."""
        return without_secrets(super().format(record), self._secrets)


class JsonLines(logging.Formatter):
    """One object a line, whatever the message holds."""

    def __init__(self, service: str, secrets: Iterable[str]) -> None:
        super().__init__()
        self._service, self._secrets = service, tuple(secrets)

    def format(self, record: logging.LogRecord) -> str:
        """Fields in a fixed order."""
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": self._clean(record.getMessage()),
        }
        for name in FIELDS:
            if (value := getattr(record, name, None)) is not None:
                line[name] = value if isinstance(value, int) else self._clean(str(value))
        if record.exc_info:
            line["trace"] = self._clean("".join(traceback.format_exception(*record.exc_info)))
        return json.dumps(line, ensure_ascii=False)

    def _clean(self, text: str) -> str:
        return without_secrets(text, self._secrets)
