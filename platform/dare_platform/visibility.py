"""Who may see an entry, and the act that opens it. It only opens: what was public once cannot be made unseen.

Whoever could take a bad try back from the board would compare algorithms by their luckiest try. What should not be
ranked is withdrawn, which keeps its results and its number. Only an operator may close again what was opened by
mistake.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from dare.source.problems import Problem
from dare_platform.database import now
from dare_platform.entries import RefusedError, UnknownEntryError
from dare_platform.entry_rows import is_taken
from dare_platform.models import AlgorithmVersion, AuditLog, Entry, Visibility
from dare_platform.viewer import Viewer

OPENNESS: Mapping[Visibility, int] = {"private": 0, "anonymous": 1, "public": 2}


def wider_than(visibility: Visibility) -> tuple[Visibility, ...]:
    """What an author may still turn this into."""
    return tuple(other for other in OPENNESS if OPENNESS[other] > OPENNESS[visibility])


def show_to(session: Session, viewer: Viewer, entry_id: str, visibility: Visibility) -> None:
    """Let more people see an entry: private, then anonymous, then public. The same again changes nothing."""
    entry = session.execute(select(Entry).where(Entry.id == entry_id, viewer.sees())).scalar_one_or_none()
    if entry is None:
        raise UnknownEntryError(f"there is no entry `{entry_id}`")
    viewer.require_own(entry)
    if entry.visibility == visibility:
        return
    if visibility not in wider_than(entry.visibility) and not viewer.may("operate"):
        text = f"Entry `{entry_id}` is {entry.visibility} and cannot become {visibility}: others have seen it."
        text += " Withdraw it instead."
        raise RefusedError(Problem("already_seen", None, text))
    if entry.kind == "reference" and visibility != "public":
        text = "The untouched backbone is what every gain is taken against, for everybody."
        raise RefusedError(Problem("reference_is_public", None, text))
    if entry.visibility == "private" and _name_was_taken(session, entry):
        text = f"The name `{entry.name}` stands for another algorithm on this board by now. Submit it under another."
        raise RefusedError(Problem("name_taken", None, text))
    was = entry.visibility
    session.execute(update(Entry).where(Entry.id == entry_id).values(visibility=visibility))
    session.add(
        AuditLog(
            at=now(session),
            actor_id=viewer.account_id,
            action="show",
            subject=entry_id,
            note=f"was {was}, is {visibility}",
        )
    )
    session.flush()


def _name_was_taken(session: Session, entry: Entry) -> bool:
    """While an entry was private, somebody else may have taken its name."""
    version = session.get(AlgorithmVersion, entry.algorithm_version_id) if entry.algorithm_version_id else None
    algorithm = version.algorithm_id if version is not None else None
    return is_taken(session, entry.track_version_id, entry.name, algorithm, entry.submitted_by)
