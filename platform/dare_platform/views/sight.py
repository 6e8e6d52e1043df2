"""What somebody may know of an entry: whether it is there at all, who sent it in, and what its code says.

A private entry is there for its author and for operators. An anonymous one is there for all, with its name and its
numbers; its author, and of a submitted file all that its author wrote, are withheld from everybody else.
"""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from dare_platform.models import Account, AlgorithmVersion, Entry, Run
from dare_platform.viewer import Viewer


def sees_run(session: Session, viewer: Viewer, run_id: str) -> bool:
    """Whether a run is there for somebody. Unknown and private are the same answer."""
    query = select(Run.id).join(Entry, Entry.id == Run.entry_id).where(Run.id == run_id, viewer.sees())
    return session.execute(query).first() is not None


def is_inside(viewer: Viewer, entry: Entry) -> bool:
    """Whether the entry hides nothing from somebody: it is public, or theirs, or they operate this place."""
    return entry.visibility == "public" or viewer.is_owner(entry) or viewer.may("operate")


def is_withheld(viewer: Viewer, entry: Entry, version: AlgorithmVersion | None) -> bool:
    """Whether source, settings, log and order of an entry are withheld. Built-in methods are everybody's."""
    return not is_inside(viewer, entry) and version is not None and not version.built_in


def may_act(viewer: Viewer, entry: Entry) -> bool:
    """Whether somebody may cancel, withdraw or change an entry."""
    return viewer.may("submit") and (viewer.is_owner(entry) or viewer.may("operate"))


def author_of(session: Session, viewer: Viewer, entry: Entry) -> str | None:
    """The handle of who sent it in, where somebody may know; None also for the one person of this machine."""
    if not is_inside(viewer, entry):
        return None
    account = session.get_one(Account, entry.submitted_by)
    return None if account.auth_provider == "local" else account.handle


def sees_log(session: Session, viewer: Viewer, run_id: str) -> bool:
    """Whether somebody may read what a run printed: it shows the code that ran."""
    row = session.execute(
        select(Entry, AlgorithmVersion)
        .join(Run, Run.entry_id == Entry.id)
        .outerjoin(AlgorithmVersion, AlgorithmVersion.id == Entry.algorithm_version_id)
        .where(Run.id == run_id, viewer.sees())
    ).first()
    return row is not None and not is_withheld(viewer, row[0], row[1])
