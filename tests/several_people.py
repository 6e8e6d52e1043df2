"""A database of several people: what one of them keeps private or anonymous carries marks that nobody else may meet."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

sys.path.insert(0, str(Path(__file__).parent / "platform"))

from played import built_in, given, register, steps, succeed, take, tiny, work_off, worker

from dare.spec import Event
from dare_platform import entries
from dare_platform.ingest import ingest
from dare_platform.lease import Claim
from dare_platform.models import Account, Role, Run, Visibility
from dare_platform.uploads import read_upload
from dare_platform.viewer import LOCAL, NOBODY, Viewer, viewer_of

ISSUER = "https://id.example"
HANDLE, AUTHOR = "quagga", "account-of-quagga"
AS_AUTHOR = viewer_of(AUTHOR, "submitter")
SOURCE = '''"""{mark}Module: written by Quagga."""

from dataclasses import dataclass

from dare.algorithm import GRPO


@dataclass(frozen=True, kw_only=True)
class {mark}Rule(GRPO):
    """{mark}Rule clips at half."""

    clip_low: float = {value}
    """{mark}Setting."""
'''


@dataclass(frozen=True)
class People:
    """Ids of what is there, and who looks at it."""

    private: dict[str, str]
    """Entry by name: a file and a built-in method, of the author."""
    anonymous: str
    public: str
    """Of somebody else."""
    runs: dict[str, list[str]]
    """By entry."""
    author: Viewer
    other: Viewer
    operator: Viewer

    @property
    def strangers(self) -> dict[str, Viewer]:
        """Those who must not see."""
        return {"nobody": NOBODY, "another submitter": self.other}

    def marks_of_private(self) -> list[str]:
        """Everything that gives a private entry away."""
        ids = [id for entry in self.private.values() for id in (entry, *self.runs[entry])]
        return [*self.private, *ids, "ZebraRule", "ZebraModule", "ZebraSetting", "zebra_metric", "zebra-log"]

    def marks_of_anonymous(self) -> list[str]:
        """Everything that gives the author of an anonymous entry away, or what they wrote."""
        return [HANDLE, AUTHOR, "Quagga", "LynxRule", "LynxModule", "LynxSetting", "lynx-log"]

    @property
    def all_runs(self) -> list[str]:
        return [run for runs in self.runs.values() for run in runs]

    @property
    def all_entries(self) -> list[str]:
        return list(self.runs)


def account(session: Session, id: str, handle: str, role: Role, subject: str | None = None) -> Viewer:
    """Somebody whom the provider knows."""
    session.add(
        Account(
            id=id, handle=handle, role=role, auth_provider=ISSUER, auth_subject=subject or id,
            email=f"{handle}@example.org", created_at=datetime.now(UTC),
        )
    )  # fmt: skip
    session.flush()
    return viewer_of(id, role)


def fill(session: Session) -> People:
    """A board with a private and an anonymous file, a private built-in method and other people's work."""
    register(session)
    author = account(session, AUTHOR, HANDLE, "submitter")
    other = account(session, "account-of-other", "otter", "submitter")
    operator = account(session, "account-of-operator", "olingo", "operator")
    reference = entries.submit(session, LOCAL, built_in("untouched"), "reference").entry_id
    public = entries.submit(session, other, built_in("d1"), "public").entry_id
    okapi = _submit_built_in(session, "okapi")
    lynx = _submit_file(session, "lynx", "Lynx", "anonymous")
    while (claimed := take(session)) is not None:
        _log(session, claimed, "lynx" if session.get_one(Run, claimed.run_id).entry_id == lynx else "ordinary")
        succeed(session, claimed, lambda run, task: 0.3 + 0.004 * run.seed)
    zebra = _submit_file(session, "zebra", "Zebra", "private")
    checked = take(session)
    assert checked is not None
    _log(session, checked, "zebra")
    succeed(session, checked, lambda run, task: 0.9)
    working = take(session)
    assert working is not None
    _log(session, working, "zebra")
    worker(session)
    runs = {
        entry: list(session.execute(select(Run.id).where(Run.entry_id == entry)).scalars())
        for entry in (reference, public, okapi, lynx, zebra)
    }
    return People({"zebra": zebra, "okapi": okapi}, lynx, public, runs, author, other, operator)


def _submit_file(session: Session, name: str, mark: str, visibility: Visibility) -> str:
    text = SOURCE.format(mark=mark, value=0.11 if mark == "Lynx" else 0.12)
    submission = given(read_upload(f"{name}.py", text.encode(), None, tiny(), ["llada-tiny"], name=name))
    return entries.submit(session, AS_AUTHOR, submission, name, visibility).entry_id


def _submit_built_in(session: Session, name: str) -> str:
    submission = built_in("bgpo", "mc_samples: 3", entry_name=name)
    return entries.submit(session, AS_AUTHOR, submission, name, "private").entry_id


def _log(session: Session, claimed: Claim, name: str) -> None:
    if claimed.job.kind == "train":
        steps(session, claimed, 3)
    metrics = {f"{name}_metric": 0.5} if claimed.job.kind == "train" else {}
    event = Event(at=9.0, kind="step", stage="train", step=4, of=32, metrics=metrics, forwards=4.0, device_seconds=4.0)
    events = [event] if metrics else []
    assert ingest(session, claimed.run_id, claimed.token, events, f"{name}-log: a line\n", actor=claimed.actor)


__all__ = ["AUTHOR", "HANDLE", "ISSUER", "People", "account", "fill", "work_off"]
