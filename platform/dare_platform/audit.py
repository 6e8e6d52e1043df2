"""The note of what somebody changed by hand: who, what, and to what. Written with the change or not at all."""

from __future__ import annotations

from sqlalchemy.orm import Session

from dare_platform.database import now
from dare_platform.models import AuditLog


def note(session: Session, actor_id: str | None, action: str, subject: str, text: str | None = None) -> None:
    """Append to the audit log. `text` names nobody: what is written here is never erased."""
    session.add(AuditLog(at=now(session), actor_id=actor_id, action=action, subject=subject, note=text))
    session.flush()
